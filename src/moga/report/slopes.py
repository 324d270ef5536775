"""Whether a size stays the same while a model grows: slopes with standard errors, and a mark.

A size that goes as a power of the width is a straight line in logarithms; its slope is fitted for every seed alone,
so that seeds are independent, and the slope is their mean with its standard error. With a mark m a slope s +- e

    passes if |s| + 2e <= m,    fails if |s| - 2e > m,    and is undecided otherwise:

a check with too much noise to see a fault does not pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["WORDS", "Finding", "Slope", "Values", "judge", "slope"]

Values = Mapping[int, Mapping[int, float | None]]  # size -> seed -> a number; None where there is nothing to compare

WORDS = ("fails", "undecided", "passes")  # of a verdict, the worst first
ERRORS = 2  # standard errors on either side of a slope


@dataclass(frozen=True)
class Slope:
    """Mean of the seeds' slopes of log2(value) against log2(size), and its standard error."""

    value: float
    stderr: float

    def __str__(self) -> str:
        return f"{self.value:+.2f} ± {self.stderr:.2f}"


@dataclass(frozen=True)
class Finding:
    """``word``: one of :data:`WORDS`, or "zero" at every size, or "none" where there is nothing to compare."""

    word: str
    slope: Slope | None = None

    def __str__(self) -> str:
        return str(self.slope) if self.slope else {"zero": "zero", "undecided": "zero in some runs"}.get(self.word, "")


def slope(values: Values) -> Slope:
    """The slope of positive values, over the seeds that occur at every size.

    >>> str(slope({32: {0: 1.0, 1: 2.0}, 64: {0: 2.0, 1: 3.2}, 128: {0: 4.0, 1: 5.12}}))
    '+0.84 ± 0.16'
    """
    middle = sum(map(math.log2, values)) / len(values)
    xs = {size: math.log2(size) - middle for size in values}
    spread = sum(x * x for x in xs.values())
    found = [
        sum(xs[size] * math.log2(values[size][seed] or 0.0) for size in values) / spread
        for seed in next(iter(values.values()))
    ]
    mean = sum(found) / len(found)
    return Slope(mean, math.sqrt(sum((one - mean) ** 2 for one in found) / (len(found) - 1) / len(found)))


def judge(values: Values, mark: float, *, allowed: str = "neither") -> Finding:
    """Whether a size stays the same; ``allowed``: "neither" to grow nor to shrink, or "shrink".

    >>> flat = {32: {0: 1.0, 1: 1.1}, 64: {0: 1.0, 1: 1.1}}
    >>> judge(flat, 0.1).word, judge({32: {0: 1.0, 1: 1.0}, 64: {0: 1.4, 1: 1.5}}, 0.1).word
    ('passes', 'fails')
    """
    found = [value for many in values.values() for value in many.values()]
    if not found or any(value is None for value in found):
        return Finding("none")
    if not all(found):
        return Finding("undecided" if any(found) else "zero")
    fitted = slope(values)
    size, reach = fitted.value if allowed == "shrink" else abs(fitted.value), ERRORS * fitted.stderr
    return Finding("passes" if size + reach <= mark else "fails" if size - reach > mark else "undecided", fitted)
