"""The trained tasks: the minimal architecture and the full one on the same chain."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformer_lens import HookedRootModule

from stagelens import Group, Task
from stagelens.base import derive, generator, untouched_rng
from stagelens.experiments import Config
from stagelens_markov.config import FullConfig, MarkovConfig
from stagelens_markov.data import Process, importance, log_probabilities, make_process, sample_sequences
from stagelens_markov.model import MinimalTransformer, see_only

Reference = Callable[[Tensor], Tensor]


class OnTheChain(Task):
    """What both architectures share: the chain, the loss, the optimizer, and what they are compared with."""

    Config: ClassVar[type[Config]] = MarkovConfig

    @cached_property
    def process(self) -> Process:
        """The chain, drawn from the run's seed."""
        c = self.config
        return make_process(c.d, importance(c.m, c.b0, c.h), c.intervals, generator(self.seed, "process"))

    @abstractmethod
    def build_model(self) -> HookedRootModule:
        """Tokens [n, key] -> logits [n, query, d] at least at the queries that predict."""

    @property
    def shape(self) -> tuple[int, int]:
        """(keys, predicted tokens) of an input: of a whole sequence, or of one window."""
        c = self.config
        return (c.window, 1) if c.window else (c.order + c.T - 1, c.T)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Sequences x_{-w+1}..x_T, [n, w + T]."""
        return sample_sequences(self.process, self.config.T, n, generator)

    def inputs(self, batch: Tensor) -> Tensor:
        """What the model sees of [n, w + T] tokens: all but the last one, or windows slid over them, [n T, window]."""
        c = self.config
        if not c.window:
            return batch[:, :-1]
        return batch[:, c.order - c.window : -1].unfold(1, c.window, 1).flatten(0, 1)

    def logits(self, output: Tensor) -> Tensor:
        """The model's output as logits of x_1..x_T, [n, T, d]."""
        return output[:, self.queries()].reshape(-1, self.config.T, self.config.d)

    def loss(self, model: HookedRootModule, batch: Tensor) -> Tensor:
        """Cross-entropy at x_1..x_T, the tokens that the chain itself has drawn."""
        logits = self.logits(model(self.inputs(batch)))
        return cross_entropy(logits.flatten(0, 1), batch[:, -self.config.T :].flatten())

    def queries(self) -> slice:
        return slice(-self.shape[1], None)

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        """The loss in excess of the chain's own, on the same tokens: an estimate of the loss minus the entropy."""
        drawn = batch[:, -self.config.T :, None]
        ideal = log_probabilities(self.process, batch).gather(-1, drawn)
        return {"excess": (ideal - self.logits(output).log_softmax(-1).gather(-1, drawn)).mean()}

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        """AdamW. Its fused kernel rounds the last numbers of a tensor unlike the rest, which parts equal heads."""
        c = self.config
        return torch.optim.AdamW(model.parameters(), lr=c.lr, weight_decay=c.weight_decay, fused=False)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> ReduceLROnPlateau | None:
        """Halves the rate after `patience` steps without progress, with a training set and without."""
        patience = self.config.patience
        return ReduceLROnPlateau(optimizer, factor=0.5, patience=patience) if patience else None

    def groups(self) -> Mapping[str, Group]:
        """I(1), I(2), ...: the query that predicts a token stands at lag 1, so lag i is i - 1 keys back."""
        return {
            f"I({k})": Group(offsets=tuple(lag - 1 for lag in interval))
            for k, interval in enumerate(self.config.intervals, start=1)
        }

    def references(self) -> Mapping[str, Reference]:
        """Eq. 3's predictors, which know only I(1), then I(1) and I(2), ...; or models trained on as much context."""
        c = self.config
        if c.compare == "chain":
            known = {f"A*_1:{i}": self._knows(i) for i in range(1, c.h + 1)}
        else:
            key = "context" if c.compare == "contexts" else "window"
            known = {f"c={lags}": self._learns(key, lags) for lags in c.contexts}
        return {name: self._shaped(predict) for name, predict in known.items()}

    def _knows(self, first: int) -> Reference:
        return lambda batch: log_probabilities(self.process, batch, first)

    def _learns(self, key: str, lags: int) -> Reference:
        """The same model, trained on the same data in the same order for as many steps, but seeing only `lags` lags."""
        changes = {"context": 0, "window": 0, "compare": "chain", key: lags}
        task = type(self)(self.config.model_copy(update=changes), self.seed)
        trained: list[HookedRootModule] = []  # on first use, when the device is known

        def predict(batch: Tensor) -> Tensor:
            if not trained:
                trained.append(train(task, batch.device))
            with torch.no_grad():
                return task.logits(trained[0](task.inputs(batch))).log_softmax(-1)

        return predict

    def _shaped(self, predict: Reference) -> Reference:
        """`predict` in the shape of this task's scored output."""
        return lambda batch: predict(batch).reshape(-1, self.shape[1], self.config.d)

    def stage_names(self) -> Sequence[str]:
        return [f"I({k}) learned" for k in range(1, self.config.h + 1)]

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_markov.figures import stages_figure

        return {"stages": stages_figure(run)}


