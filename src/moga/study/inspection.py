"""What a recipe makes of a model, as plain data: a row per kind of parameter and a row per role, and what is amiss.

A kind are the parameters of all layers that differ in nothing but numbers: ``h.{0..11}.attn.c_attn.weight``.
"""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moga.rules.base import any_layer
from moga.rules.groups import layout_words, param_groups, update_words
from moga.rules.init import initialize_
from moga.rules.recipes import RECIPES
from moga.study.named import SEED, Named, Wanted, load_base, load_named, smaller
from moga.study.starts import measure_starts, start_warnings


def inspect_named(word: str, wanted: Wanted, base: str | None = None) -> dict[str, Any]:
    """As :func:`inspect_model`, of the model of that word, and with ``base`` as :func:`load_base` reads it.

    Weights are compared with those of the base where it has some, else with the model at half of its width. Beside
    the keys of :func:`inspect_model`: ``model`` and ``base`` in words, how the weights ``start`` ("own", "moga", or
    "none" of a model so large that it got no memory), and the ``other`` width in words.

    Raises ValueError as :func:`load_named`, :func:`load_base` and :func:`inspect_model`.
    """
    loaded = load_named(word, wanted)
    own_base, base_words, other = load_base(base, word, wanted) if base else (None, None, smaller(word, loaded, wanted))
    if other is None or "none" in (loaded.start, other.start):
        other, other_words = None, None
    else:
        other_words = "the base" if base else f"width {other.width}"
    fresh, refused = _initialized(loaded, wanted)
    own = None if loaded.start == "none" else loaded.model
    found = inspect_model(
        loaded.model,
        wanted.recipe,
        base=own_base,
        roles=wanted.roles,
        weights=Weights(own, None if other is None else other.model, fresh),
    )
    found["warnings"] += refused
    return {"model": loaded.what, "base": base_words, "start": loaded.start, "other": other_words, **found}


def _initialized(loaded: Named, wanted: Wanted) -> tuple[nn.Module | None, list[str]]:
    """The same model as moga.initialize_ starts it, or a warning that it refuses; neither where it has been done."""
    if loaded.start != "own":
        return None, []
    fresh = copy.deepcopy(loaded.model)
    try:
        generator = torch.Generator().manual_seed(SEED)
        return initialize_(fresh, wanted.recipe, roles=wanted.roles, generator=generator), []
    except ValueError as error:
        return None, [f"moga.initialize_ refuses this model: {error}"]


@dataclass(frozen=True)
class Weights:
    """Where weights at the start are measured: in the model, at another width, and as moga.initialize_ makes them."""

    model: nn.Module | None = None
    other: nn.Module | None = None
    fresh: nn.Module | None = None


