"""The states of the weights of a group, made together: checkpoints need them before some weight has a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from moga.optim.averages import State
from moga.optim.distributed.plan import Place
from moga.optim.distributed.state import new_sharded_state
from moga.optim.matrices import Group
from moga.optim.replaced import follow_weights
from moga.optim.update import new_state


def states_of(group: Group, states: Any, places: Mapping[Tensor, Place]) -> list[State]:
    """The states of the weights of a group, in their order; they are made where ``states`` has none.

    Numbers made from weights follow them. ``states`` is a defaultdict by weight.

    >>> import collections, torch
    >>> from moga.optim.checks import PLAIN
    >>> states_of({**PLAIN, "params": [torch.ones(2)], "norm": "sign"}, collections.defaultdict(dict), {})
    [{'momentum_buffer': tensor([0., 0.])}]
    """
    found: list[State] = []
    for weight in group["params"]:
        state = states[weight]
        if not state:
            place = places.get(weight)
            states[weight] = state = new_sharded_state(place, group) if place else new_state(weight, group)
        found.append(state)
    follow_weights(group, states, (weight for weight in group["params"] if weight not in places))
    return found
