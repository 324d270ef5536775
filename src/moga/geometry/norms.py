"""Operator norms that do not change size with width, their duals and their directions of steepest descent.

A weight ``W`` of shape (out, in) maps ``y = W x``. With the mean-normalised vector norm
``|x|_(p,mean) = (1/n sum |x_i|^p)^(1/p)`` its size is

    |W|_(p,q) = max |W x|_(q,mean) / |x|_(p,mean) = |W|_{p->q} / scale,    scale = out^(1/q) / in^(1/p).

Steepest descent with a step of fixed size moves against the ``D`` that maximises ``<G, D>`` over ``|D|_(p,q) <= 1``.
The pairs (p, q) below are those in which that maximiser has a closed form. Source: arXiv 2603.09952.

Laws, for every row of :data:`NORMS` and every ``G != 0``:

- ``measure(direction(G)) == 1``, ``direction(0) == 0``, ``direction(c G) == direction(G)`` for ``c > 0``;
- ``<G, direction(G)> == dual(G) >= <G, D>`` for every ``D`` with ``measure(D) <= 1``;
- ``measure(kron(ones(a, b) / b, W)) == measure(W)``: repeating a layer in width does not change its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from moga.geometry.polar import polar_factor, work_dtype

INF = math.inf


def conjugate(p: float) -> float:
    """The exponent ``p*`` with ``1/p + 1/p* = 1``.

    >>> conjugate(1.5), conjugate(1.0), conjugate(math.inf)
    (3.0, inf, 1.0)
    """
    return INF if p == 1 else 1.0 if p == INF else p / (p - 1)


def vector_norm(x: Tensor, p: float, dim: int) -> Tensor:
    """The p-norm along ``dim``, computed on entries of at most 1 so that no square overflows or vanishes.

    >>> vector_norm(torch.tensor([3e30, -4e30]), 2, dim=-1)
    tensor(5.0000e+30)
    """
    peak = x.abs().amax(dim, keepdim=True)
    size: Tensor = torch.linalg.vector_norm(x / _nonzero(peak), p, dim=dim) * peak.squeeze(dim)
    return size


def vector_direction(x: Tensor, p: float, dim: int) -> Tensor:
    """The ``d`` along ``dim`` with conjugate norm 1 and ``<x, d> = |x|_p``; zero where ``x`` is zero.

    It is ``sign(x) |x|^(p-1) / |x|_p^(p-1)``; at p = inf the largest entries share the step.

    >>> vector_direction(torch.tensor([3.0, -4.0]), 2, dim=-1)
    tensor([ 0.6000, -0.8000])
    >>> vector_direction(torch.tensor([1.0, -4.0, 4.0]), math.inf, dim=-1)
    tensor([ 0.0000, -0.5000,  0.5000])
    """
    if p == 1:
        return _sign(x)
    peak = x.abs().amax(dim, keepdim=True)
    unit = x / _nonzero(peak)
    if p == INF:
        largest = (unit.abs() == 1).to(x.dtype)
        return unit * largest / _nonzero(largest.sum(dim, keepdim=True))
    size = torch.linalg.vector_norm(unit, p, dim=dim, keepdim=True)
    if p == 2:
        return unit / _nonzero(size)
    return unit.sign() * (unit.abs() / _nonzero(size)) ** (p - 1)


def _sign(x: Tensor) -> Tensor:
    return x.sign() + 0 * x  # torch.sign(nan) is 0: a step must not hide a gradient that is not finite


def _nonzero(divisor: Tensor) -> Tensor:
    return torch.where(divisor == 0, torch.ones_like(divisor), divisor)


def _singular_values(W: Tensor) -> Tensor:
    peak = _nonzero(W.abs().amax((-2, -1), keepdim=True))
    values: Tensor = torch.linalg.svdvals(W / peak) * peak.squeeze(-1)
    return values


@dataclass(frozen=True)
class NormRow:
    """One norm: which pairs (p, q) it covers and its three functions of an unscaled matrix (..., out, in)."""

    free: str  # the exponent that the user may choose: "p", "q" or ""
    default: tuple[float, float]  # (p, q)
    least: float  # the smallest allowed value of the free exponent
    size: Callable[[Tensor, float, float], Tensor]
    dual: Callable[[Tensor, float, float], Tensor]
    direction: Callable[[Tensor, float, float], Tensor]


NORMS: dict[str, NormRow] = {
    "sign": NormRow(
        free="",
        default=(1.0, INF),
        least=INF,
        size=lambda W, p, q: W.abs().amax((-2, -1)),
        dual=lambda G, p, q: G.abs().sum((-2, -1)),
        direction=lambda G, p, q: _sign(G),
    ),
    "column": NormRow(
        free="q",
        default=(1.0, 2.0),
        least=2.0,
        size=lambda W, p, q: vector_norm(W, q, dim=-2).amax(-1),
        dual=lambda G, p, q: vector_norm(G, conjugate(q), dim=-2).sum(-1),
        direction=lambda G, p, q: vector_direction(G, conjugate(q), dim=-2),
    ),
    "row": NormRow(
        free="p",
        default=(2.0, INF),
        least=1.0,
        size=lambda W, p, q: vector_norm(W, conjugate(p), dim=-1).amax(-1),
        dual=lambda G, p, q: vector_norm(G, p, dim=-1).sum(-1),
        direction=lambda G, p, q: vector_direction(G, p, dim=-1),
    ),
    "spectral": NormRow(
        free="",
        default=(2.0, 2.0),
        least=INF,
        size=lambda W, p, q: _singular_values(W).amax(-1),
        dual=lambda G, p, q: _singular_values(G).sum(-1),
        direction=lambda G, p, q: polar_factor(G),
    ),
}


@dataclass(frozen=True)
class OperatorNorm:
    """The norm ``|W|_{p->q} / scale`` of matrices (..., out, in), with ``scale = out^(1/q) / in^(1/p)``.

    ``fan=(out, in)`` replaces the sizes that enter the scale: the first layer of a network sees one-hot inputs, so
    its ``in`` is 1; the last layer's outputs are measured by their largest entry, so its ``out`` is 1.

    Arithmetic is in float32 or wider. Made by :func:`norm`, which checks the exponents.

    >>> row = norm("row", p=2)
    >>> G = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> row.direction(G)  # each row at unit 2-norm, times 2^(1/inf) / 2^(1/2); a zero row stays zero
    tensor([[0.4243, 0.5657],
            [0.0000, 0.0000]])
    >>> round(row.measure(row.direction(G)).item(), 5)
    1.0
    >>> torch.isclose((G * row.direction(G)).sum(), row.dual(G))
    tensor(True)
    """

    name: str
    p: float
    q: float

    def scale(self, out: int, in_: int) -> float:
        """``out^(1/q) / in^(1/p)`` with ``1/inf = 0``: the plain p->q norm of a matrix of size 1.

        >>> norm("spectral").scale(9, 4), norm("sign").scale(9, 4), norm("row", p=2).scale(9, 4)
        (1.5, 0.25, 0.5)
        """
        for word, size in (("out", out), ("in", in_)):
            if size < 1:
                raise ValueError(f"a scale needs sizes of at least 1; got {word} = {size}")
        return float(out ** (1 / self.q) / in_ ** (1 / self.p))

    def measure(self, W: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        """The size of ``W`` (..., out, in) as a tensor of the leading shape; 0 for an empty matrix.

        >>> norm("sign").measure(torch.ones(3, 4))  # sends the all-ones input to outputs of 4: entries count `in` times
        tensor(4.)
        """
        W = _matrix(W)
        if W.numel() == 0:
            return W.new_zeros(W.shape[:-2])
        return NORMS[self.name].size(W, self.p, self.q) / self._scale_of(W, fan)

    def dual(self, G: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        """``max <G, D>`` over ``measure(D) <= 1`` for ``G`` (..., out, in), as a tensor of the leading shape.

        >>> norm("sign").dual(torch.ones(3, 4))  # the sum of absolute entries, over `in`
        tensor(3.)
        """
        G = _matrix(G)
        if G.numel() == 0:
            return G.new_zeros(G.shape[:-2])
        return NORMS[self.name].dual(G, self.p, self.q) * self._scale_of(G, fan)

    def direction(self, G: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        """The ``D`` of size 1 with the largest ``<G, D>``, in the shape and dtype of ``G`` (..., out, in).

        >>> norm("column", q=2).direction(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
        tensor([[0.4243, 0.0000],
                [0.5657, 0.0000]])
        """
        if G.numel() == 0:
            return torch.zeros_like(G)
        W = _matrix(G)
        return (NORMS[self.name].direction(W, self.p, self.q) * self._scale_of(W, fan)).to(G.dtype)

    def _scale_of(self, W: Tensor, fan: tuple[int, int] | None) -> float:
        return self.scale(*(fan or W.shape[-2:]))


def norm(name: str, p: float | None = None, q: float | None = None) -> OperatorNorm:
    """The norm of that name; ``row`` takes ``p >= 1``, ``column`` takes ``q >= 2`` (both: default 2, inf included).

    Raises ValueError for an unknown name, an exponent out of range, and an exponent that the norm does not have.

    >>> norm("row", p=1.5), norm("column")
    (OperatorNorm(name='row', p=1.5, q=inf), OperatorNorm(name='column', p=1.0, q=2.0))
    """
    if name not in NORMS:
        raise ValueError(f"unknown norm {name!r}; the norms are {', '.join(sorted(NORMS))}")
    row = NORMS[name]
    exponents = dict(zip("pq", row.default, strict=True))
    for letter, value in (("p", p), ("q", q)):
        if value is None or value == exponents[letter]:
            continue
        if letter != row.free:
            takes = f"takes {row.free}" if row.free else "takes no exponent"
            raise ValueError(f"norm {name!r} has {letter} = {exponents[letter]:g} and {takes}; got {letter} = {value}")
        if not value >= row.least:
            raise ValueError(f"norm {name!r} needs {letter} >= {row.least:g}, inf included; got {letter} = {value}")
        exponents[letter] = float(value)
    return OperatorNorm(name, exponents["p"], exponents["q"])


def _matrix(W: Tensor) -> Tensor:
    if W.ndim < 2:
        raise ValueError(
            f"a matrix (..., out, in) is needed; got shape {tuple(W.shape)}. A vector of d entries is a (d, 1) matrix: "
            "x.unsqueeze(-1)"
        )
    if not W.is_floating_point():
        raise TypeError(f"a real floating-point matrix is needed; got {W.dtype}")
    return W.to(work_dtype(W.dtype))
