"""Trains in two processes, with and without a recorder on the first one. `python -m kit.two_processes` prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import distributed as dist, multiprocessing
from torch.nn.parallel import DistributedDataParallel

import stagelens as sl
from kit.own_models import next_token_loss, plain_model, tokens_like_text
from stagelens.integrations.lightning import StagelensCallback

STEPS, PROCESSES = 3, 2


def digest(model: torch.nn.Module) -> float:
    return float(sum(value.double().sum() for value in model.state_dict().values()))


def train(rank: int, world: int, run: str | None) -> tuple[list[float], float, list[int]]:
    """Returns losses, weights and random state of this process after a few steps of a wrapped model with dropout."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(plain_model("scaled", dropout=0.2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder: Any = None
    if run is not None and rank == 0:
        probes = ["attention_sparsity", "induction"]
        recorder = sl.Recorder(model, probes, batch=tokens_like_text(), loss=next_token_loss, run=run)
    torch.manual_seed(rank)
    losses = []
    for step in range(STEPS):
        if recorder is not None:
            recorder.measure(step)
        loss = next_token_loss(model, tokens_like_text(seed=step * world + rank))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    if recorder is not None:
        recorder.finish()
    return losses, digest(model.module), torch.get_rng_state()[-16:].tolist()


def one(rank: int, answers: Any) -> None:
    torch.set_num_threads(1)
    meeting = Path("meeting").resolve().as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=PROCESSES)
    answers[rank] = [train(rank, PROCESSES, None), train(rank, PROCESSES, "wrapped")]
    dist.destroy_process_group()


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = plain_model("scaled", dropout=0.2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(tokens)
        return logits

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return next_token_loss(self, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(callbacks: list[Any]) -> float:
    """Returns the weights after training by Lightning in two processes."""
    torch.manual_seed(0)
    module = Module()
    rows: Any = list(tokens_like_text(24))
    trainer = lightning.Trainer(
        strategy="ddp_fork",
        devices=PROCESSES,
        accelerator="cpu",
        max_steps=STEPS,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True))
    return digest(module)


def main() -> None:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        answers = manager.dict()
        processes = [context.Process(target=one, args=(rank, answers)) for rank in range(PROCESSES)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        wrapped = [answers[rank] for rank in range(PROCESSES)]
    callback = StagelensCallback(tokens_like_text(), run="lightning", probes=["induction"])
    sys.stdout.write(json.dumps({"wrapped": wrapped, "lightning": [fit([]), fit([callback])]}) + "\n")


if __name__ == "__main__":
    main()
