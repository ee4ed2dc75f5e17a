"""The papers' flows keep their conserved quantities constant, and their loss never rises, for any config."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

import stagelens as sl
from stagelens.experiments.flow import integrate
from stagelens_emergence.config import ReducedConfig
from stagelens_emergence.flow import ReducedFlow
from stagelens_linear_icl.config import ProblemFlowConfig
from stagelens_linear_icl.flow import LinearFlow
from stagelens_markov.config import MarkovFlowConfig
from stagelens_markov.flow import RegressionFlow
from stagelens_recall.config import RecallFlowConfig
from stagelens_recall.flow import RecallFlow
from stagelens_recall.theory import alpha_of, conserved as recall_conserved
from stagelens_rich.config import RichFlowConfig
from stagelens_rich.flow import RichFlow

EXACT = {"points": 20, "rtol": 1e-11, "atol": 1e-13}
few = settings(max_examples=5)
seeds = st.integers(0, 10**6)


def path(kind: type[Any], config: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """The whole state over time and the loss, [time, ...] each, of the flow as the host integrates it."""

    class Watched(kind):
        def observables(self, time, state):
            yield from (r for r in super().observables(time, state) if r.name in ("loss", "train_loss"))
            for name, value in state.items():
                yield sl.Reading(f"state/{name}", value, tuple(f"{name}{axis}" for axis in range(np.ndim(value))))

    found = integrate(Watched(config, seed))
    assert not found.error, found.error
    named = [{r.name.removeprefix("state/"): r.array() for r in readings} for readings in found.readings]
    return {name: np.array([readings[name] for readings in named]) for name in named[0]}


def assert_constant(values: np.ndarray, scale: np.ndarray | float, share: float = 1e-7) -> None:
    """`values` [time, ...] stay where they start, to `share` of `scale`, the size of what they are differences of."""
    assert (np.abs(values - values[0]) <= share * np.max(scale)).all(), np.abs(values - values[0]).max() / np.max(scale)


def assert_never_rises(loss: np.ndarray) -> None:
    assert (np.diff(loss) <= 1e-9 * loss[0]).all(), np.diff(loss).max() / loss[0]


def assert_moved(values: np.ndarray, share: float = 1e-5) -> None:
    """Asserts that the values change; otherwise a flow that does not move would count as conserving."""
    assert np.ptp(values, axis=0).max() > share * np.abs(values[0]).max()


@few
@given(st.data(), seeds)
def test_linear_attention_conserves_the_balance_of_each_heads_weights(data, seed):
    """Eqs. 44 and 50."""
    D = data.draw(st.integers(1, 4))
    config = ProblemFlowConfig(
        D=D,
        H=data.draw(st.integers(1, 3)),
        R=data.draw(st.integers(1, D)),
        N=data.draw(st.integers(1, 40)),
        spectrum=[data.draw(st.floats(0.2, 2)) for _ in range(D)],
        w_init=data.draw(st.floats(0.1, 1)),
        loss=data.draw(st.sampled_from(["query", "next-token"])),
        time=data.draw(st.floats(10, 200)),
        **EXACT,
    )
    found = path(LinearFlow, config, seed)
    keys, queries = (found["k"] ** 2).sum(-1), (found["q"] ** 2).sum(-1)  # [time, head, rank]
    size = max(keys.max(), queries.max(), (found["v"] ** 2).max())
    assert_constant(keys - queries, size)
    assert_constant(keys.sum(-1) - found["v"] ** 2, size)
    assert_never_rises(found["loss"])
    assert_moved(found["v"])


@few
@given(st.data())
def test_recall_conserves_each_heads_sum_of_scores(data):
    """The softmax sees differences of scores only, so their gradient sums to zero."""
    order = data.draw(st.integers(2, 4))
    heads = data.draw(st.integers(1, order))
    config = RecallFlowConfig(
        order=order,
        responses=data.draw(st.integers(2, 6)),
        heads=heads,
        betas=[data.draw(st.floats(0.1, 2)) for _ in range(heads)],
        time=data.draw(st.floats(10, 300)),
        **EXACT,
    )
    found = path(RecallFlow, config)
    assert_constant(found["w"].sum(-1), max(np.abs(found["w"]).max(), 1e-3))
    assert_never_rises(found["loss"])
    assert_moved(found["beta"])


@few
@given(st.data())
def test_recall_conserves_theorem_31s_quantity_where_one_head_learns(data):
    """With the sign of the proof, and in both systems; heads whose beta is 0 stay where they are."""
    order, first = data.draw(st.integers(3, 4)), data.draw(st.floats(0.1, 1.5))
    shared = {"order": order, "responses": data.draw(st.integers(2, 6)), "time": data.draw(st.floats(10, 300)), **EXACT}
    full = path(RecallFlow, RecallFlowConfig(betas=[first, *[0.0] * (order - 2)], **shared))
    alpha = np.array([alpha_of(w)[0] for w in full["w"]])
    assert_constant(recall_conserved(alpha, full["beta"][:, 0], order), 1.0)
    assert (full["beta"][:, 1:] == 0).all() and (full["w"][:, 1:] == 0).all()
    reduced = path(RecallFlow, RecallFlowConfig(betas=[first, *[0.0] * (order - 2)], system="first-jump", **shared))
    assert_constant(recall_conserved(reduced["alpha"][:, 0], reduced["beta"][:, 0], order), 1.0)
    assert_moved(alpha[:, None] + 1)
    np.testing.assert_allclose(reduced["beta"][:, 0], full["beta"][:, 0], rtol=1e-6)


@few
@given(st.data(), seeds)
def test_markovs_flow_conserves_each_heads_attention(data, seed):
    """Eq. 5 moves attention within the simplex: it sums to 1 and stays positive."""
    h = data.draw(st.integers(1, 3))
    config = MarkovFlowConfig(
        h=h,
        T=data.draw(st.integers(h + 1, 6)),
        heads=data.draw(st.integers(1, 4)),
        m=data.draw(st.floats(1.1, 2)),
        b0=data.draw(st.floats(0.5, 3)),
        eps=1e-4,
        start=data.draw(st.sampled_from(["even", "ordered"])),
        system=data.draw(st.sampled_from(["full", "symmetric"])),
        time=data.draw(st.floats(5, 50)),
        **EXACT,
    )
    found = path(RegressionFlow, config, seed)
    for attention in (found[name] for name in ("s", "s0") if name in found):
        np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-7)
        assert (attention > 0).all()
    assert_never_rises(found["loss"])
    assert_moved(found["s"])


@settings(max_examples=4)
@given(st.data())
def test_richs_flow_conserves_the_balance_of_query_and_key(data):
    """Lemma 3: w_Q^2 - w_K^2."""
    config = RichFlowConfig(
        system="five",
        imbalance=data.draw(st.floats(-0.5, 2)),
        L=data.draw(st.integers(5, 60)),
        alpha_star=data.draw(st.floats(0.3, 3)),
        w_star=data.draw(st.floats(0.2, 0.6)),
        sigma_init=data.draw(st.floats(1e-3, 0.05)),
        tokens=data.draw(st.sampled_from(["gaussian", "boolean"])),
        points=20,
        rtol=1e-11,
    )
    found = path(RichFlow, config)
    assert_constant(found["w_Q"] ** 2 - found["w_K"] ** 2, (found["w_Q"] ** 2).max())
    assert_never_rises(found["loss"])
    assert_moved(found["w_Q"])


@few
@given(st.data())
def test_emergences_columns_that_see_the_same_data_stay_parallel_to_the_targets(data):
    """What lets A.3 and A.4 reduce W to a number per group: without cross-sample repetition the groups are alike."""
    T = data.draw(st.integers(2, 40))
    config = ReducedConfig(
        T=T,
        d=data.draw(st.integers(2, 40)),
        B=data.draw(st.integers(1, T)),
        variables=3,
        scores=data.draw(st.sampled_from(["joint", "each"])),
        w_init=data.draw(st.floats(-1, 1)),
        **EXACT,
    )
    found = path(ReducedFlow, config)
    along = found["w"] / np.array([1.0, np.sqrt(config.d - 1)])  # W's columns, in units of W*'s
    assert_constant(along[:, 0] - along[:, 1], np.abs(along).max())
    assert_never_rises(found["train_loss"])
    assert_moved(found["w"])
    if config.B == T:  # every token is the relevant one: there is nothing to choose
        assert_constant(found["delta_a"], 1.0)
