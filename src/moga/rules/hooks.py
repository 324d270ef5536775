"""What every change of a model's forward pass by hooks has to know: its config, and whether it is compiled already."""

from __future__ import annotations

from typing import Any

from torch import nn


def config_of(model: nn.Module) -> Any:
    """The config of the outermost module that has one of the kind that is saved with the model, or None.

    >>> config_of(nn.Linear(3, 2))
    """
    configs = (vars(module).get("config") for module in model.modules())
    return next((config for config in configs if hasattr(config, "to_dict")), None)


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile has the model or a part of it: it would not see a hook that comes or goes later.

    >>> is_compiled(nn.Linear(3, 2))
    False
    """
    return any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in model.modules())
