"""Moving averages kept in the state: advanced in float32 or wider, stored in the dtype that the state has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moga.optim.matrices import Group
from moga.optim.rounding import Noise, write_

State = dict[str, Tensor]
States = Sequence[dict[str, Tensor]]


@dataclass(frozen=True)
class Step:
    """What one step of one bucket of equal tensors needs besides tensors."""

    group: Group
    dtype: torch.dtype  # of the arithmetic
    finite: Tensor | None  # False drops the step; None: always taken
    noise: Noise | None = None  # for rounding="stochastic"
    room: list[Tensor] | None = None  # memory that the buckets of a step take in turn

    def masked(self, new: Sequence[Tensor], old: Sequence[Tensor | float]) -> list[Tensor]:
        """``new``, or ``old`` where the step is dropped."""
        if self.finite is None:
            return list(new)
        return [torch.where(self.finite, a, b) for a, b in zip(new, old, strict=True)]


def averages(states: States, key: str, step: Step) -> list[Tensor]:
    """The averages of that name in the dtype of the arithmetic: the state itself where that is its own."""
    return [state[key].to(step.dtype) for state in states]


def advance(states: States, key: str, values: Sequence[Tensor], weight: float, step: Step) -> list[Tensor]:
    """``a <- a + weight (value - a)`` for the averages of that name; returns them before they are rounded."""
    new = averages(states, key, step)
    torch._foreach_lerp_(new, list(values), weight)
    return _stored(states, key, new, step)


def advance_squares(states: States, key: str, squares: Sequence[Tensor], weight: float, step: Step) -> list[Tensor]:
    """:func:`advance` for squares, which may overflow to Inf; the step is 0 then, as in torch."""
    new = averages(states, key, step)
    torch._foreach_lerp_(new, list(squares), weight)
    for average in new:
        average.nan_to_num_(nan=math.inf, posinf=math.inf)  # Inf + weight (Inf - Inf); a NaN gradient is NaN in m too
    return _stored(states, key, new, step)


def _stored(states: States, key: str, new: list[Tensor], step: Step) -> list[Tensor]:
    stored = [state[key] for state in states]
    if new[0] is not stored[0]:
        write_(stored, new, step.group["rounding"], step.noise)
    return new


def lookahead(group: Group) -> float:
    """b2 of the group: its ``lookahead``, ``momentum`` squared where that is None, b1 where it is "momentum".

    >>> round(lookahead({"momentum": 0.9, "lookahead": None}), 2), lookahead({"momentum": 0.9, "lookahead": "momentum"})
    (0.81, 0.9)
    """
    b1, b2 = group["momentum"], group["lookahead"]
    if b2 == "momentum":
        return float(b1)
    return float(b1**2 if b2 is None else b2)


def step_input(G: Sequence[Tensor], states: States, step: Step) -> list[Tensor]:
    """Advance the momentum and return the lookahead. A gradient equal to the momentum leaves it as it is."""
    group: dict[str, Any] = step.group
    if group["average"] == "none":
        return step.masked(G, [0.0] * len(G))
    M = averages(states, "momentum_buffer", step)
    if group["average"] == "sum":
        return _sums(step.masked(G, [0.0] * len(G)), M, states, step)
    G = step.masked(G, M)
    L = _between(list(G), M, lookahead(group), step)
    advance(states, "momentum_buffer", G, 1 - group["momentum"], step)
    return list(L)


def _between(G: list[Tensor], M: list[Tensor], weight: float, step: Step) -> list[Tensor]:
    """``G + weight (M - G)``; on a CPU in the room of the step, as memory fresh from the system comes page by page."""
    if step.room is None or not G[0].is_cpu or torch.compiler.is_compiling():
        return list(torch._foreach_lerp(G, M, weight))
    if [(one.shape, one.dtype) for one in step.room[: len(G)]] != [(one.shape, one.dtype) for one in G]:
        step.room[:] = map(torch.empty_like, G)
    L = step.room[: len(G)]
    torch._foreach_copy_(L, G)
    torch._foreach_lerp_(L, M, weight)
    return L


def _sums(G: Sequence[Tensor], M: Sequence[Tensor], states: States, step: Step) -> list[Tensor]:
    """``M <- b1 M + G``: the average of G / (1 - b1), for any sequence of b1; that quotient itself may overflow."""
    b1, b2 = step.group["momentum"], lookahead(step.group)
    L, new = torch._foreach_mul(list(M), b2), torch._foreach_mul(list(M), b1)
    torch._foreach_add_(L, list(G), alpha=(1 - b2) / (1 - b1))
    torch._foreach_add_(new, list(G))
    _stored(states, "momentum_buffer", step.masked(new, M), step)
    return list(L)
