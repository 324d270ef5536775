"""The table of `moga inspect` as text of at most 80 columns, from the data of `study/inspection.py`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["text"]

COLUMNS = 80
Row = Mapping[str, Any]
STARTS = {"own": "as the model's code makes them", "moga": "as moga.initialize_ makes them"}


def text(found: Mapping[str, Any]) -> str:
    """The whole page: what it is, a row per role, a row per kind of parameter, weights at the start, warnings."""
    lines = [
        f"{found['model']}: {found['parameters']:,} parameters in {found['tensors']} tensors",
        f"recipe {found['recipe']}: {found['width_rule'].removeprefix('none: ')}",
    ]
    if found["base"]:
        lines.append(f"base: {found['base']}; lr/base: learning rate relative to it")
    parts = ["\n".join(_wrapped(line, "") for line in lines), _roles(found["roles"]), _kinds(found["kinds"])]
    parts.append(_starts(found))
    parts += [_wrapped(line, "warning: ") for line in found["warnings"]]
    return "\n\n".join(parts)


def _roles(rows: Sequence[Row]) -> str:
    cells = [
        [
            row["role"],
            row["update"],
            _yes(row["decays"]),
            str(row["tensors"]),
            f"{row['parameters']:,}",
            _range(row["relative"] or row["scale"]),
        ]
        for row in rows
    ]
    return _table(["role", "update", "decay", "tensors", "parameters", _scale(rows)], cells, right=(3, 4))


def _scale(rows: Sequence[Row]) -> str:
    return "lr/base" if any(row["relative"] for row in rows) else "scale"


def _kinds(rows: Sequence[Row]) -> str:
    def cells(row: Row) -> list[str]:
        fans = ["" if row["role"] == "vector" else ",".join(map(str, fan)) for fan in row["fan"]]
        values = [_number(value) for value in row["relative"] or row["scale"]]
        stored = "" if row["role"] == "vector" else row["stored"]
        return [row["role"], stored, _first(fans), _first(values), _yes(row["decays"])]

    return _tree(["role", "layout", "fan", _scale(rows), "decay"], rows, cells)


def _starts(found: Mapping[str, Any]) -> str:
    """Weights at the start; what moga.initialize_ wants is said where it has not made them."""
    if found["start"] == "none":
        return "weights at the start: not measured, the model is too large to be given any here"
    other, own = found["other"], any(row["wanted"] for row in found["starts"])
    title = [f"weights at the start, {STARTS[found['start']]}"]
    title += [] if other else ["Measured at one width only: how they grow with it is not known."]
    title += ["size: spectral; of a lookup the root mean square" + "; wanted: of moga.initialize_" * own]
    head = ["std", "size", *(["wanted"] * own), *([f"at {other}", "growth"] if other else [])]

    def cells(row: Row) -> list[str]:
        wanted = "" if row["wanted"] is None else _largest(row["wanted"])
        there = "" if row["other_size"] is None else _largest(row["other_size"])
        growth = "" if row["growth"] is None else f"{row['growth']:+.2f}".replace("-0.00", "+0.00")
        compared = [there, growth] if other else []
        return [_number(row["std"]), _largest(row["size"]), *([wanted] * own), *compared]

    return "\n".join([*title, _tree(head, found["starts"], cells)])


def _tree(head: Sequence[str], rows: Sequence[Row], cells: Callable[[Row], list[str]]) -> str:
    """A table whose first column are names, those of one module list under a heading of their own."""
    names: list[str] = []
    body: list[list[str]] = []
    headings = [_heading(row["pattern"]) for row in rows]
    for index, (row, heading) in enumerate(zip(rows, headings, strict=True)):
        before, after = headings[index - 1 : index], headings[index + 1 : index + 2]
        shared = bool(heading) and heading in (*before, *after)
        if shared and [heading] != before:
            names.append(heading)
            body.append([])
        names.append("  " + row["pattern"].removeprefix(heading) if shared else row["pattern"])
        body.append(cells(row))
    return _table(["parameter", *head], [[name, *own] for name, own in zip(names, body, strict=True)])


def _heading(pattern: str) -> str:
    """The part of a name up to its last number, with the point that follows.

    >>> _heading("model.layers.{0..3}.mlp.up.weight"), _heading("head.weight")
    ('model.layers.{0..3}.', '')
    """
    parts = _parts(pattern)
    numbers = [index for index, part in enumerate(parts) if part[0] in "{*" or part.isdecimal()]
    return ".".join(parts[: numbers[-1] + 1]) + "." if numbers else ""


def _parts(pattern: str) -> list[str]:
    """The steps of a name; the points of a range are none.

    >>> _parts("h.{0..3}.w")
    ['h', '{0..3}', 'w']
    """
    return [part.replace("\0", "..") for part in pattern.replace("..", "\0").split(".")]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns two spaces apart; the first one gives way where the others leave it too little room."""
    full = [head, *(row for row in rows if len(row) > 1)]
    widths = [max(len(row[column]) for row in full) for column in range(len(head))]
    widths[0] = min(widths[0], COLUMNS - sum(widths[1:]) - 2 * len(widths[1:]))
    lines = []
    for row in [head, *rows]:
        cells = [_cut(row[0], widths[0] if len(row) > 1 else COLUMNS), *row[1:]]
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=False))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cut(name: str, width: int) -> str:
    """Of a name that is too long the end, which says more than the beginning.

    >>> _cut("  self_attn.kv_a_proj_with_mqa.weight", 30)
    '  ..kv_a_proj_with_mqa.weight'
    """
    steps = name.lstrip()
    indent = name[: len(name) - len(steps)]
    room = width - len(indent)
    return name if len(steps) <= room else f"{indent}..{steps[2 - room :].removeprefix('.')}"


def _wrapped(words: str, first: str) -> str:
    """Lines of at most 80 columns; lines that are indented, such as code, stay as they are."""
    lines = []
    for line in (first + words).split("\n"):
        whole = line.startswith(" ") or len(line) <= COLUMNS
        lines += [line] if whole else textwrap.wrap(line, COLUMNS, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _first(words: Sequence[str]) -> str:
    return words[0] if len(set(words)) == 1 else f"{words[0]}.."


def _largest(values: Sequence[float]) -> str:
    """Of the sizes of a tensor's blocks the largest one, with two points where they differ."""
    low, high = _number(values[0]), _number(values[1])
    return high if low == high else f"{high}.."


def _range(values: Sequence[float]) -> str:
    low, high = _number(values[0]), _number(values[1])
    return low if low == high else f"{low} to {high}"
