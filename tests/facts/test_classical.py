"""Distances between distributions, the classical methods on a quadratic, and one model in two coordinates."""

from __future__ import annotations

import math

import pytest
import torch
from figures import classical
from figures.classical import DOUBLE, METHODS

import moga

GRID = torch.linspace(0, 3, 301, dtype=DOUBLE)


def point(at: float) -> torch.Tensor:
    return (torch.arange(301) == round(100 * at)).to(DOUBLE)


# --- distances


@pytest.mark.parametrize("s", [0.01, 0.5, 1.0, 3.0])
def test_js_of_disjoint_points_is_log_2_and_w1_is_the_distance(s: float):
    p, q = point(0.0), point(s)
    assert classical.jensen_shannon(p, q).item() == pytest.approx(math.log(2), abs=1e-12)
    assert classical.wasserstein(p, q, GRID).item() == pytest.approx(s, abs=1e-12)


def test_js_is_the_best_that_a_discriminator_can_do():
    """log 2 + max_D (E_p log D + E_q log(1 - D)) / 2, with D found by gradient ascent; also where the two overlap."""
    p, q = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=DOUBLE), torch.tensor([0.0, 0.0, 0.5, 0.5], dtype=DOUBLE)
    overlapping = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=DOUBLE)
    for other, expected in ((q, math.log(2)), (overlapping, math.log(2) / 2), (p, 0.0)):
        logits = torch.zeros(4, dtype=DOUBLE, requires_grad=True)
        ascent = torch.optim.LBFGS([logits], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

        def loss(other=other, logits=logits):
            softplus = torch.nn.functional.softplus
            return ((p * softplus(-logits)).sum() + (other * softplus(logits)).sum()) / 2

        def closure(ascent=ascent, loss=loss):
            ascent.zero_grad()
            value = loss()
            value.backward()
            return value

        ascent.step(closure)
        assert math.log(2) - loss().item() == pytest.approx(expected, abs=1e-6)
        assert classical.jensen_shannon(p, other).item() == pytest.approx(expected, abs=1e-12)


def test_w1_is_the_cheapest_matching():
    """Equal weights on the line: matching sorted points is optimal, and the area between the CDFs costs the same."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(0, 301, (50,), generator=generator) for _ in range(2))
    p, q = (torch.bincount(z, minlength=301).to(DOUBLE) / 50 for z in (x, y))
    matched = (GRID[x].sort().values - GRID[y].sort().values).abs().mean()
    unmatched = (GRID[x] - GRID[y]).abs().mean()
    assert classical.wasserstein(p, q, GRID).item() == pytest.approx(matched.item(), abs=1e-12)
    assert unmatched > matched


def test_only_w1_has_a_slope_when_the_peaks_are_apart():
    grid = torch.linspace(-0.3, 1.3, 1601, dtype=DOUBLE)  # no bump underflows to 0 here, where log has no slope
    slopes = {}
    for s in (0.1, 1.0):
        centre = torch.tensor(s, dtype=DOUBLE, requires_grad=True)
        here, there = classical.bump(grid, torch.zeros((), dtype=DOUBLE), 0.05), classical.bump(grid, centre, 0.05)
        for name, value in (
            ("js", classical.jensen_shannon(here, there)),
            ("w1", classical.wasserstein(here, there, grid)),
        ):
            slopes[name, s] = torch.autograd.grad(value, centre, retain_graph=True)[0].item()
    assert slopes["w1", 1.0] == pytest.approx(1.0, abs=1e-6)
    assert abs(slopes["js", 1.0]) < 1e-6
    assert slopes["js", 0.1] > 1  # where they overlap it has one


# --- four methods on the quadratic


@pytest.mark.parametrize("schedule", classical.SCHEDULES)
@pytest.mark.parametrize("method", METHODS)
def test_dual_steps_converge_at_a_constant_rate_and_fixed_ones_rattle(method: str, schedule: str):
    rattles = METHODS[method].step == "fixed" and schedule == "constant"
    assert classical.verdict(classical.descend(method, schedule)) == ("rattles" if rattles else "converges")


def test_the_four_are_two_of_each_kind():
    assert sorted(METHODS[method].step for method in classical.FOUR) == ["dual", "dual", "fixed", "fixed"]


def test_sign_descent_ends_in_the_cycle_that_its_start_determines():
    """Each coordinate falls by 0.1 until it is below 0.1, at its remainder r, and then jumps between r and r - 0.1."""
    last = classical.descend("sign descent", "constant")[-2:]
    for column, start in zip(last.T, (0.93, 0.71), strict=True):
        remainder = math.fmod(start, 0.1)
        assert sorted(column.tolist()) == pytest.approx([remainder - 0.1, remainder], abs=1e-9)


def test_normalised_descent_ends_in_half_a_step_along_the_steep_axis():
    """x - h H x / |H x| = -x needs an eigenvector of length h / 2; only along the steepest axis does it attract."""
    last = classical.descend("normalised gradient descent", "constant")[-2:]
    assert last.abs().tolist() == [pytest.approx([0.0, 0.05], abs=1e-4)] * 2
    assert last[0, 1] * last[1, 1] < 0


def test_gradient_descent_follows_its_closed_form():
    for schedule, factor in classical.SCHEDULES.items():
        rates = 0.04 * torch.tensor([factor(t) for t in range(1600)], dtype=DOUBLE)
        for i, (curvature, start) in enumerate(((1.0, 0.93), (25.0, 0.71))):
            exact = start * torch.cumprod(1 - rates * curvature, 0)
            torch.testing.assert_close(classical.descend("gradient descent", schedule)[1:, i], exact)


@pytest.mark.parametrize("method", [method for method, row in METHODS.items() if row.step == "dual"])
def test_a_dual_step_of_one_over_the_curvature_descends_and_twice_that_is_the_edge(method: str):
    """The curvature is taken in the method's own norm: 25 for l2 and l1, 26 for linf, 1 for Newton."""
    expected = {"l2": 25.0, "l1": 25.0, "linf": 26.0, "mahalanobis": 1.0}[METHODS[method].norm]
    assert classical.curvature(method) == pytest.approx(expected)

    def losses(lr: float):
        path = classical.descend(method, "constant", 60, lr)
        return (path * (path @ classical.H)).sum(-1) / 2

    assert (losses(1 / expected).diff() <= 0).all()
    assert losses(1.9 / expected)[-1] < losses(1.9 / expected)[0]
    if METHODS[method].norm != "linf":  # its edge depends on the corner at which the path ends
        assert losses(2.1 / expected)[-1] > losses(2.1 / expected)[0]


@pytest.mark.parametrize(
    "method, words",
    [
        ("gradient descent", {"norm": "euclidean", "step": "dual"}),
        ("normalised gradient descent", {"norm": "euclidean", "step": "fixed"}),
        ("sign descent", {"norm": "sign", "step": "fixed"}),
        ("scaled sign descent", {"norm": "sign", "step": "dual"}),
    ],
)
@pytest.mark.parametrize("schedule", classical.SCHEDULES)
def test_the_optimizer_walks_the_same_path(method: str, words: dict[str, str], schedule: str):
    weight = torch.nn.Parameter(classical.START.clone().reshape(1, 2))
    group = {"params": [weight], "layout": "out,in", "scale": 1.0, "average": "none", **words}
    optimizer = moga.SteepestDescent([group], lr=classical.rate(method))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, classical.SCHEDULES[schedule])
    for expected in classical.descend(method, schedule)[1:101]:
        weight.grad = weight.detach() @ classical.H
        optimizer.step()
        scheduler.step()
        torch.testing.assert_close(weight.detach()[0], expected, atol=1e-12, rtol=0)


