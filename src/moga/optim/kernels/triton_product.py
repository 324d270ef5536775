"""Symmetric products of matrices on a GPU: the lower half of the tiles is computed, the upper one mirrored."""

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

from moga.optim.kernels.triton_step import narrow

# dtype: side of a tile, entries of the inner axis at a time, warps. All of it at once in the shared memory of any GPU
# that multiplies in that dtype.
TILES = {torch.float32: (64, 32, 4), torch.bfloat16: (128, 64, 8)}


def symmetric_product(A: Tensor, B: Tensor, C: Tensor | None = None, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """``beta C + alpha A B`` of (n, k), (k, n) or batches of them, where ``C`` and ``A B`` are symmetric.

    float32 or bfloat16; sums are float32, rounded once. The slow twin is
    :func:`moga.geometry.newton_schulz.symmetric_product`.
    """
    if A.ndim == 2:
        return symmetric_product(A[None], B[None], None if C is None else C[None], beta, alpha)[0]
    batch, n, k = A.shape
    product = A.new_empty(batch, n, n)
    side, depth, warps = TILES[A.dtype]
    across = triton.cdiv(n, side)
    brain = A.dtype == torch.bfloat16
    on = torch.cuda.device(A.device) if A.is_cuda else contextlib.nullcontext()
    with on:
        _product[across * (across + 1) // 2, batch](
            A, B, C, product.view(torch.int16) if brain else product,
            n, k, *A.stride(), *B.stride(), *(A if C is None else C).stride(), float(beta), float(alpha),
            SIDE=side, DEPTH=depth, BRAIN=brain, NARROW=isinstance(_product, JITFunction), num_warps=warps,
        )  # fmt: skip
    return product


@triton.jit
def _product(
    A, B, C, product, n, k, a0, a1, a2, b0, b1, b2, c0, c1, c2, beta, alpha,
    SIDE: tl.constexpr, DEPTH: tl.constexpr, BRAIN: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """A tile on or below the diagonal. NARROW: factors stay bfloat16, which Triton's interpreter cannot multiply."""
    number, one = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = ((tl.sqrt_rn(8.0 * number + 1) - 1) / 2).to(tl.int32)  # of 1, 2, 3, ... tiles; exact below 2000 rows
    column = number - row * (row + 1) // 2
    i, j = row * SIDE + tl.arange(0, SIDE), column * SIDE + tl.arange(0, SIDE)
    upper, left = i.to(tl.int64)[:, None], j.to(tl.int64)[None, :]
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for start in range(0, k, DEPTH):
        d = start + tl.arange(0, DEPTH)
        a = tl.load(A + one * a0 + upper * a1 + d[None, :] * a2, mask=(i < n)[:, None] & (d < k)[None, :], other=0.0)
        b = tl.load(B + one * b0 + d[:, None] * b1 + left * b2, mask=(d < k)[:, None] & (j < n)[None, :], other=0.0)
        if not NARROW:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision="ieee")
    total *= alpha
    here = (i < n)[:, None] & (j < n)[None, :]
    if C is not None:
        total += beta * tl.load(C + one * c0 + upper * c1 + left * c2, mask=here, other=0.0).to(tl.float32)
    result = narrow(total, tl.uint16 if BRAIN else tl.float32)
    whole = product + one * n * n
    tl.store(whole + upper * n + left, result, mask=here)
    if row != column:
        tl.store(whole + left * n + upper, result, mask=here)
