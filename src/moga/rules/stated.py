"""What the user states of parameters, by patterns over their names: roles, and how tensors are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moga.rules.patterns import match_patterns
from moga.rules.storage import StoredTensor
from moga.rules.transfer import ROLES

Roles = Mapping[str, "str | Mapping[str, Any]"]

# What a user may state of a tensor, by how it is used.
POSSIBLE: dict[str, tuple[str, ...]] = {
    "lookup": ("input", "tied"),
    "tied": ("tied",),
    "rows": ("input",),
    "numbers": ("vector",),
    "linear": ("input", "hidden", "output"),
    "unknown": ("input", "hidden", "output", "vector"),
    "tensor": ("input", "hidden", "output", "vector"),
}
KINDS = ("linear", "lookup")
KEYS = ("role", "kind", "layout", "blocks", "interleave")
STORED_KEYS = KEYS[1:]
STATE_LAYOUT = (
    "state how it is stored too, such as {'role': 'hidden', 'layout': 'stack,out,in'} for a stack of matrices (out, "
    "in), 'out,in,k' for a kernel; a table of which rows are picked or added is {'role': 'input', 'kind': 'lookup', "
    "'layout': 'stack,in,out'}, and numbers of their own are a 'vector'"
)


def stated_roles(stored: Sequence[StoredTensor], roles: Roles | None) -> dict[int, tuple[str, StoredTensor]]:
    """The role and the storage of each tensor of ``stored`` that a pattern of ``roles`` matches, by its index.

    Raises ValueError for what a tensor cannot be; TypeError for a statement that is neither a role nor a dict.
    """
    stated: dict[int, tuple[str, StoredTensor]] = {}
    for pattern, value, hits in match_patterns("roles", roles, [one.names for one in stored]):
        words = _words(pattern, value)
        matrices = [index for index in hits if stored[index].tensor.ndim > 1]
        matrices = [index for index in matrices if stored[index].kind != "numbers"] or matrices  # they stay vectors too
        if words["role"] != "vector" and not matrices:
            raise ValueError(
                f"roles[{pattern!r}] is {words['role']!r} but matches only {stored[hits[0]]}; a tensor of fewer than "
                "two dimensions is a 'vector'"
            )
        stated.update({index: (words["role"], _restated(stored[index], words)) for index in matrices})
    for index, (role, one) in stated.items():
        _check_possible(stored[index], role, one)
    return stated


def _words(pattern: str, value: Any) -> Mapping[str, Any]:
    words = {"role": value} if isinstance(value, str) else value
    if not isinstance(words, Mapping):
        raise TypeError(f"roles[{pattern!r}] must be a role or a dict such as {{'role': 'hidden'}}; got {value!r}")
    if unknown := [key for key in words if key not in KEYS]:
        raise ValueError(f"roles[{pattern!r}] has {unknown[0]!r}; the keys are {', '.join(KEYS)}")
    if words.get("role") not in ROLES:
        raise ValueError(f"roles[{pattern!r}] is {words.get('role')!r}; the roles are {', '.join(ROLES)}")
    if words.get("kind", "linear") not in KINDS:
        raise ValueError(f"roles[{pattern!r}] has kind {words['kind']!r}; the kinds are {', '.join(KINDS)}")
    return words


def _restated(one: StoredTensor, words: Mapping[str, Any]) -> StoredTensor:
    """The tensor, stored as the user says; what is not said stays as it is known."""
    own = {key: words[key] for key in STORED_KEYS if key in words}
    if words["role"] == "vector" and one.kind in ("unknown", "tensor"):
        own = {"kind": "numbers", "layout": "vector", **own}
    if "blocks" in own:
        own["blocks"] = tuple(own["blocks"])
    return replace(one, storage=replace(one.storage, **own)) if own else one


def _check_possible(known: StoredTensor, role: str, one: StoredTensor) -> None:
    """``known`` is the tensor as its module says, ``one`` as the user does."""
    possible = POSSIBLE[known.kind]
    if role not in possible:
        raise ValueError(f"{known} cannot be {role!r}; it can be {' or '.join(map(repr, possible))}")
    if one.storage != known.storage and known.kind in ("lookup", "tied", "rows", "numbers"):
        raise ValueError(f"{known} is a {known.kind} tensor; how it is stored is known, so state its role alone")
    if one.kind in ("unknown", "tensor") and one.tensor.ndim > 2 and one.storage.layout == "out,in":
        raise ValueError(f"{known} has {one.tensor.ndim} dimensions; {STATE_LAYOUT}")
    if (role == "vector") != (one.storage.layout == "vector"):
        raise ValueError(
            f"{known} is stated as {role!r} with the layout {one.storage.layout!r}; only a vector has that"
        )
