"""A saved state before it is loaded: it must be of the same recipe, and its tensors must fit the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from moga.optim.averages import State
from moga.optim.checks import NEEDED, PLAIN, named
from moga.optim.distributed.state import placed_like
from moga.optim.matrices import Group
from moga.optim.names import in_order_of, refuse_another_recipe
from moga.optim.update import new_state


def prepared(state_dict: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[State | None]]:
    """The state in the order of ``groups`` without its tensors, and the tensors of each parameter, ready to be used.

    A parameter without a saved state has None.

    The word ``implementation`` stays that of ``groups``: it belongs to the machine, not to the run.

    A tensor gets the dtype that a fresh state has for the saved ``state_dtype`` beside the present weight: float32
    averages stay so beside bfloat16 weights, and those of a float64 run become float32 beside float32 weights.

    Raises ValueError for what is no state of this optimizer, one of another recipe or of other parameters, and state
    that lacks a tensor or holds one of another shape; nothing is changed then.
    """
    for key in ("state", "param_groups"):
        if key not in state_dict:
            raise ValueError(f"the saved state lacks {key!r}; load what optimizer.state_dict() has returned")
    for i, group in enumerate(state_dict["param_groups"]):
        if missing := [key for key in NEEDED if key not in group]:
            raise ValueError(
                f"the saved group {i} lacks {', '.join(map(repr, missing))}: it is of another optimizer class. Load "
                "what the state_dict() of a moga.SteepestDescent has returned"
            )
    refuse_another_recipe(state_dict["param_groups"], [{**PLAIN, **group} for group in groups], PLAIN)
    ordered = in_order_of(dict(state_dict), groups)
    ordered["param_groups"] = [dict(saved) for saved in ordered["param_groups"]]
    states: list[State | None] = []
    used = set()
    for group, saved in zip(groups, ordered["param_groups"], strict=False):  # of other lengths: torch says so
        saved["implementation"] = group["implementation"]
        for (name, weight), i in zip(named(group), saved["params"], strict=False):
            state = ordered["state"].get(i)
            states.append(None if state is None else _fitted(state, weight, {**PLAIN, **saved}, name))
            used.add(i)
    return {**ordered, "state": {i: kept for i, kept in ordered["state"].items() if i not in used}}, states


def _fitted(saved: Mapping[str, Any], weight: Tensor, group: Group, name: str | int) -> State:
    if not saved:
        return {}
    # without memory: the shapes and dtypes alone
    expected = new_state(torch.empty(weight.shape, dtype=weight.dtype, device="meta"), group)
    fitted = dict(saved)
    for key, like in expected.items():
        value = saved.get(key)
        if not isinstance(value, Tensor) or value.shape != like.shape:
            got = f"has shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"is {value!r}"
            raise ValueError(
                f"the saved {key!r} of parameter {name!r} {got}; a tensor of shape {tuple(like.shape)} is needed for "
                f"a parameter of shape {tuple(weight.shape)}"
            )
        fitted[key] = placed_like(value.detach().to(weight.device, like.dtype, copy=True), weight, group)
    return fitted
