"""Averages that a run has gathered under another optimizer, for a run that goes on with this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from moga.optim.averages import State
from moga.optim.checks import named
from moga.optim.distributed.state import placed_like
from moga.optim.matrices import Group
from moga.optim.steepest_descent import SteepestDescent


def import_state(optimizer: SteepestDescent, name_to_state: Mapping[str, Mapping[str, Any]]) -> None:
    """Take the averages of a torch.optim.AdamW, Muon or SGD, by the names of the parameters.

    AdamW's ``exp_avg`` and Muon's ``momentum_buffer`` are the mean ``M = b1 M + (1 - b1) G`` that norms of steepest
    descent step along, and AdamW's three tensors are those of "adam". SGD's ``momentum_buffer`` is the sum
    ``M = b1 M + G`` of a group with ``average`` "sum". The state of a parameter that never had a gradient is empty, and
    what torch's optimizers do not know (lengths of rows, references of trust ratios) begins as in a new run.

    Args:
        optimizer: with names in its groups, as :func:`moga.optimizer` makes it.
        name_to_state: for every parameter of the optimizer, ``other.state[parameter]``.

    Raises ValueError for names that are missing or unknown, for a state that lacks what the group's update needs, and
    for tensors of another shape; TypeError for what is no optimizer or no dict. Nothing is changed then.

    >>> import moga
    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> adamw, w.grad = torch.optim.AdamW([w], lr=0.1), torch.ones(2, 2)
    >>> adamw.step()
    >>> optimizer = moga.optimizer([("w", w)], "moga-row", lr=0.1, roles={"w": "hidden"})
    >>> moga.import_state(optimizer, {"w": adamw.state[w]})
    >>> optimizer.state[w]["momentum_buffer"]
    tensor([[0.1000, 0.1000],
            [0.1000, 0.1000]])
    """
    if not isinstance(optimizer, torch.optim.Optimizer) or not isinstance(name_to_state, Mapping):
        raise TypeError(
            "a moga optimizer and a dict from the names of its parameters to their states are needed; got "
            f"{type(optimizer).__name__} and {type(name_to_state).__name__}: give "
            "{name: other.state[weight] for name, weight in model.named_parameters()}"
        )
    parameters = {str(name): (w, group) for group in optimizer.param_groups for name, w in named(group)}
    if wrong := [*(parameters.keys() - name_to_state.keys()), *(name_to_state.keys() - parameters.keys())]:
        raise ValueError(
            f"a state is needed for every parameter of the optimizer and for no other; {', '.join(map(repr, wrong))} "
            "is on one side only. A parameter that had no gradient has the state {}"
        )
    taken = {w: _averages(name, name_to_state[name], w, group) for name, (w, group) in parameters.items()}
    optimizer.make_state()
    for weight, averages in taken.items():
        for key, value in averages.items():
            optimizer.state[weight][key].copy_(value)


def _averages(name: str, state: Mapping[str, Any], weight: Tensor, group: Group) -> State:
    if not state:
        return {}
    found = {"adam": _adam, "rmsprop": _rmsprop}.get(group["norm"], _momentum)(state, group)
    if not found:
        raise ValueError(
            f"the state of {name!r} has {', '.join(state)}, from which no average of norm {group['norm']!r} with "
            f"average {group['average']!r} can be made: adam takes AdamW's exp_avg, exp_avg_sq and step, a norm of "
            "steepest descent exp_avg or momentum_buffer; give {} to begin without"
        )
    for key, value in found.items():
        if key != "step" and value.shape != weight.shape:
            raise ValueError(
                f"the state of {name!r} has an average of shape {tuple(value.shape)} for a parameter of shape "
                f"{tuple(weight.shape)}"
            )
    return {key: value if key == "step" else placed_like(value, weight) for key, value in found.items()}


def _adam(state: Mapping[str, Any], group: Group) -> State:
    keys = ("exp_avg", "exp_avg_sq", "step")
    return {key: torch.as_tensor(state[key]) for key in keys} if all(key in state for key in keys) else {}


def _rmsprop(state: Mapping[str, Any], group: Group) -> State:
    return {"square_avg": state["square_avg"]} if "square_avg" in state else {}


def _momentum(state: Mapping[str, Any], group: Group) -> State:
    if group["norm"] == "shampoo" or group["average"] == "none":
        return {}
    if state.get("momentum_buffer") is not None:
        return {"momentum_buffer": state["momentum_buffer"]}
    if "exp_avg" not in state:
        return {}
    return {"momentum_buffer": state["exp_avg"] / (1 - group["momentum"] if group["average"] == "sum" else 1)}
