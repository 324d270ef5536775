"""Operator norms ``|W|_{p->q}`` of any pair of exponents: exact where theory allows it, else between two bounds.

    |W|_(p,q) = |W|_{p->q} / scale,    scale = out^(1/q) / in^(1/p),    as in moga.geometry.norms

Exact are 1 -> q, p -> inf and 2 -> 2 (the rows of ``NORMS``), and besides them, by the transpose duality
``|W|_{p->q} = |W^T|_{q*->p*}``:

- inf -> q with up to 16 inputs: a convex function has its maximum over a cube at a corner, one of 2^(in-1) up to sign;
- p -> 1 with up to 16 outputs: the same for ``W^T``;
- a single column, ``|w|_q``, or a single row, ``|w|_{p*}``.

All others are hard in general (inf -> 1 contains MAX-CUT), and a number from an iteration is a bound from below only:
:class:`Bounds` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moga.geometry.estimates import lower_bound, upper_bound
from moga.geometry.norms import as_matrix, pair_scale
from moga.geometry.vectors import INF, conjugate, nonzero, vector_norm

CORNERS = 16  # the largest number of entries whose sign vectors are enumerated: 32768 of them
CLOSED_FORMS = "(1, q), (p, inf) and (2, 2)"


@dataclass(frozen=True)
class Bounds:
    """A size that is known to lie between ``lower`` and ``upper``, tensors of the leading shape of the matrices."""

    lower: Tensor  # reached by an input that was found
    upper: Tensor  # exceeded by none


@dataclass(frozen=True)
class PairNorm:
    """The norm ``|W|_{p->q} / scale`` for a pair (p, q) that has a size but no closed-form direction.

    Made by :func:`moga.norm` for ``p=`` and ``q=`` without a name.

    >>> W = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    >>> PairNorm(INF, 1.0).measure(W)  # exact for so few inputs: |W (1, 1)| has the mean 1
    tensor(1.)
    >>> size = PairNorm(3.0, 2.0).measure(W)  # 2 -> 2 has sqrt 2, and p = 3 gains nothing for an orthogonal matrix
    >>> size.lower, size.upper
    (tensor(1.4142), tensor(1.4142))
    """

    p: float
    q: float

    def scale(self, out: int, in_: int) -> float:
        """``out^(1/q) / in^(1/p)``, as in :class:`moga.OperatorNorm`.

        >>> PairNorm(2.0, 4.0).scale(16, 4)
        1.0
        """
        return pair_scale(self.p, self.q, out, in_)

    def measure(self, W: Tensor, fan: tuple[int, int] | None = None) -> Tensor | Bounds:
        """The size of ``W`` (..., out, in): a tensor of the leading shape where it is exact, else :class:`Bounds`.

        >>> PairNorm(2.0, 1.0).measure(torch.eye(3)).shape, PairNorm(2.0, 1.0).measure(torch.eye(17)).lower.shape
        (torch.Size([]), torch.Size([]))
        """
        W = as_matrix(W)
        if W.numel() == 0:
            return W.new_zeros(W.shape[:-2])
        peak = W.abs().amax((-2, -1), keepdim=True)
        finite = torch.isfinite(peak)
        X = torch.where(finite, W / nonzero(peak), torch.zeros_like(W))
        unit = torch.where(finite, peak, torch.full_like(peak, torch.nan))[..., 0, 0]
        unit = unit / self.scale(*(fan or W.shape[-2:]))
        exact = _exact(X, self.p, self.q)
        if exact is not None:
            return exact * unit
        lower = lower_bound(X, self.p, self.q)
        upper = torch.maximum(upper_bound(X, self.p, self.q), lower)  # equal bounds may cross by rounding
        return Bounds(lower * unit, upper * unit)

    def dual(self, G: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        """Raises ValueError: no closed form is known."""
        raise self._no_closed_form("dual norm")

    def direction(self, G: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        """Raises ValueError: no closed form is known."""
        raise self._no_closed_form("direction")

    def _no_closed_form(self, what: str) -> ValueError:
        return ValueError(
            f"the pair p = {self.p:g}, q = {self.q:g} has no {what} in closed form; the pairs that have one are "
            f"{CLOSED_FORMS}"
        )


def _exact(X: Tensor, p: float, q: float) -> Tensor | None:
    out, in_ = X.shape[-2:]
    if in_ == 1:
        return vector_norm(X, q, dim=-2).squeeze(-1)
    if out == 1:
        return vector_norm(X, conjugate(p), dim=-1).squeeze(-1)
    if p == INF and in_ <= CORNERS:
        return _best_corner(X, q)
    if q == 1 and out <= CORNERS:
        return _best_corner(X.mT, conjugate(p))
    return None


def _best_corner(X: Tensor, q: float) -> Tensor:
    """The largest ``|X s|_q`` over sign vectors ``s``, for ``X`` (..., out, in); ``-s`` does as well as ``s``."""
    in_ = X.shape[-1]
    best = X.new_zeros(X.shape[:-2])
    chunk = max(1, 2**22 // (X.numel() // in_))  # so many corners at once need about 2^22 numbers
    for numbers in torch.split(torch.arange(2 ** (in_ - 1), device=X.device), chunk):
        bits = numbers >> torch.arange(in_, device=X.device).unsqueeze(-1) & 1
        best = torch.maximum(best, vector_norm(X @ (1 - 2 * bits).to(X.dtype), q, dim=-2).amax(-1))
    return best
