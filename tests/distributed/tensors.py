"""Parameters of every role and layout, whole and sharded, with groups of every recipe for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import moga
from moga.rules.recipes import resolve_recipe
from moga.rules.updates import update_scale


class Spec(NamedTuple):
    """A parameter: its shape, role and layout, and the fans (out, in) of its blocks."""

    shape: tuple[int, ...]
    role: str
    layout: str
    fans: tuple[tuple[int, int], ...]
    blocks: tuple[int, ...] = ()
    interleave: int = 1


def matrix(out: int, in_: int, role: str = "hidden") -> Spec:
    return Spec((out, in_), role, "out,in", ((out, in_),))


SPECS = {
    "seven": matrix(7, 5),
    "ten": matrix(10, 6),
    "seventy-two": matrix(72, 8),
    "three rows": matrix(3, 4),
    "wide": matrix(4, 21),
    "large": matrix(70, 130),  # of more than 64 rows: steps in pairs in one process
    "tall": matrix(100, 66),
    "head": Spec((5, 6), "output", "out,in", ((1, 6),)),
    "embedding": Spec((11, 6), "input", "in,out", ((6, 1),)),
    "stored (in, out)": Spec((9, 6), "hidden", "in,out", ((6, 9),)),
    "query, key, value": Spec((18, 5), "hidden", "out,in", ((10, 5), (4, 5), (4, 5)), (10, 4, 4)),
    "fused (in, out)": Spec((5, 18), "hidden", "in,out", ((6, 5), (6, 5), (6, 5)), (6, 6, 6)),
    "interleaved": Spec((12, 5), "hidden", "out,in", ((4, 5), (8, 5)), (4, 8), 2),
    "experts": Spec((5, 6, 4), "hidden", "stack,out,in", ((6, 4),)),
    "experts (in, out)": Spec((6, 4, 7), "hidden", "stack,in,out", ((7, 4),)),
    "convolution": Spec((6, 4, 3, 3), "hidden", "out,in,k", ((6, 36),)),
    "grouped": Spec((6, 2, 3), "hidden", "2*out,in,k", ((3, 6),)),
    "transposed": Spec((6, 2, 3), "hidden", "2*in,out,k", ((2, 9),)),
    "gain": Spec((7,), "vector", "vector", ((1, 1),)),
    "bias": Spec((3,), "vector", "vector", ((1, 1),)),
}


def groups_of(recipe: Any, tensors: dict[str, nn.Parameter], **options: Any) -> list[dict[str, Any]]:
    """One group for each parameter, as moga.param_groups says it."""
    updates = resolve_recipe(recipe, options)
    groups = []
    for name, weight in tensors.items():
        spec = SPECS[name.partition("/")[0]]
        update = dict(updates[spec.role])
        scales = [update_scale(update, *fan) for fan in spec.fans]
        said = {"layout": spec.layout, "blocks": list(spec.blocks), "interleave": spec.interleave, "role": spec.role}
        scale = scales[0] if len(set(scales)) == 1 else scales
        decays = update["constraint"] not in ("sphere", "stiefel") and spec.role != "vector"
        groups.append({"params": [(name, weight)], **said, **update, "scale": scale, "decays": decays})
    return groups


def weights(names: Sequence[str], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random values, the same on every rank; hidden matrices of one block start on the Stiefel manifold."""
    generator = torch.Generator().manual_seed(1)
    values = {}
    for name in names:
        spec = SPECS[name.partition("/")[0]]
        values[name] = torch.randn(spec.shape, generator=generator)
        if spec.role == "hidden":
            matrices = moga.geometry.layout.logical_matrices(values[name], spec.layout, spec.blocks, spec.interleave)
            halves = [torch.linalg.svd(one, full_matrices=False) for one in matrices]
            values[name] = moga.geometry.layout.from_matrices(
                [U @ V for U, _, V in halves], spec.layout, spec.shape, spec.interleave
            )
    return {name: value.to(dtype).contiguous() for name, value in values.items()}


def gradients(names: Sequence[str], seed: int) -> dict[str, Tensor]:
    """Random gradients, the same on every rank, of sizes that differ between parameters and between rows."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(SPECS[name.partition("/")[0]].shape, generator=generator) for name in names}


Placed = Callable[[str, Tensor], tuple[Any, Sequence[Any]]]


def shard(value: Tensor, mesh: Any, placements: Sequence[Any]) -> DTensor:
    """The DTensor of a value that every rank has, without communication."""
    return distribute_tensor(value, mesh, placements, src_data_rank=None)


def axis(which: int) -> Callable[[Tensor], Any]:
    """Shard(which), counted from the end if negative, as far as a tensor has that axis."""
    return lambda value: Shard(min(which, value.ndim - 1) if which >= 0 else value.ndim + which)
