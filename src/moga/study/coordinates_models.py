"""The models and the optimizers of a coordinate check: of a family or of one's own, of every size, with their roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from moga.optim.steepest_descent import SteepestDescent
from moga.rules.groups import param_groups
from moga.rules.roles import OpenRoles, find_roles
from moga.rules.widths import settle_with_base
from moga.study.coordinates_plan import Case, CheckPlan, CheckSettings
from moga.study.factories import Built, call_factory, is_path, load_function
from moga.study.models import build_model
from moga.study.plants import plant_in_groups


def build(settings: CheckSettings, size: int, seed: int) -> Built:
    """The model of a size, with weights that depend on the seed."""
    shape = {"width": settings.width, "depth": settings.layers, settings.over: size}
    if not is_path(settings.model):
        return Built(
            build_model(
                settings.model,
                shape["width"],
                layers=shape["depth"],
                head_size=settings.head_size,
                context=settings.context,
                seed=seed,
            )
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return call_factory(settings.model, settings.over, size)


def roles_of(plan: CheckPlan) -> dict[str, Any]:
    """The roles to state: those that the user stated, and those that only two widths of the model settle.

    Raises ValueError for two sizes of one model, and for roles that nothing settles where a recipe or ``start`` needs
    them.
    """
    settings = plan.settings
    small, large = (build(settings, size, 0).model for size in plan.sizes[:2])
    if [one.shape for one in small.parameters()] == [one.shape for one in large.parameters()]:
        raise ValueError(
            f"{settings.model} makes the same model at {settings.over} {plan.sizes[0]} and {plan.sizes[1]}; its "
            f"argument {settings.over} must change it"
        )
    stated: dict[str, Any] = dict(settings.roles)
    try:
        find_roles(large, stated)
    except OpenRoles:
        try:
            if settings.over == "depth":
                raise
            return _roles_by_width(large, small, stated)
        except ValueError:
            if settings.start == "moga" or not all(is_path(case.recipe) for case in plan.cases):
                raise  # what an optimizer of one's own does without
    return stated


def _roles_by_width(large: nn.Module, small: nn.Module, stated: Mapping[str, Any]) -> dict[str, Any]:
    settled = [relative.assignment for relative in settle_with_base(large, small, stated)]
    return {**{one.name: one.role for one in settled if one.role != "vector"}, **stated}


def make_optimizer(model: nn.Module, case: Case, roles: Mapping[str, Any]) -> torch.optim.Optimizer:
    """The optimizer of a case; with decay left out, which is no part of what is checked.

    Raises ValueError for an own function that returns no optimizer.
    """
    if not is_path(case.recipe):
        groups = plant_in_groups(param_groups(model, case.recipe, roles=roles, weight_decay=0.0), case.plant)
        return SteepestDescent(groups, case.lr)
    made = load_function(case.recipe)(model, case.lr)
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(f"{case.recipe}(model, lr) must return a torch.optim.Optimizer; got {type(made).__name__}")
    return made