def train(task: Task, device: torch.device | str) -> HookedRootModule:
    """The model of `task` after all of its steps, ready to predict."""
    from stagelens.experiments import Training

    with untouched_rng(), torch.enable_grad():
        training = Training(task, device)
        for step in range(task.config.steps):
            training.advance(step)
        training.check()
    return training.model.eval()


class Minimal(OnTheChain):
    """The minimal architecture on the chain with three intervals of two lags (C.1)."""

    id = "markov/minimal"
    title = "attention heads compete, then share out the positions of a high-order Markov chain"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {
            "d": 12,
            "T": 12,
            "b0": 5.0,
            "steps": 1200,
            "batch_size": 384,
            "lr": 0.03,
            "eval_size": 256,
            "init_scale": 0.01,
        },
        "paper": {
            "steps": 2000,
            "batch_size": 3000,
            "lr": 0.003,
            "train_size": 9000,
            "eval_size": 3000,
            "patience": 30,  # 10 passes of 3 batches
            "init_scale": 1.0,
        },
    }

    def build_model(self) -> HookedRootModule:
        c, (keys, predicted) = self.config, self.shape
        before = keys - predicted + 1
        stream = generator(self.seed, "init")
        return MinimalTransformer(c.d, before, predicted, c.n_heads, c.init_scale, stream, c.context)


class Full(OnTheChain):
    """The standard one-block transformer (Table 3): embeddings, layer norm, dropout, feedforward layer.

    Its loss slows down between the stages but does not rest, so its stages are those of `known`.
    """

    id = "markov/full"
    title = "a standard one-block transformer on the same chain"
    metric = "known"
    Config: ClassVar[type[Config]] = FullConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {
            "d": 20,
            "T": 4,
            "b0": 7.5,
            "intervals": [[1, 2], [3, 4], [5, 6]],
            "d_model": 63,
            "d_mlp": 32,
            "steps": 600,
            "batch_size": 500,
            "lr": 0.003,
            "train_size": 9000,
            "eval_size": 500,
            "init_scale": 0.1,
        },
        "paper": {
            "steps": 2000,
            "batch_size": 3000,
            "lr": 0.003,
            "train_size": 9000,
            "eval_size": 3000,
            "patience": 30,  # 10 passes of 3 batches
        },
    }

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        """Also `known`: i of the predictor f_{A*_1:i} (Eq. 3) that is nearest by KL divergence; 0 guesses evenly."""
        found = self.logits(output).log_softmax(-1)
        predictors = torch.stack([log_probabilities(self.process, batch, i) for i in range(self.config.h + 1)])
        divergence = (predictors.exp() * (predictors - found)).sum(-1).mean((1, 2))  # [i]
        return {**super().metrics(output, batch), "known": divergence.argmin()}

    def build_model(self) -> HookedRootModule:
        from stagelens.models import build_transformer

        c = self.config
        model = build_transformer(
            n_layers=1,
            n_heads=c.n_heads,
            d_model=c.d_model,
            d_head=max(1, c.d_model // c.n_heads),
            d_mlp=c.d_mlp,
            n_ctx=self.shape[0],
            d_vocab=c.d,
            dropout=c.dropout,
            init_scale=c.init_scale,
            seed=derive(self.seed, "init"),
        )
        return see_only(model, c.context) if c.context else model