def inspect_model(
    model: nn.Module,
    recipe: str,
    *,
    base: Any = None,
    roles: Mapping[str, str] | None = None,
    weights: Weights | None = None,
) -> dict[str, Any]:
    """The table of a model under a recipe, in JSON's types.

    ``base``, ``roles``: as in :func:`moga.param_groups`. ``weights``: what to measure; nothing where it is not given.

    - ``kinds``: what each kind of parameter is, which update it takes, whether it is decayed, and its ``scale``, one
      per block; with a base also its learning rate ``relative`` to the base's. In the order of the model.
    - ``roles``: the same by role and update; [least, largest] scale.
    - ``starts``: rows of :func:`moga.study.starts.measure_starts`.
    - ``warnings``: of :func:`moga.param_groups`, and of weights whose size at the start does not transfer.

    Raises ValueError as :func:`moga.param_groups`.

    >>> found = inspect_model(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)), "muon", roles={"1.weight": "output"})
    >>> [(row["pattern"], row["role"], row["update"], row["scale"], row["decays"]) for row in found["kinds"]]
    [('0.weight', 'input', 'adam', [1.0], True), ('1.weight', 'output', 'adam', [0.25], True),
     ('1.bias', 'vector', 'adam', [1.0], False)]
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        groups = param_groups(model, recipe, base=base, roles=roles)
    kinds = _kinds(model, groups)
    where = weights or Weights()
    starts = [] if where.model is None else measure_starts(where.model, groups, roles, where.other, where.fresh)
    for row in starts:
        row["pattern"] = next(kind["pattern"] for kind in kinds if row["name"] in kind["names"])
    declared = getattr(getattr(model, "config", None), "initializer_range", None)
    return {
        "recipe": recipe,
        "width_rule": RECIPES[recipe].width,
        "parameters": sum(kind["parameters"] for kind in kinds),
        "tensors": sum(kind["tensors"] for kind in kinds),
        "roles": _roles(kinds),
        "kinds": kinds,
        "starts": starts,
        "warnings": [*dict.fromkeys(str(one.message) for one in caught), *start_warnings(starts, recipe, declared)],
    }


def _kinds(model: nn.Module, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    place = {id(parameter): index for index, parameter in enumerate(model.parameters())}
    found: dict[tuple[Any, ...], list[tuple[int, str, Tensor, Mapping[str, Any]]]] = {}
    for index, group in enumerate(groups):
        for name, tensor in zip(group["param_names"], group["params"], strict=True):
            key = (index, any_layer(name), tuple(tensor.shape))
            found.setdefault(key, []).append((place[id(tensor)], name, tensor, group))
    return [_kind(members) for members in sorted(found.values(), key=lambda members: members[0][0])]


def _kind(members: list[tuple[int, str, Tensor, Mapping[str, Any]]]) -> dict[str, Any]:
    names = [name for _, name, _, _ in members]
    _, _, tensor, group = members[0]
    scales = group["scale"] if isinstance(group["scale"], list) else [group["scale"]] * max(1, len(group["fan"]))
    relative = [scale / group.get("radius", 1.0) for scale in scales] if "base_fan" in group else None
    return {
        "pattern": collapsed(names),
        "role": group["role"],
        "update": update_words(group),
        "decays": group["decays"],
        "shape": list(tensor.shape),
        "stored": layout_words(group),
        "layout": group["layout"],
        "blocks": group["blocks"],
        "interleave": group["interleave"],
        "fan": group["fan"],
        "scale": scales,
        "relative": relative,
        "tensors": len(members),
        "parameters": sum(tensor.numel() for _, _, tensor, _ in members),
        "names": names,
    }


def _roles(kinds: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for kind in kinds:
        keys = {key: kind[key] for key in ("role", "update", "decays")}
        row = found.setdefault(tuple(keys.values()), {**keys, "tensors": 0, "parameters": 0, "scale": []})
        row["tensors"] += kind["tensors"]
        row["parameters"] += kind["parameters"]
        for key in ("scale", "relative"):
            values = [*(row.get(key) or ()), *(kind[key] or ())]
            row[key] = [min(values), max(values)] if values else None
    order = ("input", "tied", "hidden", "output", "vector")
    return sorted(found.values(), key=lambda row: order.index(row["role"]))


def collapsed(names: Sequence[str]) -> str:
    """One word for names that differ in numbers alone.

    >>> collapsed(["h.0.w", "h.1.w", "h.2.w"]), collapsed(["2.w", "4.w"]), collapsed(["head.w"])
    ('h.{0..2}.w', '{2,4}.w', 'head.w')
    >>> collapsed(["0.e.1.w", "1.e.0.w"])  # not every pair: no set of names says it
    '*.e.*.w'
    """
    numbers = [[int(part) for part in name.split(".") if part.isdecimal()] for name in names]
    sets = [sorted(set(values)) for values in zip(*numbers, strict=True)]
    pattern = any_layer(names[0])
    if math.prod(map(len, sets)) != len(names):
        return pattern
    words = iter(map(_set_word, sets))
    return re.sub(r"(?<![^.])\*(?![^.])", lambda _: next(words), pattern)


def _set_word(values: Sequence[int]) -> str:
    if len(values) == 1:
        return str(values[0])
    whole = list(values) == list(range(values[0], values[-1] + 1))
    return f"{{{values[0]}..{values[-1]}}}" if whole else f"{{{','.join(map(str, values))}}}"
