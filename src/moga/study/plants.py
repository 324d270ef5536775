"""Faults to plant on purpose: a check that does not find them says nothing about a model that it passes.

| word | the fault | which modules show it |
|---|---|---|
| `scale` | the scale of every hidden matrix is left out: 1 at every size | hidden matrices move more in wide models |
| `fan` | the vocabulary is taken for the width: an output's scale uses its rows for its columns | the output does |
| `init` | entries of every matrix start with standard deviation 0.02 | hidden matrices give more from the start |

Under `spectral` a scale that is left out is no fault of width, as sqrt(out/in) is the same at every width; there the
scale is that of the shape word "moonlight", which grows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from moga.geometry.layout import logical_matrices
from moga.rules.updates import update_scale

PLANTS = ("none", "scale", "fan", "init")
CONSTANT_STD = 0.02

Groups = list[dict[str, Any]]


def check_plant(word: str) -> str:
    """The word, if there is such a fault; "none" is one.

    Raises ValueError otherwise.

    >>> check_plant("scale")
    'scale'
    """
    if word not in PLANTS:
        raise ValueError(f"unknown fault {word!r} to plant; the words are {', '.join(PLANTS)}")
    return word


@torch.no_grad()
def plant_in_weights(model: nn.Module, word: str, seed: int) -> None:
    """Plant a fault of the initialisation: "init"; the other words change nothing here.

    >>> model = nn.Linear(400, 300)
    >>> plant_in_weights(model, "init", seed=0)
    >>> round(model.weight.std().item(), 3)
    0.02
    """
    if word == "init":
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * CONSTANT_STD)


def plant_in_groups(groups: Groups, word: str) -> Groups:
    """The groups with a fault of the update: "scale" or "fan"; the other words change nothing here.

    Raises ValueError where no group has the role that the fault is about.

    >>> from moga import param_groups
    >>> def groups():
    ...     head = nn.Linear(64, 9, bias=False)
    ...     return param_groups([("head", head.weight)], "mup-adamw", roles={"head": "output"})
    >>> [plant_in_groups(groups(), word)[0]["scale"] for word in ("none", "fan")]
    [0.015625, 0.1111111111111111]
    """
    role = {"scale": "hidden", "fan": "output"}.get(word)
    own = [group for group in groups if group["role"] == role]
    if role and not own:
        raise ValueError(f"the fault {word!r} is one of the role {role!r}, which no parameter of this model has")
    for group in own:
        if role == "hidden" and group["norm"] == "spectral":
            group["scale"] = [update_scale(group | {"shape": "moonlight"}, *fan) for fan in group["fan"]]
        elif role == "hidden":
            group["scale"] = 1.0
        else:
            rows = logical_matrices(group["params"][0], group["layout"], group["blocks"])[0].shape[-2]
            group["fan"], group["scale"] = [[1, rows]], update_scale(group, 1, rows)
    return groups
