"""How module types store their matrices: every tensor of a model once, with the uses that its modules make of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from moga.geometry.layout import check_layout
from moga.rules.declared import LORA, declared_adapters, declared_routers
from moga.rules.families import Packed, expert_layout, holds_numbers, kinds, packed
from moga.rules.places import placed_parts, row_part
from moga.rules.torch_modules import torch_storage

# Modules that hold one other module and add to the names of its parameters: module path, class, attribute.
WRAPPERS = (
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "module"),
    ("torch.nn.parallel.data_parallel", "DataParallel", "module"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", "_fsdp_wrapped_module"),
    (
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "ActivationWrapper",
        "_checkpoint_wrapped_module",
    ),
)


@dataclass(frozen=True)
class Storage:
    """One use of a tensor.

    ``kind`` is "lookup" (rows are picked), "rows" (all are used), "linear" (it multiplies), "numbers" (every entry is
    one of its own) or "unknown"; ``part`` is a word of :data:`moga.rules.parts.PARTS`, the rest as in
    :mod:`moga.geometry.layout`.
    """

    kind: str
    layout: str
    blocks: tuple[int, ...] = ()
    interleave: int = 1
    part: str = ""

    def cut(self, how: Packed) -> Storage:
        return replace(self, blocks=how.blocks, interleave=how.interleave, part=how.part)


UNKNOWN = Storage("unknown", "out,in")
LOOKUP = Storage("lookup", "in,out")
LINEAR = Storage("linear", "out,in")
NUMBERS = Storage("numbers", "vector")


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor with all its names, first one first.

    ``storage.kind`` may also be "tied", for a lookup that multiplies too, and "tensor" when no module is known.
    ``certain`` is False where a module of unknown type shares the tensor, and where it ``may_score``: it is one of
    several matrices in a module that records the scores of experts, of which one has to be the router.
    """

    names: tuple[str, ...]
    tensor: Tensor
    storage: Storage
    module_type: str
    certain: bool = True
    may_score: bool = False

    @property
    def kind(self) -> str:
        return self.storage.kind

    def __str__(self) -> str:
        return f"{self.names[0]} ({self.module_type}, shape {tuple(self.tensor.shape)})"


def _is_a(module: object, path: str, name: str) -> bool:
    """Whether a module is of a class of a library that the caller may have imported; it is never imported here."""
    kind = getattr(sys.modules.get(path), name, None)
    return isinstance(kind, type) and isinstance(module, kind)


def storage_of(module: nn.Module, attribute: str, parent: nn.Module | None = None, child: str = "") -> Storage:
    """How ``module`` uses its parameter ``attribute``; ``parent`` is the module that holds it, as its ``child``.

    A subclass is what its base class is: a linear map, a lookup, a module of :mod:`moga.rules.families`.

    >>> storage_of(nn.Embedding(9, 4), "weight").kind, storage_of(nn.Linear(9, 4), "weight").layout
    ('lookup', 'out,in')
    >>> storage_of(nn.Conv1d(6, 6, 5, groups=6), "weight")
    Storage(kind='linear', layout='6*out,in,k', blocks=(), interleave=1, part='depthwise')
    """
    if holds_numbers(module, attribute) or (attribute == "weight" and holds_numbers(parent, child)):
        return NUMBERS
    if (experts := expert_layout(module, attribute)) is not None:
        return NUMBERS if experts[0] == "vector" else Storage("linear", experts[0]).cut(experts[1])
    if (part := row_part(module, attribute)) is not None:
        dimensions = getattr(module, attribute).ndim
        return Storage("rows", "in,out" if dimensions == 2 else "stack,in,out", part=part)
    if (known := torch_storage(module, attribute)) is not None:
        storage = Storage(known.kind, known.layout, known.blocks, part=known.part)
        return storage.cut(packed(parent, child, module)) if isinstance(module, nn.Linear) else storage
    if attribute == "weight" and _is_a(module, "transformers.pytorch_utils", "Conv1D"):
        return Storage("linear", "in,out").cut(packed(parent, child, module))
    return UNKNOWN


def stored_tensors(model: nn.Module) -> list[StoredTensor]:
    """Every parameter of the model once, frozen ones included, in the model's order.

    Names are those inside of wrappers (torch.compile, DistributedDataParallel); the longer ones come after them.

    Raises ValueError for a matrix that two modules share but store in different orders.

    >>> [stored.names for stored in stored_tensors(nn.Linear(3, 2))]
    [('weight',), ('bias',)]
    """
    places = list(_places(model))
    inner = {plain: module for plain, _, module in places}  # of a wrapper and what it wraps, the latter comes last
    (routers, undecided), adapters = declared_routers(model), declared_adapters(model)
    parts = {**placed_parts(model), **adapters}
    uses: dict[int, list[tuple[str, str, Tensor, Storage, str]]] = {}
    for plain, path, module in places:
        for attribute, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
            name, whole = (f"{prefix}.{attribute}".lstrip(".") for prefix in (plain, path))
            storage = storage_of(module, attribute, *_holder(plain, inner, adapters.get(id(tensor), "")))
            if id(tensor) in routers:  # stored (out, in), be it a linear map's or the declared module's own
                storage = replace(LINEAR, part="router")
            elif id(tensor) in parts:
                storage = replace(storage, part=parts[id(tensor)])
            uses.setdefault(id(tensor), []).append((name, whole, tensor, storage, type(module).__name__))
    merged = [(key, _merge(sites)) for key, sites in uses.items()]
    return [replace(one, certain=False, may_score=True) if key in undecided else one for key, one in merged]


