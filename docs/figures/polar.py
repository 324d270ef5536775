"""What the iterations for the polar factor do to a singular value, and Shampoo's first step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import moga
from moga.geometry.newton_schulz import CUBIC, QUINTIC
from moga.geometry.polar import polar_factor

DOUBLE = torch.float64
COEFFICIENTS = {"cubic": CUBIC, "quintic": QUINTIC}


def iterate(method: str, x: Tensor, steps: int = 1) -> Tensor:
    """The odd polynomial ``a x + b x^3 + c x^5`` of a method, ``steps`` times, on numbers."""
    a, b, c = COEFFICIENTS[method]
    for _ in range(steps):
        x = a * x + b * x**3 + c * x**5
    return x


def iterated(method: str, x: Tensor, steps: int) -> Tensor:
    """What moga's polar factor makes of the singular values x (n,) < 1, each in a matrix of Frobenius norm 1."""
    matrices = torch.diag_embed(torch.stack([x, (1 - x**2).sqrt()], -1))
    return polar_factor(matrices, method, steps)[..., 0, 0]


def fixed_points(method: str = "quintic") -> list[tuple[float, float]]:
    """The positive ``x = a x + b x^3 + c x^5`` and the slopes of the map there: y = x^2 solves a quadratic."""
    a, b, c = COEFFICIENTS[method]
    roots = [(-b + sign * math.sqrt(b * b - 4 * c * (a - 1))) / (2 * c) for sign in (-1, 1)]
    return [(math.sqrt(y), a + 3 * b * y + 5 * c * y * y) for y in roots]


def start_of(level: float, method: str = "quintic", steps: int = 5, grid: int = 40001) -> float:
    """The smallest x in [1e-4, 1] from which on every singular value ends at ``level`` or more."""
    x = torch.logspace(-4, 0, grid, dtype=DOUBLE)
    return float(x[iterate(method, x, steps) < level].max())


def steps_to(level: float, start: float, method: str = "cubic") -> int:
    """How many steps bring ``start`` to ``level``."""
    x, steps = torch.tensor(start, dtype=DOUBLE), 0
    while x < level:
        x, steps = iterate(method, x), steps + 1
    return steps


def shampoo_direction(gradients: Sequence[Tensor]) -> Tensor:
    """``A^(-1/4) G B^(-1/4)`` for the last G, with the sums A of G G^T and B of G^T G, on their ranges."""
    A, B = (sum(X) for X in zip(*((G @ G.mT, G.mT @ G) for G in gradients), strict=True))
    roots = []
    for X in (A, B):
        values, vectors = torch.linalg.eigh(X)
        kept = values > values[-1] * 1e-12
        roots.append((vectors[:, kept] * values[kept] ** -0.25) @ vectors[:, kept].mT)
    return roots[0] @ gradients[-1] @ roots[1]


def recipe_step(recipe: str, gradients: Sequence[Tensor], **options: float) -> Tensor:
    """The last step of a recipe at lr = 1 for a hidden matrix with those gradients."""
    weight = torch.nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = moga.optimizer([("w", weight)], recipe, lr=1.0, roles={"w": "hidden"}, **options)
    before = weight.detach().clone()
    for gradient in gradients:
        before, weight.grad = weight.detach().clone(), gradient
        optimizer.step()
    return before - weight.detach()
