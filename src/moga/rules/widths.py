"""Roles from two widths: an axis whose size differs between a model and its base is wide, any other is fixed.

| out | in | role |
|---|---|---|
| wide | wide | hidden |
| wide | fixed | input |
| fixed | wide | output |
| fixed | fixed | hidden if it is one of a batch that grows (the kernels of a depthwise convolution), else not known |

Of a lookup only ``out`` counts: the number of its rows (tokens, positions) is no width. A tensor of several blocks is
hidden if one of them is, so blocks of fixed size (a state-space model's B and C, the one head of multi-query keys)
may share it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from moga.rules.base import HEAD_SCALES, Base, Matrix, Sizes, as_matrix, assignments, heads_of, read_base
from moga.rules.logits import user_level
from moga.rules.match import SAME, Index, label
from moga.rules.patterns import match_patterns
from moga.rules.roles import Assignment
from moga.rules.transfer import effective_fan

BY_AXES = {
    (True, True): "hidden",
    (True, False): "input",
    (False, True): "output",
    (False, False): "",
}

# (part, role by its module, role by its widths) -> the role: where the two may differ. The parts are those of roles.py.
EXCEPTIONS = {
    ("rank down", "hidden", "output"): "output",  # the rank stays while the width grows
    ("rank up", "hidden", "input"): "input",
    ("few heads", "hidden", "output"): "hidden",  # keys and values of a fixed number of heads
    ("router", "output", "hidden"): "output",  # the number of experts differs too, and is no width
    ("across", "hidden", "input"): "hidden",  # positions of a fixed number
    ("across", "hidden", "output"): "hidden",
    ("features", "hidden", "output"): "output",
    ("adapter down", "output", "hidden"): "hidden",  # the rank grows with width
    ("adapter up", "input", "hidden"): "hidden",
}


@dataclass(frozen=True)
class Relative:
    """An assignment with the effective (out, in) of each of its blocks at the base, and the multipliers of its logits.

    ``base_fan`` is () where there is no base, ``logit_scale`` None where :func:`moga.scale_logits_` was not called.
    """

    assignment: Assignment
    base_fan: tuple[tuple[int, int], ...] = ()
    logit_scale: float | None = None
    base_logit_scale: float = 1.0


def roles_from_widths(
    model: nn.Module | Iterable[tuple[str, Tensor]], base: Base, roles: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The role of each trainable parameter by its first name, as far as two widths tell; "" where they do not.

    ``roles`` is needed only for tensors whose storage is not known: those of modules that are not known here, and of
    (name, tensor) pairs. Vectors are vectors at every width.

    Raises ValueError for such tensors, and for a matrix that the base does not have.

    >>> small, large = (nn.Sequential(nn.Embedding(9, n), nn.Linear(n, n), nn.Linear(n, 9)) for n in (4, 8))
    >>> roles_from_widths(large, small)
    {'0.weight': 'input', '1.weight': 'hidden', '1.bias': 'vector', '2.weight': 'output', '2.bias': 'vector'}
    """
    pairs = model if isinstance(model, nn.Module) else list(model)
    found, _ = assignments(pairs, roles)
    index = Index(read_base(base, pairs, roles), (name for one in found for name in one.aliases))
    return {
        one.name: "vector" if one.layout == "vector" else _by_widths(one, *_sizes(one, index.find(one)))
        for one in found
    }


def _sizes(one: Assignment, other: Matrix) -> tuple[Sizes, Sizes]:
    """The sizes of the blocks here and at the base. Raises ValueError where the two hold different blocks."""
    here = as_matrix(one, one.role).sizes
    if len(here) != len(other.sizes):
        raise ValueError(
            f"{label(one)} holds {len(here)} matrices and {len(other.sizes)} at the base, {other.shape}: it is not the "
            "same parameter at another width"
        )
    return here, other.sizes


def _by_widths(one: Assignment, here: Sizes, there: Sizes) -> str:
    if one.lookup:
        wide = any(size[1] != other[1] for size, other in zip(here, there, strict=True))
        return one.role if wide and one.role in ("input", "tied") else ""
    found = set()
    for (number, out, in_), (other_number, other_out, other_in) in zip(here, there, strict=True):
        grows = "hidden" if number != other_number else ""
        found.add(BY_AXES[out != other_out, in_ != other_in] or grows)
    known = {"hidden"} if "hidden" in found else found - {""}
    return known.pop() if len(known) == 1 else ""


@dataclass(frozen=True)
class _Compared:
    """A matrix, its counterpart at the base, and the role by each of the two ways; "" where a way does not know."""

    one: Assignment
    other: Matrix
    by_module: str
    by_widths: str
    role: str | None  # None where the two ways contradict each other

    def relative(self) -> Relative:
        role, sizes = self.role or self.one.role, as_matrix(self.one, self.one.role).sizes
        one = self.one if role == self.one.role else replace(self.one, role=role, fan=_fans(role, sizes, self.one))
        return Relative(one, _fans(role, self.other.sizes, self.one))

    def __str__(self) -> str:
        both = f"{self.by_module!r} by its module, {self.by_widths!r} by its widths"
        return f"{label(self.one)}, at the base {self.other.shape}: {both}"


