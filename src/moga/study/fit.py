"""From losses to statements: the best learning rate per width, its drift, and what a transferred rate costs.

numpy only, so that a report can be made where torch is not installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moga.study.records import own_functions
from moga.study.verdicts import TRANSFERS_REGRET, sentence, why_unknown

Floats = NDArray[np.float64]

FIT_SCALE = 0.1  # nats: a rate whose loss lies this much above the lowest has 1/e of its weight in the fit
SAME_RATE = 1e-9  # relative: a rate that was fitted on another machine may differ in the last digits


@dataclass(frozen=True)
class Optimum:
    """The best learning rate. edge: it is the first or last of the grid, so the true one is unknown.

    loss: of the parabola at its vertex. stderr_log2: standard error over seeds, in octaves; None below two seeds.
    """

    lr: float
    loss: float
    edge: bool
    stderr_log2: float | None = None


@dataclass(frozen=True)
class WidthFit:
    """One recipe at one width, or one depth where that is what grows.

    losses: means over seeds at the rates `lrs`, inf where any seed diverged. seeds: how
    many. optimum: None when every rate diverged. best_loss: the lowest of `losses`. over: what grows.
    """

    width: int
    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    seeds: int
    optimum: Optimum | None
    best_loss: float
    over: str = "width"

    @property
    def name(self) -> str:
        """As in "width 64" or "depth 4"."""
        return f"{self.over} {self.width}"

    @property
    def known(self) -> bool:
        """The optimum is inside the grid."""
        return self.optimum is not None and not self.optimum.edge

    @property
    def gap(self) -> tuple[float, float]:
        """The best rate and that of its neighbours which is further from it, in the order of the grid."""
        best = int(np.argmin(self.losses))
        pairs = [pair for pair in pairwise(self.lrs) if self.lrs[best] in pair]
        return max(pairs, key=lambda pair: pair[1] / pair[0])


@dataclass(frozen=True)
class Summary:
    """What a study says of one recipe. None is "unknown" everywhere.

    drift: octaves per doubling of the width; drift_stderr: None below three widths of one seed. regret: loss (of text:
    nats per token) added at the largest width by `regret_lr`, the smallest width's optimum (inf: that run diverged);
    regret_stderr: over seeds, None for one.
    """

    recipe: str
    widths: tuple[WidthFit, ...]
    drift: float | None
    drift_stderr: float | None
    regret: float | None
    regret_stderr: float | None
    regret_lr: float | None
    transfers: bool | None
    verdict: str


def fit_optimum(lrs: ArrayLike, losses: ArrayLike) -> Optimum:
    """The vertex of a parabola in log2(lr), fitted by least squares with weights that fall with the excess loss.

    The weight of a rate is ``exp(-(loss - lowest loss) / FIT_SCALE)``: near a flat minimum five rates or so count and
    the noise of single runs averages out, while the steep ends, which no parabola describes, do not bend the fit. The
    vertex is kept between the best rate's two neighbours.

    losses: (rates,) or (seeds, rates); the parabola goes through the means over seeds. A loss that is not finite
    (diverged) counts as infinitely bad, for the mean too. Then, if the best rate has
    - no neighbour on one side: `edge` is True and the rate itself is returned; nothing says where the optimum is;
    - a diverged neighbour: the rate itself is returned. It is known to lie between its neighbours (no edge), but a
      parabola through an infinite loss does not exist.

    Raises:
        ValueError: shapes that do not match, rates that are not positive and distinct, or no finite mean loss.

    >>> lrs = [0.5, 1.0, 2.0, 4.0]
    >>> best = fit_optimum(lrs, [3 + (math.log2(lr) - 0.75) ** 2 for lr in lrs])
    >>> round(math.log2(best.lr), 12), round(best.loss, 12), best.edge
    (0.75, 3.0, False)
    """
    rates, table = _sorted_table(lrs, losses)
    means = table.mean(axis=0)
    if not np.isfinite(means).any():
        raise ValueError("every rate diverged, so none is best; add smaller learning rates")
    position, loss, edge = _vertex(np.log2(rates), means)
    return Optimum(float(2.0**position), loss, edge, _stderr(np.log2(rates), table))


def _sorted_table(lrs: ArrayLike, losses: ArrayLike) -> tuple[Floats, Floats]:
    """Rates (rates,) ascending and losses (seeds, rates) in that order, with inf for what is not finite."""
    rates, table = np.asarray(lrs, dtype=np.float64), np.atleast_2d(np.asarray(losses, dtype=np.float64))
    if rates.ndim != 1 or table.ndim != 2 or table.shape[1] != len(rates) or not len(rates) or not len(table):
        raise ValueError(
            f"losses must have shape (rates,) or (seeds, rates) with rates = {rates.size} as in lrs, "
            f"and not be empty; got {np.shape(losses)}"
        )
    if not (np.isfinite(rates) & (rates > 0)).all() or len(np.unique(rates)) < len(rates):
        raise ValueError(f"learning rates must be positive, finite and distinct, got {rates.tolist()}")
    order = np.argsort(rates)
    table = table[:, order]
    return rates[order], np.where(np.isfinite(table), table, np.inf)


def _vertex(x: Floats, y: Floats) -> tuple[float, float, bool]:
    """(position, value, edge) of the lowest point of the weighted parabola."""
    best = int(np.argmin(y))
    if best in (0, len(x) - 1):
        return float(x[best]), float(y[best]), True
    if not np.isfinite(y[best - 1 : best + 2]).all():
        return float(x[best]), float(y[best]), False
    finite = np.isfinite(y)
    offset, excess = x[finite] - x[best], y[finite] - y[best]
    weights = np.maximum(np.exp(-excess / FIT_SCALE), 1e-9)  # never 0: three points at least must count
    curvature, slope, level = np.polyfit(offset, excess, 2, w=np.sqrt(weights))
    if curvature <= 0:  # equal losses: the middle is as good as any
        return float(x[best]), float(y[best]), False
    position = float(np.clip(-slope / (2 * curvature), x[best - 1] - x[best], x[best + 1] - x[best]))
    value = level + slope * position + curvature * position**2
    return float(x[best] + position), float(y[best] + value), False


def _stderr(x: Floats, table: Floats) -> float | None:
    """Standard error of the mean over the seeds' own optima that lie inside the grid; None below two of them."""
    fits = [_vertex(x, row) for row in table if np.isfinite(row).any()]
    positions = [position for position, _, edge in fits if not edge]
    if len(positions) < 2:
        return None
    return float(np.std(positions, ddof=1) / math.sqrt(len(positions)))


