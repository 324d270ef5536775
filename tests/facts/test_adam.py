"""The size of Adam's steps, stability with momentum, and what decay bounds."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from figures import adam
from hypothesis import given
from hypothesis import strategies as st

import moga

# --- noise


def test_the_spread_is_0_229():
    assert round(adam.noisy_theory(0.0)[1], 3) == 0.229
    i = torch.arange(1000, dtype=torch.float64)
    weights = 0.1 * 0.9**i  # of g_(t-i) in m: their squares are the variance
    assert weights.square().sum().sqrt().item() == pytest.approx(adam.noisy_theory(0.0)[1], abs=1e-12)


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_steps_on_noise_have_the_mean_and_spread_of_the_formula(sigma: float):
    mus = (0.0, 0.5, 1.0, 3.0)
    for mu, (mean, spread) in zip(mus, adam.noisy_steps(mus, sigma), strict=True):
        assert mean == pytest.approx(mu / math.sqrt(mu**2 + sigma**2), abs=0.008)
        assert spread == pytest.approx(0.229 * sigma / math.sqrt(mu**2 + sigma**2), rel=0.03)


def test_another_b1_has_another_spread():
    """The negative control: sqrt(0.5 / 1.5) = 0.577."""
    [(_, spread)] = adam.noisy_steps((0.0,), beta=0.5)
    assert spread == pytest.approx(math.sqrt(1 / 3), rel=0.03)


# --- the largest step


def test_the_bound_is_7_270_and_the_growing_history_reaches_it():
    assert round(adam.sharp_bound(), 3) == 7.270
    sizes = adam.largest_steps()
    assert sizes.pop("growing by b2 / b1") == pytest.approx(adam.sharp_bound(), rel=1e-9)
    assert round(sizes["single spike"], 2) == 3.16
    assert sizes["single spike"] == pytest.approx(0.1 / math.sqrt(0.001), rel=1e-9)
    assert max(sizes.values()) < 7.0  # no other history comes as far


def test_the_bound_from_the_definition_of_the_averages():
    """Without the optimizer: with weights w of m and u of v, the largest m over v = 1 is |w / sqrt(u)|."""
    i = torch.arange(4000, dtype=torch.float64)
    w, u = 0.1 * 0.9**i, 0.001 * 0.999**i
    assert (w / u.sqrt()).norm().item() == pytest.approx(adam.sharp_bound(), rel=1e-9)


# Squares below 1e-308 lose digits: smaller gradients than these are rounded to 0.
GRADIENTS = st.floats(-1e3, 1e3).map(lambda x: x if abs(x) > 1e-140 else 0.0)


@given(st.lists(GRADIENTS, min_size=1, max_size=12), st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.0, 0.5)]))
def test_no_history_exceeds_the_bound(history: list[float], betas: tuple[float, float]):
    gradients = torch.tensor(history, dtype=torch.float64)[:, None]
    assert adam.adam_steps(gradients, betas).abs().max() <= adam.sharp_bound(*betas) * (1 + 1e-9)


def test_with_bias_correction_the_first_step_has_size_1():
    """Why the bound says "without": the same spike at the first step of all."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = moga.optimizer([("w", weight)], "adam", lr=1.0, roles={"w": "vector"}, eps=0.0)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert abs(weight.item()) == pytest.approx(1.0)


# --- stability


@pytest.mark.parametrize("word, b2, limit", [("momentum", 0.9, "38.00"), (None, 0.81, "13.57")])
def test_the_stability_limit_by_polynomial_formula_and_run(word: str | None, b2: float, limit: str):
    b1 = 0.9
    found = adam.stability_limit(b1, b2)
    assert f"{found:.2f}" == limit
    assert found == pytest.approx(2 * (1 + b1) / (1 + b1 - 2 * b2), rel=1e-9)
    below, above = adam.measured_growth((0.99 * found, 1.01 * found), b1, word)
    assert below < 1 < above
    assert above == pytest.approx(adam.growth(1.01 * found, b1, b2), rel=1e-3)


def test_without_momentum_the_limit_is_2():
    assert adam.stability_limit(0.0, 0.0) == pytest.approx(2.0)
    below, above = adam.measured_growth((1.98, 2.02), 0.0, 0.0)
    assert below < 1 < above


def test_the_limit_of_adam_is_38_times_its_preconditioner():
    assert adam.adam_growth(0.99 * 38) < 1 < adam.adam_growth(1.01 * 38)


# --- decay


@pytest.mark.parametrize("norm", adam.MATRIX_NORMS)
def test_decay_holds_a_weight_within_one_over_weight_decay(norm: str):
    steady, noise = (adam.decayed_sizes(norm, 0.5, gradient) for gradient in ("steady", "noise"))
    assert steady[-1] == pytest.approx(1 / 0.5, rel=1e-6)  # reached, and from above
    assert noise[-1] <= 1 / 0.5
    for sizes in (steady, noise):
        assert sizes[0] > 5  # it began at 6
        assert all(new <= 0.9 * old + 0.1 / 0.5 + 1e-9 for old, new in pairwise(sizes))


def test_decay_holds_adam_within_7_27_over_weight_decay():
    growing = max(adam.decayed_adam(0.5, "growing", "zeros"))
    assert f"{growing * 0.5:.2f}" == "7.27"
    assert growing <= adam.sharp_bound() / 0.5
    steady = max(adam.decayed_adam(0.5, "steady", "zeros"))
    assert 1 / 0.5 < steady < 0.8 * growing  # the history matters: without growth the bound is not reached


def test_a_steady_gradient_takes_adam_to_one_over_weight_decay():
    """From the first step on, as torch.optim.AdamW does; after zeros, once the average of the squares is full."""
    sizes = adam.decayed_adam(0.5, "steady", "nothing")
    weight = torch.nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=0.2, weight_decay=0.5, eps=0.0)
    for size in sizes:
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert abs(weight.item()) == pytest.approx(size, rel=1e-9)
    assert sizes == sorted(sizes) and sizes[-1] == pytest.approx(2.0, rel=1e-6)  # from below
    assert adam.decayed_adam(0.5, "steady", "zeros", steps=10_000)[-1] == pytest.approx(2.0, rel=1e-3)
