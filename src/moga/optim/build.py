"""A model and the name of a recipe to an optimizer, in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from torch import Tensor, nn

from moga.optim.checks import warn_if_nothing_decays
from moga.optim.steepest_descent import SteepestDescent
from moga.rules.base import Base
from moga.rules.groups import param_groups
from moga.rules.keywords import keywords_of, spelled_out
from moga.rules.options import Options
from moga.rules.stated import Roles
from moga.rules.torch_words import no_keyword

if TYPE_CHECKING or sys.version_info >= (3, 11):
    from typing import Unpack  # type: ignore[attr-defined,unused-ignore]


class Own(TypedDict, total=False):
    """What :class:`SteepestDescent` is given; the rest is for :func:`param_groups`."""

    nonfinite: str
    maximize: bool
    distribute: str
    state_dtype: str
    rounding: str
    implementation: str
    polar_dtype: str


class Keywords(Own, Options, total=False):
    """All that an editor may offer; a test compares them with what the two functions take."""

    base: Base
    roles: Roles | None
    overrides: Mapping[str, Mapping[str, Any]] | None
    decay_vectors: bool


OWN = [one for one in keywords_of(SteepestDescent) if one.name in Own.__annotations__]


@spelled_out(keywords_of(param_groups), OWN)
def optimizer(
    model: nn.Module | Iterable[tuple[str, Tensor]],
    recipe: str | Mapping[str, Any],
    lr: float | Tensor,
    **options: Unpack[Keywords],
) -> SteepestDescent:
    """``SteepestDescent(param_groups(model, recipe, ...), lr)``: every keyword goes to the one that knows it.

    Args:
        model: a module, or (name, tensor) pairs whose roles are stated: ``roles={"*": "hidden"}``.
        recipe: a name from :data:`moga.RECIPES`, or a dict role -> update.
        lr: size of one update in each group's norm.
        base: and all keywords to ``weight_decay``: as in :func:`moga.param_groups`.
        nonfinite: and all after it: as in :class:`SteepestDescent`.

    Raises ValueError for a keyword that neither knows (one of torch's with the word for it here), and as the two.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> step = optimizer([("w", w)], "moga-row", lr=0.1, roles={"w": "hidden"})
    >>> step.param_groups[0]["norm"], round(step.param_groups[0]["scale"], 4)
    ('row', 0.7071)
    """
    known = {one.name for one in keywords_of(optimizer)}
    if unknown := [key for key in options if key not in known]:
        raise ValueError(no_keyword(optimizer, unknown[0]))
    own: dict[str, Any] = {key: value for key, value in options.items() if key in Own.__annotations__}
    rest: dict[str, Any] = {key: value for key, value in options.items() if key not in own}
    made = SteepestDescent(param_groups(model, recipe, **rest), lr, **own)
    warn_if_nothing_decays(made.param_groups, rest.get("weight_decay", 0.0))
    return made
