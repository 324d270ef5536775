"""A model of one's own by its import path, ``package.module:function``, and what it is trained on.

The function is called with the size, ``function(width=64)`` or ``function(depth=4)``, and returns the model, or
``(model, batch)``, or ``(model, batch, loss)``. A batch is what the model is called with: a dict of named arguments,
a tuple of arguments, or one; labels that it takes no argument for stay out of the call (:func:`arguments_of`). The loss
is a function of the model's output and the whole batch.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from moga.study.batches import arguments_of, called, forward_of, is_whole, kind_of
from moga.study.functions import find_given
from moga.study.models import FAMILIES

Loss = Callable[[Any, Any], Tensor]  # (output of the model, batch) -> tensor without dimensions
LOSSES = (
    "let the model return a loss (as .loss, under 'loss', or as one tensor without dimensions, alone or in a tuple), "
    "or its function (model, batch, loss), with None for a batch that the data give"
)


@dataclass(frozen=True)
class Built:
    """What a factory made. ``batch`` and ``loss`` are None where it left them to the study."""

    model: nn.Module
    batch: Any = None
    loss: Loss | None = None


def is_path(word: str) -> bool:
    """Whether a word names a function of one's own and not a family of models.

    >>> is_path("package.module:function"), is_path("gpt2")
    (True, False)
    """
    return ":" in word


def load_function(path: str) -> Callable[..., Any]:
    """The function at ``package.module:function``; modules in the working directory are found too.

    A function that the running study was given as an object is found under its word (:mod:`moga.study.functions`).

    Raises ValueError for a word of another form, a module that is not there, and a name in it that is no function.

    >>> load_function("math:hypot")(3.0, 4.0)
    5.0
    """
    if (given := find_given(path)) is not None:
        return given.function
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(f"{path!r} is no model family ({known}) and no import path; write package.module:function")
    if os.getcwd() not in sys.path:  # a command, unlike `python -m`, does not look there
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it needs is not
        raise ValueError(
            f"no module {error.name!r} for {path!r}; call moga from the directory that holds it, or install it"
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        own = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise ValueError(f"module {module_name!r} has no function {name!r}; it has: {', '.join(own) or 'none'}")
    found: Callable[..., Any] = function
    return found


def call_factory(path: str, over: str, size: int | None) -> Built:
    """What the function at ``path`` makes at a size; ``over`` is the name of its argument, "width" or "depth".

    Without a size it is called without arguments.

    Raises ValueError for a size that the function refuses, and for a result that is none of those it may return.
    """
    function, given = load_function(path), {} if size is None else {over: size}
    call = f"{path}({', '.join(f'{name}={value}' for name, value in given.items())})"
    _check_argument(function, path, over if given else "")
    try:
        made = function(**given)
    except (ValueError, TypeError, AssertionError) as error:
        how = "without a size, so give one" if size is None else f"with {over}= one of the sizes, so give sizes"
        raise ValueError(
            f"{call} refused: {type(error).__name__}: {error}; it is called {how} that it takes"
        ) from error
    parts = made if isinstance(made, tuple) else (made,)
    if not isinstance(parts[0], nn.Module) or len(parts) > 3 or (len(parts) == 3 and not callable(parts[2])):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise ValueError(f"{call} must return a model, (model, batch) or (model, batch, loss); got {kinds}")
    return Built(*parts)


def _check_argument(function: Callable[..., Any], path: str, over: str) -> None:
    """Raise ValueError for a function that has no argument of that name."""
    try:
        arguments = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one of those written in C that do not say
        return
    if over and not any(one.name == over or one.kind is one.VAR_KEYWORD for one in arguments):
        names = ", ".join(one.name for one in arguments) or "none"
        raise ValueError(f"{path} has no argument {over} (it has: {names}); name its argument {over}")


def batch_loss(built: Built, model: nn.Module, batch: Any, what: str) -> Tensor:
    """:func:`loss_of` the model on a batch.

    Raises ValueError as that does, and as :func:`arguments_of`.
    """
    arguments, labels = arguments_of(model, batch, built.loss is not None, what)
    return loss_of(replace(built, batch=batch), called(model, arguments), labels, what)


def text_loss(built: Built, model: nn.Module, windows: Tensor, what: str) -> Tensor:
    """:func:`loss_of` the model on windows of text (batch, context + 1), whose labels are the next bytes.

    Raises RuntimeError for a model that fails on them.
    """
    tokens, labels = windows[:, :-1], windows[:, 1:]
    forward = forward_of(built.model)
    try:
        output = called(model, {"input_ids": tokens} if forward and "input_ids" in forward.parameters else tokens)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise RuntimeError(
            f"{what} fails on bytes of text (integers of shape {tuple(tokens.shape)}), given by moga as there is no "
            f"batch: {type(error).__name__}: {error}; for a model of anything else give batches with --data "
            "package.module:function, or let the function return (model, batch) for a check"
        ) from error
    return loss_of(replace(built, batch=windows), output, labels, what)


def own_loss(output: Any) -> Tensor | None:
    """The loss that an output holds: itself, its ``.loss`` or ``"loss"``, or the one scalar among a tuple's entries.

    >>> import torch
    >>> logits, loss = torch.zeros(2, 3), torch.tensor(2.0)
    >>> own_loss({"loss": loss}), own_loss((logits, loss)), own_loss(logits)
    (tensor(2.), tensor(2.), None)
    """
    if isinstance(output, Mapping):
        found = output.get("loss")
    elif isinstance(output, (tuple, list)) and not hasattr(output, "loss"):
        scalars = [one for one in output if _is_scalar(one)]
        found = scalars[0] if len(scalars) == 1 else None
    else:
        found = getattr(output, "loss", output)
    return found if _is_scalar(found) else None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point()


def default_loss(output: Any, labels: Tensor | None) -> Tensor | None:
    """Mean cross entropy of the output's logits (..., classes) at integer ``labels`` (...), or None without either.

    >>> import torch
    >>> default_loss(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long))
    tensor(1.3863)
    """
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    logits = logits[0] if isinstance(logits, (tuple, list)) and logits else logits
    if not isinstance(logits, Tensor) or labels is None or not is_whole(labels) or logits.shape[:-1] != labels.shape:
        return None
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten().long())


def loss_of(built: Built, output: Any, labels: Tensor | None, what: str) -> Tensor:
    """The loss function that came with the model, or the loss that the output holds, or :func:`default_loss`.

    Raises ValueError if there is none of them, or one with dimensions.
    """
    if built.loss is not None:
        loss = built.loss(output, built.batch)
        if not isinstance(loss, Tensor) or loss.ndim:
            raise ValueError(f"the loss of {what} must be a tensor without dimensions; got {kind_of(loss)}")
        if not loss.is_floating_point() or (torch.is_grad_enabled() and not loss.requires_grad):
            raise ValueError(
                f"the loss of {what} must be a real number that depends on a trainable parameter; got a tensor of "
                f"{loss.dtype} with requires_grad {loss.requires_grad}"
            )
        return loss
    for found in (own_loss(output), default_loss(output, labels)):
        if found is not None:
            return found
    known = "there are none" if labels is None else f"there is {kind_of(labels)}"
    raise ValueError(
        f"the output of {what} has no loss: it is {kind_of(output)}, and no logits (..., classes) for integer labels "
        f"(...) under the batch's key 'labels' ({known}); {LOSSES}"
    )
