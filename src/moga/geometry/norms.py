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

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from moga.geometry.polar import polar_factor, work_dtype
from moga.geometry.vectors import INF, conjugate, mean_scale, nonzero, signs, vector_direction, vector_norm


def singular_values(W: Tensor) -> Tensor:
    """The singular values of (..., out, in), largest first, from entries of at most 1; NaN of a matrix not finite.

    >>> singular_values(torch.tensor([[0.0, 3e30], [4e30, 0.0]]))
    tensor([4.0000e+30, 3.0000e+30])
    """
    peak = W.abs().amax((-2, -1), keepdim=True)
    finite = torch.isfinite(peak)  # svdvals raises on a matrix that is not
    values = torch.linalg.svdvals(torch.where(finite, W / nonzero(peak), torch.zeros_like(W))) * peak.squeeze(-1)
    return torch.where(finite.squeeze(-1), values, torch.full_like(values, torch.nan))


def pair_scale(p: float, q: float, out: int, in_: int) -> float:
    """``out^(1/q) / in^(1/p)`` with ``1/inf = 0``: the plain p->q norm of a matrix of size 1.

    Raises ValueError for sizes below 1.

    >>> pair_scale(2, 2, 9, 4), pair_scale(1, INF, 9, 4)
    (1.5, 0.25)
    """
    for word, size in (("out", out), ("in", in_)):
        if size < 1:
            raise ValueError(f"a scale needs sizes of at least 1; got {word} = {size}")
    return mean_scale(out, q) / mean_scale(in_, p)


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
        direction=lambda G, p, q: signs(G),
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
        size=lambda W, p, q: singular_values(W).amax(-1),
        dual=lambda G, p, q: singular_values(G).sum(-1),
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
        return pair_scale(self.p, self.q, out, in_)

    def measure(self, W: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        """The size of ``W`` (..., out, in) as a tensor of the leading shape; 0 for an empty matrix.

        >>> norm("sign").measure(torch.ones(3, 4))  # sends the all-ones input to outputs of 4: entries count `in` times
        tensor(4.)
        """
        W = as_matrix(W)
        if W.numel() == 0:
            return W.new_zeros(W.shape[:-2])
        return NORMS[self.name].size(W, self.p, self.q) / self._scale_of(W, fan)

    def dual(self, G: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        """``max <G, D>`` over ``measure(D) <= 1`` for ``G`` (..., out, in), as a tensor of the leading shape.

        >>> norm("sign").dual(torch.ones(3, 4))  # the sum of absolute entries, over `in`
        tensor(3.)
        """
        G = as_matrix(G)
        if G.numel() == 0:
            return G.new_zeros(G.shape[:-2])
        return NORMS[self.name].dual(G, self.p, self.q) * self._scale_of(G, fan)

    def direction(self, G: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        """The ``D`` of size 1 with the largest ``<G, D>``, in the shape and dtype of ``G`` (..., out, in).

        >>> norm("column", q=2).direction(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
        tensor([[0.4243, 0.0000],
                [0.5657, 0.0000]])
        """
        W = as_matrix(G)
        if W.numel() == 0:
            return torch.zeros_like(G)
        return (NORMS[self.name].direction(W, self.p, self.q) * self._scale_of(W, fan)).to(G.dtype)

    def _scale_of(self, W: Tensor, fan: tuple[int, int] | None) -> float:
        return self.scale(*(fan or W.shape[-2:]))


def norm(name: str, p: float | None = None, q: float | None = None) -> OperatorNorm:
    """The norm of that name; ``row`` takes ``p >= 1``, ``column`` takes ``q >= 2`` (both: default 2, inf included).

    Raises ValueError for an unknown name, an exponent out of range, and an exponent that the norm does not have.

    >>> norm("row", p=1.5), norm("column")
    (OperatorNorm(name='row', p=1.5, q=inf), OperatorNorm(name='column', p=1.0, q=2.0))
    """
    check_exponents(p=p, q=q)
    if not isinstance(name, str) or name not in NORMS:
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


def check_exponents(**exponents: object) -> None:
    """Raises TypeError for an exponent that is no number; None stands for one that is not given.

    >>> check_exponents(p=INF, q=None)
    """
    for letter, value in exponents.items():
        if not (value is None or isinstance(value, Real)) or isinstance(value, bool):
            raise TypeError(f"{letter} must be a number, inf included; got {value!r}")


def as_matrix(W: Tensor) -> Tensor:
    """``W`` (..., out, in) in float32 or wider.

    Raises ValueError for a tensor of fewer than two dimensions, TypeError for one that is not real and floating-point.

    >>> as_matrix(torch.ones(2, 3, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    if not isinstance(W, Tensor):
        raise TypeError(f"a matrix is a tensor (..., out, in); got {type(W).__name__}")
    if W.ndim < 2:
        raise ValueError(
            f"a matrix (..., out, in) is needed; got shape {tuple(W.shape)}. A vector of d entries is a (d, 1) matrix: "
            "x.unsqueeze(-1)"
        )
    if not W.is_floating_point():
        raise TypeError(f"a real floating-point matrix is needed; got {W.dtype}")
    return W.to(work_dtype(W.dtype))
