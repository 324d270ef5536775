"""Batches: what of one a model is called with, its labels, and its place.

A batch is what the model is called with: a dict of named arguments, a tuple of arguments, or one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

ANYTHING = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
FORMS = (
    "a batch is a dict with the names of those, a tuple in their order, or one; labels that it does not take may be "
    "there under 'labels', or as the last of a tuple if they are integers or the function returns (model, batch, loss)"
)


def called(model: nn.Module, batch: Any) -> Any:
    """The model's output on a batch, all of which it takes."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def arguments_of(model: nn.Module, batch: Any, own: bool, what: str) -> tuple[Any, Tensor | None]:
    """What of a batch a model is called with, and the labels in it.

    All of it if its forward takes that; else without ``labels``, or without the last entry of a tuple, which must be a
    tensor of integers unless the loss is one's ``own``.

    Raises ValueError if forward does not take that either.

    >>> arguments_of(nn.Linear(2, 3), ("x", torch.tensor([1])), False, "it")
    (('x',), tensor([1]))
    """
    forward, labels = forward_of(model), labels_of(batch)
    if forward is None or takes(forward, batch):
        return batch, labels
    if isinstance(batch, Mapping):
        rest: Any = {key: value for key, value in batch.items() if key != "labels"}
    elif isinstance(batch, (tuple, list)) and batch and (own or is_whole(batch[-1])):
        rest, labels = batch[:-1], batch[-1]
    else:
        rest = batch
    if takes(forward, rest):
        return rest, labels
    names = ", ".join(str(one.replace(annotation=one.empty)) for one in forward.parameters.values()) or "nothing"
    kinds = [kind_of(one) for one in batch] if isinstance(batch, (tuple, list)) else [kind_of(batch)]
    raise ValueError(f"{what} is called with {', '.join(kinds) or 'nothing'}, and its forward takes {names}; {FORMS}")


def forward_of(model: Any) -> inspect.Signature | None:
    """The arguments of a model's forward (inside torch's wrappers) or of a function; None if it does not say.

    >>> list(forward_of(nn.Linear(2, 3)).parameters)
    ['input']
    """
    try:
        found = inspect.signature(getattr(model, "forward", model))
    except (TypeError, ValueError):
        return None
    if {one.kind for one in found.parameters.values()} == ANYTHING:
        for name in ("_orig_mod", "module"):  # torch.compile; data parallelism and averages
            if isinstance(inner := getattr(model, name, None), nn.Module):
                return forward_of(inner)
    return found


def takes(forward: inspect.Signature, batch: Any) -> bool:
    """Whether a function of these arguments can be called with a batch."""
    try:
        if isinstance(batch, Mapping):
            forward.bind(**batch)
        else:
            forward.bind(*(batch if isinstance(batch, (tuple, list)) else (batch,)))
    except TypeError:
        return False
    return True


def is_whole(value: Any) -> bool:
    """Whether it is a tensor of integers.

    >>> is_whole(torch.tensor([1])), is_whole(torch.tensor([True])), is_whole(1)
    (True, False, False)
    """
    if not isinstance(value, Tensor) or value.dtype == torch.bool:
        return False
    return not (value.is_floating_point() or value.is_complex())


def moved(value: Any, device: str) -> Any:
    """The same with every tensor on the device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: moved(one, device) for key, one in value.items()}
    return type(value)(moved(one, device) for one in value) if isinstance(value, (tuple, list)) else value


def labels_of(batch: Any) -> Tensor | None:
    """The labels that a dict names.

    >>> labels_of({"labels": torch.tensor([1])}), labels_of(torch.zeros(2))
    (tensor([1]), None)
    """
    return batch.get("labels") if isinstance(batch, Mapping) else None


def kind_of(value: Any) -> str:
    """A value in words.

    >>> kind_of(torch.zeros(2, 3)), kind_of({"x": 1, "y": 2}), kind_of("word")
    ('a tensor of shape (2, 3)', 'dict with x, y', 'str')
    """
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" + ("" if value.is_floating_point() else f" and {value.dtype}")
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with {', '.join(map(str, value))}"
    return type(value).__name__
