"""What the iterations for the polar factor do to a singular value, and Shampoo's first step."""

from __future__ import annotations

import pytest
import torch
from figures import polar
from figures.polar import DOUBLE, iterate, iterated

from moga.geometry.newton_schulz import QUINTIC
from moga.geometry.polar import polar_factor

GRID = torch.logspace(-4, 0, 40001, dtype=DOUBLE)


def phi(x: torch.Tensor) -> torch.Tensor:
    return iterate("quintic", x)


def test_the_quintic_at_1_and_its_slope_at_0():
    x = torch.tensor([0.0, 1.0], dtype=DOUBLE, requires_grad=True)
    value = phi(x)
    [slope] = torch.autograd.grad(value.sum(), x)
    assert round(value[1].item(), 3) == 0.701
    assert round(slope[0].item(), 4) == 3.4445


def test_the_fixed_points_of_the_quintic():
    """From the quadratic in x^2, checked by the map itself and by autograd; there is no third."""
    (first, first_slope), (second, second_slope) = polar.fixed_points()
    assert (round(first, 3), round(first_slope, 2), round(second, 3)) == (0.868, -1.58, 1.264)
    x = torch.tensor([first, second], dtype=DOUBLE, requires_grad=True)
    torch.testing.assert_close(phi(x), x)
    [slopes] = torch.autograd.grad(phi(x).sum(), x)
    torch.testing.assert_close(slopes, torch.tensor([first_slope, second_slope], dtype=DOUBLE))
    assert (slopes.abs() > 1).all()  # both repel: singular values do not converge
    dense = torch.linspace(1e-3, 2, 200001, dtype=DOUBLE)
    assert ((phi(dense) - dense).sign().diff() != 0).sum() == 2


def test_a_value_near_the_fixed_point_leaves_it():
    first = polar.fixed_points()[0][0]
    assert abs(iterate("quintic", torch.tensor(first + 1e-3, dtype=DOUBLE), 5) - first) > 5e-3
    one = torch.tensor(1 + 1e-3, dtype=DOUBLE)
    assert abs(iterate("cubic", one, 5) - 1) < 1e-9  # the negative control: 1 attracts in the cubic


def test_five_steps_end_in_the_stated_band():
    after = iterate("quintic", GRID, 5)
    assert f"{after.min():.3f} {after.max():.2f}" == "0.048 1.20"
    assert 3.4445**5 * 1e-4 == pytest.approx(after[0].item(), rel=5e-3)  # small values only grow by the slope
    assert (after[GRID >= 1.31e-3] >= 0.6).all()
    assert iterate("quintic", torch.tensor(1.30e-3, dtype=DOUBLE), 5) < 0.6
    assert not (after > 0.7).all()


def test_the_band_is_found_by_matrices_too():
    x = torch.logspace(-4, -1e-4, 2001, dtype=DOUBLE)
    torch.testing.assert_close(iterated("quintic", x, 5), iterate("quintic", x, 5), atol=1e-9, rtol=0)
    assert iterated("quintic", x[x >= 1.31e-3], 5).min() >= 0.6
    assert QUINTIC == (3.4445, -4.7750, 2.0315)


def test_the_cubic_needs_16_steps():
    assert polar.steps_to(0.5, 1e-3) == 16
    start = torch.tensor([1e-3], dtype=DOUBLE)
    assert iterated("cubic", start, 15) < 0.5 <= iterated("cubic", start, 16)
    assert polar.steps_to(0.5, 1e-3, "quintic") == 6


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_shampoo_without_accumulation_is_the_polar_factor(shape: tuple[int, int]):
    generator = torch.Generator().manual_seed(0)
    first, G = (torch.randn(shape, generator=generator, dtype=DOUBLE) for _ in range(2))
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    torch.testing.assert_close(polar.shampoo_direction([G]), U @ Vh)
    torch.testing.assert_close(polar_factor(G), U @ Vh)
    torch.testing.assert_close(polar.recipe_step("shampoo", [first, G]), U @ Vh)
    alone = polar.recipe_step("shampoo-accumulated", [G], damping=1e-10)
    torch.testing.assert_close(alone, U @ Vh, atol=1e-6, rtol=0)
    # the negative control: with accumulation the second step is another
    both = polar.recipe_step("shampoo-accumulated", [first, G], damping=1e-10)
    torch.testing.assert_close(both, polar.shampoo_direction([first, G]), atol=1e-6, rtol=0)
    assert (both - U @ Vh).abs().max() > 0.1
