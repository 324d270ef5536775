import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moga.study.fit import FIT_SCALE, fit_optimum, transfer_summary

GRID = [2.0**exponent for exponent in range(-6, 0)]
Record = dict[str, Any]


def parabola(vertex: float, least: float = 2.0, curvature: float = 0.1) -> Callable[[float], float]:
    return lambda lr: least + curvature * (math.log2(lr) - vertex) ** 2


def record(width: int, lr: float, loss: float | None, seed: int = 0, recipe: str = "moga-row") -> Record:
    return {
        "config": {"recipe": recipe, "width": width, "lr": lr, "seed": seed},
        "result": {"loss": loss, "diverged": loss is None},
    }


def study(vertices: dict[int, float], extra: Iterable[Record] = (), curvature: float = 0.1) -> list[Record]:
    """A noise-free grid whose optimum at each width is the given exponent."""
    records = [
        record(width, lr, parabola(vertex, curvature=curvature)(lr))
        for width, vertex in vertices.items()
        for lr in GRID
    ]
    return [*records, *extra]


@given(
    vertex=st.floats(-5.2, -1.8),
    least=st.floats(0, 10),
    curvature=st.floats(0.01, 10),
    shift=st.floats(-0.3, 0.3),
    order=st.permutations(range(6)),
)
def test_the_vertex_of_a_parabola_is_found_exactly(
    vertex: float, least: float, curvature: float, shift: float, order: list[int]
) -> None:
    lrs = [GRID[index] * 2 ** (shift * (index % 2)) for index in order]
    optimum = fit_optimum(lrs, [parabola(vertex, least, curvature)(lr) for lr in lrs])
    assert not optimum.edge
    assert math.log2(optimum.lr) == pytest.approx(vertex, abs=1e-6)
    assert optimum.loss == pytest.approx(least, abs=1e-6)
    assert optimum.stderr_log2 is None


@given(losses=st.lists(st.floats(0, 10) | st.just(math.inf), min_size=1, max_size=9))
def test_the_optimum_lies_between_the_neighbours_of_the_best_rate(losses: list[float]) -> None:
    lrs = [2.0**index for index in range(len(losses))]
    if not any(map(math.isfinite, losses)):
        with pytest.raises(ValueError, match="every rate diverged, so none is best; add smaller learning rates"):
            fit_optimum(lrs, losses)
        return
    optimum, best = fit_optimum(lrs, losses), int(np.argmin(losses))
    assert optimum.edge == (best in (0, len(lrs) - 1))
    assert abs(math.log2(optimum.lr) - best) <= 1 + 1e-9
    assert optimum.loss <= losses[best] + FIT_SCALE  # of a fit: it may lie above what was measured


@given(factor=st.integers(-20, 20), offset=st.floats(-5, 5))
def test_units_of_the_rate_and_a_constant_loss_do_not_matter(factor: int, offset: float) -> None:
    losses = [3.0, 2.4, 2.1, 2.2, 2.9, 4.0]
    plain = fit_optimum(GRID, losses)
    moved = fit_optimum([lr * 2.0**factor for lr in GRID], [loss + offset for loss in losses])
    assert moved.lr / 2.0**factor == pytest.approx(plain.lr)
    assert moved.loss == pytest.approx(plain.loss + offset)


def test_a_diverged_neighbour_leaves_the_best_rate_itself() -> None:
    optimum = fit_optimum([1, 2, 4, 8], [3.0, 2.5, 2.0, math.nan])
    assert (optimum.lr, optimum.loss, optimum.edge) == (4.0, 2.0, False)
    assert fit_optimum([1, 2, 4], [math.inf, 2.0, 3.0]).lr == 2.0


def test_equal_losses_leave_the_middle() -> None:
    optimum = fit_optimum([1, 2, 4, 8], [2.5, 2.0, 2.0, 2.5])
    assert optimum.lr == pytest.approx(2**1.5)


def test_seeds_give_a_standard_error_of_their_own_optima() -> None:
    vertices = [-3.2, -3.0, -2.8]
    optimum = fit_optimum(GRID, [[parabola(vertex)(lr) for lr in GRID] for vertex in vertices])
    assert math.log2(optimum.lr) == pytest.approx(-3.0)
    assert optimum.stderr_log2 == pytest.approx(np.std(vertices, ddof=1) / math.sqrt(3))


def test_a_rate_at_which_one_seed_diverged_is_as_bad_as_diverged() -> None:
    optimum = fit_optimum([1, 2, 4, 8], [[3.0, 2.5, 2.0, math.inf], [3.0, 2.5, 2.0, 1.0]])
    assert (optimum.lr, optimum.edge, optimum.stderr_log2) == (4.0, False, None)


