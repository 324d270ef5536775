"""How large weights are at the start, against width: sizes that change with width make a learning rate that does.

The size of a matrix is the spectral one of its (out, in), which random weights keep at every width if their standard
deviation is that of :func:`moga.rules.transfer.initial_std`; of a lookup the root-mean-square entry. A tied matrix
whose logits nothing multiplies is measured as the output that it is.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from torch import Tensor, nn

from moga.geometry.layout import logical_matrices
from moga.geometry.norms import norm
from moga.rules.base import any_layer, assignments, plain_names
from moga.rules.roles import Assignment

SPECTRAL = norm("spectral")
# A constant standard deviation gives at least 1/2, one that transfers gives 0 to within the chance of random weights.
STEEP = 0.25
# Two standard deviations are the same if they differ by less: that of 1000 random numbers is known to 2 %.
SAME = 0.05
LARGER = 1.5  # by how much both sizes of matrices must differ for a common standard deviation to mean something


def measure_starts(
    model: nn.Module,
    groups: Sequence[Mapping[str, Any]],
    roles: Mapping[str, str] | None = None,
    other: nn.Module | None = None,
    fresh: nn.Module | None = None,
) -> list[dict[str, Any]]:
    """A row for the first matrix of each kind; ``other``: the model at another width, ``fresh``: from initialize_.

    ``std``: of the entries. ``size``: [least, largest] over the blocks; a stack of experts counts by its mean.
    ``other_std``, ``other_size``: of the other model. ``wanted``: the size in the fresh one. ``growth``: the exponent
    of size against width, None where no side of the matrix differs or all entries are zero.

    >>> wide, narrow = (nn.Sequential(nn.Embedding(9, n), nn.Linear(n, n, bias=False)) for n in (64, 32))
    >>> for model in (wide, narrow):
    ...     _ = nn.init.constant_(model[1].weight, 0.02)  # all aligned: the size is 0.02 width
    >>> from moga.rules.groups import param_groups
    >>> rows = measure_starts(wide, param_groups(wide, "muon", roles={"1.weight": "hidden"}), None, narrow)
    >>> [(row["role"], row["norm"]) for row in rows], round(rows[1]["size"][0], 2), round(rows[1]["growth"], 2)
    ([('input', 'rms'), ('hidden', 'spectral')], 1.28, 1.0)
    """
    settled = {id(tensor): group for group in groups for tensor in group["params"]}
    others = _by_name(other, roles or {}) if other is not None else {}
    anew = _by_name(fresh, roles or {}) if fresh is not None else {}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in assignments(model, roles)[0]:
        group = settled[id(one.parameter)]
        key = (any_layer(one.name), tuple(one.parameter.shape), group["role"])
        if group["role"] != "vector" and key not in found and one.parameter.numel():
            name = plain_names(one.aliases)[0]
            found[key] = _row(one, group, others.get(name, others.get(any_layer(name))), anew.get(name))
    return list(found.values())


def _by_name(model: nn.Module, roles: Mapping[str, str]) -> dict[str, Assignment]:
    """Every parameter by its names; by a name with stars for numbers too, where it can mean only one kind."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    own = {pattern: role for pattern, role in roles.items() if fnmatch.filter(names, pattern)}
    found: dict[str, Assignment] = {}
    layers: dict[str, list[Assignment]] = {}
    for one in assignments(model, own)[0]:
        for name in plain_names(one.aliases):
            found[name] = one
            layers.setdefault(any_layer(name), []).append(one)
    for name, ones in layers.items():
        if len({(one.parameter.shape, one.layout, one.blocks) for one in ones}) == 1:
            found.setdefault(name, ones[0])
    return found


@dataclass(frozen=True)
class _Start:
    """The measured weights of one tensor: a matrix and a size for each block."""

    matrices: list[Tensor]
    sizes: list[float]
    std: float
    norm: str

    @property
    def range(self) -> list[float]:
        return [min(self.sizes), max(self.sizes)]


def _start(one: Assignment, role: str, logit_scale: float | None) -> _Start:
    weight = one.parameter.detach().float()
    std = float(weight.square().mean().sqrt())
    matrices = logical_matrices(weight, one.layout, one.blocks, one.interleave)
    if one.lookup and (role != "tied" or logit_scale is not None):
        return _Start(matrices, [std * one.multiplier] * len(matrices), std, "rms")
    maps = [matrix.mT for matrix in matrices] if role == "tied" else matrices
    times = (logit_scale or 1.0) if role == "output" else 1.0
    return _Start(matrices, [float(_spectral(matrix).mean()) * times for matrix in maps], std, "spectral")


