"""Records of `moga smoothness` into numbers: exponents of the width and the depth.

A constant that grows as a power of the width is a straight line in logarithms; its slope is the exponent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from moga.study.records import StudyError, read_runs

__all__ = [
    "AXES",
    "CONSTANTS",
    "Constants",
    "Slope",
    "case_words",
    "load_constants",
    "power",
]

Record = dict[str, Any]
Values = Mapping[int, Sequence[float]]  # size -> one number per seed

CONSTANTS = {"smoothness": "smoothness, from below", "lipschitz": "Lipschitz constant"}
AXES = {"width": "layers", "layers": "width"}  # what grows -> what is held
FROM_BELOW = (
    "Smoothness is an estimate from below: the largest curvature that a power iteration from several starts found, at "
    "the measured weights. The exponent is the slope of log2(constant) against log2(width or depth)."
)


@dataclass(frozen=True)
class Slope:
    """The exponent of a power law, and its standard error from the residuals (None below three numbers)."""

    value: float
    stderr: float | None

    def __str__(self) -> str:
        return f"{self.value:+.2f}" + ("" if self.stderr is None else f" ± {self.stderr:.2f}")


def power(values: Values) -> Slope | None:
    """Least squares of log2(value) on log2(size); None for fewer than two sizes, or a value that is not above 0.

    >>> str(power({16: [3.0], 64: [6.0], 256: [12.0]}))
    '+0.50 ± 0.00'
    """
    pairs = [(math.log2(size), value) for size, many in values.items() for value in many]
    if len({x for x, _ in pairs}) < 2 or not all(value > 0 for _, value in pairs):
        return None
    middle = sum(x for x, _ in pairs) / len(pairs)
    level = sum(math.log2(value) for _, value in pairs) / len(pairs)
    points = [(x - middle, math.log2(value) - level) for x, value in pairs]
    spread = sum(x * x for x, _ in points)
    slope = sum(x * y for x, y in points) / spread
    if len(points) < 3:
        return Slope(slope, None)
    left = sum((y - slope * x) ** 2 for x, y in points)
    return Slope(slope, math.sqrt(left / (len(points) - 2) / spread))


@dataclass(frozen=True)
class Constants:
    """The records of one directory that `moga smoothness` wrote."""

    directory: Path
    study: dict[str, Any]
    records: list[Record]

    @cached_property
    def norms(self) -> list[str]:
        """The norms of hidden matrices, in the order of the records."""
        return list(dict.fromkeys(record["config"]["norm"] for record in self.records))

    def sizes(self, name: str) -> list[int]:
        """Every value of "width", "layers", "trained" or "seed" that occurs, ascending."""
        return sorted({record["config"][name] for record in self.records})

    def chosen(self, **config: Any) -> list[Record]:
        """The records with these entries of the configuration."""
        return [one for one in self.records if all(one["config"][name] == value for name, value in config.items())]

    def series(self, constant: str, axis: str, **config: Any) -> dict[int, list[float]]:
        """Size along the axis -> the constant at every seed, ascending."""
        found: dict[int, list[float]] = {}
        for record in self.chosen(**config):
            found.setdefault(record["config"][axis], []).append(record["result"][constant])
        return dict(sorted(found.items()))

    def exponent(self, norm: str) -> float:
        """The theory's exponent of the width for smoothness in this norm."""
        return float(self.chosen(norm=norm)[0]["result"]["exponent"])

    def panels(self, axis: str) -> list[dict[str, int]]:
        """What is held in each picture of constants along an axis; none where the axis has one size only."""
        held = AXES[axis]
        cases = [{held: size, "trained": steps} for steps in self.sizes("trained") for size in self.sizes(held)]
        return [case for case in cases if len({one["config"][axis] for one in self.chosen(**case)}) > 1]


def load_constants(directory: str | Path) -> Constants:
    """Read a directory that `moga smoothness` wrote.

    Raises StudyError where there is no study, one of something else, or no finished measurement.
    """
    directory = Path(directory)
    study, records = read_runs(directory)
    if study["settings"].get("measure") != "smoothness":
        raise StudyError(f"{directory} holds no study of smoothness; `moga report {directory}` draws what it holds")
    if not records:
        raise StudyError(f"no finished measurement in {directory}: run `moga smoothness --out {directory}` first")
    return Constants(directory, study, records)


def case_words(axis: str, case: Mapping[str, int]) -> str:
    """What is held along an axis.

    >>> case_words("width", {"layers": 2, "trained": 40})
    '2 layers, after 40 steps'
    """
    held = f"{case['layers']} layers" if axis == "width" else f"width {case['width']}"
    return f"{held}, after {case['trained']} steps"
