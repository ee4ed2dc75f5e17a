"""Figs. 2 and 3: the task, and the second layer of its solution."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

from stagelens.base import generator
from stagelens.claims import Lab
from stagelens.experiments import Floats
from stagelens.figures import panels
from stagelens_recall import theory
from stagelens_recall.data import sample_sequences

ORDER, RESPONSES = 2, 2  # of Fig. 2
WIDTH = 0.8  # of a token


def fig2(lab: Lab) -> Figure:  # noqa: ARG001
    """Draws Fig. 2: one sequence of order 2, permuted symbols as rectangles and responses as triangles."""
    *tokens, answer = sample_sequences(ORDER, RESPONSES, 1, generator(0, "figure"))[0].tolist()
    title = f"The recall task of order {ORDER} with {RESPONSES} responses (Fig. 2)"
    figure, ((axis,),) = panels(1, 1, title, size=(7.2, 1.9))
    for place, token in enumerate(tokens):
        _draw_token(axis, place, token)
    _draw_token(axis, len(tokens), ORDER, "?")
    axis.text(len(tokens) + 0.7, 0.5, f"answer: {_letter(answer)}", va="center")
    last = len(tokens) - ORDER
    for start, end, name in ((0, last, "every permutation with its response"), (last, len(tokens), "query")):
        axis.plot([start - 0.45, end - 0.55], [1.25, 1.25], color="black", lw=1)
        axis.text((start + end - 1) / 2, 1.35, name, ha="center", fontsize=8)
    axis.set(xlim=(-0.7, len(tokens) + 2.6), ylim=(-0.1, 1.7))
    axis.axis("off")
    return figure


def _letter(token: int) -> str:
    """Returns the name of a token: a digit for a symbol that is permuted, a letter for a response."""
    return str(token) if token < ORDER else chr(ord("A") + token - ORDER)


def _draw_token(axis: Any, place: int, token: int, name: str | None = None) -> None:
    left, right = place - WIDTH / 2, place + WIDTH / 2
    if token < ORDER:
        axis.add_patch(Rectangle((left, 0), WIDTH, 1, facecolor="0.9", edgecolor="black"))
    else:
        axis.add_patch(Polygon([(left, 0), (right, 0), (place, 1)], facecolor="white", edgecolor="black"))
    axis.text(place, 0.5 if token < ORDER else 0.3, name or _letter(token), ha="center", va="center")


def fig3(lab: Lab) -> Figure:
    """Draws Fig. 3: Q^T K of the solution of A.2, next to that of the original model after training."""
    run = lab.run("recall/original", probes=("kl_to_references",))
    c = run.experiment.config
    second = run.model_at(c.steps).blocks[1].attn
    learned = (second.Q.T @ second.K).detach().numpy()
    title = f"Q^T K of the second layer, order {c.order} (Fig. 3)"
    figure, (axes,) = panels(1, 2, title, size=(3.9, 3.9))
    shown = {"construction (A.2), c = 1": theory.solution(c.order, c.responses, c.n_heads), "trained model": learned}
    for axis, (name, matrix) in zip(axes, shown.items(), strict=True):
        _draw_blocks(axis, matrix, c.n_heads + 1)
        axis.set_title(name)
    axes[0].set_ylabel("slot of the query: 0 is its own token, i is head i")
    return figure


def _draw_blocks(axis: Any, matrix: Floats, slots: int) -> None:
    """Draws a matrix of slots by slots blocks, with lines between them."""
    size, largest = len(matrix) // slots, float(np.abs(matrix).max()) or 1.0
    axis.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest)
    for edge in range(1, slots):
        axis.axhline(edge * size - 0.5, color="0.6", lw=0.6)
        axis.axvline(edge * size - 0.5, color="0.6", lw=0.6)
    middles = [slot * size + (size - 1) / 2 for slot in range(slots)]
    axis.set_xticks(middles, range(slots))
    axis.set_yticks(middles, range(slots))
    axis.set_xlabel("slot of the key")
