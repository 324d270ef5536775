"""From a model and a recipe to param groups: plain dicts that say everything about their tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from moga.rules.base import Base
from moga.rules.branches import check_branches
from moga.rules.keywords import keywords_of, spelled_out
from moga.rules.logit_bases import check_one_base
from moga.rules.logits import check_logits, logit_scales, warn_if_tied
from moga.rules.options import Options
from moga.rules.patterns import match_patterns
from moga.rules.recipes import resolve_recipe
from moga.rules.roles import Assignment, find_roles
from moga.rules.stated import Roles
from moga.rules.updates import HELD, Update, checked, complete_update, update_scale
from moga.rules.widths import Relative, settle_with_base

if TYPE_CHECKING or sys.version_info >= (3, 11):
    from typing import Unpack  # type: ignore[attr-defined,unused-ignore]

MULTIPLIERS = ("lr_scale", "decay_scale", "weight_decay")
# What a table shows for a group made by hand, which need not say everything.
UNSAID = {"role": "-", "fan": ["-"], "p": None, "q": None, "lr_scale": 1.0, "blocks": ()}
UNSAID |= {"step": "fixed", "constraint": "decay"}


@spelled_out(keywords_of(Options))
def param_groups(
    model: nn.Module | Iterable[tuple[str, Tensor]],
    recipe: str | Mapping[str, str | Update],
    *,
    base: Base = None,
    roles: Roles | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    decay_vectors: bool = False,
    **options: Unpack[Options],
) -> list[dict[str, Any]]:
    """One group per role, layout, fan and update: everything that ``moga.SteepestDescent`` needs, as plain data.

    - ``recipe``: a name from ``moga.RECIPES`` or a dict role -> update;
    - ``base``: the same architecture at the width at which somebody tuned (a model, a config, or what
      :func:`moga.save_base` wrote). Each scale is then divided by that of the same block at the base, so that it is
      exactly 1 there and lr and weight decay keep the meaning that they had; ``radius`` is no matter of width and
      stays. Roles are found from modules and widths both;
    - ``roles``: roles by pattern, as in :func:`find_roles`;
    - ``overrides``: by pattern, ``{"*.router.*": {"lr_scale": 0.1}}``; keys ``lr_scale`` and ``decay_scale`` (factors
      on lr and on weight decay), ``weight_decay`` (per unit of lr), or a whole update, which begins with ``norm`` and
      replaces the recipe's. Later patterns win key by key;
    - ``decay_vectors``: whether biases and gains are decayed too;
    - all others, ``p`` to ``weight_decay``, reach the updates of the recipe that can use them (see
      :mod:`moga.rules.updates`, and :class:`moga.SteepestDescent` for the averages); what is not given stays the
      recipe's.

    ``scale`` of a group multiplies the direction without scale, so that the update has size 1 in the group's norm; it
    is a list, one number per block, where the blocks differ.

    Raises ValueError for what :func:`find_roles`, the base and the recipe refuse, for a role that the recipe has no
    update for, for an override that matches nothing, has an unknown key or a value out of range, for a model whose
    config remembers a multiplier of the logits that its forward pass has lost, and for a tied matrix whose multiplier
    is that of another width than the base's.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
    >>> [(g["role"], g["norm"], g["scale"]) for g in param_groups(model, "moga-row", roles={"1.weight": "output"})]
    [('input', 'sign', 1.0), ('output', 'row', 0.5)]
    """
    if not isinstance(decay_vectors, bool):
        raise TypeError(f"decay_vectors must be True or False; got {decay_vectors!r}")
    updates = resolve_recipe(recipe, options)
    relative = _settled(model, base, roles)
    changes = _overrides([one.assignment for one in relative], overrides)
    groups: dict[str, dict[str, Any]] = {}
    for placed, change in zip(relative, changes, strict=True):
        one = placed.assignment
        if one.role not in updates and "norm" not in change:
            raise ValueError(
                f"{one.name} has the role {one.role!r}; the recipe has an update for {', '.join(updates)} only: add one"
            )
        settings = _settings(placed, updates.get(one.role, {}), change, decay_vectors)
        group = groups.setdefault(repr(settings), {"params": [], "param_names": [], **settings})
        group["params"].append(one.parameter)
        group["param_names"].append(one.name)
    warn_if_tied(groups.values())
    return list(groups.values())


def _settled(model: nn.Module | Iterable[tuple[str, Tensor]], base: Base, roles: Roles | None) -> list[Relative]:
    """Every trainable parameter with its role, what it was at the base, and the multiplier of its logits."""
    relative = (
        [Relative(one) for one in find_roles(model, roles)] if base is None else settle_with_base(model, base, roles)
    )
    if isinstance(model, nn.Module):
        check_branches(model)
    if not isinstance(model, nn.Module) or not any(one.assignment.role in ("tied", "output") for one in relative):
        return relative
    check_logits(model)
    multiplied = logit_scales(model)
    relative = [replace(one, logit_scale=multiplied.get(id(one.assignment.parameter))) for one in relative]
    check_one_base(model, relative)
    return relative


def _overrides(
    assignments: Sequence[Assignment], overrides: Mapping[str, Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = [{} for _ in assignments]
    for pattern, change, hits in match_patterns("overrides", overrides, [one.aliases for one in assignments]):
        if not isinstance(change, Mapping):
            raise TypeError(f"overrides[{pattern!r}] must be a dict such as {{'lr_scale': 0.1}}; got {change!r}")
        own = {key: checked(key, value) for key, value in change.items() if key in MULTIPLIERS}
        update = {key: value for key, value in change.items() if key not in ("lr_scale", "decay_scale")}
        if "norm" in change:
            own |= complete_update(update, f"overrides[{pattern!r}]")
        elif unknown := [key for key in change if key not in MULTIPLIERS]:
            raise ValueError(
                f"overrides[{pattern!r}] has {unknown[0]!r}; the keys are {', '.join(MULTIPLIERS)}, or a whole update "
                "that has 'norm'"
            )
        for index in hits:
            kept = {key: value for key, value in changes[index].items() if "norm" not in change or key in MULTIPLIERS}
            changes[index] = kept | own
    return changes


def _settings(placed: Relative, update: Update, change: Mapping[str, Any], decay_vectors: bool) -> dict[str, Any]:
    one = placed.assignment
    update = dict(change) if "norm" in change else {**update, **change}
    if update["constraint"] in HELD and update.get("weight_decay"):
        raise ValueError(
            f"overrides give {one.name} weight_decay = {update['weight_decay']}, which the constraint "
            f"{update['constraint']!r} would undo: it fixes the size of the weight. Leave it out"
        )
    scales = _scales(placed, update)
    described = {
        "role": one.role,
        "layout": one.layout,
        "blocks": list(one.blocks),
        "interleave": one.interleave,
        "fan": [list(fan) for fan in one.fan],
        **({"base_fan": [list(fan) for fan in placed.base_fan]} if placed.base_fan else {}),
        **({} if placed.logit_scale is None else {"logit_scale": placed.logit_scale}),
    }
    applied = {
        "scale": scales[0] if len(set(scales)) == 1 else scales,
        "decays": (decay_vectors or one.role != "vector") and update["constraint"] not in HELD,
        "lr_scale": update.pop("lr_scale", 1.0),
        "decay_scale": update.pop("decay_scale", 1.0),
    }
    return {**described, **update, **applied}


def _scales(placed: Relative, update: Update) -> list[float]:
    """The scale of each block; relative to the base where there is one, which leaves a radius as it is.

    A step of an output is measured as the map makes it, so the multiplier of its logits is divided out. A tied matrix
    steps as an input does: there the multiplier is what the output needs. The step of a lookup is measured once the
    model has multiplied its rows. One lr for all (shape "none") stays what it is.
    """
    one, shaped = placed.assignment, update["shape"] != "none"
    logits = one.role == "output" and shaped and placed.logit_scale
    factor = (logits or 1.0) * (one.multiplier if shaped else 1.0)
    scales = [update_scale(update, *fan) / factor for fan in one.fan]
    if not placed.base_fan:
        return scales
    factor = (placed.base_logit_scale if logits else 1.0) * (placed.base_multiplier if shaped else 1.0)
    base = [update_scale(update, *fan) / factor for fan in placed.base_fan]
    return [scale / other * update.get("radius", 1.0) for scale, other in zip(scales, base, strict=True)]


def describe(groups: Sequence[Mapping[str, Any]]) -> str:
    """The groups as a table of at most 80 columns, with a line of totals.

    ``fan`` is the effective (out, in); ``x3`` after a layout counts the blocks that share one tensor, and
    ``x3/8`` says that eight units (heads) hold a part of each.

    Raises TypeError for a model, an optimizer and whatever else is no list of groups; ValueError for another's groups.

    >>> print(describe(param_groups([("w", Tensor(8, 4)), ("b", Tensor(8))], "moga-row", roles={"w": "hidden"})))
    role    update   layout  fan  scale  tensors  params  names
    hidden  row p=2  out,in  8,4  0.5          1      32  w
    vector  sign     vector  1,1  1            1       8  b
    total   2 groups, 2 tensors, 40 parameters
    """
    known = _described(groups)
    groups = [{**UNSAID, "param_names": [*map(str, range(len(group["params"])))], **group} for group in known]
    rows = [("role", "update", "layout", "fan", "scale", "tensors", "params"), *map(_cells, groups)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    names = [["names"], *(group["param_names"] for group in groups)]
    lines = []
    for row, own in zip(rows, names, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row[:5], widths, strict=False)]
        cells += [cell.rjust(width) for cell, width in zip(row[5:], widths[5:], strict=True)]
        line = "  ".join(cells)
        lines.append(f"{line}  {_elided(own, max(8, 78 - len(line)))}"[:80].rstrip())
    tensors = [tensor for group in groups for tensor in group["params"]]
    total = sum(tensor.numel() for tensor in tensors)
    to_base = "; scale 1: as at the base" if any("base_fan" in group for group in groups) else ""
    counts = f"{len(groups)} groups, {len(tensors)} tensors, {total} parameters"
    lines.append(f"{'total'.ljust(widths[0])}  {counts}{to_base}")
    return "\n".join(lines)


def _described(groups: Any) -> list[Mapping[str, Any]]:
    """The groups. Raises TypeError for what is no list of them, ValueError for one that lacks a key of the table."""
    known: list[Any] = list(groups) if isinstance(groups, Iterable) and not isinstance(groups, Mapping) else [None]
    if not all(isinstance(group, Mapping) for group in known):
        instead = "describe(optimizer.param_groups)" if hasattr(groups, "param_groups") else ""
        instead = instead or "describe(moga.param_groups(model, recipe))"
        raise TypeError(f"describe needs parameter groups, a list of dicts; got {type(groups).__name__}: {instead}")
    if missing := [key for group in known for key in ("params", "norm", "layout", "scale") if key not in group]:
        raise ValueError(
            f"a parameter group lacks {missing[0]!r}; describe shows those that moga.param_groups(model, recipe) makes"
        )
    return known


def _cells(group: Mapping[str, Any]) -> tuple[str, ...]:
    scale = group["scale"]
    return (
        group["role"],
        update_words(group),
        layout_words(group),
        _first([",".join(map(str, fan)) for fan in group["fan"]]),
        _first([f"{one:.4g}" for one in (scale if isinstance(scale, list) else [scale])]),
        str(len(group["params"])),
        str(sum(tensor.numel() for tensor in group["params"])),
    )


def update_words(group: Mapping[str, Any]) -> str:
    """The update of a group in a few words: its norm with the exponent, and what is not usual of it.

    >>> update_words({"norm": "row", "p": 2.0, "q": None, "step": "fixed", "constraint": "sphere", "lr_scale": 0.1})
    'row p=2 sphere *0.1'
    """
    exponent = next((f" {letter}={group[letter]:g}" for letter in "pq" if group[letter] is not None), "")
    factor = "" if group["lr_scale"] == 1 else f" *{group['lr_scale']:g}"
    words = [word for word in (group["step"], group["constraint"]) if word not in ("fixed", "decay")]
    return " ".join([f"{group['norm']}{exponent}", *words]) + factor


def layout_words(group: Mapping[str, Any]) -> str:
    """The layout with the number of blocks, and with that of the units in which they are interleaved.

    >>> layout_words({"layout": "out,in", "blocks": [8, 8, 8], "interleave": 4})
    'out,in x3/4'
    """
    blocks = f" x{len(group['blocks'])}" if group["blocks"] else ""
    units = group.get("interleave", 1)
    return f"{group['layout']}{blocks}" + (f"/{units}" if units > 1 else "")


def _first(words: Sequence[str]) -> str:
    return words[0] if len(set(words)) == 1 else f"{words[0]}.."


def _elided(names: Sequence[str], width: int) -> str:
    """All names if they fit, else the first one; of a long one the end, which says more than the beginning."""
    for text in (", ".join(names), names[0] + (", .." if len(names) > 1 else "")):
        if len(text) <= width:
            return text
    return f"..{names[0][2 - width :]}"
