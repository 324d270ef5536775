"""The shared loss axis, its ticks and its clipped lines."""

import math

import pytest

from moga.report.axes import clipped, loss_axis, octave_ticks, round_ticks
from moga.report.results import load_results


@pytest.mark.parametrize(("low", "high"), [(1.9, 4.2), (0.0, 1.0), (2.301, 2.302), (-3.0, 700.0)])
def test_round_ticks_lie_inside_and_are_few(low, high):
    ticks = round_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    assert low <= ticks[0] < ticks[-1] <= high


def test_octave_ticks_are_whole_and_few():
    assert octave_ticks(-20.3, 4.2) == [-20, -16, -12, -8, -4, 0, 4]


def test_a_clipped_line_never_leaves_the_axis_and_keeps_what_is_on_it():
    ys = [5.0, 2.0, 1.0, 3.0, math.inf, 1.5, 9.0, 9.5, 0.5]
    xs, kept = clipped(list(range(9)), ys, top=2.5)
    assert max(y for y in kept if y is not None) == 2.5
    assert {y for y in ys if y <= 2.5} <= set(kept)
    assert all((x is None) == (y is None) for x, y in zip(xs, kept, strict=True))


def test_diverged_runs_do_not_stretch_the_axis(make_study):
    calm = loss_axis(load_results(make_study({"a": {"diverges": 99.0}})))
    assert not calm.band
    wild = loss_axis(load_results(make_study({"a": {"diverges": 99.0}, "b": {"diverges": 1.0}})))
    assert wild.band
    assert wild.floor <= calm.floor + 1e-9
    assert sorted(wild.marks) == [32, 64, 128]
    assert wild.floor < min(wild.marks.values()) < max(wild.marks.values()) < wild.top


def test_the_far_ends_leave_the_axis_but_no_best_loss_does(make_study):
    results = load_results(make_study({"good": {"exponents": range(-14, 0), "diverges": 99.0}, "bad": {"floor": 3.0}}))
    low, high = results.loss_range
    assert high < max(record["result"]["loss"] or 0 for record in results.records)
    assert all(low <= fit.best_loss <= high for s in results.summaries for fit in s.widths)


def test_all_diverged_still_has_an_axis(make_study):
    axis = loss_axis(load_results(make_study({"lost": {"diverges": -99.0}})))
    assert axis.bottom < axis.floor < axis.top
