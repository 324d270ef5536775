"""Axes that the page and the PNGs share: the loss axis with its band for lost runs, ticks, and lines that end at it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from moga.report.results import Results, final_loss

__all__ = ["LossAxis", "clipped", "loss_axis", "octave_ticks", "round_ticks"]


@dataclass(frozen=True)
class LossAxis:
    """The loss axis of every panel, in `Results.unit`.

    Curves live below ``floor``. Above it, up to ``top``, is the band for runs that have no place on the axis: a row of
    marks per width at ``marks[width]``, so that marks at one learning rate do not cover each other, and a line of text.
    Without such runs there is no band and ``top`` is ``floor``.
    """

    bottom: float
    floor: float
    top: float
    marks: dict[int, float]
    ticks: list[float]

    @property
    def band(self) -> bool:
        """Whether any run is marked above the curves."""
        return self.top > self.floor


def loss_axis(results: Results) -> LossAxis:
    """The shared axis: `Results.loss_range` with margins, room for the remark below an edge, and the band."""
    low, high = results.loss_range
    unit = high - low
    edges = any(fit.optimum is not None and fit.optimum.edge for s in results.summaries for fit in s.widths)
    bottom = low - (0.16 if edges else 0.07) * unit
    floor = high + 0.06 * unit
    lost = any(not final_loss(record) <= high for record in results.records)
    row = 0.045 * unit
    marks = {width: floor + row * (index + 0.6) for index, width in enumerate(results.widths)}
    top = floor + row * (len(results.widths) + 0.2) + 0.075 * unit if lost else floor
    return LossAxis(bottom, floor, top, marks, round_ticks(bottom, floor))


def round_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """At most ``most`` round numbers from ``low`` to ``high``: multiples of 1, 2 or 5 times a power of ten.

    >>> round_ticks(1.93, 3.1)
    [2.0, 2.2, 2.4, 2.6, 2.8, 3.0]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if (high - low) / (factor * power) < most)
    return [float(f"{step * index:.12g}") for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def octave_ticks(low: float, high: float) -> list[int]:
    """About eight whole exponents at most from ``low`` to ``high``.

    >>> octave_ticks(-3.3, 0.4), octave_ticks(-12.4, -0.5)
    ([-3, -2, -1, 0], [-12, -10, -8, -6, -4, -2])
    """
    first, last = math.ceil(low), math.floor(high)
    step = max(1, math.ceil((last - first + 1) / 8))
    return list(range(first, last + 1, step))


def clipped(xs: Sequence[float], ys: Sequence[float], top: float) -> tuple[list[float | None], list[float | None]]:
    """The polyline through the points, cut off at ``top``; None ends a piece. An infinite y (diverged) is a gap.

    >>> clipped([0, 1, 2, 3], [1.0, 3.0, 1.0, float("inf")], top=2.0)
    ([0, 0.5, None, 1.5, 2, None], [1.0, 2.0, None, 2.0, 1.0, None])
    """
    line: list[tuple[float | None, float | None]] = []
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        before = ys[index - 1] if index else math.inf
        crosses = index > 0 and math.isfinite(y) and math.isfinite(before) and (y > top) != (before > top)
        if crosses:
            at = xs[index - 1] + (x - xs[index - 1]) * (top - before) / (y - before)
            line.append((at, top))
        if y <= top:
            line.append((x, y))
        elif line and line[-1] != (None, None):
            line.append((None, None))
    return [x for x, _ in line], [y for _, y in line]