@pytest.mark.parametrize(
    ("lrs", "losses", "message"),
    [
        ([1, 2], [1.0], r"losses must have shape \(rates,\) or \(seeds, rates\) with rates = 2 as in lrs"),
        ([], [], "and not be empty"),
        ([1, 1], [1.0, 2.0], "learning rates must be positive, finite and distinct"),
        ([0, 1], [1.0, 2.0], "learning rates must be positive, finite and distinct"),
    ],
)
def test_bad_input_is_an_error(lrs: list[float], losses: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_optimum(lrs, losses)


def test_a_transferring_study() -> None:
    lr = 2.0**-3.4
    extra = [record(128, lr, 2.0251)]
    (summary,) = transfer_summary(study({32: -3.4, 64: -3.3, 128: -3.2}, extra))
    assert summary.drift == pytest.approx(0.1)
    assert summary.drift_stderr == pytest.approx(0, abs=1e-9)
    assert summary.regret_lr == pytest.approx(lr)
    assert summary.regret == pytest.approx(2.0251 - 2.004)
    assert not summary.transfers
    (summary,) = transfer_summary(study({32: -3.4, 64: -3.3, 128: -3.2}, [record(128, lr, 2.008)]))
    assert summary.transfers
    assert summary.verdict == (
        "moga-row: the best rate moved by +0.10 octave per doubling of width (32 to 128); "
        "the rate tuned at width 32 costs 0.004 nats at width 128: it transfers."
    )
    (summary,) = transfer_summary(study({32: -3.4, 64: -3.3, 128: -3.2}, [record(128, lr, 1.99)]))
    assert "the rate tuned at width 32 beats the best of the grid at width 128 by 0.014 nats" in summary.verdict


def test_a_drifting_study_does_not_transfer() -> None:
    extra = [record(128, 2.0**-2.2, 2.3)]
    (summary,) = transfer_summary(study({32: -2.2, 64: -3.0, 128: -4.2}, extra))
    assert summary.drift == pytest.approx(-1.0)
    assert summary.drift_stderr == pytest.approx(math.sqrt((0.4**2 / 6) / 2))
    assert summary.verdict.endswith("costs 0.296 nats at width 128: it does not transfer.")


def test_the_runs_at_the_transferred_rate_are_not_part_of_the_grid() -> None:
    plain = transfer_summary(study({32: -3.4, 128: -3.3}))[0].widths
    extended = transfer_summary(study({32: -3.4, 128: -3.3}, [record(128, 2.0**-3.4, 0.5)]))[0].widths
    assert plain == extended
    (summary,) = transfer_summary(study({32: -3.4, 128: -3.3}, [record(128, 2.0**-7, 5.0)]))
    assert summary.widths[1].lrs == (2.0**-7, *GRID)


def test_a_diverged_transfer_does_not_transfer() -> None:
    (summary,) = transfer_summary(study({32: -2.4, 128: -3.4}, [record(128, 2.0**-2.4, None)]))
    assert (summary.regret, summary.transfers) == (math.inf, False)
    assert summary.verdict.endswith("the rate tuned at width 32 diverges at width 128: it does not transfer.")


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (study({32: -3.0}), r"one width only \(32\): add wider models"),
        (study({32: 0.5, 64: -3.0}), r"the best rate at width 32 is the largest of its grid \(0.5\): add larger rates"),
        (
            study({32: -3.0, 64: -9.0}),
            r"the best rate at width 64 is the smallest of its grid \(0.01562\): add smaller",
        ),
        (study({32: -3.0, 64: -3.0})[:-6] + [record(64, lr, None) for lr in GRID], "every run at width 64 diverged"),
        (study({32: -3.4, 64: -3.4}), "the run at width 64 with the rate tuned at width 32 is missing: run the study"),
        (
            study({32: -3.0, 64: -3.4}, [record(64, 2.0**-3.0, 2.01)]),
            "the best rate moves, but over these widths that costs nothing: add widths or seeds",
        ),
        (study({32: -3.0, 64: -3.0})[:7], "width 64 has only 1 of the 3 rates that a minimum takes: add rates"),
    ],
)
def test_what_is_unknown_is_said_in_words(records: list[Record], reason: str) -> None:
    (summary,) = transfer_summary(records)
    assert summary.transfers is None
    assert re.search(f"unknown whether it transfers: {reason}", summary.verdict)


