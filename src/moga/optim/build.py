"""A model and the name of a recipe to an optimizer, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from moga.optim.checks import warn_if_nothing_decays
from moga.optim.steepest_descent import SteepestDescent
from moga.rules.groups import param_groups

OWN = ("nonfinite", "maximize", "state_dtype", "rounding", "implementation", "distribute", "polar_dtype")


def optimizer(
    model: nn.Module | Iterable[tuple[str, Tensor]],
    recipe: str | Mapping[str, Any],
    lr: float | Tensor,
    **options: Any,
) -> SteepestDescent:
    """``SteepestDescent(param_groups(model, recipe, ...), lr)``: every option goes to the one that knows it.

    Args:
        model: a module, or (name, tensor) pairs whose roles are stated: ``roles={"*": "hidden"}``.
        recipe: a name from :data:`moga.RECIPES`, or a dict role -> update.
        lr: size of one update in each group's norm.
        options: ``nonfinite``, ``maximize``, ``state_dtype``, ``rounding``, ``implementation``, ``distribute`` and
            ``polar_dtype`` of :class:`SteepestDescent`; all others as in :func:`moga.param_groups`.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> step = optimizer([("w", w)], "moga-row", lr=0.1, roles={"w": "hidden"})
    >>> step.param_groups[0]["norm"], round(step.param_groups[0]["scale"], 4)
    ('row', 0.7071)
    """
    own = {key: options.pop(key) for key in OWN if key in options}
    made = SteepestDescent(param_groups(model, recipe, **options), lr, **own)
    warn_if_nothing_decays(made.param_groups, options.get("weight_decay", 0.0))
    return made
