"""What one step sends: the table of docs/distributed.md, in formulas, and a counter for what is really sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

ALL_REDUCE, ALL_TO_ALL = "all-reduce", "all-to-all"
NAMES = {"allreduce_": ALL_REDUCE, "alltoall_base_": ALL_TO_ALL}


class Counter(TorchDispatchMode):
    """Every message of torch.distributed while it is active: its kind, and the bytes that it carries from this rank.

    Of an all-reduce the bytes of its tensor, of an all-to-all those that go to other ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), words: Any = None) -> Any:
        name = function._schema.name
        if name.startswith(("c10d::", "_c10d_functional::")) and "wait" not in name:
            kind = NAMES.get(name.partition("::")[2], name)
            self.sent.append((kind, self._bytes(kind, arguments)))
        return function(*arguments, **(words or {}))

    def _bytes(self, kind: str, arguments: Any) -> int:
        if kind == ALL_TO_ALL:
            sizes = arguments[4]
            return sum(size for rank, size in enumerate(sizes) if rank != dist.get_rank())
        first = arguments[0]
        tensors = first if isinstance(first, (list, tuple)) else [first]
        return sum(one.numel() * one.element_size() for one in tensors if isinstance(one, torch.Tensor))


class Row(NamedTuple):
    """An update of an (out, in) matrix that is cut along an axis: the messages, and the bytes of n matrices."""

    update: dict[str, Any]
    layout: str
    cut: str  # "out" or "in"
    kinds: tuple[str, ...]  # of one step of all matrices together
    bytes: Callable[[int, int], float]  # of one matrix: of an all-reduce its tensor, of an all-to-all all ranks' sum
    text: str


def _row(p: float = 2.0) -> dict[str, Any]:
    return {"norm": "row", "p": p}


def _column(q: float = 2.0) -> dict[str, Any]:
    return {"norm": "column", "q": q}


NOTHING: tuple[str, ...] = ()
ONE, TWO = (ALL_REDUCE,), (ALL_REDUCE, ALL_REDUCE)
THERE_AND_BACK = (ALL_TO_ALL, ALL_TO_ALL)
INF = float("inf")

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
