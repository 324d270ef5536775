"""Bounds of ``|W|_{p->q}``, the largest ``|W x|_q / |x|_p``: from below by a power iteration, from above by theory."""

from __future__ import annotations

import torch
from torch import Tensor

from moga.geometry.norms import singular_values
from moga.geometry.vectors import INF, conjugate, signs, vector_direction, vector_norm

STARTS = 16  # of each kind, and
RANDOM = 64  # at random
STEPS = 200
GRID = 17  # points of interpolation


def lower_bound(W: Tensor, p: float, q: float) -> Tensor:
    """The largest ``|W x|_q`` over unit ``x`` that a power iteration finds, for ``W`` (..., out, in).

    From ``x``, with ``y`` the unit q*-vector for which ``<y, W x> = |W x|_q``, go to the unit p-vector ``x'`` with the
    largest ``<y, W x'>``. The size never falls: ``|W x'|_q >= <y, W x'> >= <y, W x> = |W x|_q``. It can end in a local
    maximum, so it starts from many inputs, the same ones each time. Whatever ``x`` it ends in, the size is reached.

    Source: Boyd, "The power method for l^p norms", 1974; Higham, "Estimating the matrix p-norm", 1992.

    >>> lower_bound(torch.diag(torch.tensor([1.0, 2.0])), 3.0, 3.0)
    tensor(2.)
    """
    x = vector_direction(_starts(W), conjugate(p), dim=-2)
    size = vector_norm(W @ x, q, dim=-2)
    for _ in range(STEPS):
        x = vector_direction(W.mT @ vector_direction(W @ x, q, dim=-2), conjugate(p), dim=-2)
        last, size = size, torch.maximum(size, vector_norm(W @ x, q, dim=-2))
        if not (size > last * (1 + 4 * torch.finfo(W.dtype).eps)).any():
            break
    return size.amax(-1)


def _starts(W: Tensor) -> Tensor:
    """Inputs (..., in, count): unit vectors, the best input of single rows, right singular vectors, signs, random."""
    in_ = W.shape[-1]
    count = min(STARTS, in_)
    largest = vector_norm(W, 2, dim=-2).topk(count, dim=-1).indices  # the columns of the largest 2-norms
    columns = torch.nn.functional.one_hot(largest, in_).to(W.dtype).mT
    rows = vector_norm(W, 2, dim=-1).topk(min(STARTS, W.shape[-2]), dim=-1).indices
    best_of_row = W.gather(-2, rows.unsqueeze(-1).expand(*rows.shape, in_)).mT
    singular = torch.linalg.svd(W, full_matrices=False).Vh[..., :STARTS, :].mT
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(in_, RANDOM, generator=generator, dtype=torch.float64).to(W)  # the same ones in every dtype
    kinds = [columns, best_of_row, singular, signs(singular), _expand(random, W), _expand(signs(random), W)]
    return torch.cat(kinds, -1)


def _expand(x: Tensor, W: Tensor) -> Tensor:
    return x.expand(*W.shape[:-2], *x.shape)


def upper_bound(W: Tensor, p: float, q: float) -> Tensor:
    """The least of several numbers that ``|W|_{p->q}`` cannot exceed, for ``W`` (..., out, in).

    - Hoelder for every row: ``|(W x)_i| <= |row_i|_{p*} |x|_p``, so the q-norm of the rows' p*-norms.
    - The triangle inequality: ``|W x|_q <= sum |x_j| |col_j|_q``, so the p*-norm of the columns' q-norms.
    - From one pair to another: ``|x|_r <= n^max(0, 1/r - 1/p) |x|_p``, on both sides.
    - Riesz-Thorin: ``log |W|`` is a convex function of ``(1/p, 1/q)`` on the unit square. The theorem is one of complex
      spaces; the pairs that it is used between here, (1, q), (p, inf) and (2, 2), have the same norm in real and
      complex spaces (largest column, largest row, largest singular value), and a real norm is at most the complex one.

    >>> upper_bound(torch.eye(4), 2.0, 1.0)  # the square root of 4: reached by equal entries
    tensor(2.)
    """
    rows = vector_norm(vector_norm(W, conjugate(p), dim=-1), q, dim=-1)
    columns = vector_norm(vector_norm(W, q, dim=-2), conjugate(p), dim=-1)
    spectral = singular_values(W).amax(-1)
    a, b = 1 / p, 1 / q
    found = [rows, columns, spectral * _embedding(W, a, 0.5, 0.5, b)]
    for middle in _grid(a, b) if a < b else [None]:
        c, d = (a, b) if middle is None else (middle, middle)
        factor = _embedding(W, a, c, d, b)
        found += [bound * factor for bound in _interpolated(W, spectral, c, d)]
    return torch.stack(found).amin(0)


def _embedding(W: Tensor, a: float, c: float, d: float, b: float) -> float:
    """``|W|_{1/a->1/b}`` over ``|W|_{1/c->1/d}`` at most: the norms of the two identities around W."""
    return float(W.shape[-1] ** max(0.0, c - a) * W.shape[-2] ** max(0.0, b - d))


def _grid(low: float, high: float) -> list[float]:
    return [low + (high - low) * i / (GRID - 1) for i in range(GRID)] if high > low else [low]


def _interpolated(W: Tensor, spectral: Tensor, a: float, b: float) -> list[Tensor]:
    """Riesz-Thorin bounds at ``(1/p, 1/q) = (a, b)``, ``a >= b``, on segments between two pairs that are exact.

    ``(a, b) = (1 - t) (u, 0) + t (1, v)`` lies between p -> inf and 1 -> q for every ``t`` from b to a.
    """
    found = []
    for t in _grid(b, a):
        u = (a - t) / (1 - t) if t < 1 else 0.0
        v = b / t if t > 0 else 0.0
        found.append(_bottom(W, u) ** (1 - t) * _right(W, v) ** t)
    if 2 * a > 1 and 0 <= (v := 0.5 + (b - 0.5) / (2 * a - 1)) <= 1:  # between (1/2, 1/2) and (1, v)
        found.append(spectral ** (2 - 2 * a) * _right(W, v) ** (2 * a - 1))
    if 2 * b < 1 and 0 <= (u := 0.5 + (a - 0.5) / (1 - 2 * b)) <= 1:  # between (1/2, 1/2) and (u, 0)
        found.append(spectral ** (2 * b) * _bottom(W, u) ** (1 - 2 * b))
    return found


def _right(W: Tensor, v: float) -> Tensor:
    """``|W|_{1 -> 1/v}``: the largest column."""
    return vector_norm(W, 1 / v if v > 0 else INF, dim=-2).amax(-1)


def _bottom(W: Tensor, u: float) -> Tensor:
    """``|W|_{1/u -> inf}``: the largest row, in the conjugate exponent 1 / (1 - u)."""
    return vector_norm(W, 1 / (1 - u) if u < 1 else INF, dim=-1).amax(-1)
