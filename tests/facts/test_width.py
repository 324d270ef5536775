"""What width does: the spectral norm of a step of signs, and ten steps of Adam in a network."""

from __future__ import annotations

import math

import pytest
import torch
from figures import width
from figures.classical import slope

import moga

SLOPES = {1: 1.00, 4: 0.95, 16: 0.88, 0: 0.50}


@pytest.mark.parametrize("rank", width.RANKS)
def test_the_spectral_norm_of_signs_grows_with_the_stated_slope(rank: int):
    assert width.sign_slope(rank) == pytest.approx(SLOPES[rank], abs=0.02)
    others = [value for other, value in SLOPES.items() if other != rank]
    assert all(abs(width.sign_slope(rank) - other) > 0.03 for other in others)  # no rank passes for another


def test_signs_of_rank_1_have_exactly_the_norm_n():
    assert width.sign_sizes(1) == pytest.approx(width.WIDTHS, rel=1e-5)


def test_the_iteration_agrees_with_the_whole_decomposition():
    for rank in width.RANKS:
        for n in (64, 256):
            signs = width.sign_step(width.gradient(n, rank, seed=5))
            exact = moga.norm("spectral").measure(signs).item()  # square: the scale is 1
            assert width.largest_singular_value(signs) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("rank, expected", [(1, 1.0), (2, 2 / math.pi), (3, 0.5)])
def test_the_limit_at_ranks_that_are_known(rank: int, expected: float):
    """E |w_1|: |w_1| = 1 on two points, |cos| on the circle, uniform on the sphere (Archimedes)."""
    assert width.limit(rank) == pytest.approx(expected)


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_the_limit_is_the_mean_of_an_entry_and_what_wide_matrices_reach(rank: int):
    by_gamma = math.gamma(rank / 2) / (math.sqrt(math.pi) * math.gamma((rank + 1) / 2))
    assert width.limit(rank) == pytest.approx(by_gamma)
    w = torch.randn(200_000, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert (w[:, 0].abs() / w.norm(dim=1)).mean().item() == pytest.approx(width.limit(rank), rel=0.01)
    # The entries of a finite matrix scatter it upwards: |sign(G)|_2 / n falls to the limit.
    shares = [size / n for size, n in zip(width.sign_sizes(rank), width.WIDTHS, strict=True)]
    excess = [share / width.limit(rank) - 1 for share in shares]
    assert -1e-3 < excess[-1] < 0.12 and excess[-1] <= excess[0] + 1e-3


def test_dense_signs_have_the_norm_of_independent_entries():
    """2 sqrt n, the edge of the spectrum of a random matrix with entries of variance 1."""
    assert width.sign_sizes(0)[-1] == pytest.approx(2 * math.sqrt(2048), rel=0.02)


@pytest.mark.parametrize("what", ["spectral", "effect"])
def test_a_fixed_rate_grows_with_width_and_one_over_n_is_flat(what: str):
    assert width.trained_slope("adamw", what) == pytest.approx(1.0, abs=0.1)
    assert width.trained_slope("mup-adamw", what) == pytest.approx(0.0, abs=0.05)


def test_both_recipes_take_the_same_step_at_the_width_of_the_rate():
    for what in ("spectral", "effect"):
        assert width.trained("adamw", what)[0] == pytest.approx(width.trained("mup-adamw", what)[0], rel=0.02)


def test_a_rate_over_the_square_root_of_n_is_neither():
    """The negative control, up to width 512: the slope is about 1/2."""
    widths = [64, 128, 256, 512]
    sizes = [width.train("adamw", n, 1e-4 * (64 / n) ** 0.5).spectral for n in widths]
    assert slope(widths, sizes) == pytest.approx(0.5, abs=0.1)
