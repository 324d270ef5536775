"""How far one number of an update reaches, against where its parameter is cut: which route its step takes.

local    nothing that the update joins is cut: the step of the shard is that of a whole tensor
reduced  rows or columns are cut: their sizes are summed over the ranks, the rest is local
owner    matrices are cut: each is assembled on one rank, which sends its step back
"""

from __future__ import annotations

from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from moga.geometry.layout import Words, logical_matrices, parse_layout
from moga.geometry.norms import norm
from moga.geometry.polar import POLAR
from moga.geometry.vectors import conjugate
from moga.optim.distributed.pieces import Piece, cut_axes
from moga.optim.matrices import REACH, Group
from moga.rules.updates import ADAPTIVE


def reach_of(group: Group) -> str:
    """What one number of the step depends on: its "entry", "row", "column" or "matrix".

    >>> plain = {"step": "fixed", "constraint": "decay", "layout": "out,in", "p": None, "q": None}
    >>> [reach_of({**plain, "norm": word}) for word in ("adam", "row", "column", "spectral")]
    ['entry', 'row', 'column', 'matrix']
    >>> reach_of({**plain, "norm": "column", "q": float("inf")})  # the sign
    'entry'
    """
    if group["norm"] in ("adam", "rmsprop"):
        return "entry"
    words = (group["norm"], group["step"], group["constraint"])
    if words == ("column", "fixed", "decay"):
        return "entry" if exponent(group) == 1 else "column"
    reach = REACH.get(words, "matrix")
    return "entry" if reach == "row" and (exponent(group) == 1 or group["layout"] == "vector") else reach


def moves_by_direction(group: Group) -> bool:
    """Whether the step is ``(1 - lr decay) W - lr D`` with D made of L alone: then L travels, and D, nothing else.

    >>> moves_by_direction({"norm": "spectral", "constraint": "decay", "step": "fixed"})
    True
    """
    return group["norm"] not in ADAPTIVE and group["constraint"] == "decay" and group["step"] != "trust_ratio"


def is_iterated(group: Group) -> bool:
    """Whether the step is a direction from an iteration of matrix products, whose rows several ranks can share.

    >>> words = {"norm": "spectral", "constraint": "decay", "step": "fixed"}
    >>> [is_iterated({**words, "polar": word}) for word in ("quintic", "exact")]
    [True, False]
    """
    iterated = group["norm"] == "spectral" and group["step"] == "fixed" and moves_by_direction(group)
    return iterated and POLAR[group["polar"]].steps > 0


def exponent(group: Group) -> float:
    """e of the direction ``sign(x) |x|^(e-1) / |x|_e^(e-1)`` of a row or column.

    >>> exponent({"norm": "column", "p": None, "q": 2.0})
    2.0
    """
    steepest = norm(group["norm"], group["p"], group["q"])
    return steepest.p if group["norm"] == "row" else conjugate(steepest.q)


def axes_of(words: Words, ndim: int) -> tuple[set[int], set[int], set[int]]:
    """The axes of the stored tensor that count matrices, that belong to ``out``, and that belong to ``in``.

    >>> axes_of(parse_layout("stack,in,out,k"), 5)
    ({0}, {2}, {1, 3, 4})
    """
    if words.order == "vector":
        return set(), set(range(ndim)), set()
    first, second = int(words.stack), int(words.stack) + 1
    out = {first} if words.order == "out,in" else {second}
    stack = {0} if words.stack else set()
    return stack, out, set(range(ndim)) - out - stack


def route_of(group: Group, weight: Tensor, reach: str, spread: bool) -> str:
    """The route of one parameter; with ``spread`` whole matrices have an owner also where every rank holds them."""
    words, cut = parse_layout(group["layout"]), set(cut_axes(weight))
    stack, out, in_ = axes_of(words, weight.ndim)
    if reach == "matrix" and spread and not cut and weight.ndim:
        return "owner"
    if reach == "entry" or cut <= stack:
        return "local"
    joined = {"row": in_, "column": out}.get(reach)
    if joined is None:
        return "owner"
    if not cut & joined:
        return "local"
    return "owner" if words.number > 1 else "reduced"


