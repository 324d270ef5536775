"""A saved optimizer state in the order of other groups: parameters are matched by name where both sides have names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moga.optim.matrices import Group


def in_order_of(state_dict: dict[str, Any], groups: Sequence[Group]) -> dict[str, Any]:
    """``state_dict`` with its groups and parameters in the order of ``groups``, if both have the same names.

    With no name in common (one model is wrapped, or one side has no names) the order decides, as in torch.

    Raises ValueError if some names are the same and others not, and if one group unites what was saved in several.

    >>> saved = {"state": {}, "param_groups": [{"params": [0], "param_names": ["a"], "lr": 1.0},
    ...                                        {"params": [1], "param_names": ["b"], "lr": 2.0}]}
    >>> [group["lr"] for group in in_order_of(saved, [{"param_names": ["b"]}, {"param_names": ["a"]}])["param_groups"]]
    [2.0, 1.0]
    """
    saved = state_dict["param_groups"]
    if not all("param_names" in group for group in (*saved, *groups)):
        return state_dict
    places = {
        name: (group, index)
        for group in saved
        for name, index in zip(group["param_names"], group["params"], strict=True)
    }
    names = [name for group in groups for name in group["param_names"]]
    common = set(names) & set(places)
    if not common or (list(places) == names and len(saved) == len(groups)):
        return state_dict
    if unknown := [*(set(names) - common), *(set(places) - common)]:
        raise ValueError(
            f"the saved state and this optimizer share some parameters, but not {', '.join(sorted(unknown))}; load it "
            "into an optimizer on the same parameters"
        )
    ordered = []
    for group in groups:
        own = places[group["param_names"][0]][0]
        if set(own["param_names"]) != set(group["param_names"]):
            raise ValueError(
                f"the group of {', '.join(group['param_names'])} was saved as other groups "
                f"({', '.join(own['param_names'])}; ...); make groups as they were when the state was saved"
            )
        indices = [places[name][1] for name in group["param_names"]]
        ordered.append({**own, "params": indices, "param_names": list(group["param_names"])})
    return {**state_dict, "param_groups": ordered}
