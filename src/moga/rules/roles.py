"""Every trainable parameter of a model, once, with its role, its layout and its fan; or an error that names it.

Roles are found from module types, from tensor identity and from what the model itself declares, never from names:

- tensors of no or one dimension are ``vector``, and those of more in which every entry is a number of its own;
- ``nn.Embedding`` is ``input`` (token and position tables alike), and ``tied`` if the same tensor is an output too;
- the weight that the model declares as its output (``get_output_embeddings``, timm's ``get_classifier``, the head of
  ``num_labels`` outputs) is ``output``; so are the routers that it declares;
- all other linear maps (``nn.Linear``, transformers' ``Conv1D`` and stacks of experts, convolutions) are ``hidden``,
  provided that inputs and output are both known. Which linear map of a plain model is the first and which the last
  cannot be seen from its modules; there the user states them.

How modules store and cut their matrices is in :mod:`moga.rules.storage` and :mod:`moga.rules.families`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from moga.geometry.layout import to_matrices
from moga.rules.declared import declared_inputs, declared_outputs, is_base_model
from moga.rules.flattened import refuse_flattened
from moga.rules.parts import PART_ROLES
from moga.rules.places import table_multipliers
from moga.rules.stated import Roles, stated_roles
from moga.rules.storage import StoredTensor, check_storage, listed_tensors, stored_tensors
from moga.rules.transfer import effective_fan
from moga.rules.undecided import open_message


@dataclass(frozen=True, eq=False)
class Assignment:
    """What a parameter is. ``fan`` holds the effective (out, in) of each block, or of the one matrix."""

    name: str
    aliases: tuple[str, ...]  # all names, the first one included
    parameter: Tensor = field(repr=False)
    role: str  # "input", "hidden", "output", "tied" or "vector"
    layout: str  # a word of geometry/layout.py
    blocks: tuple[int, ...]  # sizes along `out`; () for one matrix
    fan: tuple[tuple[int, int], ...]
    module_type: str  # class name, or "tensor" for a named tensor
    lookup: bool  # True where rows are picked by index
    added: bool = False  # a lookup beside the inputs that the model declares: positions, token types
    interleave: int = 1  # how many units along `out` hold a part of each block; see geometry/layout.py
    part: str = ""  # a word of PARTS, where the role needed a decision
    multiplier: float = 1.0  # by which the model itself multiplies the rows of a lookup


class OpenRoles(ValueError):
    """It is open which linear maps, by their first ``names``, are the first and the last; a second width may tell."""

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message)
        self.names = names


def find_roles(model: nn.Module | Iterable[tuple[str, Tensor]], roles: Roles | None = None) -> list[Assignment]:
    """The assignments of all trainable parameters of a model, or of all tensors of a list of (name, tensor) pairs.

    ``roles`` states roles by shell globs over parameter names, ``{"head.weight": "output"}``; any name of a shared
    parameter will do. A stated role wins over a found one. Of several patterns that match a parameter the last one
    wins, so the general comes first: ``{"*": "hidden", "head.weight": "output"}``. Biases, gains and relative positions
    that such a pattern also matches stay vectors.

    A matrix of a module type that is not known here, and a named tensor, is taken to be stored (out, in), and as
    "input" to be a map of dense features, which keeps its in. A dict says otherwise: ``{"*.experts.up": {"role":
    "hidden", "layout": "stack,in,out"}}``, with ``blocks`` and ``interleave`` where one tensor packs several matrices
    (words of ``geometry/layout.py``), and ``"kind": "lookup"`` for a table of which rows are picked.

    Names are those inside of wrappers (torch.compile, DistributedDataParallel).

    Raises ValueError for parameters whose role nothing settles, a stated role or storage that is unknown or
    impossible, a pattern that matches nothing, a model with nothing to train, and parameters that FSDP1 or DeepSpeed
    ZeRO has flattened; TypeError for a statement that is no role and no dict.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False))
    >>> [(a.name, a.role, a.fan) for a in find_roles(model, {"2.weight": "output"})]
    [('0.weight', 'input', ((4, 1),)), ('1.weight', 'hidden', ((4, 4),)), ('1.bias', 'vector', ((1, 1),)),
     ('2.weight', 'output', ((1, 4),))]
    """
    if isinstance(model, nn.Module):
        stored = stored_tensors(model)
        trained = [one.tensor.requires_grad for one in stored]
        inputs, outputs, base = declared_inputs(model), declared_outputs(model), is_base_model(model)
        multipliers = table_multipliers(model)
    else:
        stored = listed_tensors(model)
        trained = [True] * len(stored)
        inputs, outputs, base, multipliers = set(), set(), False, {}
    if not any(trained):
        raise ValueError(f"{type(model).__name__} has no trainable parameter; set requires_grad where it should train")
    for one, trains in zip(stored, trained, strict=True):
        if trains:
            refuse_flattened(one.names[0], one.tensor)
    found = [_found(one, inputs, outputs) for one in stored]
    for index, (role, restated) in stated_roles(stored, roles).items():
        found[index], stored[index] = role, restated
    _settle(stored, found, trained, base)
    return [
        _assignment(one, role, inputs, multipliers.get(id(one.tensor), 1.0))
        for one, role, trains in zip(stored, found, trained, strict=True)
        if trains and role
    ]


def _found(stored: StoredTensor, inputs: set[int], outputs: set[int]) -> str | None:
    """The role of a tensor that does not depend on what other tensors are, or None."""
    if stored.tensor.ndim < 2 or stored.kind == "numbers":
        return "vector"
    if not stored.certain:
        return None
    if stored.kind == "tied":
        return "tied"
    if stored.kind == "rows":
        return "input"
    if stored.kind == "lookup":
        return "tied" if id(stored.tensor) in outputs else "input"
    if stored.kind == "linear" and id(stored.tensor) in outputs | inputs:
        return "output" if id(stored.tensor) in outputs else "input"
    return PART_ROLES.get(stored.storage.part)


def _settle(stored: list[StoredTensor], found: list[str | None], trained: list[bool], base: bool) -> None:
    """Fill in the hidden ones; raise for what stays open."""
    ends = {
        "output" if one.storage.part == "features" else role
        for one, role in zip(stored, found, strict=True)
        if one.storage.part not in PART_ROLES and one.kind != "rows"
    }
    inputs, outputs = bool(ends & {"input", "tied"}), bool(ends & {"output", "tied"})
    still_open = [one for one, role, trains in zip(stored, found, trained, strict=True) if trains and role is None]
    linear = [one for one in still_open if one.kind == "linear" and one.certain]
    unknown = [one for one in still_open if one not in linear]
    if unknown or (linear and not (inputs and outputs)):
        linear = linear if not (inputs and outputs) else []
        settled = {one.names[0]: role for one, role in zip(stored, found, strict=True) if role}
        message = open_message(linear, unknown, (inputs, outputs), settled if base and inputs else None)
        raise ValueError(message) if unknown else OpenRoles(message, [one.names[0] for one in linear])
    for index, role in enumerate(found):
        if role is None and trained[index]:
            found[index] = "hidden"


def _sizes(one: StoredTensor) -> Iterator[tuple[int, int]]:
    """(out, in) of each logical matrix."""
    whole = to_matrices(torch.empty(tuple(one.tensor.shape), device="meta"), one.storage.layout)[0]
    for block in one.storage.blocks or (whole.shape[-2],):
        yield block, whole.shape[-1]


def _assignment(one: StoredTensor, role: str, inputs: set[int], multiplier: float) -> Assignment:
    lookup, rows = one.kind in ("lookup", "tied", "rows"), one.kind == "rows"
    vector = role == "vector"
    beside = role == "input" and lookup and bool(inputs) and id(one.tensor) not in inputs
    check_storage(one)
    return Assignment(
        name=one.names[0],
        aliases=one.names,
        parameter=one.tensor,
        role=role,
        layout="vector" if vector else one.storage.layout,
        blocks=() if vector else one.storage.blocks,
        fan=((1, 1),) if vector else tuple(effective_fan(role, out, in_, lookup) for out, in_ in _sizes(one)),
        module_type=one.module_type,
        lookup=lookup,
        added=(beside or rows) and one.storage.part != "token",
        interleave=1 if vector else one.storage.interleave,
        part="" if vector else one.storage.part,
        multiplier=multiplier if lookup else 1.0,
    )
