"""Every trainable parameter of a model, once, with its role, its layout and its fan; or an error that names it.

Roles are found from module types, from tensor identity and from what the model itself declares, never from names:

- tensors of no or one dimension are ``vector``;
- ``nn.Embedding`` is ``input`` (token and position tables alike), and ``tied`` if the same tensor is an output too;
- the weight that the model declares as its output (``get_output_embeddings``, timm's ``get_classifier``) is
  ``output``;
- all other weights of ``nn.Linear`` and of transformers' ``Conv1D`` are ``hidden``, provided that inputs and output
  are both known. Which linear map of a plain model is the first and which the last cannot be seen from its modules;
  there the user states them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from moga.rules.flattened import refuse_flattened
from moga.rules.patterns import match_patterns
from moga.rules.storage import StoredTensor, listed_tensors, stored_tensors
from moga.rules.transfer import ROLES, effective_fan

# What a user may state of a matrix, by how it is stored.
POSSIBLE: dict[str, tuple[str, ...]] = {
    "lookup": ("input", "tied"),
    "tied": ("tied",),
    "linear": ("input", "hidden", "output"),
    "unknown": ("input", "hidden", "output"),
    "tensor": ("input", "hidden", "output"),
}


@dataclass(frozen=True, eq=False)
class Assignment:
    """What a parameter is. ``fan`` holds the effective (out, in) of each block, or of the one matrix."""

    name: str
    aliases: tuple[str, ...]  # all names, the first one included
    parameter: Tensor
    role: str  # "input", "hidden", "output", "tied" or "vector"
    layout: str  # "out,in", "in,out" or "vector"
    blocks: tuple[int, ...]  # sizes along `out`; () for one matrix
    fan: tuple[tuple[int, int], ...]
    module_type: str  # class name, or "tensor" for a named tensor
    lookup: bool  # True where rows are picked by index
    added: bool = False  # a lookup beside the inputs that the model declares: positions, token types


def find_roles(
    model: nn.Module | Iterable[tuple[str, Tensor]], roles: Mapping[str, str] | None = None
) -> list[Assignment]:
    """The assignments of all trainable parameters of a model, or of all tensors of a list of (name, tensor) pairs.

    ``roles`` states roles by shell globs over parameter names, ``{"head.weight": "output"}``; any name of a shared
    parameter will do. A stated role wins over a found one. Of several patterns that match a parameter the last one
    wins, so the general comes first: ``{"*": "hidden", "head.weight": "output"}``. Biases and gains that such a
    pattern also matches stay vectors.

    A matrix of a module type that is not known here, and a named tensor, is taken to be stored (out, in); stated as
    "input" it is a map of dense features, which keeps its in. Only an ``nn.Embedding`` is a lookup.

    Raises ValueError for parameters whose role nothing settles, a tensor of more than two dimensions, a stated role
    that is unknown or impossible, a pattern that matches nothing, a model with nothing to train, and parameters that
    FSDP1 or DeepSpeed ZeRO has flattened.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False))
    >>> [(a.name, a.role, a.fan) for a in find_roles(model, {"2.weight": "output"})]
    [('0.weight', 'input', ((4, 1),)), ('1.weight', 'hidden', ((4, 4),)), ('1.bias', 'vector', ((1, 1),)),
     ('2.weight', 'output', ((1, 4),))]
    """
    if isinstance(model, nn.Module):
        stored = stored_tensors(model)
        trained = [one.tensor.requires_grad for one in stored]
        inputs, outputs = _declared(model, "get_input_embeddings"), _declared(model, OUTPUT_GETTERS)
    else:
        stored = listed_tensors(model)
        trained = [True] * len(stored)
        inputs, outputs = set(), set()
    if not any(trained):
        raise ValueError(f"{type(model).__name__} has no trainable parameter; set requires_grad where it should train")
    for one, trains in zip(stored, trained, strict=True):
        if trains:
            refuse_flattened(one.names[0], one.tensor)
    found = [_found(one, inputs, outputs) for one in stored]
    for index, role in _stated(stored, roles).items():
        found[index] = role
    _settle(stored, found, trained)
    return [
        _assignment(one, role, inputs)
        for one, role, trains in zip(stored, found, trained, strict=True)
        if trains and role
    ]


OUTPUT_GETTERS = ("get_output_embeddings", "get_classifier")


def _declared(model: nn.Module, getters: str | tuple[str, ...]) -> set[int]:
    """Identities of the weights that the model, or a model inside it, names as its inputs or outputs."""
    found: set[int] = set()
    for module in model.modules():
        for getter in (getters,) if isinstance(getters, str) else getters:
            if not callable(getattr(module, getter, None)):
                continue
            try:
                declared = getattr(module, getter)()
            except NotImplementedError:  # transformers' answer of a model that has no such layer
                continue
            for layer in declared if isinstance(declared, (tuple, list)) else (declared,):
                found.add(id(getattr(layer, "weight", None)))
    return found - {id(None)}


def _found(stored: StoredTensor, inputs: set[int], outputs: set[int]) -> str | None:
    """The role of a tensor that does not depend on what other tensors are, or None."""
    if stored.tensor.ndim < 2:
        return "vector"
    if not stored.certain:
        return None
    if stored.kind == "tied":
        return "tied"
    if stored.kind == "lookup":
        return "tied" if id(stored.tensor) in outputs else "input"
    if stored.kind == "linear" and id(stored.tensor) in outputs | inputs:
        return "output" if id(stored.tensor) in outputs else "input"
    return None


def _stated(stored: list[StoredTensor], roles: Mapping[str, str] | None) -> dict[int, str]:
    stated: dict[int, str] = {}
    for pattern, role, hits in match_patterns("roles", roles, [one.names for one in stored]):
        if role not in ROLES:
            raise ValueError(f"roles[{pattern!r}] is {role!r}; the roles are {', '.join(ROLES)}")
        matrices = [index for index in hits if stored[index].tensor.ndim > 1]
        if role != "vector" and not matrices:
            raise ValueError(
                f"roles[{pattern!r}] is {role!r} but matches only {stored[hits[0]]}; a tensor of fewer than two "
                "dimensions is a 'vector'"
            )
        stated.update(dict.fromkeys(matrices, role))
    for index, role in stated.items():
        one = stored[index]
        if role not in POSSIBLE[one.kind]:
            raise ValueError(f"{one} cannot be {role!r}; it can be {' or '.join(map(repr, POSSIBLE[one.kind]))}")
    return stated


def _settle(stored: list[StoredTensor], found: list[str | None], trained: list[bool]) -> None:
    """Fill in the hidden ones; raise for what stays open."""
    for one, trains in zip(stored, trained, strict=True):
        if trains and one.tensor.ndim > 2:
            raise ValueError(
                f"{one} has {one.tensor.ndim} dimensions, which is not supported; tensors of at most two dimensions "
                "are: freeze it, or pass a list of the other (name, tensor) pairs"
            )
    inputs = any(role in ("input", "tied") for role in found)
    outputs = any(role in ("output", "tied") for role in found)
    still_open = [one for one, role, trains in zip(stored, found, trained, strict=True) if trains and role is None]
    linear = [one for one in still_open if one.kind == "linear" and one.certain]
    unknown = [one for one in still_open if one not in linear]
    if unknown or (linear and not (inputs and outputs)):
        raise ValueError(_open_message(linear if not (inputs and outputs) else [], unknown, inputs, outputs))
    for index, role in enumerate(found):
        if role is None and trained[index]:
            found[index] = "hidden"


def _open_message(linear: list[StoredTensor], unknown: list[StoredTensor], inputs: bool, outputs: bool) -> str:
    """The error for undecided parameters; its example, pasted as it stands, settles every one of them."""
    first, last = (linear[0].names[0], linear[-1].names[0]) if linear else ("", "")
    if len(linear) > 1 and not inputs and not outputs:
        example = {"*": "hidden", first: "input", last: "output"}
    elif linear and not inputs and not outputs:
        example = {first: "hidden"}
    elif linear:
        example = {last: "output"} if inputs else {first: "input"}
    else:
        example = {}
    example |= {one.names[0]: "tied" if one.kind in ("lookup", "tied") else "hidden" for one in unknown}
    lines = [f"  {one}" for one in (*linear, *unknown)]
    reasons = []
    if linear:
        reasons.append("Which linear map is the first and which the last does not follow from the modules.")
    if unknown:
        reasons.append("What a module of unknown type does with a matrix is not known; it is read as stored (out, in).")
    how = f"{' '.join(reasons)} State roles by name, for example\n  roles={example}"
    return "\n".join([f"parameters without a role ({len(lines)}):", *lines, how])


def _sizes(one: StoredTensor) -> Iterator[tuple[int, int]]:
    out, in_ = one.tensor.shape if one.layout == "out,in" else reversed(one.tensor.shape)
    for block in one.blocks or (out,):
        yield block, in_


def _assignment(one: StoredTensor, role: str, inputs: set[int]) -> Assignment:
    lookup = one.kind in ("lookup", "tied")
    vector = role == "vector"
    return Assignment(
        name=one.names[0],
        aliases=one.names,
        parameter=one.tensor,
        role=role,
        layout="vector" if vector else one.layout,
        blocks=() if vector else one.blocks,
        fan=((1, 1),) if vector else tuple(effective_fan(role, out, in_, lookup) for out, in_ in _sizes(one)),
        module_type=one.module_type,
        lookup=lookup,
        added=role == "input" and lookup and bool(inputs) and id(one.tensor) not in inputs,
    )
