"""Two distances between distributions, the classical methods on a quadratic, and one model in two coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

import moga
from moga.geometry.steps import METHODS, method_step

DOUBLE = torch.float64


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """The Jensen-Shannon divergence in nats of two histograms (k,): the mixture's entropy less the mean entropy."""
    entropy = torch.special.entr(torch.stack([(p + q) / 2, p, q])).sum(-1)
    return entropy[0] - (entropy[1] + entropy[2]) / 2


def wasserstein(p: Tensor, q: Tensor, grid: Tensor) -> Tensor:
    """W1 of two histograms (..., k) on points ``grid`` (k,): the area between their distribution functions."""
    gap = (p - q).cumsum(-1)[..., :-1].abs()
    return (gap * grid.diff()).sum(-1)


def bump(grid: Tensor, centre: Tensor, width: float) -> Tensor:
    """A normal distribution on a grid: a point mass that has a gradient in its place."""
    return torch.softmax(-((grid - centre) ** 2) / (2 * width**2), -1)


# Four methods on (x1^2 + 25 x2^2) / 2. The dual steps take 1 / L, with L the curvature in their own norm; the fixed
# ones take 0.1, of which neither start is a multiple.
H = torch.diag(torch.tensor([1.0, 25.0], dtype=DOUBLE))
START = torch.tensor([0.93, 0.71], dtype=DOUBLE)
FOUR = ("gradient descent", "greedy coordinate descent", "normalised gradient descent", "sign descent")
SCHEDULES: dict[str, Callable[[int], float]] = {"constant": lambda t: 1.0, "1/sqrt(t+1)": lambda t: (t + 1) ** -0.5}


def curvature(method: str) -> float:
    """``max <d, H d>`` over the unit ball of the method's norm; a convex function is largest at the ball's corners."""
    ball = METHODS[method].norm
    if ball == "linf":
        corners = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=DOUBLE)
        return float(torch.einsum("ni,ij,nj->n", corners, H, corners).max())
    if ball == "l1":
        return float(H.diagonal().max())
    M = H if ball == "mahalanobis" else torch.eye(2, dtype=DOUBLE)
    return float(torch.linalg.eigvals(torch.linalg.solve(M, H)).real.max())


def rate(method: str) -> float:
    """The learning rate that a method gets here."""
    return 0.1 if METHODS[method].step == "fixed" else 1 / curvature(method)


@cache
def descend(method: str, schedule: str, steps: int = 1600, lr: float | None = None) -> Tensor:
    """All points (steps + 1, 2) of a method on the quadratic, by the public table of methods."""
    M = H if METHODS[method].M else None
    lr = rate(method) if lr is None else lr
    path = [START]
    for t in range(steps):
        path.append(path[-1] - lr * SCHEDULES[schedule](t) * method_step(method, H @ path[-1], M))
    return torch.stack(path)


def left(path: Tensor, steps: int) -> float:
    """The largest distance from the minimum in the ten steps up to ``steps``."""
    return float(path[steps - 9 : steps + 1].norm(dim=-1).max())


def verdict(path: Tensor) -> str:
    """Four times as many steps: a method that converges comes closer by 2 (a step ~ 1/sqrt(t) does), or it rattles."""
    long = len(path) - 1
    return "converges" if left(path, long) <= 0.6 * left(path, long // 4) else "rattles"


# Logistic regression with two weights, the second of them positive: theta = (xi1, exp xi2).
COUNT = 400
TRUTH = torch.tensor([0.5, 2.0], dtype=DOUBLE)
BEGIN = torch.tensor([-0.5, 0.3], dtype=DOUBLE)
MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "theta": lambda theta: theta,
    "xi": lambda xi: torch.stack([xi[0], xi[1].exp()]),
}


@cache
def data() -> tuple[Tensor, Tensor]:
    """400 standard normal inputs (n, 2), and labels drawn with probability sigmoid(0.5 x1 + 2 x2); seed 0."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(COUNT, 2, generator=generator, dtype=DOUBLE)
    return x, torch.bernoulli(torch.sigmoid(x @ TRUTH), generator=generator)


def loss(theta: Tensor) -> Tensor:
    """The mean negative log-likelihood in nats."""
    x, y = data()
    logits = x @ theta
    return (torch.nn.functional.softplus(logits) - y * logits).mean()


def fisher(theta: Tensor) -> Tensor:
    """``E x x^T p (1 - p)``: what a label tells about theta."""
    x, _ = data()
    p = torch.sigmoid(x @ theta)
    return x.mT @ (x * (p * (1 - p))[:, None]) / COUNT


def derivatives(coordinates: str, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss's gradient, its Hessian and the Fisher information, all in those coordinates."""
    to_theta = MAPS[coordinates]

    def in_place(z: Tensor) -> Tensor:
        return loss(to_theta(z))

    g = torch.autograd.functional.jacobian(in_place, point)
    J = torch.autograd.functional.jacobian(to_theta, point)
    return g, torch.autograd.functional.hessian(in_place, point), J.mT @ fisher(to_theta(point)) @ J


def fit_step(method: str, coordinates: str, point: Tensor) -> Tensor:
    """What lr multiplies. Newton's is solved as it stands: where the Hessian is indefinite it belongs to no norm."""
    g, hessian, information = derivatives(coordinates, point)
    if method == "Newton":
        return -torch.linalg.solve(hessian, g)
    return -method_step(method, g, information if METHODS[method].M else None)


def inverse(coordinates: str, theta: Tensor) -> Tensor:
    return theta.clone() if coordinates == "theta" else torch.stack([theta[0], theta[1].log()])


@cache
def fit_path(method: str, coordinates: str, lr: float, steps: int) -> Tensor:
    """The points in theta (steps + 1, 2) of a method that steps in those coordinates."""
    point = inverse(coordinates, BEGIN)
    path = [point]
    for _ in range(steps):
        point = point + lr * fit_step(method, coordinates, point)
        path.append(point)
    return torch.stack([MAPS[coordinates](z) for z in path])


def gap(method: str, lr: float, time: float = 1.0) -> float:
    """How far apart the two coordinates have come after ``time / lr`` steps, in theta."""
    steps = round(time / lr)
    return float((fit_path(method, "theta", lr, steps)[-1] - fit_path(method, "xi", lr, steps)[-1]).norm())


def slope(xs: list[float], ys: list[float]) -> float:
    """The exponent of a power law: the least-squares slope of log y against log x."""
    x, y = (torch.tensor([math.log(value) for value in values], dtype=DOUBLE) for values in (xs, ys))
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def refuses_newton() -> str:
    """What moga says of Newton's norm at the start in xi."""
    try:
        moga.norm("mahalanobis", M=derivatives("xi", inverse("xi", BEGIN))[1])
    except ValueError as error:
        return str(error)
    return ""
