"""The size of Adam's steps, and how large a step may be: noise, the worst history, momentum, decay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor

import moga

DOUBLE = torch.float64
BETAS = (0.9, 0.999)
OLD = 1e6  # steps after which nothing is left of the bias correction: 0.999^OLD is 0 in float64
MATRIX_NORMS = ("sign", "row", "column", "spectral")


def adam_steps(gradients: Iterable[Tensor], betas: Sequence[float] = BETAS, square: Tensor | float = 0.0) -> Tensor:
    """The steps (steps, n) of the recipe "adam" at lr = 1, from m = 0 and v = ``square``, without bias correction."""
    optimizer, weight, steps = None, torch.empty(0), []
    for gradient in gradients:
        if optimizer is None:
            weight = torch.nn.Parameter(torch.zeros_like(gradient))
            pair = [("w", weight)]
            optimizer = moga.optimizer(pair, "adam", lr=1.0, roles={"w": "vector"}, betas=tuple(betas), eps=0.0)
            weight.grad = torch.zeros_like(gradient)
            optimizer.step()  # makes the state: both averages and the count of steps
            optimizer.state[weight]["step"].fill_(OLD)
            optimizer.state[weight]["exp_avg_sq"].add_(square)
        before, weight.grad = weight.detach().clone(), gradient
        optimizer.step()
        steps.append(before - weight.detach())
    return torch.stack(steps)


@cache
def noisy_steps(mus: tuple[float, ...], sigma: float = 1.0, beta: float = BETAS[0]) -> list[tuple[float, float]]:
    """For each mu the mean and standard deviation of Adam's steps on independent gradients N(mu, sigma^2).

    2000 weights each, 10 steps of each: from v at its mean, and 40 apart, where m is independent (0.9^40 = 0.015).
    """
    generator = torch.Generator().manual_seed(0)
    means = torch.tensor(mus, dtype=DOUBLE).repeat_interleave(2000)
    draws = (means + sigma * torch.randn(len(means), generator=generator, dtype=DOUBLE) for _ in range(440))
    steps = adam_steps(draws, (beta, BETAS[1]), means**2 + sigma**2)[79::40].reshape(-1, len(mus), 2000)
    return list(zip(steps.mean((0, 2)).tolist(), steps.std((0, 2)).tolist(), strict=True))


def noisy_theory(mu: float, sigma: float = 1.0, beta: float = BETAS[0]) -> tuple[float, float]:
    """``mu / sqrt(mu^2 + sigma^2)`` and ``sqrt((1 - b1) / (1 + b1)) sigma / sqrt(mu^2 + sigma^2)``."""
    size = math.hypot(mu, sigma)
    return mu / size, math.sqrt((1 - beta) / (1 + beta)) * sigma / size


def sharp_bound(b1: float = BETAS[0], b2: float = BETAS[1]) -> float:
    """The largest ``|m| / sqrt(v)`` of any history, by the Cauchy-Schwarz inequality; it needs b1^2 < b2."""
    return (1 - b1) / math.sqrt((1 - b2) * (1 - b1**2 / b2))


def histories(length: int = 120) -> dict[str, Tensor]:
    """Histories of one gradient (length,), by name; the growing one is what makes Cauchy-Schwarz an equality."""
    t = torch.arange(length, dtype=DOUBLE)
    b1, b2 = BETAS
    spike = torch.zeros(length, dtype=DOUBLE)
    spike[-1] = 1.0
    generator = torch.Generator().manual_seed(0)
    return {
        "growing by b2 / b1": (b2 / b1) ** t,
        "growing by 1.05": 1.05**t,
        "growing by 2": 2.0**t,
        "single spike": spike,
        "noise": torch.randn(length, generator=generator, dtype=DOUBLE),
    }


@cache
def largest_steps() -> dict[str, float]:
    """The largest step of Adam on each of the histories, without bias correction."""
    rows = histories()
    steps = adam_steps(torch.stack(list(rows.values()), dim=1)).abs().amax(0)
    return dict(zip(rows, steps.tolist(), strict=True))


# Momentum on (sharpness x^2) / 2 with lr = 1: x and the average M after a step, from those before it.
def transition(sharpness: float, b1: float, b2: float) -> Tensor:
    """The matrix of ``x' = x - b2 M - (1 - b2) g``, ``M' = b1 M + (1 - b1) g`` with ``g = sharpness x``."""
    return torch.tensor([[1 - (1 - b2) * sharpness, -b2], [(1 - b1) * sharpness, b1]], dtype=DOUBLE)


def growth(sharpness: float, b1: float, b2: float) -> float:
    """The factor per step in the long run: the largest root of the characteristic polynomial, in absolute value."""
    return float(torch.linalg.eigvals(transition(sharpness, b1, b2)).abs().max())


def stability_limit(b1: float, b2: float) -> float:
    """The sharpness at which the growth reaches 1, by bisection."""
    stable, unstable = 0.0, 1e3
    while unstable - stable > 1e-9:
        middle = (stable + unstable) / 2
        stable, unstable = (middle, unstable) if growth(middle, b1, b2) < 1 else (stable, middle)
    return stable


@cache
def measured_growth(sharpnesses: tuple[float, ...], b1: float, lookahead: float | str | None) -> list[float]:
    """The factor per step of ``moga.SteepestDescent`` on quadratics of those sharpnesses, from 300 steps each."""
    curvatures = torch.tensor(sharpnesses, dtype=DOUBLE)
    weight = torch.nn.Parameter(torch.ones_like(curvatures))
    group = {"params": [weight], "norm": "euclidean", "step": "dual", "layout": "vector", "scale": 1.0}
    optimizer = moga.SteepestDescent([group], lr=1.0, momentum=b1, lookahead=lookahead, nonfinite="propagate")
    sizes = []
    for _ in range(300):
        weight.grad = curvatures * weight.detach()
        optimizer.step()
        sizes.append(weight.detach().abs())
    early, late = (torch.stack(sizes[end - 50 : end]).amax(0) for end in (150, 300))
    return ((late / early) ** (1 / 150)).tolist()


def adam_growth(sharpness: float) -> float:
    """The factor per step of Adam whose second average stands at 1: its preconditioner is fixed, and it is momentum."""
    weight = torch.nn.Parameter(torch.full((1,), 1e-40, dtype=DOUBLE))
    optimizer = moga.optimizer([("w", weight)], "adam", lr=1.0, roles={"w": "vector"}, eps=0.0)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    state = optimizer.state[weight]
    state["step"].fill_(OLD)
    sizes = []
    for _ in range(300):
        state["exp_avg_sq"].fill_(1 / BETAS[1])
        weight.grad = sharpness * weight.detach()
        optimizer.step()
        sizes.append(float(weight.detach().abs()))
    return float((max(sizes[250:]) / max(sizes[100:150])) ** (1 / 150))


def decayed_sizes(norm: str, weight_decay: float, gradient: str, steps: int = 200) -> list[float]:
    """The size of a weight in the step's own norm while it is decayed; it starts at 3 / weight_decay.

    The gradient is ``steady``, the same at every step, or ``noise``. lr weight_decay is 0.1.
    """
    generator = torch.Generator().manual_seed(0)
    measure = moga.norm(norm).measure
    start = torch.randn(6, 4, generator=generator, dtype=DOUBLE)
    weight = torch.nn.Parameter(start * 3 / weight_decay / measure(start))
    recipe = {"hidden": {"norm": norm, **({"polar": "exact"} if norm == "spectral" else {})}}
    options = {"roles": {"w": "hidden"}, "weight_decay": weight_decay}
    optimizer = moga.optimizer([("w", weight)], recipe, lr=0.1 / weight_decay, **options)
    steady = torch.randn(6, 4, generator=generator, dtype=DOUBLE)
    sizes = []
    for _ in range(steps):
        noise = torch.randn(6, 4, generator=generator, dtype=DOUBLE)
        weight.grad = steady if gradient == "steady" else noise
        optimizer.step()
        sizes.append(float(measure(weight.detach())))
    return sizes


@cache
def decayed_adam(weight_decay: float, gradient: str, before: str, steps: int = 200) -> list[float]:
    """The sizes of a weight under AdamW from zero on: gradients ``growing`` by b2 / b1, or ``steady``.

    ``before`` them came ``nothing``, or so many ``zeros`` that nothing is left of the bias correction.
    """
    weight = torch.nn.Parameter(torch.zeros(1, 1, dtype=DOUBLE))
    options = {"roles": {"w": "hidden"}, "weight_decay": weight_decay, "betas": BETAS, "eps": 0.0}
    optimizer = moga.optimizer([("w", weight)], "adamw", lr=0.1 / weight_decay, **options)
    if before == "zeros":
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        optimizer.state[weight]["step"].fill_(OLD)
    sizes = []
    for t in range(steps):
        weight.grad = torch.full_like(weight, (BETAS[1] / BETAS[0]) ** t if gradient == "growing" else 1.0)
        optimizer.step()
        sizes.append(float(weight.detach().abs()))
    return sizes