def transfer_summary(records: Iterable[Mapping[str, Any]]) -> list[Summary]:
    """One summary per recipe, in the order of appearance. Records are those of one study (one set of settings)."""
    runs: dict[str, dict[int, dict[float, dict[int, float]]]] = {}
    over, unit = "width", "nats"
    for record in records:
        config, result = record["config"], record["result"]
        loss = math.inf if result["diverged"] or result["loss"] is None else float(result["loss"])
        over = config.get("over", "width")
        unit = "in loss" if own_functions(config) else "nats"  # whatever unit a loss of one's own has
        widths = runs.setdefault(config["recipe"], {})
        widths.setdefault(config[over], {}).setdefault(config["lr"], {})[config["seed"]] = loss
    return [_summary(recipe, dict(sorted(widths.items())), over, unit) for recipe, widths in runs.items()]


def _summary(recipe: str, runs: Mapping[int, Mapping[float, Mapping[int, float]]], over: str, unit: str) -> Summary:
    """runs: width -> lr -> seed -> loss, widths ascending."""
    reference = sorted(next(iter(runs.values())))
    fits = tuple(_fit_width(width, rates, reference, over) for width, rates in runs.items())
    drift, drift_stderr = _drift([fit for fit in fits if fit.known])
    smallest, largest = fits[0], fits[-1]
    regret_lr = smallest.optimum.lr if smallest.known and smallest.optimum else None
    regret, regret_stderr = None, None
    if regret_lr is not None and smallest is not largest:
        regret, regret_stderr = _regret(runs[largest.width], largest, regret_lr)
    unknown = why_unknown(fits, drift, drift_stderr, regret, regret_stderr, over)
    transfers = None if unknown else regret is not None and regret <= TRANSFERS_REGRET
    verdict = f"{recipe}: " + sentence(fits, drift, regret, transfers, unknown, over, unit)
    return Summary(recipe, fits, drift, drift_stderr, regret, regret_stderr, regret_lr, transfers, verdict)