def _holder(plain: str, inner: Mapping[str, nn.Module], adapter: str) -> tuple[nn.Module | None, str]:
    """The module that holds the one at ``plain``, and under which name, without the layers of PEFT in between.

    An adapter's map from the rank has the outputs of the map that it adapts, and is cut as it is; the one to the rank
    is not cut.
    """
    if adapter == "adapter down":
        return None, ""
    if adapter == "adapter up":
        plain = plain.rpartition(".")[0].rpartition(".")[0]  # without lora_B.default
    above, _, child = plain.rpartition(".")
    if child == "base_layer" and LORA in kinds(inner[above]):
        above, _, child = above.rpartition(".")
    return (inner[above] if plain else None), child


def _places(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Each module with its path inside of wrappers, and its whole path."""
    wrapped = {""}  # paths whose last step leads from a wrapper to what it wraps
    for path, module in model.named_modules(remove_duplicate=False):
        for where, kind, attribute in WRAPPERS:
            if _is_a(module, where, kind):
                wrapped.add(f"{path}.{attribute}".lstrip("."))
        steps = path.split(".")
        kept = [step for index, step in enumerate(steps) if ".".join(steps[: index + 1]) not in wrapped]
        yield ".".join(kept), path, module


def _merge(sites: list[tuple[str, str, Tensor, Storage, str]]) -> StoredTensor:
    plain, whole, tensors, uses, types = zip(*sites, strict=True)
    names, tensor = tuple(dict.fromkeys(plain + whole)), tensors[0]
    module_type = " + ".join(dict.fromkeys(types))
    storages = set(uses)
    known = storages - {UNKNOWN} or {UNKNOWN}
    certain = len(known) == len(storages)
    if {(one.kind, one.layout) for one in known} == {("lookup", "in,out"), ("linear", "out,in")}:
        return StoredTensor(names, tensor, Storage("tied", LOOKUP.layout), module_type, certain)
    if len(known) > 1 and tensor.ndim > 1:
        raise ValueError(
            f"{', '.join(plain)} ({module_type}, shape {tuple(tensor.shape)}) are one tensor that its modules store in "
            "different ways; give each module its own parameter"
        )
    return StoredTensor(names, tensor, known.pop(), module_type, certain)


def check_storage(one: StoredTensor) -> None:
    """Raises ValueError, with the tensor's name, where a matrix of its shape cannot be stored as is said."""
    if one.tensor.ndim > 1:
        try:
            check_layout(one.tensor.shape, one.storage.layout, one.storage.blocks, one.storage.interleave)
        except ValueError as error:
            raise ValueError(f"{one}: {error}") from None


def model_or_pairs(model: nn.Module | Iterable[tuple[str, Tensor]]) -> nn.Module | list[tuple[str, Tensor]]:
    """The model, or its (name, tensor) pairs as a list, which can be read more than once. Raises TypeError otherwise.

    >>> model_or_pairs(nn.Linear(3, 2).named_parameters())[1][0]
    'bias'
    """
    return model if isinstance(model, nn.Module) else _pairs(model)


def _pairs(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    if not isinstance(named, Iterable) or isinstance(named, Tensor):
        raise TypeError(
            f"a model or a list of (name, tensor) pairs is needed; got {type(named).__name__}: give an nn.Module, or "
            "model.named_parameters() with roles"
        )
    return list(named)


def listed_tensors(named: Iterable[tuple[str, Tensor]]) -> list[StoredTensor]:
    """The tensors of a list of (name, tensor) pairs, of which nothing but the shape is known.

    Raises TypeError for what is no list or an item that is no such pair; ValueError for an empty list, a name given
    twice, and a tensor given under two names.

    >>> import torch
    >>> [str(stored) for stored in listed_tensors([("w", torch.zeros(3, 2))])]
    ['w (tensor, shape (3, 2))']
    """
    names: dict[int, str] = {}
    found = []
    for item in _pairs(named):
        if not (isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], str)):
            raise TypeError(
                f"a model or a list of (name, tensor) pairs is needed; got an item {type(item).__name__}: give the "
                "model itself, not its parameters()"
            )
        name, tensor = item
        if not isinstance(tensor, Tensor):
            raise TypeError(f"a model or a list of (name, tensor) pairs is needed; {name!r} is {type(tensor).__name__}")
        if name in names.values():
            raise ValueError(f"the name {name!r} is given twice; every tensor needs a name of its own")
        if id(tensor) in names:
            raise ValueError(f"{names[id(tensor)]!r} and {name!r} are the same tensor; give it once")
        names[id(tensor)] = name
        found.append(StoredTensor((name,), tensor, replace(UNKNOWN, kind="tensor"), "tensor"))
    if not found:
        raise ValueError("the list of named tensors is empty; there is nothing to optimize")
    return found
