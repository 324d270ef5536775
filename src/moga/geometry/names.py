"""The norms by name: one function from words and numbers to a norm of matrices or of vectors."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from moga.geometry import norms
from moga.geometry.bounds import PairNorm
from moga.geometry.mahalanobis import Mahalanobis
from moga.geometry.norms import NORMS, OperatorNorm
from moga.geometry.vectors import INF, VECTORS, VectorNorm

MatrixWord = Literal["sign", "row", "column", "spectral"]
VectorWord = Literal["l1", "l2", "linf", "l1-mean", "l2-mean", "linf-mean"]
AnyNorm = OperatorNorm | PairNorm | VectorNorm | Mahalanobis


@overload
def norm(name: MatrixWord, p: float | None = None, q: float | None = None) -> OperatorNorm: ...
@overload
def norm(name: VectorWord) -> VectorNorm: ...
@overload
def norm(name: Literal["mahalanobis"], *, M: Tensor) -> Mahalanobis: ...
@overload
def norm(name: None = None, *, p: float, q: float) -> OperatorNorm | PairNorm: ...
@overload
def norm(name: str, p: float | None = None, q: float | None = None, *, M: Tensor | None = None) -> AnyNorm: ...
def norm(
    name: str | None = None, p: float | None = None, q: float | None = None, *, M: Tensor | None = None
) -> AnyNorm:
    """The norm of that name, or of that pair of exponents.

    - Of matrices (..., out, in): ``"sign"``, ``"row"`` (``p >= 1``, default 2), ``"column"`` (``q >= 2``, default 2),
      ``"spectral"``; or ``p=`` and ``q=`` alone for the operator norm of any pair, p and q from 1 to inf: one of these
      rows where the pair has a closed form, else a :class:`PairNorm`, which can measure but has no direction.
    - Of vectors (..., n): ``"l1"``, ``"l2"``, ``"linf"``, mean-normalised ``"l1-mean"``, ``"l2-mean"`` (the root mean
      square), ``"linf-mean"``; ``"mahalanobis"`` with ``M=`` a positive definite (n, n), or (n,) for a diagonal one.

    Every one has ``measure`` (the size), ``dual`` and ``direction``.

    Raises ValueError for an unknown name, an exponent out of range, and an argument that the norm does not have or
    lacks; TypeError for a name that is no string and an exponent that is no number.

    >>> norm("row", p=1.5), norm("column")
    (OperatorNorm(name='row', p=1.5, q=inf), OperatorNorm(name='column', p=1.0, q=2.0))
    >>> norm(p=2, q=2), norm(p=3, q=2)
    (OperatorNorm(name='spectral', p=2.0, q=2.0), PairNorm(p=3.0, q=2.0))
    >>> norm("l2-mean").scale(16)
    4.0
    """
    if name is None:
        _refuse("a pair of exponents", M=M)
        return _of_pair(p, q)
    if not isinstance(name, str):
        raise TypeError(f"the name of a norm is a string; got {name!r}")
    if name in NORMS:
        _refuse(f"norm {name!r}", M=M)
        return norms.norm(name, p, q)
    if name in VECTORS:
        _refuse(f"norm {name!r}", p=p, q=q, M=M)
        return VECTORS[name]
    if name == "mahalanobis":
        _refuse("norm 'mahalanobis'", p=p, q=q)
        if M is None:
            raise ValueError("norm 'mahalanobis' needs M, a positive definite (n, n), or (n,) for a diagonal one")
        return Mahalanobis(M)
    raise ValueError(
        f"unknown norm {name!r}; the norms of matrices are {', '.join(sorted(NORMS))}, or p= and q= without a name; "
        f"of vectors {', '.join(VECTORS)}, mahalanobis"
    )


def _refuse(what: str, **arguments: object) -> None:
    for word, value in arguments.items():
        if value is not None:
            raise ValueError(f"{what} does not take {word}")


def _of_pair(p: float | None, q: float | None) -> OperatorNorm | PairNorm:
    norms.check_exponents(p=p, q=q)
    if p is None or q is None:
        raise ValueError(f"a norm without a name needs both exponents; got p = {p}, q = {q}")
    for letter, value in (("p", p), ("q", q)):
        if not value >= 1:
            raise ValueError(f"the operator norm p -> q needs {letter} >= 1, inf included; got {letter} = {value}")
    p, q = float(p), float(q)
    if q == INF:
        return OperatorNorm("sign" if p == 1 else "row", p, q)
    if p == 1:
        # The laws of "column" hold for every q >= 1; below 2 smoothness grows with width, so an update refuses it.
        return OperatorNorm("column", p, q)
    return OperatorNorm("spectral", p, q) if p == q == 2 else PairNorm(p, q)