def _fans(role: str, sizes: Sizes, one: Assignment) -> tuple[tuple[int, int], ...]:
    return tuple(effective_fan(role, out, in_, one.lookup) for _, out, in_ in sizes)


def settle_with_base(
    model: nn.Module | Iterable[tuple[str, Tensor]], base: Base, roles: Mapping[str, str] | None = None
) -> list[Relative]:
    """Every trainable parameter with its role from both its module and its widths, and its fans at the base.

    What the modules leave open the widths settle, or the role that :func:`moga.save_base` was told. A stated role wins.

    Raises ValueError as :func:`find_roles` for what nothing settles, for parameters whose two roles differ (both are
    shown), for a parameter that the base lacks or knows under another role, and for heads of another size whose
    products are not scaled by 1 / size.
    """
    pairs = model if isinstance(model, nn.Module) else list(model)
    record = read_base(base, pairs, roles)
    found, still_open = assignments(pairs, roles)
    index = Index(record, (name for one in found for name in one.aliases))
    stated = _stated(found, roles)
    unknown = still_open.names if still_open else []
    matrices = [(one, index.find(one)) for one in found if one.layout != "vector"]
    tables = {_outs_and_ins(one, other)[1] for one, other in matrices if one.lookup}
    rows = {
        one.name: _compared(one, other, "" if one.name in unknown else one.role, tables, one.name in stated)
        for one, other in matrices
    }
    _refuse_conflicts([row for row in rows.values() if row.role is None])
    if still_open and not all(row.role for row in rows.values()):
        raise ValueError(f"{still_open}\nThe base does not settle them: no side differs, and it has no role for them.")
    if isinstance(pairs, nn.Module):
        _check_heads(pairs, index)
    relative = [rows[one.name].relative() if one.name in rows else Relative(one, one.fan) for one in found]
    return [replace(one, base_logit_scale=record.logit_scale) for one in relative]


def _compared(one: Assignment, other: Matrix, role: str, tables: set[tuple[int, int]], stated: bool) -> _Compared:
    if stated:
        return _Compared(one, other, role, role, role)
    if role and other.role not in ("", role):
        raise ValueError(f"{label(one)} is {role!r} here and {other.role!r} at the base. {SAME}")
    role = role or other.role
    widths = _by_widths(one, *_sizes(one, other))
    if role == "output" and widths == "hidden" and _outs_and_ins(one, other)[0] in tables:
        widths = "output"  # the number of tokens differs, and is no width
    agreed = {role, widths} - {""}
    if len(agreed) == 2:
        return _Compared(one, other, role, widths, EXCEPTIONS.get((one.part, role, widths)))
    return _Compared(one, other, role, widths, agreed.pop() if agreed else "")


def _outs_and_ins(one: Assignment, other: Matrix) -> tuple[tuple[int, int], tuple[int, int]]:
    """``out`` of the first block here and at the base, and ``in``."""
    (_, out, in_), (_, other_out, other_in) = (sizes[0] for sizes in _sizes(one, other))
    return (out, other_out), (in_, other_in)


def _stated(found: list[Assignment], roles: Mapping[str, str] | None) -> set[str]:
    hits = match_patterns("roles", roles, [one.aliases for one in found])
    return {found[index].name for _, _, matched in hits for index in matched}


def _refuse_conflicts(rows: list[_Compared]) -> None:
    if rows:
        example = {row.one.name: row.by_module for row in rows}
        lines = "\n".join(f"  {row}" for row in rows)
        raise ValueError(
            f"parameters whose module and widths say different roles ({len(rows)}):\n{lines}\nState the one that "
            f"holds, for example\n  roles={example}"
        )


def _check_heads(model: nn.Module, index: Index) -> None:
    """Heads of another size: aligned queries and keys have products that grow as the size, so 1 / size must scale them.

    Raises ValueError where the scale is another one; warns where it is not known.
    """
    for name, (size, scale) in heads_of(model).items():
        base_size, base_scale = index.head(name) or (size, scale)
        if size == base_size or (scale and math.isclose(scale * size, base_scale * base_size, rel_tol=1e-3)):
            continue
        text = (
            f"{name or type(model).__name__} has heads of {size} features, and of {base_size} at the base. The "
            "products of trained queries and keys grow as the number of features: keep it and add heads, or scale the "
            "products by 1 / features from the base on"
        )
        if not (scale and base_scale):
            warnings.warn(f"{text}. Which scale it has is not known here.", stacklevel=user_level())
            return
        right = base_scale * base_size / size
        key = next(key for key in HEAD_SCALES if any(hasattr(module, key) for module in model.modules()))
        raise ValueError(
            f"{text}: it scales by {scale:.4g}, which should be {right:.4g}, for example\n"
            f"  for module in model.modules():\n    if hasattr(module, {key!r}):\n"
            f"      module.{key} *= {right / scale:.6g}"
        )
