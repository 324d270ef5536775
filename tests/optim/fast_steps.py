"""What is asked of every faster way to take a step: the updates, and their errors beside those of tensor operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from models.groups import GROUP
from torch import Tensor

from moga.optim.reference import reference
from moga.optim.update import batched, new_state

UPDATES = [
    {"norm": "sign"},
    {"norm": "sign", "lookahead": 0.3, "momentum": 0.3},
    {"norm": "row"},
    {"norm": "row", "p": 1.0, "weight_decay": 0.0},
    {"norm": "row", "average": "none"},
    {"norm": "row", "lookahead": 0.2, "momentum": 0.0},
    {"norm": "column"},
    {"norm": "column", "q": math.inf},
    {"norm": "column", "average": "none", "lookahead": "momentum"},
    {"norm": "adam"},
    {"norm": "adam", "eps": 0.0, "betas": [0.0, 0.3]},
]
SHAPES = {"stack,out,in": (3, 6, 5), "2*out,in,k": (6, 5, 3, 3), "in,out": (5, 6)}  # (6, 5) in other layouts


def grads_of(shape, count, size=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [size * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count)]


@dataclass(frozen=True)
class Fast:
    """The word of an implementation, and its step: ``take(weight, grad, state, group)`` fails if it leaves one."""

    word: str
    take: Callable[[Tensor, Tensor, dict[str, Tensor], dict[str, Any]], None]
    device: str = "cpu"

    def group_of(self, *parts, **words):
        group = {**GROUP, "implementation": self.word}
        for part in (*parts, words):
            group |= part
        return group

    def start(self, shape, dtype, group):
        weight = grads_of(shape, 1, seed=9)[0].to(self.device, dtype)
        return weight, new_state(weight, group)

    def ran(self, group, shape, dtype, grads, way, size=1.0):
        """The weight and state after a step for every gradient: ``way`` is "float64", "plain" or the word."""
        weight, state = self.start(shape, dtype, group)
        weight *= size
        if way == "float64":
            weight, state = weight.double(), {key: value.double() for key, value in state.items()}
        for grad in grads:
            grad = grad.to(self.device, dtype)
            if way == "float64":
                reference(weight, grad.double(), state, group)
            elif way == "plain":
                batched([weight], [grad], [state], {**group, "implementation": "plain"}, None)
            else:
                assert way == self.word
                self.take(weight, grad, state, group)
        return [weight, *state.values()]

    def check_errors(self, group, shape, dtype, grads):
        """No error is over twice that of tensor operations, or a unit in the last place of the largest in each step.

        Weights start at 0: what is left in them are the steps, and no rounding of large weights hides an error.
        """
        exact, plain, fast = (self.ran(group, shape, dtype, grads, way, 0.0) for way in ("float64", "plain", self.word))
        for a, b, c in zip(exact, plain, fast, strict=True):
            limit = 2 * (b.double() - a).abs().max() + len(grads) * torch.finfo(c.dtype).eps * a.abs().max()
            assert (c.double() - a).abs().max() <= limit
