"""Slopes and verdicts, from numbers worked out by hand."""

from __future__ import annotations

import pytest

from moga.report.slopes import Finding, Slope, judge, slope


def powers(*exponents: float, sizes=(32, 64, 128, 256)):
    """A size that goes as width^exponent, one exponent per seed."""
    return {size: {seed: 3 * size**exponent for seed, exponent in enumerate(exponents)} for size in sizes}


def test_the_slope_is_the_mean_over_seeds_with_its_standard_error():
    """Exponents 0.1 and 0.3: mean 0.2, standard deviation 0.1 sqrt(2), over sqrt(2) seeds."""
    found = slope(powers(0.1, 0.3))
    assert (found.value, found.stderr) == (pytest.approx(0.2), pytest.approx(0.1))
    assert str(found) == "+0.20 ± 0.10"
    assert slope(powers(-0.5, -0.5, -0.5)) == Slope(pytest.approx(-0.5), pytest.approx(0, abs=1e-12))


def test_a_bent_line_has_the_slope_of_least_squares():
    """log2 of the values 0, 1, 0, 5 at x = 5..8: x - 6.5 = -1.5, -0.5, 0.5, 1.5, so (-0.5 + 7.5) / 5."""
    values = {32: {0: 1.0, 1: 1.0}, 64: {0: 2.0, 1: 2.0}, 128: {0: 1.0, 1: 1.0}, 256: {0: 32.0, 1: 32.0}}
    assert slope(values).value == pytest.approx(7 / 5)


@pytest.mark.parametrize(
    ("exponents", "allowed", "word"),
    [
        ((0.05, 0.05), "neither", "passes"),
        ((-0.05, -0.05), "neither", "passes"),
        ((0.2, 0.2), "neither", "fails"),
        ((-0.2, -0.2), "neither", "fails"),
        ((-0.2, -0.2), "shrink", "passes"),
        ((0.2, 0.2), "shrink", "fails"),
        ((0.0, 0.2), "neither", "undecided"),  # 0.1 +- 0.1 is within 0.3 and below it, not within 0.15
        ((-0.4, 0.4), "neither", "undecided"),  # noise around zero is no pass
        ((0.3, 0.5), "neither", "fails"),  # 0.4 - 2 * 0.1 > 0.15
        ((0.2, 0.4), "neither", "undecided"),  # 0.3 - 2 * 0.1 < 0.15
    ],
)
def test_the_mark(exponents, allowed, word):
    assert judge(powers(*exponents), 0.15, allowed=allowed).word == word


def test_what_has_no_slope():
    assert judge({32: {0: 0.0, 1: 0.0}, 64: {0: 0.0, 1: 0.0}}, 0.15) == Finding("zero")
    assert judge({32: {0: 0.0, 1: 1.0}, 64: {0: 1.0, 1: 1.0}}, 0.15) == Finding("undecided")
    assert judge({32: {0: None, 1: 1.0}, 64: {0: 1.0, 1: 1.0}}, 0.15) == Finding("none")
    assert judge({32: {}, 64: {}}, 0.15) == Finding("none")
    assert [str(Finding(word)) for word in ("zero", "undecided", "none")] == ["zero", "zero in some runs", ""]
