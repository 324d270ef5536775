"""What one step sends: the formulas of the documents, and a counter for what is really sent."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode


def script(name: str) -> Any:
    """A script of the documents, as a module."""
    if str(DOCS) not in sys.path:
        sys.path.append(str(DOCS))  # scripts import each other
    return importlib.import_module(name)


DOCS = Path(__file__).parents[2] / "docs"
formulas = script("message_formulas")
ALL_REDUCE, ALL_TO_ALL = formulas.ALL_REDUCE, formulas.ALL_TO_ALL
NAMES = {"allreduce_": ALL_REDUCE, "alltoall_base_": ALL_TO_ALL}


class Counter(TorchDispatchMode):
    """Every message of torch.distributed while it is active: its kind, and the bytes that it carries from this rank.

    Of an all-reduce the bytes of its tensor, of an all-to-all those that go to other ranks. ``largest`` are those of
    the largest tensor that a call sends from or gets into, also what stays on this rank.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, int]] = []
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), words: Any = None) -> Any:
        name = function._schema.name
        if name.startswith(("c10d::", "_c10d_functional::")) and "wait" not in name:
            kind = NAMES.get(name.partition("::")[2], name)
            self.sent.append((kind, self._bytes(kind, arguments)))
            self.largest = max(self.largest, *(one.nbytes for one in arguments if isinstance(one, torch.Tensor)), 0)
        return function(*arguments, **(words or {}))

    def _bytes(self, kind: str, arguments: Any) -> int:
        if kind == ALL_TO_ALL:
            sizes = arguments[4]
            return sum(size for rank, size in enumerate(sizes) if rank != dist.get_rank())
        first = arguments[0]
        tensors = first if isinstance(first, (list, tuple)) else [first]
        return sum(one.numel() * one.element_size() for one in tensors if isinstance(one, torch.Tensor))