def _spectral(W: Tensor) -> Tensor:
    """The spectral size of (..., out, in) by the Gram matrix of the short side: vocabularies are long."""
    out, in_ = W.shape[-2:]
    gram = W @ W.mT if out <= in_ else W.mT @ W
    return SPECTRAL.measure(gram).sqrt() / SPECTRAL.scale(out, in_)


def _row(
    one: Assignment, group: Mapping[str, Any], counterpart: Assignment | None, fresh: Assignment | None
) -> dict[str, Any]:
    role, factor = group["role"], group.get("logit_scale")
    start = _start(one, role, factor)
    other = _start(counterpart, role, factor) if counterpart is not None else None
    out, in_ = start.matrices[0].shape[-2:]
    return {
        "name": one.name,
        "role": role,
        "norm": start.norm,
        "out": out,
        "in": in_,
        "std": start.std,
        "size": start.range,
        "wanted": _start(fresh, role, factor).range if fresh is not None else None,
        "other_std": other.std if other else None,
        "other_size": other.range if other else None,
        "growth": _growth(start, other, one.lookup) if other else None,
    }


def _growth(here: _Start, there: _Start, lookup: bool) -> float | None:
    """log(size ratio) / log(width ratio), the mean over blocks; the width is the side that differs most."""
    if len(here.sizes) != len(there.sizes) or not (all(here.sizes) and all(there.sizes)):
        return None
    sides = [
        math.log(one.shape[axis] / other.shape[axis])
        for one, other in zip(here.matrices, there.matrices, strict=True)
        for axis in ((-2,) if lookup else (-2, -1))
    ]
    grown = [math.log(one / other) for one, other in zip(here.sizes, there.sizes, strict=True)]
    wider = max(sides, key=abs)
    return fmean(grown) / wider if wider else None


def start_warnings(rows: Sequence[Mapping[str, Any]], recipe: str, declared: float | None = None) -> list[str]:
    """What of the measured starts makes a learning rate that changes with width, in words.

    ``declared``: the ``initializer_range`` of a transformers config, a standard deviation for every width. Where one
    width alone is measured, it tells; so does one standard deviation of matrices of different sizes.

    >>> start_warnings([], "muon")
    []
    """
    cure = f'moga.initialize_(model, "{recipe}") gives sizes that stay'
    compared = [row for row in rows if row["other_size"] is not None]
    steep = [row for row in compared if row["growth"] is not None and abs(row["growth"]) > STEEP]
    if steep:
        stays = all(_same(row["std"], row["other_std"]) for row in steep)
        entries = f"standard deviation {_range(steep, 'std')}" + (", the same at both widths" if stays else "")
        powers = _range(steep, "growth", "{:+.2f}")
        return [
            f"{_names(steep)}: the size of these weights at the start changes with width, as its power {powers} "
            f"({_range(steep, 'size')} here, {_range(steep, 'other_size')} there; {entries}). The best learning rate "
            f"changes with it. {cure}"
        ]
    constant = [] if compared else _constant(rows, declared)
    if not constant:
        return []
    return [
        f"{_names(constant)}: these weights start with a standard deviation, {_range(constant, 'std')}, that is no "
        f"function of width, so their spectral size grows as its square root ({_range(constant, 'size')} here). The "
        f"best learning rate changes with it. {cure}"
    ]


def _constant(rows: Sequence[Mapping[str, Any]], declared: float | None) -> list[Mapping[str, Any]]:
    """Matrices of the declared standard deviation, and hidden ones that share one though their sizes differ.

    Both ``in`` and ``out + in`` must differ: a rule of the fan keeps the one for each ``in``, Glorot's for each sum.
    """
    found = {row["std"] for row in rows if declared and _same(row["std"], declared)}
    hidden = [row for row in rows if row["role"] == "hidden" and row["std"]]
    for one, other in combinations(hidden, 2):
        apart = _apart(one["in"], other["in"]) and _apart(one["in"] + one["out"], other["in"] + other["out"])
        found |= {one["std"]} if apart and _same(one["std"], other["std"]) else set()
    return [row for row in rows if row["norm"] == "spectral" and any(_same(row["std"], std) for std in found)]


def _same(std: float, other: float) -> bool:
    return abs(std - other) <= SAME * max(std, other)


def _apart(size: int, other: int) -> bool:
    return max(size, other) >= LARGER * min(size, other)


def _names(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [row.get("pattern", row["name"]) for row in rows]
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _range(rows: Sequence[Mapping[str, Any]], key: str, form: str = "{:.3g}") -> str:
    """The least and the largest of the numbers, or pairs of numbers, under a key."""
    values = [value for row in rows for value in (row[key] if isinstance(row[key], list) else [row[key]])]
    words = [form.format(value) for value in (min(values), max(values))]
    return words[0] if words[0] == words[1] else " to ".join(words)
