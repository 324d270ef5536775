"""A saved optimizer state in the order of other groups: parameters are matched by name where both sides have names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moga.optim.matrices import Group

# The words and exponents that say what a group's update is. All else that a group says is loaded, as in torch.
RECIPE = ("norm", "p", "q", "polar", "shape", "step", "constraint", "average", "calibration")
STORED = ("layout", "blocks", "interleave")
MODEL = ("logit_scale",)  # a multiplier of the model that the size of a step counts on


def refuse_another_recipe(
    saved: Sequence[Group], groups: Sequence[Group], plain: Mapping[str, Any] | None = None
) -> None:
    """Raises ValueError if a parameter was saved with another update or layout than it has now.

    Parameters are matched by name where both sides have names in common, else by place. ``plain`` is what a saved
    group means where it is silent.

    >>> refuse_another_recipe([{"params": [0], "norm": "row"}], [{"params": [0], "norm": "sign"}])
    Traceback (most recent call last):
    ValueError: the group of 0 was saved with norm = 'row' and has norm = 'sign' here; make the optimizer with the
    recipe of the saved run. What is to change from there on can be changed in optimizer.param_groups after loading
    """
    old, new = ([(name, group) for group in side for name in _labels(group)] for side in (saved, groups))
    by_name = dict(old) if all("param_names" in group for group in (*saved, *groups)) else {}
    if by_name.keys() & dict(new).keys():
        pairs = [(by_name[name], group) for name, group in new if name in by_name]
    else:
        pairs = [(a, b) for (_, a), (_, b) in zip(old, new, strict=False)]  # of other lengths: torch says so
    for before, now in pairs:
        before = {**(plain or {}), **before}
        for key in (*RECIPE, *STORED, *MODEL):
            if key in before and key in now and _listed(before[key]) != _listed(now[key]):
                raise ValueError(
                    f"the group of {', '.join(map(str, _labels(now)[:3]))} was saved with {key} = {before[key]!r} and "
                    f"has {key} = {now[key]!r} here; make the optimizer with the recipe of the saved run. What is to "
                    "change from there on can be changed in optimizer.param_groups after loading"
                )


def _labels(group: Group) -> Sequence[str | int]:
    labels: Sequence[str | int] = group["param_names"] if "param_names" in group else range(len(group["params"]))
    return labels


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


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
