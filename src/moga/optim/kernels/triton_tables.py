"""What Triton's kernels read of many tensors: tables, cut into launches, and how these come to the device.

Nothing here waits for the device but the first copy for new shapes, and no table changes once it is there: each is
found by its content. So a step that finds its tensors where they were copies nothing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from moga.optim.kernels.jobs import ADAM, COLUMNS, ROWS, SIGN, Job

ENTRIES = 4096  # of a tile
WIDTHS = {SIGN: (64, 512, ENTRIES), ADAM: (64, 512, ENTRIES), ROWS: (64, 256, 1024, ENTRIES), COLUMNS: (32, 128)}
DOWN = 8  # tiles that one program takes for columns, one below another
WORDS = len(Job._fields_)
KEYS = 5  # addresses of a tensor
ALIGNED = 16  # bytes, and entries: what the widest loads need
# Room for tables that are made in the capture of a CUDA graph, where no memory can be pinned.
RESERVE = 1 << 20

_reserved = torch.empty(0, dtype=torch.uint8, device="cpu")
_kept: list[Tensor] = []  # what captured graphs read again at every replay


@dataclass(frozen=True)
class Launch:
    """Jobs of one kind whose parts have one shape (rows, cols), as triton_step.py reads them."""

    kind: int
    shape: tuple[int, int]
    once: bool  # no row that is summed is longer than a tile
    aligned: bool  # all numbers of entries are multiples of 16
    jobs: Tensor
    tasks: Tensor
    room: int  # float64 numbers for the sums of columns


def launches(jobs: bytes, device: torch.device) -> tuple[Launch, ...]:
    """The launches for an array of :class:`moga.optim.kernels.jobs.Job`, with their tables on the device.

    >>> one = Job(ROWS, 0, 0, 5, 300, 300, 0.5)
    >>> [launch] = launches(bytes(one), torch.device("cpu"))
    >>> launch.shape, launch.tasks.tolist(), launch.aligned  # five rows of 300 need two tiles of 4 x 1024
    ((4, 1024), [[0, 0], [0, 1]], False)
    """
    found = _launches(jobs, device)
    if _capturing(device):
        _kept.extend(table for one in found for table in (one.jobs, one.tasks))
    return found


@functools.lru_cache(maxsize=256)
def _launches(jobs: bytes, device: torch.device) -> tuple[Launch, ...]:
    table = torch.frombuffer(bytearray(jobs), dtype=torch.int64).reshape(-1, WORDS)
    classes: dict[tuple[int, int, bool, bool], list[int]] = {}
    for i, (kind, _, offset, rows, cols, stride, _) in enumerate(table.tolist()):
        aligned = all(number % ALIGNED == 0 for number in (offset, cols, stride if rows > 1 else 0))
        width = next((one for one in WIDTHS[kind] if cols <= one), WIDTHS[kind][-1])
        if rows == 1 and kind in (SIGN, ADAM):
            width = ENTRIES
        classes.setdefault((kind, width, kind != ROWS or cols <= width, aligned), []).append(i)
    return tuple(_launch(key, table[members], device) for key, members in classes.items())


def _launch(key: tuple[int, int, bool, bool], jobs: Tensor, device: torch.device) -> Launch:
    kind, width, once, aligned = key
    shape = (ENTRIES // width, width)
    rows, cols = jobs[:, 3], jobs[:, 4]
    down = -(rows // -(shape[0] * DOWN if kind == COLUMNS else shape[0]))
    parts = down if kind == ROWS else down * -(cols // -width)
    room = down * cols
    jobs[:, 0] = room.cumsum(0) - room  # the kind is known: the place of the job's sums takes its place
    owner = torch.repeat_interleave(torch.arange(len(jobs)), parts)
    part = torch.arange(len(owner)) - (parts.cumsum(0) - parts)[owner]
    tasks = torch.stack([owner, part], 1).to(torch.int32)
    placed = [_copied(table.contiguous(), device, wait=True) for table in (jobs, tasks)]
    return Launch(kind, shape, once, aligned, placed[0], placed[1], int(room.sum()) if kind == COLUMNS else 0)


def address_table(addresses: bytes, device: torch.device) -> tuple[Tensor, bool]:
    """Addresses (tensors, 5) on the device, and whether those of tensors (not of step counts) are multiples of 16."""
    if _capturing(device):
        return _address_table.__wrapped__(addresses, device, 0)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _address_table(addresses, device, stream)


@functools.lru_cache(maxsize=256)
def _address_table(addresses: bytes, device: torch.device, stream: int) -> tuple[Tensor, bool]:
    """``stream``: another one does not wait for the copy."""
    numbers = torch.frombuffer(bytearray(addresses), dtype=torch.int64).reshape(-1, KEYS)
    return _copied(numbers, device, wait=False), not bool((numbers[:, :-1] % ALIGNED).any())


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _copied(table: Tensor, device: torch.device, wait: bool) -> Tensor:
    """The table on the device. A graph that is captured copies it anew at every replay, so its memory is kept.

    Raises RuntimeError in a capture for which no memory is pinned.
    """
    global _reserved
    if device.type == "cpu":
        return table
    size = table.numel() * table.element_size()
    if not _capturing(device):
        if len(_reserved) < max(RESERVE, 4 * size):
            _reserved = torch.empty(max(RESERVE, 8 * size), dtype=torch.uint8, pin_memory=True)
        return table.to(device) if wait else table.pin_memory().to(device, non_blocking=True)
    if len(_reserved) < size:
        raise RuntimeError(
            f"a captured step needs {size} bytes of pinned memory and has {len(_reserved)}: take a step before the "
            "capture, and capture one graph at a time"
        )
    taken, _reserved = _reserved[:size], _reserved[-(-size // ALIGNED) * ALIGNED :]
    pinned = taken.view(table.dtype).view(table.shape).copy_(table)
    moved = pinned.to(device, non_blocking=True)
    _kept.extend([pinned, moved])
    return moved
