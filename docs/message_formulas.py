"""What the step of one matrix sends: the formulas of docs/distributed.md and of docs/scale.md.

``tests/distributed/cases_messages.py`` counts the messages of real steps against every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

ALL_REDUCE, ALL_TO_ALL = "all-reduce", "all-to-all"
INF = float("inf")


class Row(NamedTuple):
    """An update of an (out, in) matrix of float32 numbers that is cut along an axis: what a step sends."""

    update: dict[str, Any]
    layout: str
    cut: str  # "out" or "in"
    kinds: tuple[str, ...]  # of one step of all matrices together; all-to-alls of each bucket
    bytes: Callable[[float, float], float]  # of one matrix: of an all-reduce its tensor, of an all-to-all see `text`
    text: str


def _row(p: float = 2.0) -> dict[str, Any]:
    return {"norm": "row", "p": p}


def _column(q: float = 2.0) -> dict[str, Any]:
    return {"norm": "column", "q": q}


NOTHING: tuple[str, ...] = ()
ONE, TWO = (ALL_REDUCE,), (ALL_REDUCE, ALL_REDUCE)
THERE_AND_BACK = (ALL_TO_ALL, ALL_TO_ALL)

# Of an all-to-all `bytes` leaves out the factor (N - 1) / N: each of N ranks keeps its own part.
ROWS = [
    *(
        Row({"norm": word}, "out,in", cut, NOTHING, lambda out, in_: 0, "0")
        for word in ("sign", "adam")
        for cut in ("out", "in")
    ),
    Row(_row(), "out,in", "out", NOTHING, lambda out, in_: 0, "0"),
    Row(_row(), "out,in", "in", ONE, lambda out, in_: 8 * out, "8 out"),
    Row(_row(), "in,out", "out", NOTHING, lambda out, in_: 0, "0"),
    Row(_row(), "in,out", "in", ONE, lambda out, in_: 8 * out, "8 out"),
    Row(_row(INF), "out,in", "in", TWO, lambda out, in_: 16 * out, "16 out"),
    Row(_column(), "out,in", "out", ONE, lambda out, in_: 8 * in_, "8 in"),
    Row(_column(), "out,in", "in", NOTHING, lambda out, in_: 0, "0"),
    Row({"norm": "spectral"}, "out,in", "out", THERE_AND_BACK, lambda out, in_: 8 * out * in_, "8 out in (N - 1) / N"),
    Row({"norm": "spectral"}, "out,in", "in", THERE_AND_BACK, lambda out, in_: 8 * out * in_, "8 out in (N - 1) / N"),
]


def row_of(norm: str, cut: str) -> Row:
    """The row of a norm with its usual exponent, of a matrix that is cut along ``cut``."""
    return next(row for row in ROWS if row.update["norm"] == norm and row.cut == cut)


def team_kinds(steps: int, squares: bool = True) -> tuple[str, ...]:
    """The messages of a step of which teams share the work: there, two (one without squares) an iteration, back."""
    return (ALL_TO_ALL,) * (2 + (1 + squares) * steps)


def member_bytes(out: int, in_: int, rows: Sequence[int], steps: int, squares: bool = True) -> list[float]:
    """What each rank of a team sends to the others of it between the two all-to-alls, the owner first.

    ``rows`` of a matrix in float32 are computed by each. In each iteration the members put together A (short, short),
    if there are ``squares`` of it, and X (short, long) after each, at last on the owner alone.
    """
    short, long, others = min(out, in_), max(out, in_), len(rows) - 1
    each = others * (squares * steps * short + (steps - 1) * long)
    return [4 * own * (each + (long if i else 0)) for i, own in enumerate(rows)]


def team_bytes(out: int, in_: int, rows: Sequence[int], steps: int, ranks: int, squares: bool = True) -> float:
    """What all ranks send to others for a matrix in float32 whose team takes so many rows each, the owner's first.

    L goes to every member, the step from the owner to all ranks.
    """
    between = sum(member_bytes(out, in_, rows, steps, squares))
    return 4 * (len(rows) + 1) * out * in_ * (ranks - 1) / ranks + between


def table() -> str:
    """The rows as the table of the documents."""
    lines = ["| update | stored | cut along | messages of a step | bytes of a matrix |", "|---|---|---|---|---|"]
    for row in ROWS:
        word = row.update["norm"] + "".join(f", {k} = {row.update[k]:g}" for k in ("p", "q") if k in row.update)
        kinds = (
            " and ".join(dict.fromkeys(row.kinds)) if len(set(row.kinds)) == len(row.kinds) else f"2 x {row.kinds[0]}"
        )
        lines.append(f"| {word} | ({row.layout.replace(',', ', ')}) | {row.cut} | {kinds or 'none'} | {row.text} |")
    return "\n".join(lines) + "\n"
