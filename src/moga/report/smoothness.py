"""The numbers of `moga smoothness` as tables, for the terminal and for the page."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moga.report.constants import AXES, CONSTANTS, FROM_BELOW, Constants, Slope, case_words, load_constants, power

__all__ = ["Constants", "Slope", "Table", "load_constants", "page_tables", "power", "tables", "text"]

LARGEST = 5  # layers in a table of layers
COLUMNS = 5  # sizes in a table


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
    """Both constants along every axis that has more than one size, or at the one size; then the largest layers.

    Of layers there is one table per norm, after the most training, with the ends of the widths: to fit 80 columns.
    """
    return [*_constants(found), *(_layers(found, norm, _deepest(found, norm), most=2) for norm in found.norms)]


def page_tables(found: Constants) -> list[Table]:
    """As `tables`, but of layers one table per norm, depth and number of steps, with every width."""
    cases = [
        {"layers": layers, "trained": steps} for steps in found.sizes("trained") for layers in found.sizes("layers")
    ]
    layers = [
        _layers(found, norm, case, most=99) for norm in found.norms for case in cases if found.chosen(norm=norm, **case)
    ]
    return [*_constants(found), *layers]


def _constants(found: Constants) -> list[Table]:
    grown = [
        _along(found, constant, axis, case) for axis in AXES for case in found.panels(axis) for constant in CONSTANTS
    ]
    if not grown:
        cases = [{"layers": found.sizes("layers")[-1], "trained": steps} for steps in found.sizes("trained")]
        grown = [_along(found, constant, "width", case) for case in cases for constant in CONSTANTS]
    return grown


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
    """The mean over seeds with four digits, in at most seven characters; nothing of no values.

    >>> _number([1234.4, 1235.4]), _number([0.001234]), _number([123456.0]), _number([1.2345e-9])
    ('1235', '0.001234', '123456', '1.2e-09')
    """
    if not values:
        return ""
    mean = sum(values) / len(values)
    plain = f"{mean:.4g}"
    return plain if "e" not in plain else f"{mean:.0f}" if 1 < mean < 1e7 else f"{mean:.2g}"


def _layers(found: Constants, norm: str, case: Mapping[str, int], most: int) -> Table:
    """The layers with the largest smoothness of their own at the largest width, and how each grows with the width."""
    widths = sorted({one["config"]["width"] for one in found.chosen(norm=norm, **case)})
    shown = widths if len(widths) <= most else [widths[0], *widths[len(widths) - most + 1 :]]
    values: dict[str, dict[int, list[float]]] = {}
    roles: dict[str, str] = {}
    for width in widths:
        for record in found.chosen(norm=norm, width=width, **case):
            for name, own in record["result"]["layers"].items():
                values.setdefault(name, {}).setdefault(width, []).append(own["smoothness"])
                roles[name] = own["role"]
    last = {name: sum(many[widths[-1]]) for name, many in values.items() if widths[-1] in many}
    rows = [
        [name, roles[name], *(_number(values[name].get(width, [])) for width in shown), str(power(values[name]) or "")]
        for name in sorted(last, key=lambda name: -last[name])[:LARGEST]
    ]
    header = ["layer", "role", *(f"width {width}" for width in shown[:1]), *map(str, shown[1:]), "exponent"]
    return Table(f"{norm}: layers with the largest smoothness, {case_words('width', case)}", header, rows)


def _deepest(found: Constants, norm: str) -> Mapping[str, int]:
    """The most training of a norm and, of its depths after that, the largest."""
    trained = max(one["config"]["trained"] for one in found.chosen(norm=norm))
    return {
        "layers": max(one["config"]["layers"] for one in found.chosen(norm=norm, trained=trained)),
        "trained": trained,
    }


def text(found: Constants) -> str:
    """All tables, in at most 80 columns, and what the numbers are."""
    lines = textwrap.wrap(FROM_BELOW + _unsettled(found), 80)
    return "\n\n".join([*map(str, tables(found)), "\n".join(lines)])


def _unsettled(found: Constants) -> str:
    count = sum(not record["result"]["settled"] for record in found.records)
    return f" {count} of {len(found.records)} still grew when their steps ran out." if count else ""
