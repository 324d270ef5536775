"""Roles from two widths: an axis whose size differs between a model and its base is wide, any other is fixed.

| out | in | role |
|---|---|---|
| wide | wide | hidden |
| wide | fixed | input |
| fixed | wide | output |
| fixed | fixed | hidden if it is one of a batch that grows (the kernels of a depthwise convolution), else not known |

Of a lookup only ``out`` counts: the number of its rows (tokens, positions) is no width, nor is an ``out`` of that
size. A tensor of several blocks is
hidden if one of them is, so blocks of fixed size (a state-space model's B and C, the one head of multi-query keys)
may share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor, nn

from moga.rules.base import Base, Matrix, Record, Sizes, as_matrix, assignments, read_base, record_of
from moga.rules.heads import check_heads
from moga.rules.match import SAME, Index, label
from moga.rules.patterns import match_patterns
from moga.rules.roles import Assignment, OpenRoles
from moga.rules.stated import Roles
from moga.rules.storage import model_or_pairs
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
    ("router", "output", "input"): "output",  # it alone differs
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
    base_multiplier: float = 1.0


def roles_from_widths(
    model: nn.Module | Iterable[tuple[str, Tensor]], base: Base, roles: Roles | None = None
) -> dict[str, str]:
    """The role of each trainable parameter by its first name, as far as two widths tell; "" where they do not.

    ``roles`` is needed only for tensors whose storage is not known: those of modules that are not known here, and of
    (name, tensor) pairs. Vectors are vectors at every width.

    Raises ValueError for such tensors, and for a matrix that the base does not have.

    >>> small, large = (nn.Sequential(nn.Embedding(9, n), nn.Linear(n, n), nn.Linear(n, 9)) for n in (4, 8))
    >>> roles_from_widths(large, small)
    {'0.weight': 'input', '1.weight': 'hidden', '1.bias': 'vector', '2.weight': 'output', '2.bias': 'vector'}
    """
    pairs = model_or_pairs(model)
    found, still_open = assignments(pairs, roles)
    others = _Counterparts(record_of(pairs, roles), Index(read_base(base, pairs, roles), found), found, still_open)
    return {
        one.name: others.by_widths(one, others.by_module(one)) if one.name in others.of else "vector" for one in found
    }


class _Pair(NamedTuple):
    """A size here and at the base."""

    here: int
    base: int

    @property
    def growth(self) -> int:
        return self.here - self.base


class _Counterparts:
    """The matrices of a model with those of its base, and which of their sizes are numbers of rows of a table.

    Raises ValueError as :meth:`Index.find` and :meth:`Index.refuse_longer`.
    """

    def __init__(self, here: Record, index: Index, found: list[Assignment], still_open: OpenRoles | None) -> None:
        self.still_open = set(still_open.names) if still_open else set()
        self.of = {one.name: index.find(one) for one in found if one.layout != "vector"}
        index.refuse_longer([one for one in found if one.name in self.still_open], here.matrices)
        self.rows: set[_Pair] = set()
        self.ins: set[_Pair] = set()
        for own in here.matrices:  # frozen ones too
            for other in index.at(own.names):
                pairs = zip(own.sizes, other.sizes, strict=False)
                (self.rows if own.lookup else self.ins).update(_Pair(one[2], two[2]) for one, two in pairs)

    def sizes(self, one: Assignment) -> list[tuple[_Pair, _Pair, _Pair]]:
        """(number, out, in) of each block. Raises ValueError where the two hold different blocks."""
        here, other = as_matrix(one, one.role).sizes, self.of[one.name]
        if len(here) != len(other.sizes):
            raise ValueError(
                f"{label(one)} holds {len(here)} matrices and {len(other.sizes)} at the base, {other.shape}: it is not "
                "the same parameter at another width"
            )
        both = zip(here, other.sizes, strict=True)
        return [(_Pair(a, d), _Pair(b, e), _Pair(c, f)) for (a, b, c), (d, e, f) in both]

    def by_module(self, one: Assignment) -> str:
        """The role that the modules give, "" where they leave it open."""
        return "" if one.name in self.still_open else one.role

    def by_widths(self, one: Assignment, role: str) -> str:
        """The role by the sizes, "" where they do not tell; ``role`` is that by other means, "" where it is open.

        An ``out`` that differs as the rows of a table do counts tokens, not features, unless the role is known to be
        another one. Where no other means tell the role, such an ``out`` that is the ``in`` of a matrix too may be
        either, and sides of which one grows and the other shrinks tell nothing.
        """
        sizes = self.sizes(one)
        if one.lookup:
            return one.role if one.role in ("input", "tied") and any(out.growth for _, out, _ in sizes) else ""
        found = set()
        for number, out, in_ in sizes:
            tokens = role in ("", "output") and out in self.rows
            unclear = out in self.ins and out.growth if tokens else out.growth * in_.growth < 0
            if unclear and not role:
                return ""
            found.add(BY_AXES[bool(out.growth) and not tokens, bool(in_.growth)] or ("hidden" if number.growth else ""))
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
        return Relative(one, _fans(role, self.other.sizes, self.one), base_multiplier=self.other.multiplier)

    def __str__(self) -> str:
        both = f"{self.by_module!r} by its module, {self.by_widths!r} by its widths"
        return f"{label(self.one)}, at the base {self.other.shape}: {both}"


def _fans(role: str, sizes: Sizes, one: Assignment) -> tuple[tuple[int, int], ...]:
    return tuple(effective_fan(role, out, in_, one.lookup) for _, out, in_ in sizes)


def settle_with_base(
    model: nn.Module | Iterable[tuple[str, Tensor]], base: Base, roles: Roles | None = None
) -> list[Relative]:
    """Every trainable parameter with its role from both its module and its widths, and its fans at the base.

    What the modules leave open the widths settle, or the role that :func:`moga.save_base` was told. A stated role wins.

    Raises ValueError as :func:`find_roles` for what nothing settles, for parameters whose two roles differ (both are
    shown), for a parameter that the base lacks or knows under another role, and for heads of another size whose
    products are not known to be scaled by 1 / size.
    """
    pairs = model_or_pairs(model)
    record = read_base(base, pairs, roles)
    found, still_open = assignments(pairs, roles)
    index = Index(record, found)
    others = _Counterparts(record_of(pairs, roles), index, found, still_open)
    stated = _stated(found, roles)
    rows = {one.name: _compared(one, others, one.name in stated) for one in found if one.name in others.of}
    _refuse_conflicts([row for row in rows.values() if row.role is None])
    if still_open and not all(row.role for row in rows.values()):
        raise ValueError(
            f"{still_open}\nThe base does not settle them: it has no role for them, and "
            "no side differs, or in a way that two widths do not explain."
        )
    if isinstance(pairs, nn.Module):
        check_heads(pairs, index.head)
    if record.model == "list" or not isinstance(pairs, nn.Module):
        _refuse_unknown_factors(rows.values())
    relative = [rows[one.name].relative() if one.name in rows else Relative(one, one.fan) for one in found]
    return [replace(one, base_logit_scale=record.logit_scale) for one in relative]


def _refuse_unknown_factors(rows: Iterable[_Compared]) -> None:
    """Raises ValueError for a table whose rows a model multiplies, beside a list, which does not say by what."""
    for one, other in ((row.one, row.other) for row in rows):
        if (one.multiplier, other.multiplier) != (1.0, 1.0):
            raise ValueError(
                f"the model multiplies the rows of {label(one)}, by {one.multiplier:g} here and {other.multiplier:g} "
                "at the base as far as known; a list of tensors does not say by what: give the model on both sides, or "
                "what moga.save_base wrote of it"
            )


def _compared(one: Assignment, others: _Counterparts, stated: bool) -> _Compared:
    other, role = others.of[one.name], others.by_module(one)
    if stated:
        return _Compared(one, other, role, role, role)
    if role and other.role not in ("", role):
        raise ValueError(f"{label(one)} is {role!r} here and {other.role!r} at the base. {SAME}")
    role = role or other.role
    widths = others.by_widths(one, role)
    agreed = {role, widths} - {""}
    if len(agreed) == 2:
        return _Compared(one, other, role, widths, EXCEPTIONS.get((one.part, role, widths)))
    return _Compared(one, other, role, widths, agreed.pop() if agreed else "")


def _stated(found: list[Assignment], roles: Roles | None) -> set[str]:
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
