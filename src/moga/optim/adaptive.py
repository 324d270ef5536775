"""Updates whose state does the scaling: Adam, RMSprop and Shampoo, each a row of :data:`ADAPTIVE`.

A row is the function that makes the extra state and the one that advances it and returns the unscaled directions of
many tensors of one shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moga.geometry.layout import logical_matrices
from moga.optim.averages import State, States, Step, advance, advance_squares
from moga.optim.matrices import Group, blocks_in, stacks, unstack


def adam(G: Sequence[Tensor], states: States, step: Step, prefix: str = "") -> list[Tensor]:
    """``m / (sqrt(v) + eps)`` with bias-corrected averages m of G and v of G^2 (arXiv 1412.6980)."""
    b1, b2 = step.group["betas"]
    steps = [state["step"] for state in states]
    squares = list(torch._foreach_mul(list(G), list(G)))
    if step.finite is not None:
        G = step.masked(G, [state[prefix + "exp_avg"].to(step.dtype) for state in states])
        squares = step.masked(squares, [state[prefix + "exp_avg_sq"].to(step.dtype) for state in states])
    counted = torch.ones_like(steps[0]) if step.finite is None else step.finite.to(torch.float32)
    torch._foreach_add_(steps, [counted] * len(steps))
    m = advance(states, prefix + "exp_avg", G, 1 - b1, step)
    v = advance_squares(states, prefix + "exp_avg_sq", squares, 1 - b2, step)
    t = torch.stack(steps).to(m[0].dtype).clamp(min=1)
    D = torch._foreach_div(v, list(_corrections(b2, t).unbind()))
    torch._foreach_sqrt_(D)
    torch._foreach_add_(D, step.group["eps"])
    torch._foreach_reciprocal_(D)
    torch._foreach_mul_(D, m)
    torch._foreach_div_(D, list(_corrections(b1, t).unbind()))
    return _at_rest(D, v, step)


def _corrections(b: float, t: Tensor) -> Tensor:
    """``1 - b^t`` without the difference of two numbers near 1: at b = 0.999 it would have three digits in float32.

    >>> _corrections(0.999, torch.tensor([1.0])), _corrections(0.0, torch.tensor([1.0]))
    (tensor([0.0010]), tensor([1.]))
    """
    return -torch.expm1(t * (math.log(b) if b else -math.inf))


def rmsprop(G: Sequence[Tensor], states: States, step: Step) -> list[Tensor]:
    """``G / (sqrt(v) + eps)`` with v the average of G^2, not bias-corrected: as torch.optim.RMSprop."""
    squares = list(torch._foreach_mul(list(G), list(G)))
    if step.finite is not None:
        G = step.masked(G, [0.0] * len(G))
        squares = step.masked(squares, [state["square_avg"].to(step.dtype) for state in states])
    v = advance_squares(states, "square_avg", squares, 1 - step.group["alpha"], step)
    D = torch._foreach_sqrt(v)
    torch._foreach_add_(D, step.group["eps"])
    return _at_rest(torch._foreach_div(list(G), D), v, step)


def _at_rest(D: Sequence[Tensor], v: Sequence[Tensor], step: Step) -> list[Tensor]:
    """With eps = 0 an entry that never had a gradient is 0 / 0: it rests, also where lr is 0 or the step is dropped."""
    if step.group["eps"]:
        return list(D)
    return [torch.where(square == 0, torch.zeros_like(d), d) for d, square in zip(D, v, strict=True)]


def shampoo(G: Sequence[Tensor], states: States, step: Step) -> list[Tensor]:
    """``A^(-1/4) G B^(-1/4)`` with ``A += G G^T`` and ``B += G^T G`` for each matrix (arXiv 1802.09568)."""
    matrices = stacks(step.masked(G, [0.0] * len(G)), step.group)
    together = blocks_in(matrices, step.group)
    directions, first, least = [], 0, step.group["damping"]
    for X in matrices:
        wide = X.double() if together else X.double().unsqueeze(-3)
        left = _accumulate(states, "left", first, wide @ wide.mT)
        right = _accumulate(states, "right", first, wide.mT @ wide)
        D = inverse_fourth_root(left, least) @ wide @ inverse_fourth_root(right, least)
        directions.append(D.reshape(X.shape).to(X.dtype))
        first += wide.shape[-3]
    return unstack(directions, step.group, G[0].shape)


def _accumulate(states: States, side: str, first: int, products: Tensor) -> Tensor:
    """Add ``products`` (tensors, *stack, blocks, n, n) to the accumulators of those blocks; returns their stack."""
    rows = []
    for state, product in zip(states, products, strict=True):
        sums = [state[f"{side}_{first + i}"] for i in range(product.shape[-3])]
        torch._foreach_add_(sums, list(product.unbind(-3)))
        rows.append(torch.stack(sums, -3))
    return torch.stack(rows)


def inverse_fourth_root(A: Tensor, least: float = 0.0) -> Tensor:
    """``A^(-1/4)`` of symmetric positive definite matrices (..., n, n); NaN where A holds NaN or Inf.

    ``least`` is a number that no eigenvalue is below. What rounding hides, n units in the last place of the largest
    eigenvalue, is lifted to there too: its root is then far below that of any true direction, instead of Inf.

    >>> inverse_fourth_root(torch.diag(torch.tensor([16.0, 81.0], dtype=torch.float64))).diagonal()
    tensor([0.5000, 0.3333], dtype=torch.float64)
    """
    finite = torch.isfinite(A).all(-1, keepdim=True).all(-2, keepdim=True)
    # eigh raises where a matrix is not finite; a step has to let it through instead
    values, vectors = torch.linalg.eigh(torch.where(finite, A, torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)))
    info = torch.finfo(A.dtype)
    floor = (A.shape[-1] * info.eps * values[..., -1:]).clamp(min=max(least, info.tiny))
    root = (vectors * torch.maximum(values, floor).pow(-0.25).unsqueeze(-2)) @ vectors.mT
    return torch.where(finite, root, torch.full_like(root, torch.nan))


def _shampoo_state(weight: Tensor, group: Group) -> State:
    """``damping`` times the identity for each side of each block, (*stack, n, n)."""
    state = {}
    for i, one in enumerate(logical_matrices(weight, group["layout"], group["blocks"], group["interleave"])):
        for side, size in (("left", one.shape[-2]), ("right", one.shape[-1])):
            eye = torch.eye(size, dtype=torch.float64, device=weight.device)
            state[f"{side}_{i}"] = group["damping"] * eye.expand(*one.shape[:-2], size, size)
    return state


@dataclass(frozen=True)
class Adaptive:
    """The names of the averages of a weight's own shape, whether steps are counted, other state, and the update."""

    full: tuple[str, ...]
    counted: bool
    other: Callable[[Tensor, Group], State]
    directions: Callable[[Sequence[Tensor], States, Step], list[Tensor]]


ADAPTIVE: dict[str, Adaptive] = {
    "adam": Adaptive(("exp_avg", "exp_avg_sq"), True, lambda weight, group: {}, adam),
    "rmsprop": Adaptive(("square_avg",), False, lambda weight, group: {}, rmsprop),
    "shampoo": Adaptive((), False, _shampoo_state, shampoo),
}
