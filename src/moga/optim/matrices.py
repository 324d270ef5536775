"""Tensors of one shape as stacks of their logical matrices, so that one call works on all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from moga.geometry.layout import from_matrices, to_matrices
from moga.geometry.vectors import nonzero

Group = dict[str, Any]


def stacks(tensors: Sequence[Tensor], layout: str, blocks: Sequence[int] = ()) -> list[Tensor]:
    """The matrices of ``n`` tensors of one shape: (n, out, in), with equal blocks (n, blocks, out, in), else a list.

    >>> [stack.shape for stack in stacks([torch.ones(6, 4), torch.ones(6, 4)], "out,in", (2, 2, 2))]
    [torch.Size([2, 3, 2, 4])]
    """
    return [torch.stack(same) for same in zip(*(to_matrices(x, layout, blocks) for x in tensors), strict=True)]


def unstack(matrices: Sequence[Tensor], layout: str, shape: Sequence[int]) -> list[Tensor]:
    """The tensors of that shape, from the stacks of their matrices: the inverse of :func:`stacks`.

    >>> x = [torch.randn(4, 6), torch.randn(4, 6)]
    >>> all(map(torch.equal, unstack(stacks(x, "in,out", (1, 3, 2)), "in,out", (4, 6)), x))
    True
    """
    return [from_matrices([X[i] for X in matrices], layout, shape) for i in range(len(matrices[0]))]


def on_matrices(
    function: Callable[..., Tensor], group: Group, *tensors: Sequence[Tensor], whole: bool = False
) -> list[Tensor]:
    """``function(*stacks)`` for the stacks of every list of tensors; all tensors have one shape.

    ``whole`` takes a fused tensor as one matrix: right for what works on rows, which no block cuts.

    >>> x = [torch.ones(2, 3), torch.ones(2, 3)]
    >>> on_matrices(lambda X, Y: X + Y, {"layout": "out,in", "blocks": ()}, x, x)[0]
    tensor([[2., 2., 2.],
            [2., 2., 2.]])
    """
    layout, blocks = group["layout"], () if whole else group["blocks"]
    columns = zip(*(stacks(same, layout, blocks) for same in tensors), strict=True)
    return unstack([function(*column) for column in columns], layout, tensors[0][0].shape)


def scales(group: Group, count: int) -> list[float]:
    """The scale of each of ``count`` blocks: one number may stand for all.

    >>> scales({"scale": 0.5}, 2), scales({"scale": [0.5, 0.25]}, 2)
    ([0.5, 0.5], [0.5, 0.25])
    """
    scale = group["scale"]
    return list(scale) if isinstance(scale, (list, tuple)) else [scale] * count


def frobenius(X: Tensor) -> Tensor:
    """``|X|_F`` of matrices (..., out, in), as (..., 1, 1); no square overflows or vanishes.

    >>> frobenius(torch.tensor([[3e30, 4e30]]))
    tensor([[5.0000e+30]])
    """
    peak = nonzero(X.abs().amax((-2, -1), keepdim=True))
    size: Tensor = torch.linalg.vector_norm(X / peak, dim=(-2, -1), keepdim=True) * peak
    return size