def test_recipes_are_summed_up_apart_in_order() -> None:
    records = [*study({32: -3.0}), record(32, 0.1, 2.0, recipe="adamw"), *study({64: -3.0})]
    assert [summary.recipe for summary in transfer_summary(records)] == ["moga-row", "adamw"]
    assert transfer_summary([]) == []


def test_an_unfinished_seed_does_not_shift_the_means() -> None:
    extra = [record(32, GRID[0], 0.0, seed=1)]
    (summary,) = transfer_summary(study({32: -3.0}, extra))
    assert (summary.widths[0].seeds, summary.widths[0].losses[0]) == (1, pytest.approx(2.9))


def test_seeds_with_different_rates_still_give_one_of_them() -> None:
    records = [record(32, 1.0, 2.0, seed=0), record(32, 2.0, 1.0, seed=1)]
    (summary,) = transfer_summary(records)
    assert (summary.widths[0].lrs, summary.widths[0].losses) == ((1.0,), (2.0,))


def test_the_regret_needs_every_seed() -> None:
    first = study({32: -3.4, 64: -3.4})
    both = [*first, *(one | {"config": one["config"] | {"seed": 1}} for one in first)]
    one_run = [*both, record(64, 2.0**-3.4, 2.0)]
    assert transfer_summary(one_run)[0].regret is None
    assert transfer_summary([*one_run, record(64, 2.0**-3.4, 2.1, seed=1)])[0].regret == pytest.approx(0.05 - 0.016)


def test_a_flat_noisy_minimum_is_found_from_more_than_three_rates() -> None:
    """Two curves with one true minimum, whose lowest points differ by noise alone (measured: mup-adamw, two widths)."""
    lrs = [2.0**exponent for exponent in range(-4, 1)]
    found = [
        math.log2(fit_optimum(lrs, losses).lr)
        for losses in ([2.479, 2.386, 2.391, 2.405, 2.515], [2.436, 2.375, 2.358, 2.360, 2.487])
    ]
    assert abs(found[0] - found[1]) < 0.35
    assert all(abs(position + 2.1) < 0.3 for position in found)


def test_far_points_do_not_bend_the_fit() -> None:
    near = [2.455, 2.343, 2.367, 2.507]
    lrs = [2.0**exponent for exponent in range(-5, -1)]
    with_ends = fit_optimum([2.0**-6, *lrs, 2.0**-1], [5.0, *near, 9.0])
    assert abs(math.log2(with_ends.lr / fit_optimum(lrs, near).lr)) < 0.01


def test_a_grid_too_coarse_for_an_optimum_says_so() -> None:
    def summary(factor: float) -> Any:
        rates = [2.0**-4 / factor, 2.0**-4, 2.0**-4 * factor]
        runs = [record(n, lr, parabola(-4.0)(lr)) for n in (32, 64) for lr in rates]
        return transfer_summary(runs)[0]

    assert summary(4.0).transfers
    coarse = summary(10.0)
    assert coarse.transfers is None
    assert "at width 32 the best rate and one beside it (0.00625, 0.0625) are 3.3 octaves apart" in coarse.verdict


def test_a_far_rate_that_diverged_says_nothing_of_where_the_optimum_is() -> None:
    runs = [record(n, lr, None if lr > 1 else parabola(-4.0)(lr)) for n in (32, 64) for lr in (2**-5, 2**-4, 1e9)]
    assert transfer_summary(runs)[0].transfers is None


def test_a_loss_of_ones_own_is_not_in_nats() -> None:
    runs = study({32: -3.0, 64: -3.0})
    assert " nats at width 64" in transfer_summary(runs)[0].verdict
    own = [one | {"config": one["config"] | {"family": "mine:net"}} for one in runs]
    assert re.search(r"costs [0-9.]+ in loss at width 64", transfer_summary(own)[0].verdict)


def test_the_error_of_the_drift_holds_that_of_the_optima() -> None:
    """Optima of three seeds at -3 - e, -3 and -3 + e at either width: no residual, but an error of e / sqrt(3) each."""
    e = 0.5
    runs = [
        record(width, lr, parabola(-3.0 + shift)(lr), seed)
        for width in (32, 64)
        for seed, shift in enumerate((-e, 0.0, e))
        for lr in GRID
    ]
    summary = transfer_summary(runs)[0]
    assert summary.drift == pytest.approx(0, abs=1e-6)
    assert summary.drift_stderr == pytest.approx(math.sqrt(2) * e / math.sqrt(3), rel=1e-6)
