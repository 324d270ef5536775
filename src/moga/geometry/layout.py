"""How a stored tensor holds its matrices: the storage order, what is stacked in it, and the blocks that share it.

A matrix is (out, in) everywhere in the library. A layout is a word that says how a tensor stores one or more:

    vector                        a tensor of any shape, every entry a number of its own: the matrix (numel, 1)
    [stack,][N*]out,in[,k]        stored (out, in): nn.Linear, nn.ConvNd
    [stack,][N*]in,out[,k]        stored (in, out): transformers' Conv1D, nn.Embedding, nn.ConvTransposeNd

``stack,``: the first axis counts separate matrices (experts). ``N*``: the first axis of the matrix holds N of them, one
after another (``groups`` of a convolution). ``,k``: the axes that are left, one or more, are the positions of a
kernel, which belong to ``in``: a convolution maps patches of in_channels * positions numbers to out_channels.

A matrix in turn may hold one logical matrix per block (query, key and value in one): ``blocks`` are their sizes along
``out``. They lie side by side, or, with ``interleave`` h > 1, ``out`` is h repetitions of a unit in which each block
has ``1 / h`` of its rows: by head, or row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ORDERS = ("out,in", "in,out")
GRAMMAR = "'vector', '[stack,][N*]out,in[,k]' or '[stack,][N*]in,out[,k]' with a whole number N of at least 2"


class Words(NamedTuple):
    """A layout taken apart; ``order`` is "out,in", "in,out" or "vector"."""

    order: str
    stack: bool = False
    number: int = 1  # N
    kernel: bool = False


def parse_layout(layout: str) -> Words:
    """What a layout says. Raises ValueError for a word that is none.

    >>> parse_layout("stack,4*in,out,k")
    Words(order='in,out', stack=True, number=4, kernel=True)
    """
    if layout == "vector":
        return Words("vector")
    word = layout if isinstance(layout, str) else ""
    count, star, order = word.removeprefix("stack,").removesuffix(",k").rpartition("*")
    number = int(count) if count.isdecimal() else 0
    if order not in ORDERS or (star and (number < 2 or str(number) != count)):
        raise ValueError(f"unknown layout {layout!r}; a layout is {GRAMMAR}")
    return Words(order, word.startswith("stack,"), number or 1, word.endswith(",k"))


def check_layout(shape: Sequence[int], layout: str, blocks: Sequence[int] = (), interleave: int = 1) -> None:
    """Raises ValueError where a tensor of that shape cannot hold its matrices in that way.

    >>> check_layout((6, 4, 3, 3), "2*out,in,k")
    """
    _plan(tuple(shape), layout, tuple(blocks), interleave)


def _plan(
    shape: tuple[int, ...], layout: str, blocks: tuple[int, ...] = (), interleave: int = 1
) -> tuple[Words, tuple[int, ...]]:
    """The words, and the shape (*stack, out, in) before matrices are cut into blocks; every check is made here.

    A few microseconds, once for many tensors (``batch``); torch.compile warns of functions with a cache.
    """
    words = parse_layout(layout)
    if words.order == "vector":
        if blocks or interleave != 1:
            raise ValueError(f"a vector has no blocks; got blocks {list(blocks)}, interleave {interleave}")
        return words, (math.prod(shape), 1)
    least = words.stack + 2 + words.kernel
    if len(shape) < least or (len(shape) > least and not words.kernel):
        more = " or more" if words.kernel else ""
        raise ValueError(f"layout {layout!r} needs a tensor of {least} dimensions{more}; got shape {shape}")
    first, second, *positions = shape[words.stack :]
    if first % words.number:
        raise ValueError(f"layout {layout!r} needs an axis that {words.number} divides; got {first} in shape {shape}")
    first //= words.number
    out, in_ = (first, second) if words.order == "out,in" else (second, first)
    _check_blocks(out, shape, blocks, interleave)
    numbers = (words.number,) if words.number > 1 else ()
    return words, (*shape[: words.stack], *numbers, out, in_ * math.prod(positions))


def _check_blocks(out: int, shape: tuple[int, ...], blocks: tuple[int, ...], interleave: int) -> None:
    if blocks and (sum(blocks) != out or min(blocks) < 0):
        raise ValueError(f"blocks {list(blocks)} do not add up to the {out} outputs of a tensor of shape {shape}")
    if interleave < 1 or any(block % interleave for block in blocks):
        raise ValueError(
            f"interleave = {interleave} does not divide every block of {list(blocks)}; it is the number of units, a "
            "whole number of at least 1, and each unit has the same share of a block"
        )
    if interleave > 1 and len(blocks) < 2:
        raise ValueError(f"interleave = {interleave} needs the sizes of two or more blocks; got {list(blocks)}")


def to_matrices(
    tensor: Tensor, layout: str, blocks: Sequence[int] = (), interleave: int = 1, *, batch: int = 0
) -> list[Tensor]:
    """The logical matrices of a stored tensor, as views where a view can do.

    One matrix (*stack, out, in) without ``blocks``; with equal ones a stack (*stack, blocks, out, in); with unequal
    ones a list with a matrix (*stack, out, in) for each. ``*stack`` are the axes of experts and of N, where the
    layout has them; of the tensor, ``batch`` axes in front count whole stored tensors, and stay in front. A copy is
    needed for interleaved units of several rows and where kernel positions do not lie next to ``in`` in memory
    (transposed convolutions, channels-last kernels).

    Raises ValueError for an unknown layout, a tensor that does not have its dimensions, an axis that N does not
    divide, blocks that do not fill ``out``, and an ``interleave`` that does not divide them.

    >>> fused = torch.arange(12.0).reshape(2, 6)  # (in, out) storage, three blocks of two outputs
    >>> [stack] = to_matrices(fused, "in,out", [2, 2, 2])
    >>> stack.shape, stack[1]
    (torch.Size([3, 2, 2]), tensor([[2., 8.],
            [3., 9.]]))
    >>> stack.data_ptr() == fused.data_ptr()
    True
    >>> convolution = torch.nn.Conv2d(8, 6, 3, groups=2)
    >>> [to_matrices(convolution.weight, "2*out,in,k")[0].shape]  # each group maps 4 channels of 3 x 3 pixels to 3
    [torch.Size([2, 3, 36])]
    """
    words, shape = _plan(tuple(tensor.shape[batch:]), layout, tuple(blocks), interleave)
    if words.order == "vector":
        return [tensor.reshape(*tensor.shape[:batch], *shape)]
    matrix = _whole(tensor, words, batch)
    if len(blocks) < 2:
        return [matrix]
    if interleave == 1 and len(set(blocks)) > 1:
        return list(torch.split(matrix, list(blocks), -2))
    units = matrix if interleave == 1 else torch.unflatten(matrix, -2, (interleave, shape[-2] // interleave))
    if len(set(blocks)) > 1:
        return [rows.flatten(-3, -2) for rows in torch.split(units, [block // interleave for block in blocks], -2)]
    stack = torch.unflatten(units, -2, (len(blocks), blocks[0] // interleave))
    return [stack if interleave == 1 else stack.transpose(-4, -3).flatten(-3, -2)]


def _whole(tensor: Tensor, words: Words, batch: int) -> Tensor:
    """The matrices (*stack, out, in) of a tensor, blocks not yet cut."""
    axis = batch + words.stack
    if words.kernel:
        tensor = tensor.flatten(axis + 2)
    if words.number > 1:
        tensor = torch.unflatten(tensor, axis, (words.number, tensor.shape[axis] // words.number))
        axis += 1
    if words.order == "in,out":
        tensor = tensor.transpose(axis, axis + 1)
    return tensor.flatten(axis + 1) if words.kernel else tensor


def logical_matrices(tensor: Tensor, layout: str, blocks: Sequence[int] = (), interleave: int = 1) -> list[Tensor]:
    """As :func:`to_matrices`, but one entry (*stack, out, in) per block, of equal ones too.

    >>> [one.shape for one in logical_matrices(torch.ones(5, 6, 4), "stack,out,in", [2, 2, 2])]
    [torch.Size([5, 2, 4]), torch.Size([5, 2, 4]), torch.Size([5, 2, 4])]
    """
    matrices = to_matrices(tensor, layout, blocks, interleave)
    return list(matrices[0].unbind(-3)) if len(blocks) > len(matrices) and len(blocks) > 1 else matrices


def from_matrices(
    matrices: Sequence[Tensor], layout: str, shape: Sequence[int], interleave: int = 1, *, batch: int = 0
) -> Tensor:
    """The stored tensor of that ``shape`` that holds these matrices: the inverse of :func:`to_matrices`.

    It takes what :func:`to_matrices` returns, and what :func:`logical_matrices` does.

    Raises ValueError for an unknown layout, and for matrices that do not fill a tensor of that shape.

    >>> fused = torch.randn(2, 6)
    >>> torch.equal(from_matrices(to_matrices(fused, "in,out", [1, 3, 2]), "in,out", fused.shape), fused)
    True
    """
    words, whole = _plan(tuple(shape[batch:]), layout)
    if words.order == "vector":
        return matrices[0].reshape(tuple(shape))
    matrix = matrices[0]
    if len(matrices) > 1:
        matrix = torch.cat([_units(rows, interleave) for rows in matrices], -2)
        matrix = matrix if interleave == 1 else matrix.flatten(-3, -2)
    elif matrix.ndim == batch + len(whole) + 1:
        matrix = _units(matrix, interleave)
        matrix = matrix.flatten(-3, -2) if interleave == 1 else matrix.transpose(-4, -3).flatten(-4, -2)
    if matrix.shape != (*shape[:batch], *whole):
        raise ValueError(
            f"matrices of shapes {[tuple(one.shape) for one in matrices]} do not fill a tensor of shape "
            f"{tuple(shape)} with layout {layout!r}"
        )
    return _stored(matrix, words, tuple(shape), batch)


def _units(rows: Tensor, interleave: int) -> Tensor:
    return rows if interleave == 1 else torch.unflatten(rows, -2, (interleave, rows.shape[-2] // interleave))


def _stored(matrix: Tensor, words: Words, shape: tuple[int, ...], batch: int) -> Tensor:
    """The inverse of :func:`_whole`."""
    axis = batch + words.stack + (words.number > 1)
    if words.kernel:
        first, second, *positions = shape[batch + words.stack :]
        in_ = second if words.order == "out,in" else first // words.number
        matrix = torch.unflatten(matrix, -1, (in_, *positions))
    if words.order == "in,out":
        matrix = matrix.transpose(axis, axis + 1)
    return matrix.flatten(axis - 1, axis) if words.number > 1 else matrix