# --- two coordinates


def begin(coordinates: str) -> torch.Tensor:
    return classical.inverse(coordinates, classical.BEGIN)


def test_natural_gradient_follows_one_path_to_first_order():
    natural, plain = (
        [classical.gap(method, lr) for lr in (0.1, 0.05, 0.025, 0.0125)]
        for method in ("natural gradient", "gradient descent")
    )
    rates = [0.1, 0.05, 0.025, 0.0125]
    assert classical.slope(rates, natural) == pytest.approx(1.0, abs=0.1)
    assert natural[-1] < 0.005
    assert abs(classical.slope(rates, plain)) < 0.01  # the negative control
    assert min(plain) > 0.15


def test_one_step_differs_in_the_second_order_only():
    """The same from one step, by the error of the chain rule: lr^2 for the natural gradient, lr for the plain one."""
    rates = [1e-2, 1e-3, 1e-4]
    for method, order in (("natural gradient", 2.0), ("gradient descent", 1.0)):
        errors = []
        for lr in rates:
            moved = begin("xi") + lr * classical.fit_step(method, "xi", begin("xi"))
            there = begin("theta") + lr * classical.fit_step(method, "theta", begin("theta"))
            errors.append((classical.MAPS["xi"](moved) - there).norm().item())
        assert classical.slope(rates, errors) == pytest.approx(order, abs=0.02), method


def test_the_fisher_information_is_what_autograd_finds():
    """E over labels of the outer product of the score; for this model also the Hessian in theta, but not in xi."""
    x, _ = classical.data()
    assert x.shape == (400, 2)
    p = torch.sigmoid(x @ classical.BEGIN)
    for coordinates in ("theta", "xi"):
        z = begin(coordinates)

        def log_likelihoods(z, label, coordinates=coordinates):
            logits = x @ classical.MAPS[coordinates](z)
            return -torch.nn.functional.softplus(-logits if label else logits)

        scores = [torch.autograd.functional.jacobian(lambda z, y=y: log_likelihoods(z, y), z) for y in (0, 1)]
        expected = sum(s.mT @ (s * w[:, None]) for s, w in zip(scores, (1 - p, p), strict=True)) / 400
        _, hessian, information = classical.derivatives(coordinates, z)
        torch.testing.assert_close(information, expected)
        assert torch.allclose(hessian, information) == (coordinates == "theta")


def test_newton_in_xi_climbs_and_drives_theta2_to_zero():
    g, hessian, _ = classical.derivatives("xi", begin("xi"))
    step = classical.fit_step("Newton", "xi", begin("xi"))
    assert step[1] * g[1] > 0  # uphill, where the natural gradient goes down
    assert classical.fit_step("natural gradient", "xi", begin("xi"))[1] * g[1] < 0
    assert torch.linalg.eigvalsh(hessian)[0] < 0
    theta2 = classical.fit_path("Newton", "xi", 1.0, 14)[:, 1]
    assert (theta2.diff() < 0).all() and theta2[-1] < 1e-6
    assert (theta2[-1] / theta2[-2]).item() == pytest.approx(math.exp(-1), rel=1e-3)
    assert "M must be positive definite" in classical.refuses_newton()


def test_newton_in_theta_finds_the_minimum():
    """The negative control: the loss is convex in theta, and the same step ends where the gradient is zero."""
    end = classical.fit_path("Newton", "theta", 1.0, 12)[-1]
    assert classical.derivatives("theta", end)[0].abs().max() < 1e-8
    assert (end - classical.TRUTH).norm() < 0.5
