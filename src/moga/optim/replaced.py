"""Weights that somebody else has written since the last step, where the state holds numbers that are made from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from moga.optim.averages import State
from moga.optim.matrices import Group
from moga.optim.update import new_state

# How far rounding alone takes the length of a row from the magnitude in the state, as a fraction of it.
ROUNDED = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2.0**-6}


def follow_weights(group: Group, states: Mapping[Tensor, State], weights: Iterable[Tensor]) -> None:
    """Give rows that were replaced from outside the magnitude that they have now, in place: ``W = g v / |v|`` again.

    The constraint "row_magnitude" keeps g and |v| of every row in the state. After ``model.load_state_dict`` or a swap
    for averaged weights they are those of other weights, to which the next step would go back. Such a row starts anew
    with ``g = |v| = |w|`` (g keeps its sign), its averages stay. Nothing is read on the host.

    >>> from moga.optim.checks import PLAIN
    >>> group = {**PLAIN, "norm": "spectral", "constraint": "row_magnitude", "layout": "out,in"}
    >>> w = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    >>> state = {w: new_state(w, group)}
    >>> w[0] *= 2
    >>> follow_weights(group, state, [w])
    >>> state[w]["magnitude"].flatten()
    tensor([10.,  1.])
    """
    if group["constraint"] != "row_magnitude":
        return
    for weight in weights:
        # as a fresh state has it; "none": without an average of the weight's size
        state, now = states[weight], new_state(weight, {**group, "average": "none"})["length"]
        magnitude = state["magnitude"]
        floor = torch.finfo(weight.dtype).tiny  # below it float16 has fewer digits than that
        moved = (now - magnitude.abs()).abs() > ROUNDED[weight.dtype] * magnitude.abs() + floor
        state["magnitude"].copy_(torch.where(moved, torch.copysign(now, magnitude), magnitude))
        state["length"].copy_(torch.where(moved, now, state["length"]))
