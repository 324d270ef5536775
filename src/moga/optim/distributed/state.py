"""The state of a sharded parameter: tensors of its shape are sharded as it is, small ones are whole on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from moga.geometry.layout import parse_layout
from moga.optim.averages import State
from moga.optim.distributed.pieces import Piece, cut_axes, is_sharded, local, own_piece, whole
from moga.optim.distributed.plan import Place
from moga.optim.distributed.routes import local_group
from moga.optim.matrices import Group
from moga.optim.update import new_state


def new_sharded_state(place: Place, group: Group) -> State:
    """The state before the first step, as :func:`moga.optim.update.new_state` makes it of the whole parameter.

    Where only the axis of a stack is cut, small tensors that have this axis are cut with it.
    """
    weight = place.weight
    if not is_sharded(weight):
        return new_state(weight, group)
    if place.route == "owner":
        complete = weight.full_tensor() if group["constraint"] == "row_magnitude" else _without_values(weight)
        state = new_state(complete, group, lambda dtype: _sharded(torch.zeros_like(local(weight), dtype=dtype), weight))
        return {key: placed_like(value, weight) for key, value in state.items()}
    shard = local_group(group, weight, place.piece, place.reach)
    state = new_state(local(weight).detach(), shard)
    return {key: _sharded(value, weight) if value.ndim else value for key, value in state.items()}


def placed_like(value: Tensor, weight: Any, group: Group | None = None) -> Tensor:
    """A tensor of a weight's state, placed as the weight is: cut where that is sharded, whole where it is not.

    A tensor of another shape stays whole; with ``group`` it is cut along the axis of a stack as the weight is.
    """
    if not is_sharded(weight):
        return whole(value)
    if is_sharded(value):
        return value
    piece = own_piece(weight)
    if value.shape == weight.shape:
        return _sharded(_apart(piece.of(value)), weight)
    if group is not None and value.ndim and parse_layout(group["layout"]).stack and set(cut_axes(weight)) == {0}:
        rest = tuple(value.shape[1:])
        part = Piece((piece.start[0], *(0 for _ in rest)), (piece.shape[0], *rest))
        return _sharded(_apart(part.of(value)), weight)
    return value


def _apart(view: Tensor) -> Tensor:
    """In memory of its own: rows of a whole tensor would keep all of it."""
    return view.clone(memory_format=torch.contiguous_format)


def _without_values(weight: Any) -> Tensor:
    """A tensor of the whole shape that takes no memory: one entry, seen everywhere."""
    return torch.zeros((), dtype=weight.dtype, device=local(weight).device).expand(weight.shape)


def _sharded(part: Tensor, weight: Any) -> Tensor:
    """The DTensor of which this rank holds ``part``, placed as the weight is."""
    from torch.distributed.tensor import DTensor

    if part.shape == local(weight).shape:
        shape = weight.shape
    else:
        shape = torch.Size((weight.shape[0], *part.shape[1:])) if cut_axes(weight) else part.shape
    return DTensor.from_local(
        part, weight.device_mesh, weight.placements, run_check=False, shape=shape, stride=_strides(shape)
    )


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, size = [], 1
    for n in reversed(shape):
        strides.append(size)
        size *= max(n, 1)
    return tuple(reversed(strides))
