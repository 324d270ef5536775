"""What has to change in an affine map whose output is multiplied by a number: every parameter that it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Target(NamedTuple):
    """A map by its full name, the module that makes the branch, the map's name inside of that, and the multiplier."""

    name: str
    branch: nn.Module
    path: str
    factor: float


class Change(NamedTuple):
    """``offset + parameter`` is what the output is a multiple of, and what the factor multiplies."""

    parameter: nn.Parameter
    factor: float
    offset: float


def fold_changes(model: nn.Module, targets: Sequence[Target]) -> list[Change]:
    """What to do to the parameters of the maps, each tensor once.

    Raises ValueError for a map that has no weight of its own, is quantised, shares a tensor with something that is no
    map of a branch, or stores its gain minus 1 in half precision.

    >>> linear = nn.Linear(2, 2)
    >>> [(change.factor, change.offset) for change in fold_changes(linear, [Target("", linear, "", 0.5)])]
    [(0.5, 0.0), (0.5, 0.0)]
    """
    changes: dict[int, Change] = {}
    held: set[tuple[int, str]] = set()
    for target in targets:
        owner, own = _parameters(target)
        for key, parameter in own.items():
            offset = _offset(target.name, owner) if key == "weight" and parameter.ndim == 1 else 0.0
            _check_dtype(target.name, parameter, offset)
            changes[id(parameter)] = Change(parameter, target.factor, offset)
            held.add((id(owner), key))
    for name, module in model.named_modules():
        for key, tensor in module._parameters.items():
            if id(tensor) in changes and (id(module), key) not in held:
                raise ValueError(f"{name}.{key} is also the last map of a branch, which folding would multiply")
    return list(changes.values())


def _parameters(target: Target) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """Weight and bias of a module; or a stack of experts, with that of their biases, and the module that holds it."""
    parent, _, stack = target.path.rpartition(".")
    modules = dict(target.branch.named_modules())
    owner = modules.get(parent)
    if owner is not None and owner._parameters.get(stack) is not None:
        return owner, {key: value for key, value in owner.named_parameters() if key in (stack, f"{stack}_bias")}
    owner = modules.get(target.path)
    own = {} if owner is None else dict(owner.named_parameters())
    if owner is None or "weight" not in own or set(own) - {"weight", "bias"}:
        raise ValueError(
            f"{target.name} has no weight of its own, or more than that and a bias, to write the multiplier into; "
            "adapters and parametrizations have to be merged first"
        )
    return owner, own


def _offset(name: str, norm: nn.Module) -> float:
    """What a norm adds to its stored gain: 0, or 1 if it stores the gain minus 1. It is asked what it does.

    Raises ValueError for a module whose output is no multiple of its gain.
    """
    if isinstance(norm, nn.modules.batchnorm._NormBase):  # would count what it is asked with among its inputs
        return 0.0
    size = next(iter(norm.parameters())).numel()

    def output(gain: float) -> Tensor:
        values = {key: torch.full((size,), gain if key == "weight" else 0.0) for key, _ in norm.named_parameters()}
        result: Tensor = torch.func.functional_call(norm, values, (torch.linspace(-2, 3, size).reshape(1, size),))
        return result

    try:
        zero, one = output(0.0), output(1.0)
    except (TypeError, ValueError, RuntimeError):
        zero = one = torch.ones(1)
    if not zero.any():
        return 0.0
    if torch.allclose(one, 2 * zero):
        return 1.0
    raise ValueError(f"{name} ({type(norm).__name__}) returns no multiple of its weight: there is nothing to fold into")


def _check_dtype(name: str, parameter: nn.Parameter, offset: float) -> None:
    if not parameter.is_floating_point() or parameter.dtype.itemsize < 2:
        raise ValueError(f"{name} is stored as {parameter.dtype}; fold before quantising")
    if offset and parameter.dtype.itemsize < 4:
        raise ValueError(
            f"{name} stores its gain minus 1 in {parameter.dtype}, which leaves a small gain no digits; fold in "
            "float32: model.float()"
        )
