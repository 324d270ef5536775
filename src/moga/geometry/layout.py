"""How a stored tensor holds its matrices: the storage order and the blocks that share one tensor.

A matrix is (out, in) everywhere in the library. ``nn.Linear`` stores (out, in); transformers' ``Conv1D`` and
``nn.Embedding`` store (in, out); a vector of d entries is the matrix (d, 1). A fused tensor (query, key and value in
one) holds one block per logical matrix, side by side along ``out``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LAYOUTS = ("out,in", "in,out", "vector")


def to_matrices(tensor: Tensor, layout: str, blocks: Sequence[int] = ()) -> list[Tensor]:
    """The logical matrices of a stored tensor, as views.

    ``blocks`` are the sizes of the blocks along ``out``; none means one block. Blocks of equal size come as one stack
    (blocks, out, in), others as a list of matrices (out, in).

    Raises ValueError for an unknown layout, a tensor of the wrong number of dimensions, or blocks that do not fill it.

    >>> fused = torch.arange(12.0).reshape(2, 6)  # (in, out) storage, three blocks of two outputs
    >>> [stack] = to_matrices(fused, "in,out", [2, 2, 2])
    >>> stack.shape, stack[1]
    (torch.Size([3, 2, 2]), tensor([[2., 8.],
            [3., 9.]]))
    >>> stack.data_ptr() == fused.data_ptr()
    True
    """
    _check(tensor.shape, layout)
    if layout == "vector":
        return [tensor.reshape(-1, 1)]
    matrix = tensor if layout == "out,in" else tensor.mT
    if len(blocks) < 2:
        return [matrix]
    if sum(blocks) != matrix.shape[0]:
        raise ValueError(
            f"blocks {list(blocks)} do not add up to the {matrix.shape[0]} outputs of {tuple(tensor.shape)}"
        )
    if len(set(blocks)) == 1:
        return [torch.unflatten(matrix, 0, (len(blocks), blocks[0]))]
    return list(torch.split(matrix, list(blocks)))


def from_matrices(matrices: Sequence[Tensor], layout: str, shape: Sequence[int]) -> Tensor:
    """The stored tensor of that ``shape`` that holds these matrices: the inverse of :func:`to_matrices`.

    >>> fused = torch.randn(2, 6)
    >>> torch.equal(from_matrices(to_matrices(fused, "in,out", [1, 3, 2]), "in,out", fused.shape), fused)
    True
    """
    _check(shape, layout)
    if layout == "vector":
        return matrices[0].reshape(tuple(shape))
    matrix = (
        torch.cat([stack.flatten(0, -2) for stack in matrices]) if len(matrices) > 1 else matrices[0].flatten(0, -2)
    )
    return matrix if layout == "out,in" else matrix.mT


def _check(shape: Sequence[int], layout: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; the layouts are {', '.join(map(repr, LAYOUTS))}")
    if layout != "vector" and len(shape) != 2:
        raise ValueError(f"layout {layout!r} needs a tensor of two dimensions; got shape {tuple(shape)}")
