"""Records of `moga smoothness` into numbers: exponents of the width and the depth, and tables in words.

A constant that grows as a power of the width is a straight line in logarithms; its slope is the exponent.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from moga.study.records import StudyError, read_records, read_study

__all__ = [
    "AXES",
    "CONSTANTS",
    "Constants",
    "Slope",
    "Table",
    "case_words",
    "load_constants",
    "power",
    "tables",
    "text",
]

Record = dict[str, Any]
Values = Mapping[int, Sequence[float]]  # size -> one number per seed

CONSTANTS = {"smoothness": "smoothness, from below", "lipschitz": "Lipschitz constant"}
AXES = {"width": "layers", "layers": "width"}  # what grows -> what is held
FROM_BELOW = (
    "Smoothness is an estimate from below: the largest curvature that a power iteration from several starts found, at "
    "the measured weights. The exponent is the slope of log2(constant) against log2(width or depth)."
)
LARGEST = 5  # layers in the table of layers
COLUMNS = 5  # sizes in a table


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
    study = read_study(directory)
    if study["settings"].get("measure") != "smoothness":
        raise StudyError(f"{directory} holds no study of smoothness; `moga report {directory}` draws what it holds")
    records = read_records(directory)
    if not records:
        raise StudyError(f"no finished measurement in {directory}: run `moga smoothness --out {directory}` first")
    return Constants(directory, study, records)


@dataclass(frozen=True)
class Table:
    """A table in words: the first column is text, the others are numbers."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def __str__(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        body = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
        return "\n".join([self.title, *("  ".join(cells).rstrip() for cells in body)])


def tables(found: Constants) -> list[Table]:
    """Both constants along every axis that has more than one size, or at the one size; then the largest layers."""
    grown = [
        _along(found, constant, axis, case) for axis in AXES for case in found.panels(axis) for constant in CONSTANTS
    ]
    if not grown:
        cases = [{"layers": found.sizes("layers")[-1], "trained": steps} for steps in found.sizes("trained")]
        grown = [_along(found, constant, "width", case) for case in cases for constant in CONSTANTS]
    return [*grown, *(_layers(found, norm) for norm in found.norms)]


def case_words(axis: str, case: Mapping[str, int]) -> str:
    """What is held along an axis.

    >>> case_words("width", {"layers": 2, "trained": 40})
    '2 layers, after 40 steps'
    """
    held = f"{case['layers']} layers" if axis == "width" else f"width {case['width']}"
    return f"{held}, after {case['trained']} steps"


def _along(found: Constants, constant: str, axis: str, case: Mapping[str, int]) -> Table:
    family = found.study["settings"]["family"]
    theory = axis == "width" and constant == "smoothness"
    sizes = sorted({one["config"][axis] for one in found.chosen(**case)})[-COLUMNS:]
    rows = []
    for norm in found.norms:
        values = found.series(constant, axis, norm=norm, **case)
        if len(values) < min(2, len(sizes)):
            continue  # measured at one size of several: no line of a table about growth
        slope = power(values)
        cells = [_number(values[size]) if size in values else "" for size in sizes]
        rows.append([norm, *cells, str(slope or ""), *([f"{found.exponent(norm):g}"] if theory else [])])
    title = f"{family}, {case_words(axis, case)}: {CONSTANTS[constant]}"
    header = ["norm", *(f"{axis} {size}" for size in sizes[:1]), *map(str, sizes[1:]), "exponent"]
    return Table(title, header + ["theory"] * theory, rows)


def _number(values: Sequence[float]) -> str:
    """The mean over seeds with four digits, in at most seven characters.

    >>> _number([1234.4, 1235.4]), _number([0.001234]), _number([123456.0]), _number([1.2345e-9])
    ('1235', '0.001234', '123456', '1.2e-09')
    """
    mean = sum(values) / len(values)
    plain = f"{mean:.4g}"
    return plain if "e" not in plain else f"{mean:.0f}" if 1 < mean < 1e7 else f"{mean:.2g}"


def _layers(found: Constants, norm: str) -> Table:
    """The layers with the largest smoothness of their own, at the largest size, after the most training."""
    case = {"norm": norm}
    for name in ("trained", "layers", "width"):
        case[name] = max(one["config"][name] for one in found.chosen(**case))
    where = f"width {case['width']}, {case['layers']} layers, {case['trained']} steps"
    last = found.chosen(**case)
    largest = sorted(last[0]["result"]["layers"], key=lambda name: -last[0]["result"]["layers"][name]["smoothness"])
    del case["width"]
    rows = []
    for name in largest[:LARGEST]:
        values: dict[int, list[float]] = {}
        for record in found.chosen(**case):
            values.setdefault(record["config"]["width"], []).append(record["result"]["layers"][name]["smoothness"])
        role = last[0]["result"]["layers"][name]["role"]
        rows.append([name, role, _number(values[last[0]["config"]["width"]]), str(power(values) or "")])
    return Table(f"{norm}: layers with the largest smoothness, {where}", ["layer", "role", "value", "exponent"], rows)


def text(found: Constants) -> str:
    """All tables, in at most 80 columns, and what the numbers are."""
    lines = textwrap.wrap(FROM_BELOW + _unsettled(found), 80)
    return "\n\n".join([*map(str, tables(found)), "\n".join(lines)])


def _unsettled(found: Constants) -> str:
    count = sum(not record["result"]["settled"] for record in found.records)
    return f" {count} of {len(found.records)} still grew when their steps ran out." if count else ""
