"""The runs that records call for: rates next to an optimum until it is known well enough, and those for the regret."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moga.study.fit import SAME_RATE, Summary, WidthFit, transfer_summary
from moga.study.settings import Plan, Run

FARTHEST = 6  # octaves beyond the plan's own rates
CLOSEST = 1 / 4  # octaves between rates: closer ones are told apart by noise


def refine_runs(records: Iterable[Mapping[str, Any]], plan: Plan, error: float) -> tuple[list[Run], tuple[str, ...]]:
    """The runs that the records call for, some of which may be on record; and where no more rates will help, in words.

    - An optimum at an edge of its grid: the rate a factor of 2 beyond, at that size.
    - A standard error above ``error`` octaves: the rates halfway between the best one and its neighbours. They go to
      every size, as the fit uses rates that the smallest size has.
    """
    runs: dict[str, Run] = {}
    notes: list[str] = []
    for summary in transfer_summary(records):
        if summary.recipe not in plan.rates:
            continue
        for fit in (one for one in summary.widths if one.width in plan.sizes):
            sizes: tuple[int, ...] = (fit.width,)
            rates = _beyond(fit, plan.rates[summary.recipe])
            if fit.known and fit.optimum and _error(fit) > error:
                rates, sizes = _between(fit), plan.sizes
            made = [
                Run(summary.recipe, size, rate, seed, plan.settings)
                for rate in rates
                for size in sizes
                for seed in plan.seeds
            ]
            if not made and not (fit.known and _error(fit) <= error):
                notes.append(_stuck(summary.recipe, plan.settings.over, fit))
            runs |= {run.key: run for run in made}
    return sorted(runs.values(), key=lambda run: -run.size), tuple(notes)


def _error(fit: WidthFit) -> float:
    """Octaves; infinite where fewer than two seeds have an optimum inside the grid."""
    found = fit.optimum.stderr_log2 if fit.optimum else None
    return math.inf if found is None else found


def _beyond(fit: WidthFit, own: Sequence[float]) -> list[float]:
    """The rates past the edges at which the optimum lies, none of them too far from the plan's own."""
    if fit.known or not fit.lrs:
        return []
    first, last = fit.lrs[0], fit.lrs[-1]
    best = None if fit.optimum is None else fit.optimum.lr  # none: every rate diverged
    rates = [first / 2] if best is None or best == first else []
    rates += [last * 2] if best == last else []
    low, high = min(own) / 2**FARTHEST, max(own) * 2**FARTHEST
    return [rate for rate in rates if low <= rate <= high]


def _between(fit: WidthFit) -> list[float]:
    best = min(range(len(fit.lrs)), key=fit.losses.__getitem__)
    pairs = [fit.lrs[best - 1 : best + 1], fit.lrs[best : best + 2]]
    return [math.sqrt(a * b) for a, b in pairs if b / a > 2 ** (1.5 * CLOSEST)]


def _stuck(recipe: str, over: str, fit: WidthFit) -> str:
    where = f"{recipe} at {over} {fit.width}"
    if not fit.known:
        return f"{where}: no optimum within {FARTHEST} octaves of the rates given; give others"
    found = "unknown" if _error(fit) == math.inf else f"{_error(fit):.2f} octaves"
    return f"{where}: the error of the optimum is {found} with rates {CLOSEST:g} octaves apart; give more seeds"


def regret_runs(records: list[dict[str, Any]], plan: Plan) -> tuple[list[Run], tuple[str, ...]]:
    """The runs at the largest width with the smallest width's optimum (for every seed), and why some are impossible."""
    runs: list[Run] = []
    notes: list[str] = []
    for summary in transfer_summary(records):
        if summary.recipe not in plan.rates:
            continue
        if len(summary.widths) < 2 or summary.regret_lr is None:
            notes.append(f"no run for the regret of {summary.verdict}")
            continue
        runs += _regret_runs_of(summary, records, plan)
    return runs, tuple(notes)


def _regret_runs_of(summary: Summary, records: list[dict[str, Any]], plan: Plan) -> list[Run]:
    lr, size, over = summary.regret_lr, summary.widths[-1].width, plan.settings.over
    assert lr is not None
    there = [
        record["config"]
        for record in records
        if record["config"]["recipe"] == summary.recipe and record["config"][over] == size
    ]
    # A rate from an earlier fit on another machine, equal but for its last digits, is that rate.
    lr = next((config["lr"] for config in there if abs(config["lr"] - lr) <= SAME_RATE * lr), lr)
    return [Run(summary.recipe, size, lr, seed, plan.settings) for seed in sorted({config["seed"] for config in there})]
