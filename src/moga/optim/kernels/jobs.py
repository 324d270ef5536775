"""What the compiled step is told of a tensor: its matrices as runs of entries that lie next to each other."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from moga.geometry.norms import norm
from moga.optim.matrices import Group, blocks_of

SIGN, ROWS, COLUMNS, ADAM = range(4)  # as in step.c
Place = tuple[int, int, int, int]  # offset, rows, cols, stride


class Job(ctypes.Structure):
    """As in step.c: ``rows`` runs of ``cols`` entries, ``stride`` apart, from ``offset`` on in one tensor."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "tensor", "offset", "rows", "cols", "stride")),
        ("scale", ctypes.c_double),
    )


def normalised(group: Group) -> str | None:
    """What the direction of the group's norm looks at: an "entry", a "row", a "column", "adam"; None: anything else.

    >>> normalised({"norm": "row", "p": 2.0, "q": None, "step": "fixed", "constraint": "decay", "average": "mean"})
    'row'
    """
    if (group["step"], group["constraint"]) != ("fixed", "decay"):
        return None
    if group["norm"] == "adam":
        return "adam"
    if group["norm"] not in ("sign", "row", "column") or group["average"] not in ("mean", "none"):
        return None
    steepest = norm(group["norm"], group["p"], group["q"])
    if (steepest.p, steepest.q) == (1.0, math.inf):
        return "entry"
    exponent = steepest.p if steepest.name == "row" else steepest.q
    return steepest.name if exponent == 2 else None


def jobs_of(shapes: tuple[torch.Size, ...], group: Group, reach: str) -> Any:
    """The jobs of contiguous tensors of those shapes, an array for step.c; None where a matrix is no run of entries.

    >>> group = {"layout": "in,out", "blocks": (2, 4), "interleave": 1, "scale": [3.0, 5.0]}
    >>> [(job.rows, job.cols, job.stride, job.scale) for job in jobs_of((torch.Size((7, 6)),), group, "row")]
    [(7, 2, 6, 3.0), (7, 4, 6, 5.0)]
    """
    scale = group["scale"]
    if isinstance(scale, (list, tuple)):
        scale = tuple(scale) if len(set(scale)) > 1 else scale[0]
    return _array(shapes, scale, reach, group["layout"], tuple(group["blocks"]), group["interleave"])


@functools.lru_cache(maxsize=256)
def _array(shapes: tuple[torch.Size, ...], *words: Any) -> Any:
    found: list[Job] = []
    for tensor, shape in enumerate(shapes):
        jobs = _jobs(shape, *words)
        if jobs is None:
            return None
        found += [Job(kind, tensor, *place, size) for kind, place, size in jobs]
    return (Job * len(found))(*found)


@functools.lru_cache(maxsize=256)
def _jobs(
    shape: torch.Size, scale: Any, reach: str, layout: str, blocks: tuple[int, ...], interleave: int
) -> list[tuple[int, Place, float]] | None:
    one = not isinstance(scale, tuple)
    if reach in ("entry", "adam") and one:
        return [(ADAM if reach == "adam" else SIGN, (0, 1, shape.numel(), shape.numel()), scale)]
    if reach == "row" and one:
        blocks, interleave = (), 1  # no block cuts a row
    stored = torch.empty(shape, dtype=torch.bool, device="cpu")  # for its strides: nothing is read or written
    jobs = []
    for block, size in blocks_of(
        stored, {"layout": layout, "blocks": blocks, "interleave": interleave, "scale": scale}
    ):
        if block.untyped_storage().data_ptr() != stored.untyped_storage().data_ptr():
            return None  # brought together by a copy
        for index in itertools.product(*map(range, block.shape[:-2])):
            runs = _runs(block[index], reach)
            if runs is None:
                return None
            jobs.append((*runs, size))
    return jobs


def _runs(matrix: Tensor, reach: str) -> tuple[int, Place] | None:
    """The kind of job and the place of a matrix (out, in); None where its entries lie apart along both axes."""
    axes: list[tuple[int, int]] = list(zip(matrix.shape, matrix.stride(), strict=True))
    (n, step), (others, apart) = axes if reach == "column" else axes[::-1]  # n entries are summed
    offset = int(matrix.storage_offset())
    together, across = (offset, others, n, apart), (offset, n, others, step)
    if reach in ("entry", "adam") or n == 1:  # nothing is summed, or an entry alone: it over its own size
        either, _, place = max((step == 1, n, together), (apart == 1, others, across))
        return (ADAM if reach == "adam" else SIGN, place) if either else None
    if step == 1:
        return ROWS, together
    return (COLUMNS, across) if apart == 1 or others == 1 else None