def local_group(group: Group, weight: Tensor, piece: Piece, reach: str) -> Group:
    """The group of a shard on the route "local" or "reduced": as if the shard were a whole tensor.

    The scale stays that of the whole matrix. Blocks are left only where they still say something: which row has which
    scale, and which columns end where.

    >>> group = {"layout": "out,in", "blocks": [2, 2], "interleave": 1, "scale": [0.5, 0.25]}
    >>> cut = local_group(group, None, Piece((1, 0), (2, 4)), "row")
    >>> cut["blocks"], cut["scale"]
    ([1, 1], [0.5, 0.25])
    """
    words = parse_layout(group["layout"])
    if words.order == "vector" or (weight is not None and set(cut_axes(weight)) <= axes_of(words, weight.ndim)[0]):
        return group
    changed: Group = {"layout": group["layout"]}
    axis = int(words.stack)
    if weight is None or axis in cut_axes(weight):
        changed["layout"] = ("stack," if words.stack else "") + words.order + (",k" if words.kernel else "")
    if reach == "column":
        return {**group, **changed}
    lengths, scales = _runs(*_rows_of(group, piece), _listed(group["scale"]))
    if len(scales) < 2:
        return {**group, **changed, "blocks": [], "interleave": 1, "scale": scales[0] if scales else 1.0}
    return {**group, **changed, "blocks": list(lengths), "interleave": 1, "scale": list(scales)}


def _listed(scale: Any) -> tuple[float, ...] | float:
    return tuple(scale) if isinstance(scale, (list, tuple)) else scale


def _rows_of(group: Group, piece: Piece) -> tuple[tuple[int, ...], int, int, int]:
    """The blocks, their interleave, and the first row and the number of rows of a shard, in the stored order."""
    words = parse_layout(group["layout"])
    axis = int(words.stack) + (words.order == "in,out")
    return tuple(group["blocks"]), group["interleave"], piece.start[axis], piece.shape[axis]


def row_blocks(group: Group, piece: Piece) -> list[int]:
    """Which block every row of a shard belongs to, in the stored order.

    >>> group = {"layout": "in,out", "blocks": [2, 4], "interleave": 2}
    >>> row_blocks(group, Piece((0, 1), (8, 4)))  # stored: 0 1 1 0 1 1
    [1, 1, 0, 1]
    """
    return list(_blocks_of_rows(*_rows_of(group, piece)))


@cache
def _blocks_of_rows(blocks: tuple[int, ...], interleave: int, start: int, count: int) -> tuple[int, ...]:
    unit = [i for i, size in enumerate(blocks) for _ in range(size // interleave)] or [0]
    return tuple(unit[i % len(unit)] for i in range(start, start + count))


@cache
def _runs(
    blocks: tuple[int, ...], interleave: int, start: int, count: int, scale: tuple[float, ...] | float
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The lengths and the scales of the runs of rows of one scale."""
    if not isinstance(scale, tuple):
        return (count,), (scale,)
    rows = _blocks_of_rows(blocks, interleave, start, count)
    runs = [(one, len(list(run))) for one, run in groupby(scale[block] for block in rows)]
    return tuple(length for _, length in runs), tuple(one for one, _ in runs)


def cost_of(group: Group, weight: Tensor) -> int:
    """Multiplications of one step of Newton-Schulz, over all matrices of a parameter: two long products and a short.

    >>> cost_of({"layout": "out,in", "blocks": [2, 2], "interleave": 1}, torch.ones(4, 3))
    64
    """
    like = torch.empty(weight.shape, device="meta")
    found = logical_matrices(like, group["layout"], group["blocks"], group["interleave"])
    shorts = [min(one.shape[-2:]) for one in found]
    return sum(2 * one.numel() * n + one.shape[:-2].numel() * n**3 for one, n in zip(found, shorts, strict=True))