def _fit_width(
    width: int, runs: Mapping[float, Mapping[int, float]], reference: Sequence[float], over: str
) -> WidthFit:
    """The fit over the grid of this width: the rates that the smallest width has, or that lie outside its range.

    What is left out is inside the smallest width's range but not on its grid: the runs at that width's optimum. Only
    seeds that have every rate of the grid are used (of an unfinished study, those with the most rates).
    """
    grid = {rate: runs[rate] for rate in sorted(runs) if rate in reference or not reference[0] < rate < reference[-1]}
    counts = {seed: sum(seed in losses for losses in grid.values()) for losses in grid.values() for seed in losses}
    if not counts:
        return WidthFit(width, (), (), 0, None, math.inf, over)
    seeds = sorted(seed for seed, count in counts.items() if count == max(counts.values()))
    rates = [rate for rate, losses in grid.items() if all(seed in losses for seed in seeds)]
    if not rates:
        seeds = seeds[:1]
        rates = [rate for rate, losses in grid.items() if seeds[0] in losses]
    table = np.array([[grid[rate][seed] for rate in rates] for seed in seeds])
    means = table.mean(axis=0)
    optimum = fit_optimum(rates, table) if np.isfinite(means).any() else None
    return WidthFit(width, tuple(rates), tuple(means.tolist()), len(seeds), optimum, float(means.min()), over)


def _drift(fits: Sequence[WidthFit]) -> tuple[float | None, float | None]:
    """Least-squares slope of log2(optimum) against log2(width), and its standard error.

    The larger of two: that of the residuals (three widths or more), and the optima's own, where each has one.
    """
    if len(fits) < 2:
        return None, None
    x = np.log2([fit.width for fit in fits])
    y = np.log2([fit.optimum.lr for fit in fits if fit.optimum])
    x = x - x.mean()
    spread = float(x @ x)
    slope = float(x @ y / spread)
    errors = []
    if len(fits) > 2:
        residuals = y - y.mean() - slope * x
        errors.append(math.sqrt(residuals @ residuals / (len(fits) - 2) / spread))
    seeds = [fit.optimum.stderr_log2 for fit in fits if fit.optimum and fit.optimum.stderr_log2 is not None]
    if len(seeds) == len(fits):
        errors.append(float(np.linalg.norm(x * seeds)) / spread)
    return slope, max(errors, default=None)


def _regret(
    runs: Mapping[float, Mapping[int, float]], largest: WidthFit, lr: float
) -> tuple[float | None, float | None]:
    """Loss of the runs at `lr` minus the lowest loss of the grid, over the same seeds; below 0 if `lr` beats it.

    And its standard error over these seeds, None for one.
    """
    there = next((losses for rate, losses in runs.items() if math.isclose(rate, lr, rel_tol=SAME_RATE)), None)
    if there is None or not math.isfinite(largest.best_loss):
        return None, None
    best = runs[largest.lrs[int(np.argmin(largest.losses))]]
    seeds = sorted(set(there) & set(best))
    if len(seeds) < largest.seeds:
        return None, None
    more = np.array([there[seed] - best[seed] for seed in seeds])
    known = len(seeds) > 1 and np.isfinite(more).all()
    return float(more.mean()), float(np.std(more, ddof=1) / math.sqrt(len(seeds))) if known else None
