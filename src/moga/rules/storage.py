"""How module types store their matrices: every tensor of a model once, with the uses that its modules make of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

# Modules that pack several matrices along the outputs of a Conv1D: module path, class, attribute of the Conv1D,
# attribute that holds the size of one block (query, key and value; cross-attention packs key and value).
FUSED = (
    ("transformers.models.gpt2.modeling_gpt2", "GPT2Attention", "c_attn", "split_size"),
    ("transformers.models.imagegpt.modeling_imagegpt", "ImageGPTAttention", "c_attn", "split_size"),
    ("transformers.models.openai.modeling_openai", "Attention", "c_attn", "split_size"),
    (
        "transformers.models.decision_transformer.modeling_decision_transformer",
        "DecisionTransformerGPT2Attention",
        "c_attn",
        "split_size",
    ),
)


@dataclass(frozen=True)
class Storage:
    """One use of a tensor. ``kind`` is "lookup" (rows are picked), "linear" (it multiplies) or "unknown"."""

    kind: str
    layout: str
    blocks: tuple[int, ...] = ()


UNKNOWN = Storage("unknown", "out,in")
LOOKUP = Storage("lookup", "in,out")
LINEAR = Storage("linear", "out,in")


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor with all its names, first one first.

    ``kind`` is that of its storage, or "tied" for a lookup that also multiplies, or "tensor" when no module is known.
    ``certain`` is False where a module of unknown type shares the tensor.
    """

    names: tuple[str, ...]
    tensor: Tensor
    kind: str
    layout: str
    blocks: tuple[int, ...]
    module_type: str
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.names[0]} ({self.module_type}, shape {tuple(self.tensor.shape)})"


def _loaded(path: str, name: str) -> type | None:
    """A class of a library that the caller may have imported; the library is never imported here."""
    found = getattr(sys.modules.get(path), name, None)
    return found if isinstance(found, type) else None


def _is_a(module: object, path: str, name: str) -> bool:
    kind = _loaded(path, name)
    return kind is not None and isinstance(module, kind)


def _fused_blocks(module: nn.Module, parent: nn.Module | None) -> tuple[int, ...]:
    for path, name, attribute, size in FUSED:
        if _is_a(parent, path, name) and getattr(parent, attribute, None) is module:
            block = int(getattr(parent, size))
            return (block,) * (int(module.nf) // block)
    return ()


def storage_of(module: nn.Module, attribute: str, parent: nn.Module | None = None) -> Storage:
    """How ``module`` uses its parameter ``attribute``; ``parent`` is the module that holds it.

    >>> storage_of(nn.Embedding(9, 4), "weight")
    Storage(kind='lookup', layout='in,out', blocks=())
    >>> storage_of(nn.Linear(9, 4), "weight")
    Storage(kind='linear', layout='out,in', blocks=())
    """
    if attribute != "weight":
        return UNKNOWN
    if isinstance(module, nn.Embedding):
        return LOOKUP
    if isinstance(module, nn.Linear):
        return LINEAR
    if _is_a(module, "transformers.pytorch_utils", "Conv1D"):
        return Storage("linear", "in,out", _fused_blocks(module, parent))
    return UNKNOWN


def stored_tensors(model: nn.Module) -> list[StoredTensor]:
    """Every parameter of the model once, frozen ones included, in the model's order.

    Raises ValueError for a matrix that two modules share but store in different orders.

    >>> [stored.names for stored in stored_tensors(nn.Linear(3, 2))]
    [('weight',), ('bias',)]
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    uses: dict[int, list[tuple[str, Tensor, Storage, str]]] = {}
    for path, module in modules.items():
        parent = modules.get(path.rpartition(".")[0]) if path else None
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{attribute}" if path else attribute
            storage = storage_of(module, attribute, parent)
            uses.setdefault(id(parameter), []).append((name, parameter, storage, type(module).__name__))
    return [_merge(sites) for sites in uses.values()]


def _merge(sites: list[tuple[str, Tensor, Storage, str]]) -> StoredTensor:
    names = tuple(name for name, _, _, _ in sites)
    tensor = sites[0][1]
    module_type = " + ".join(dict.fromkeys(kind for _, _, _, kind in sites))
    storages = {storage for _, _, storage, _ in sites}
    known = storages - {UNKNOWN} or {UNKNOWN}
    certain = len(known) == len(storages)
    if known == {LOOKUP, LINEAR}:
        return StoredTensor(names, tensor, "tied", LOOKUP.layout, (), module_type, certain)
    if len(known) > 1 and tensor.ndim > 1:
        raise ValueError(
            f"{', '.join(names)} ({module_type}, shape {tuple(tensor.shape)}) are one tensor that its modules store in "
            "different orders; give each module its own parameter"
        )
    storage = known.pop()
    return StoredTensor(names, tensor, storage.kind, storage.layout, storage.blocks, module_type, certain)


def listed_tensors(named: Iterable[tuple[str, Tensor]]) -> list[StoredTensor]:
    """The tensors of a list of (name, tensor) pairs, of which nothing but the shape is known.

    Raises TypeError if an item is no such pair; ValueError for an empty list, a name given twice, and a tensor given
    under two names.

    >>> import torch
    >>> [str(stored) for stored in listed_tensors([("w", torch.zeros(3, 2))])]
    ['w (tensor, shape (3, 2))']
    """
    names: dict[int, str] = {}
    found = []
    for item in named:
        if not (isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], str)):
            raise TypeError(f"a model or a list of (name, tensor) pairs is needed; got an item {type(item).__name__}")
        name, tensor = item
        if not isinstance(tensor, Tensor):
            raise TypeError(f"a model or a list of (name, tensor) pairs is needed; {name!r} is {type(tensor).__name__}")
        if name in names.values():
            raise ValueError(f"the name {name!r} is given twice; every tensor needs a name of its own")
        if id(tensor) in names:
            raise ValueError(f"{names[id(tensor)]!r} and {name!r} are the same tensor; give it once")
        names[id(tensor)] = name
        found.append(StoredTensor((name,), tensor, "tensor", "out,in", (), "tensor"))
    if not found:
        raise ValueError("the list of named tensors is empty; there is nothing to optimize")
    return found
