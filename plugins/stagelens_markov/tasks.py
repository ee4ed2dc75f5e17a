"""The trained tasks: the minimal architecture and a standard transformer on the same chain."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from stagelens import Group, Task
from stagelens.base import derive, generator
from stagelens.experiments import trained
from stagelens.models import HookedRootModule
from stagelens_markov.config import MarkovConfig, MarkovFullConfig
from stagelens_markov.data import MarkovProcess, importance, log_probabilities, make_process, sample_sequences
from stagelens_markov.losses import excess_loss, nearest_predictor, next_token_loss
from stagelens_markov.model import MinimalTransformer, restrict_context

# Tables 2 and 3; `patience` is ten passes of three batches.
PAPER = {"steps": 2000, "batch_size": 3000, "lr": 0.003, "train_size": 9000, "eval_size": 3000, "patience": 30}

SOURCES = {  # of the values of PAPER, and of the configs' defaults
    "Table 1": ("d", "h", "m", "b0", "T", "train_size", "eval_size"),
    "Table 2": ("steps", "batch_size", "lr", "weight_decay", "clip"),
    "Table 4": ("intervals",),
    "a guess: Table 2's patience of 10 counts passes over the training set": ("patience",),
}

Reference = Callable[[Tensor], Tensor]  # tokens [n, w + T] -> log probabilities


class OnTheChain(Task):
    """Base of both tasks: the chain, the loss, the optimizer, and the references."""

    unpredicted = "the paper's theory is about the gradient flow of markov/flow; it predicts no number of this training"

    Config = MarkovConfig

    @cached_property
    def process(self) -> MarkovProcess:
        """The chain, drawn from the run's seed."""
        c = self.config
        return make_process(c.d, importance(c.m, c.b0, c.h), c.intervals, generator(self.seed, "process"))

    @abstractmethod
    def build_model(self) -> HookedRootModule:
        """Returns a model from tokens [n, key] to logits [n, query, d]; only the last queries have to predict."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of keys and of predicted tokens of one input: a sequence or a window."""
        c = self.config
        return (c.window, 1) if c.window else (c.order + c.T - 1, c.T)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draws sequences x_{-w+1}..x_T, [n, w + T]."""
        return sample_sequences(self.process, self.config.T, n, generator)

    def inputs(self, batch: Tensor) -> Tensor:
        """Returns the model's input from [n, w + T] tokens: all but the last one, or sliding windows [n T, window]."""
        c = self.config
        if not c.window:
            return batch[:, :-1]
        return batch[:, c.order - c.window : -1].unfold(1, c.window, 1).flatten(0, 1)

    def logits(self, output: Tensor) -> Tensor:
        """Returns the model's output as logits of x_1..x_T, [n, T, d]."""
        return output[:, self.queries()].reshape(-1, self.config.T, self.config.d)

    def loss(self, model: HookedRootModule, batch: Tensor) -> Tensor:
        return next_token_loss(self.logits(model(self.inputs(batch))), batch)

    def queries(self) -> slice:
        return slice(-self.shape[1], None)

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        return {"excess": excess_loss(self.process, self.logits(output), batch)}

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        """Returns AdamW without its fused kernel, which rounds the tail of a tensor differently.

        With it, rounding would break the symmetry between identical heads.
        """
        c = self.config
        return torch.optim.AdamW(model.parameters(), lr=c.lr, weight_decay=c.weight_decay, fused=False)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> ReduceLROnPlateau | None:
        """Halves the rate after `patience` steps without progress, with a training set or fresh data."""
        patience = self.config.patience
        return ReduceLROnPlateau(optimizer, factor=0.5, patience=patience) if patience else None

    def groups(self) -> Mapping[str, Group]:
        """Returns I(1), I(2), ... as offsets: a query is at lag 1 of what it predicts, so lag i has offset i - 1."""
        return {
            f"I({k})": Group(offsets=tuple(lag - 1 for lag in interval))
            for k, interval in enumerate(self.config.intervals, start=1)
        }

    def references(self) -> Mapping[str, Reference]:
        """Returns Eq. 3's predictors, which know I(1), then I(1) and I(2), ..., or models trained on such a context."""
        c = self.config
        known: dict[str, Reference] = {}
        if c.compare == "chain":
            known = {f"A*_1:{i}": partial(log_probabilities, self.process, first=i) for i in range(1, c.h + 1)}
        else:
            key = "context" if c.compare == "contexts" else "window"
            known = {f"c={lags}": self._learns(key, lags) for lags in c.contexts}
        return {name: self._shaped(predict) for name, predict in known.items()}

    def _learns(self, key: str, lags: int) -> Reference:
        """Returns a model restricted to `lags` lags, trained for as many steps on other sequences of the same chain.

        It has a seed of its own for its start and its data: with the run's seed, the reference without a restriction
        would be the run itself.
        """
        changes = {"context": 0, "window": 0, "compare": "chain", key: lags}
        task = type(self)(self.config.model_copy(update=changes), derive(self.seed, "references"))
        task.process = self.process
        models: list[HookedRootModule] = []  # trained at the first call, when the device is known

        def predict(batch: Tensor) -> Tensor:
            if not models:
                models.append(trained(task, batch.device))
            with torch.no_grad():
                return task.logits(models[0](task.inputs(batch))).log_softmax(-1)

        return predict

    def _shaped(self, predict: Reference) -> Reference:
        """Returns `predict` in the shape of the part of this task's output that predicts."""
        return lambda batch: predict(batch).reshape(-1, self.shape[1], self.config.d)

    def stage_names(self) -> Sequence[str]:
        return [f"I({k}) learned" for k in range(1, self.config.h + 1)]

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_markov.figures.trained import stages_figure

        return {"fig1": stages_figure(run)}


