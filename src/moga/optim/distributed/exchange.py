"""The two ways in which ranks talk during a step, each one call for many tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Like(NamedTuple):
    """What a tensor that is on its way looks like."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """The memory that it takes, without gaps."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


_MADE: dict[tuple[int, ...], Any] = {}


def group_of(ranks: tuple[int, ...]) -> Any:
    """A process group of these ranks, the one of all ranks where it is that; made once, by those ranks alone."""
    if ranks == tuple(range(dist.get_world_size())):
        return dist.group.WORLD
    if ranks not in _MADE or not _alive(_MADE[ranks]):
        _MADE[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
    return _MADE[ranks]


def _alive(group: Any) -> bool:
    """Whether it is a group of the present ``init_process_group``, not of one that was destroyed."""
    try:
        return bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError, RuntimeError):
        return False


def device_of(group: Any) -> torch.device:
    """A device on which the group can talk: its own accelerator, if it has one."""
    backend = dist.get_backend(group)
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in backend else torch.device("cpu")


def reduce_(tensors: Sequence[Tensor], group: Any, largest: bool = False) -> list[Tensor]:
    """The sums (or the largest entries) over the ranks of a group, of all tensors of one dtype in one all-reduce."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def exchange(
    outgoing: Sequence[Sequence[Tensor]], incoming: Sequence[Sequence[Like]], group: Any, device: torch.device
) -> Callable[[], list[Iterator[Tensor]]]:
    """Send ``outgoing[i]`` to rank i of a group in one all-to-all of bytes; a call of what is returned waits for it.

    That call gives what each rank sent here, tensor by tensor. ``incoming[i]`` says what rank i sends: nothing about
    shapes travels.
    """
    nothing = torch.empty(0, dtype=torch.uint8, device=device)
    packed = torch.cat([nothing, *(_bytes(one) for part in outgoing for one in part)])
    sizes = [sum(like.bytes for like in part) for part in incoming]
    received = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    leaving = [sum(one.nbytes for one in part) for part in outgoing]
    work = dist.all_to_all_single(received, packed, sizes, leaving, group, async_op=True)

    def arrive() -> list[Iterator[Tensor]]:
        work.wait()
        return [_unpacked(part, likes) for part, likes in zip(torch.split(received, sizes), incoming, strict=True)]

    return arrive


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _unpacked(flat: Tensor, likes: Sequence[Like]) -> Iterator[Tensor]:
    parts = torch.split(flat, [like.bytes for like in likes])
    # the copy is for alignment: eight-byte numbers may follow two-byte ones
    return (part.clone().view(like.dtype).view(like.shape) for part, like in zip(parts, likes, strict=True))
