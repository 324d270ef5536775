"""Tensors of one shape as stacks of their logical matrices, so that one call works on all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from moga.geometry.layout import from_matrices, logical_matrices, to_matrices
from moga.geometry.vectors import nonzero

Group = dict[str, Any]

# (norm, step, constraint) -> what one number of the step depends on, where that is less than its logical matrix:
# then nothing has to be cut apart, or even brought into the order (out, in).
REACH = {
    ("sign", "fixed", "decay"): "entry",
    ("euclidean", "dual", "decay"): "entry",  # the gradient itself
    ("row", "fixed", "decay"): "row",
}


def stacks(tensors: Sequence[Tensor], group: Group, reach: str = "matrix") -> list[Tensor]:
    """The matrices of ``n`` tensors of one shape, as :func:`to_matrices` has them, with n in front: (n, ..., out, in).

    With ``reach`` "row" blocks stay together, with "entry" the tensors are stacked as they are stored. One tensor is
    not copied: write to none of them.

    >>> group = {"layout": "out,in", "blocks": (2, 2, 2), "interleave": 1}
    >>> [stack.shape for stack in stacks([torch.ones(6, 4), torch.ones(6, 4)], group)]
    [torch.Size([2, 3, 2, 4])]
    """
    stacked = tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))
    if reach == "entry":
        return [stacked]
    cut = (group["blocks"], group["interleave"]) if reach == "matrix" else ()
    return to_matrices(stacked, group["layout"], *cut, batch=1)


def unstack(matrices: Sequence[Tensor], group: Group, shape: Sequence[int], reach: str = "matrix") -> list[Tensor]:
    """The tensors of that shape, from the stacks of their matrices: the inverse of :func:`stacks`.

    >>> x, group = [torch.randn(4, 6), torch.randn(4, 6)], {"layout": "in,out", "blocks": (1, 3, 2), "interleave": 1}
    >>> all(map(torch.equal, unstack(stacks(x, group), group, (4, 6)), x))
    True
    """
    if reach == "entry":
        return list(matrices[0].unbind())
    whole = (len(matrices[0]), *shape)
    return list(from_matrices(matrices, group["layout"], whole, group["interleave"], batch=1).unbind())


def on_matrices(
    function: Callable[..., Tensor], group: Group, *tensors: Sequence[Tensor], reach: str = "matrix"
) -> list[Tensor]:
    """``function(*stacks)`` for the stacks of every list of tensors; all tensors have one shape.

    >>> x, group = [torch.ones(2, 3), torch.ones(2, 3)], {"layout": "out,in", "blocks": (), "interleave": 1}
    >>> on_matrices(lambda X, Y: X + Y, group, x, x)[0]
    tensor([[2., 2., 2.],
            [2., 2., 2.]])
    """
    columns = zip(*(stacks(same, group, reach) for same in tensors), strict=True)
    return unstack([function(*column) for column in columns], group, tensors[0][0].shape, reach)


def scaled(function: Callable[[Tensor, Any], Tensor], group: Group, tensors: Sequence[Tensor]) -> list[Tensor]:
    """``function(matrices, scale)`` for the tensors of one shape, cut no further than the group's words need.

    ``scale`` is a number, or a tensor that has one for each block or row.

    >>> group = {"norm": "row", "step": "fixed", "constraint": "decay", "layout": "out,in", "scale": [2.0, 3.0]}
    >>> scaled(lambda X, scale: X * scale, {**group, "blocks": (1, 1), "interleave": 1}, [torch.ones(2, 3)])[0]
    tensor([[2., 2., 2.],
            [3., 3., 3.]])
    """
    reach = REACH.get((group["norm"], group["step"], group["constraint"]), "matrix")
    if reach == "entry" and _number(group) is None:
        reach = "row"
    matrices = stacks(tensors, group, reach)
    sizes = [row_scale(group, matrices[0])] if reach == "row" else scales(group, matrices)
    moved = [function(X, scale) for X, scale in zip(matrices, sizes, strict=True)]
    return unstack(moved, group, tensors[0].shape, reach)


def scale_(D: list[Tensor], group: Group) -> list[Tensor]:
    """Steps of one shape times the scale of the group, each row by that of its block; in place where that can be.

    >>> scale_([torch.ones(2, 1)], {"scale": 0.5})
    [tensor([[0.5000],
            [0.5000]])]
    """
    number = _number(group)
    if number is None:
        return on_matrices(lambda X: X * row_scale(group, X), group, D, reach="row")
    torch._foreach_mul_(D, number)
    return D


def _number(group: Group) -> float | None:
    """The scale of all blocks, or None if they differ."""
    scale = group["scale"]
    if not isinstance(scale, (list, tuple)):
        return float(scale)
    return float(scale[0]) if len(set(scale)) == 1 else None


def scales(group: Group, matrices: Sequence[Tensor]) -> list[float | Tensor]:
    """The scale of each of the entries of :func:`stacks`: a number, or (blocks, 1, 1) for equal blocks that differ.

    >>> x = torch.ones(2, 3)
    >>> scales({"scale": 0.5}, [x, x]), scales({"scale": [0.5, 0.25]}, [x, x])
    ([0.5, 0.5], [0.5, 0.25])
    >>> scales({"scale": [0.5, 0.25]}, [torch.ones(2, 1, 3)])[0].flatten()
    tensor([0.5000, 0.2500])
    """
    number = _number(group)
    if number is not None:
        return [number] * len(matrices)
    if len(matrices) == len(group["scale"]):
        return list(group["scale"])
    return [torch.cat([matrices[0].new_full((1, 1, 1), scale) for scale in group["scale"]])]


def row_scale(group: Group, like: Tensor) -> float | Tensor:
    """The scale of each row of matrices whose blocks were left together: a number, or (out, 1)."""
    number = _number(group)
    if number is not None:
        return number
    shares = zip(group["blocks"], group["scale"], strict=True)
    unit = torch.cat([like.new_full((block // group["interleave"], 1), scale) for block, scale in shares])
    return unit.repeat(group["interleave"], 1)


def blocks_of(tensor: Tensor, group: Group) -> list[tuple[Tensor, float]]:
    """Every logical block (*stack, out, in) of one tensor, with its scale.

    >>> blocks_of(torch.ones(2, 1), {"layout": "out,in", "blocks": (1, 1), "interleave": 1, "scale": [2.0, 3.0]})
    [(tensor([[1.]]), 2.0), (tensor([[1.]]), 3.0)]
    """
    found = logical_matrices(tensor, group["layout"], group["blocks"], group["interleave"])
    number = _number(group)
    return list(zip(found, group["scale"] if number is None else [number] * len(found), strict=True))


def blocks_in(matrices: Sequence[Tensor], group: Group) -> int:
    """How many blocks an entry of :func:`stacks` holds, in an axis before (out, in); 0 where there is no such axis.

    >>> blocks_in([torch.ones(5, 3, 2, 4)], {"blocks": (2, 2, 2)}), blocks_in([torch.ones(5, 2, 4)], {"blocks": ()})
    (3, 0)
    """
    return len(group["blocks"]) if len(matrices) < len(group["blocks"]) else 0


def frobenius(X: Tensor) -> Tensor:
    """``|X|_F`` of matrices (..., out, in), as (..., 1, 1); no square overflows or vanishes.

    >>> frobenius(torch.tensor([[3e30, 4e30]]))
    tensor([[5.0000e+30]])
    """
    peak = nonzero(X.abs().amax((-2, -1), keepdim=True))
    size: Tensor = torch.linalg.vector_norm(X / peak, dim=(-2, -1), keepdim=True) * peak
    return size