class Minimal(OnTheChain):
    """The minimal architecture on the chain with three intervals of two lags (C.1)."""

    id = "markov/minimal"
    title = "attention heads compete, then share out the positions of a high-order Markov chain"
    presets = {
        "quick": {"d": 12, "T": 12, "b0": 5.0, "batch_size": 384, "lr": 0.03, "eval_size": 256, "init_scale": 0.01}
        | {"steps": 1200},
        "paper": PAPER | {"init_scale": 1.0},
    }
    sources = SOURCES | {"a guess: the full model's scale (Table 3); C.1 gives no u for Fig. 1": ("init_scale",)}
    without = {
        "qk_alignment": "each head has one matrix of scores, without keys and queries of its own",
    }

    def build_model(self) -> HookedRootModule:
        c, (keys, predicted) = self.config, self.shape
        before = keys - predicted + 1
        stream = generator(self.seed, "init")
        return MinimalTransformer(c.d, before, predicted, c.n_heads, c.init_scale, stream, c.context)


class Full(OnTheChain):
    """A standard one-block transformer (Table 3): embeddings, layer norm, dropout, feedforward layer.

    Its loss slows down between the stages without a plateau, so its stages are those of `known`.
    """

    id = "markov/full"
    title = "a standard one-block transformer on the same chain"
    metric = "known"
    Config = MarkovFullConfig
    presets = {
        "quick": {"d": 20, "T": 4, "b0": 7.5, "intervals": [[1, 2], [3, 4], [5, 6]], "d_model": 63, "d_mlp": 32}
        | {"steps": 600, "batch_size": 500, "lr": 0.003, "train_size": 9000, "eval_size": 500, "init_scale": 0.1},
        "paper": PAPER,
    }
    sources = SOURCES | {
        "Table 3": ("d_model", "d_mlp", "dropout"),
        "a guess: Table 3's scale of 1 is TransformerLens' own start": ("init_scale",),
    }

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        """Returns also `known`, the i of the predictor f_{A*_1:i} (Eq. 3) that is nearest to the model."""
        known = nearest_predictor(self.process, self.logits(output), batch)
        return {**super().metrics(output, batch), "known": known}

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
        return restrict_context(model, c.context) if c.context else model
