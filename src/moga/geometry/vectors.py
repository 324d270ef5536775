"""Norms of vectors: the p-norms, plain and mean-normalised, their duals and their directions of steepest descent.

``|x|_p = (sum |x_i|^p)^(1/p)`` counts entries; ``|x|_(p,mean) = (1/n sum |x_i|^p)^(1/p) = |x|_p / n^(1/p)`` does not:
repeating a vector changes nothing. With ``1/p + 1/p* = 1`` (``1/inf = 0``) the dual of the p-norm is the p*-norm.

Laws, for every row of :data:`VECTORS` and every ``g != 0``:

- ``measure(direction(g)) == 1``, ``direction(0) == 0``, ``direction(c g) == direction(g)`` for ``c > 0``;
- ``<g, direction(g)> == dual(g) >= <g, d>`` for every ``d`` with ``measure(d) <= 1``;
- the dual of the dual is the norm: ``measure(x)`` is the largest ``<x, g>`` over ``dual(g) <= 1``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from moga.geometry.polar import work_dtype

INF = math.inf


def conjugate(p: float) -> float:
    """The exponent ``p*`` with ``1/p + 1/p* = 1``.

    >>> conjugate(1.5), conjugate(1.0), conjugate(math.inf)
    (3.0, inf, 1.0)
    """
    return INF if p == 1 else 1.0 if p == INF else p / (p - 1)


def mean_scale(n: int, p: float) -> float:
    """``n^(1/p)`` with ``1/inf = 0``: the p-norm over the mean-normalised one, for vectors of ``n`` entries.

    >>> mean_scale(16, 2), mean_scale(16, 1), mean_scale(16, math.inf)
    (4.0, 16.0, 1.0)
    """
    return float(n ** (1 / p))


def vector_norm(x: Tensor, p: float, dim: int) -> Tensor:
    """The p-norm along ``dim``, computed on entries of at most 1 so that no square overflows or vanishes.

    >>> vector_norm(torch.tensor([3e30, -4e30]), 2, dim=-1)
    tensor(5.0000e+30)
    """
    peak = x.abs().amax(dim, keepdim=True)
    size: Tensor = torch.linalg.vector_norm(x / nonzero(peak), p, dim=dim) * peak.squeeze(dim)
    return size


def vector_direction(x: Tensor, p: float, dim: int) -> Tensor:
    """The ``d`` along ``dim`` with conjugate norm 1 and ``<x, d> = |x|_p``; zero where ``x`` is zero.

    It is ``sign(x) |x|^(p-1) / |x|_p^(p-1)``; at p = inf the largest entries share the step. The powers are of entries
    of at most 1 and the root comes last, so that an exponent of 1e5 does not raise the rounding of a size to it.

    >>> vector_direction(torch.tensor([3.0, -4.0]), 2, dim=-1)
    tensor([ 0.6000, -0.8000])
    >>> vector_direction(torch.tensor([1.0, -4.0, 4.0]), math.inf, dim=-1)
    tensor([ 0.0000, -0.5000,  0.5000])
    """
    if p == 1:
        return signs(x)
    peak = x.abs().amax(dim, keepdim=True)
    unit = x / nonzero(peak)
    if p == INF:
        largest = (unit.abs() == 1).to(x.dtype)
        return unit * largest / nonzero(largest.sum(dim, keepdim=True))
    if p == 2:
        return unit / nonzero(torch.linalg.vector_norm(unit, p, dim=dim, keepdim=True))
    return from_power_sum(unit, (unit.abs() ** p).sum(dim, keepdim=True), p)


def from_power_sum(x: Tensor, total: Tensor, p: float) -> Tensor:
    """The direction of :func:`vector_direction` for 1 < p < inf from ``total``, the sum of ``|x|^p``.

    >>> from_power_sum(torch.tensor([3.0, -4.0]), torch.tensor(25.0), 2)
    tensor([ 0.6000, -0.8000])
    """
    return x.sign() * x.abs() ** (p - 1) / nonzero(total) ** ((p - 1) / p)


def signs(x: Tensor) -> Tensor:
    """The sign of every entry; NaN stays NaN and an infinite entry becomes NaN.

    >>> signs(torch.tensor([-2.0, 0.0, math.nan]))
    tensor([-1., 0., nan])
    """
    return x.sign() + 0 * x  # torch.sign(nan) is 0: a step must not hide a gradient that is not finite


def nonzero(divisor: Tensor) -> Tensor:
    """The divisor with 1 in place of 0: a zero vector divided by its size stays zero.

    >>> nonzero(torch.tensor([0.0, 1e-30]))
    tensor([1.0000e+00, 1.0000e-30])
    """
    return torch.where(divisor == 0, torch.ones_like(divisor), divisor)


@dataclass(frozen=True)
class VectorNorm:
    """The norm ``|x|_p / scale`` of vectors (..., n), with ``scale = n^(1/r)``: r = p where it is mean-normalised.

    Arithmetic is in float32 or wider. The rows of :data:`VECTORS`.

    >>> rms = VECTORS["l2-mean"]
    >>> g = torch.tensor([3.0, 0.0, -4.0, 0.0])
    >>> rms.measure(g), rms.dual(g)  # 5 over and times the square root of 4
    (tensor(2.5000), tensor(10.))
    >>> rms.direction(g)
    tensor([ 1.2000,  0.0000, -1.6000,  0.0000])
    """

    name: str
    p: float
    r: float  # the exponent of the scale: p, or inf for no scale

    def scale(self, n: int) -> float:
        """``n^(1/p)`` for a mean-normalised norm, else 1.

        Raises ValueError for ``n < 1``.

        >>> VECTORS["l1-mean"].scale(8), VECTORS["l1"].scale(8)
        (8.0, 1.0)
        """
        if n < 1:
            raise ValueError(f"a scale needs a size of at least 1; got n = {n}")
        return mean_scale(n, self.r)

    def measure(self, x: Tensor) -> Tensor:
        """The size of ``x`` (..., n) as a tensor of the leading shape; 0 for an empty vector.

        >>> VECTORS["l1-mean"].measure(torch.tensor([1.0, -3.0]))
        tensor(2.)
        """
        x = as_vector(x)
        return vector_norm(x, self.p, dim=-1) / self.scale(x.shape[-1]) if x.numel() else x.new_zeros(x.shape[:-1])

    def dual(self, g: Tensor) -> Tensor:
        """``max <g, d>`` over ``measure(d) <= 1`` for ``g`` (..., n), as a tensor of the leading shape.

        >>> VECTORS["linf"].dual(torch.tensor([1.0, -3.0]))
        tensor(4.)
        """
        g = as_vector(g)
        if g.numel() == 0:
            return g.new_zeros(g.shape[:-1])
        return vector_norm(g, conjugate(self.p), dim=-1) * self.scale(g.shape[-1])

    def direction(self, g: Tensor) -> Tensor:
        """The ``d`` of size 1 with the largest ``<g, d>``, in the shape and dtype of ``g`` (..., n).

        For l1 it is the largest entry alone; equal largest entries share the step.

        >>> VECTORS["l1"].direction(torch.tensor([1.0, -3.0])), VECTORS["linf"].direction(torch.tensor([1.0, -3.0]))
        (tensor([ 0., -1.]), tensor([ 1., -1.]))
        """
        x = as_vector(g)
        if g.numel() == 0:
            return torch.zeros_like(g)
        return (vector_direction(x, conjugate(self.p), dim=-1) * self.scale(g.shape[-1])).to(g.dtype)


def as_vector(x: Tensor) -> Tensor:
    """``x`` (..., n) in float32 or wider.

    Raises ValueError for a tensor without dimensions, TypeError for one that is not real and floating-point.

    >>> as_vector(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"a vector is a tensor (..., n); got {type(x).__name__}")
    if x.ndim < 1:
        raise ValueError("a vector (..., n) is needed; got a tensor without dimensions")
    if not x.is_floating_point():
        raise TypeError(f"a real floating-point vector is needed; got {x.dtype}")
    return x.to(work_dtype(x.dtype))


VECTORS: dict[str, VectorNorm] = {
    row.name: row
    for row in (
        VectorNorm("l1", 1.0, INF),
        VectorNorm("l2", 2.0, INF),
        VectorNorm("linf", INF, INF),
        VectorNorm("l1-mean", 1.0, 1.0),
        VectorNorm("l2-mean", 2.0, 2.0),
        VectorNorm("linf-mean", INF, INF),  # the mean of a largest entry is that entry: linf by another name
    )
}
