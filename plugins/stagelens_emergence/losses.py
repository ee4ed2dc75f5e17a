"""Losses of the toy model: on sequences, exact in expectation, and on draws that replace sequences."""

from __future__ import annotations

from torch import Tensor

from stagelens_emergence.data.toy import Draws, RelevantMoments
from stagelens_emergence.model import ToyTransformer


def half_error(y: Tensor, y_star: Tensor) -> Tensor:
    """Returns the batch mean of |y - y*|^2 / 2; both are [batch, d]."""
    return 0.5 * (y - y_star).square().sum(-1).mean()


def expected_loss(model: ToyTransformer, moments: RelevantMoments) -> Tensor:
    """Returns E |y - y*|^2 / 2, exactly (A.2). Its gradients are Eqs. 7 and 8."""
    W, d = model.W, len(model.W)
    others, m = model.attention_parts()
    missed = m * W - model.W_star  # [d, d]
    return 0.5 * (others.square().sum() * W.square().sum() / d + (missed.square() @ moments.relevant).sum())


def drawn_loss(model: ToyTransformer, draws: Draws) -> Tensor:
    """Returns the loss on n sequences of which only `draws` were drawn.

    Its value and its gradient have the distribution that `half_error` has on whole sequences.
    """
    others, m = model.attention_parts()  # [T - B], scalar
    error = output_error(model, others, m, draws)  # [n, d]
    return value_term(error) + gradient_only_term(model, others, error.detach(), draws)


def output_error(model: ToyTransformer, others: Tensor, m: Tensor, draws: Draws) -> Tensor:
    """Returns y - y* [n, d].

    y = W (m x_relevant + sum_t alpha_t x_t), the sum over the T - B irrelevant tokens x_t ~ N(0, I/d). The sum is
    distributed as |alpha| N(0, I/d), so one draw of d numbers replaces T - B tokens.
    """
    attended = m * draws.relevant + others.norm() * draws.context
    error: Tensor = attended @ model.W.T - draws.relevant @ model.W_star.T
    return error


def value_term(error: Tensor) -> Tensor:
    """Returns the value of the loss, the mean of |y - y*|^2 / 2.

    By backpropagation through |alpha| `context` it also has the part of d loss / d alpha that is parallel to alpha.
    """
    return 0.5 * error.square().sum(-1).mean()


def gradient_only_term(model: ToyTransformer, others: Tensor, error: Tensor, draws: Draws) -> Tensor:
    """Returns zero, with the part of d loss / d alpha that is orthogonal to alpha [T - B] as its gradient.

    On sequences, d loss / d alpha_t = x_t . v with v = W^T (y - y*) [d]. The value fixes sum_t alpha_t x_t, and given
    that sum the tokens are free in the directions of R^(T - B) orthogonal to alpha. So the orthogonal part of x_t . v
    is |v| N(0, 1/d), projected off alpha: here |v| / sqrt(d) times `across` without its component along alpha. The
    term is linear in alpha and vanishes at the present one, so it changes no value. It does not reach W.
    """
    along = (others / others.norm()).detach()  # [T - B]
    across = draws.across - (draws.across @ along)[:, None] * along  # [n, T - B]
    size = (error @ model.W.detach()).norm(dim=-1) / len(model.W) ** 0.5  # |v| / sqrt(d) [n]
    term: Tensor = ((across @ others) * size).mean()
    return term
