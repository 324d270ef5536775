"""Loss from a formula, so it is known which rates are missing."""

import math
from typing import Any

import pytest

from moga.study.fit import transfer_summary
from moga.study.refine import refine_runs
from moga.study.settings import Plan, Run, Settings

SETTINGS = Settings()


def record(run: Run, best: float, noise: float = 0.0, lost: float = math.inf) -> dict[str, Any]:
    """A parabola in log2(lr) around `best`, moved by `noise` octaves up for odd seeds and down for even ones."""
    away = math.log2(run.lr) - best - noise * (1 if run.seed % 2 else -1)
    diverged = math.log2(run.lr) > lost
    return {"config": run.config(), "result": {"loss": None if diverged else 2 + 0.1 * away**2, "diverged": diverged}}


def ends(
    plan: Plan, error: float, best: dict[int, float], **how: float
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The records after as many rounds as it takes, and what is said in the last."""
    records = {run.key: record(run, best[run.size], **how) for run in plan.runs()}
    for _ in range(20):
        runs, notes = refine_runs(records.values(), plan, error)
        new = {run.key: record(run, best[run.size], **how) for run in runs if run.key not in records}
        if not new:
            return list(records.values()), notes
        records |= new
    pytest.fail("it does not end")


def test_rates_are_added_until_no_optimum_is_at_an_edge() -> None:
    plan = Plan({"moga-row": (2**-4, 2**-3, 2**-2)}, (32, 64, 128), (0, 1), SETTINGS)
    records, notes = ends(plan, 1.0, {32: -2.9, 64: -0.6, 128: -5.6})
    (summary,) = transfer_summary(records)
    assert notes == ()
    assert [fit.known for fit in summary.widths] == [True, True, True]
    assert [math.log2(fit.optimum.lr) for fit in summary.widths if fit.optimum] == pytest.approx([-2.9, -0.6, -5.6])
    # only where they are needed: the middle one is known from the start
    assert sorted({one["config"]["lr"] for one in records if one["config"]["width"] == 32}) == [2**-4, 2**-3, 2**-2]
    assert max(one["config"]["lr"] for one in records if one["config"]["width"] == 64) == 1.0
    assert min(one["config"]["lr"] for one in records if one["config"]["width"] == 128) == 2**-7


def test_where_every_rate_diverged_smaller_ones_follow() -> None:
    plan = Plan({"moga-row": (0.5, 1.0)}, (32,), (0, 1), SETTINGS)
    records, notes = ends(plan, 1.0, {32: -4.0}, lost=-1.5)
    assert notes == ()
    assert transfer_summary(records)[0].widths[0].known


def test_a_noisy_optimum_gets_its_neighbours_at_every_size() -> None:
    plan = Plan({"moga-row": (2**-4, 2**-3, 2**-2)}, (32, 64), (0, 1), SETTINGS)
    records = [record(run, -3.0, noise=0.3 if run.size == 64 else 0.0) for run in plan.runs()]
    assert refine_runs(records, plan, 0.5) == ([], ())
    runs, notes = refine_runs(records, plan, 0.2)
    assert notes == ()
    assert {round(math.log2(run.lr), 9) for run in runs} == {-3.5, -2.5}
    assert {(run.size, run.seed) for run in runs} == {(32, 0), (32, 1), (64, 0), (64, 1)}
    _, notes = ends(plan, 0.2, {32: -3.0, 64: -3.0}, noise=0.3)
    assert "moga-row at width 64: the error of the optimum is 0.30 octaves with rates 0.25 octaves apart" in notes[1]


def test_an_optimum_that_is_nowhere_is_said() -> None:
    plan = Plan({"moga-row": (0.5, 1.0, 2.0)}, (32,), (0, 1), SETTINGS)
    records, notes = ends(plan, 1.0, {32: 40.0})
    assert notes == ("moga-row at width 32: no optimum within 6 octaves of the rates given; give others",)
    assert max(one["config"]["lr"] for one in records) == 2.0**7
