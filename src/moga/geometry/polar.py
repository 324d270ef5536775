"""The polar factor ``U V^T`` of a matrix ``G = U S V^T``: the direction of steepest descent under the spectral norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from moga.geometry.newton_schulz import (
    CUBIC,
    POLAR_EXPRESS,
    QUINTIC,
    Coefficients,
    Product,
    fewest_products,
    plain_iteration,
    safety,
    schedule,
    symmetric_product,
)


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which tensors of ``dtype`` are computed with: float32, or float64 for float64.

    >>> work_dtype(torch.bfloat16), work_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


# The words for the arithmetic of the iterations; None is float32, or float64 for float64 matrices.
POLAR_DTYPES: dict[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Band:
    """Where singular values end after the default number of steps, if they start at ``least`` or more.

    ``least`` is in units of the Frobenius norm of the matrix. Smaller ones end between 0 and ``high``. The bands of
    float32 follow from the scalar maps. Those of bfloat16 are measured on the CPU, on nearly a million matrices of
    fewer than 64 rows and thousands from there to 400 x 700: dense, non-negative, sparse, of low rank, close to it and
    badly scaled. The extremes were 0.64 to 1.28 (quintic), 0.99 to 1.01 (cubic) and 0.91 to 1.02 (the other two); the
    bands leave a margin and are no bound.

    >>> POLAR["exact"].float32.start((3, 4)), round(POLAR["exact"].float32.start((2000, 2)), 6)
    (0.0001, 0.00024)
    """

    least: float
    low: float
    high: float
    per_side: float = 0.0  # least for each row or column of the longer side, where that is more

    def start(self, shape: Sequence[int]) -> float:
        """``least`` for matrices of this shape."""
        return max(self.least, self.per_side * max(shape[-2:]))


@dataclass(frozen=True)
class PolarMethod:
    """A way to the polar factor of ``X`` (..., short, long) of Frobenius norm 1.

    ``function`` takes X and what ``rows`` says for a number of steps and a dtype: one (a, b, c) for every step of
    :func:`moga.geometry.newton_schulz.plain_iteration`; nothing where there are no steps.
    """

    function: Callable[[Tensor, Sequence[Coefficients]], Tensor]
    rows: Callable[[int, torch.dtype], list[Coefficients]]
    steps: int  # the default; 0 where there is nothing to count
    float32: Band  # in arithmetic of float32 or wider
    bfloat16: Band | None  # in arithmetic of bfloat16; None where that is refused
    source: str


def _exact(X: Tensor, rows: Sequence[Coefficients]) -> Tensor:
    """From the singular value decomposition; singular values that are rounding errors count as 0.

    The decomposition sums along the longer side. For 20000 equal columns its errors reach 1500 epsilons, for constant
    matrices a third of an epsilon times the longer side: a floor that is independent of the size would not hold.
    """
    finite = torch.isfinite(X[..., :1, :1])  # of a matrix that is not, all entries are NaN; svd would raise
    U, S, Vh = torch.linalg.svd(torch.where(finite, X, torch.zeros_like(X)), full_matrices=False)
    floor = S[..., :1] * torch.finfo(X.dtype).eps * max(X.shape[-2:])
    factor: Tensor = (U * (S > floor).to(X.dtype).unsqueeze(-2)) @ Vh
    support = (X != 0).any(-1, keepdim=True) & (X != 0).any(-2, keepdim=True)  # elsewhere: rounding errors of U and V
    factor = torch.where(support, factor, torch.zeros_like(factor))
    return torch.where(finite, factor, torch.full_like(factor, torch.nan))


POLAR: dict[str, PolarMethod] = {
    "exact": PolarMethod(
        _exact,
        lambda steps, dtype: [],
        0,
        Band(1e-4, 0.9999, 1.0001, per_side=1.2e-7),
        None,
        "singular value decomposition",
    ),
    "quintic": PolarMethod(
        fewest_products,
        lambda steps, dtype: [QUINTIC] * steps,
        5,
        Band(0.002, 0.68, 1.21),
        Band(0.01, 0.60, 1.35),
        "Keller Jordan et al., Muon, 2024",
    ),
    "cubic": PolarMethod(
        plain_iteration,
        lambda steps, dtype: [CUBIC] * steps,
        20,
        Band(0.001, 0.999, 1.001),
        Band(0.02, 0.97, 1.03),
        "Newton-Schulz; Higham, Functions of Matrices, 2008, chapter 8",
    ),
    "polar-express": PolarMethod(
        plain_iteration,
        lambda steps, dtype: schedule(POLAR_EXPRESS, steps, safety(dtype)),
        6,
        Band(0.001, 0.99, 1.01),
        Band(0.01, 0.88, 1.03),
        "arXiv 2505.16932, Algorithm 1",
    ),
    "gram": PolarMethod(
        fewest_products,
        lambda steps, dtype: schedule(POLAR_EXPRESS, steps, safety(dtype)),
        6,
        Band(0.001, 0.99, 1.01),
        Band(0.01, 0.88, 1.03),
        "the polynomials of arXiv 2505.16932 in the form of Dao AI Lab, Gram Newton-Schulz, 2026",
    ),
}


def polar_factor(
    G: Tensor,
    method: str = "exact",
    steps: int | None = None,
    dtype: torch.dtype | None = None,
    product: Product | None = None,
    overwrite: bool = False,
) -> Tensor:
    """The polar factor of matrices (..., out, in), in the shape and dtype of ``G``; zero where ``G`` is zero.

    - ``exact``: ``U V^T`` over the non-zero singular values. A rank-deficient ``G`` gives the partial isometry of its
      own row and column spaces; zero rows and columns stay exactly zero. Singular values of up to ``max(out, in)``
      epsilons of the largest are taken for rounding errors: in float32, from a side of 839 on, that is more than 1e-4.
      With ``dtype=torch.float64`` it is 2e-13 there.
    - ``quintic``: after its five steps a singular value that is at least 0.002 of the Frobenius norm is between 0.68
      and 1.21; smaller ones are multiplied by up to 3.4445^5 = 485.
    - ``cubic``: the classical Newton-Schulz iteration; 20 steps bring 0.001 and more to within 0.001 of 1.
    - ``polar-express``: six steps bring 0.001 and more to within 0.01 of 1; five steps, at the price of ``quintic``,
      to between 0.84 and 1.13. Every polynomial ``p`` but the limit is evaluated as ``p(x / safety)``, against rounding
      errors above the interval it is made for: 1.01 as in the paper in float32 or wider, 1.1 in bfloat16 and float16.
    - ``gram``: the same map with fewer products, as ``quintic`` has them too: two steps at a time in the Gram matrix of
      the short side where that computes less (sides of more than 1 to 1.5), and on the CPU only one half of every
      symmetric product. Of bfloat16 matrices of 768 x 3072 that leaves 60 % of the plain form's multiplications.

    ``steps`` is the method's own number where None. The iterations run in ``dtype``, by default float32 or wider;
    bfloat16 is faster where the device has it, in wider bands: :data:`POLAR` has the numbers. ``G`` is divided by its
    largest entry, then by its Frobenius norm, so the result does not depend on its size. A matrix with a non-finite
    entry gives NaN. ``product`` computes the symmetric products of ``quintic`` and ``gram`` where the default,
    :func:`moga.geometry.newton_schulz.symmetric_product`, is not the fastest on the device. ``overwrite`` allows the
    factor to be computed, and returned, in the memory of ``G``; there are no derivatives then.

    Raises ValueError for an unknown method, fewer than one step, and a ``dtype`` that is not floating-point or in
    which the method cannot run.

    >>> polar_factor(torch.tensor([[0.0, 2.0], [-1.0, 0.0]]))
    tensor([[ 0.,  1.],
            [-1.,  0.]])
    >>> G = torch.diag(torch.tensor([1.0, 0.5, 0.1]))
    >>> {method: round(torch.linalg.svdvals(polar_factor(G, method)).min().item(), 2) for method in POLAR}
    {'exact': 1.0, 'quintic': 0.7, 'cubic': 1.0, 'polar-express': 1.0, 'gram': 1.0}
    """
    if method not in POLAR:
        raise ValueError(f"unknown polar factor method {method!r}; the methods are {', '.join(POLAR)}")
    row = POLAR[method]
    if steps is not None and steps < 1:
        raise ValueError(f"a polar factor needs at least one step; got steps = {steps}")
    if G.ndim < 2:
        raise ValueError(f"a matrix (..., out, in) is needed; got shape {tuple(G.shape)}")
    run_dtype = _run_dtype(G, method, dtype)
    if G.numel() == 0:
        return torch.zeros_like(G)
    product = product or partial(symmetric_product, derivatives=not overwrite)
    function = partial(fewest_products, product=product) if row.function is fewest_products else row.function
    X = function(start(G, run_dtype, overwrite), row.rows(row.steps if steps is None else steps, run_dtype))
    X = X.mT if G.shape[-2] > G.shape[-1] else X
    return G.copy_(X) if overwrite and X.numel() else X.to(G.dtype)


def start(G: Tensor, dtype: torch.dtype, overwrite: bool = False) -> Tensor:
    """``X`` (..., short, long) of Frobenius norm 1, where the iterations begin, of matrices (..., out, in).

    >>> start(torch.tensor([[3e30], [4e30]]), torch.float32)
    tensor([[0.6000, 0.8000]])
    """
    X = _normalised(G.to(torch.promote_types(work_dtype(G.dtype), dtype)), overwrite)
    return (X.mT if X.shape[-2] > X.shape[-1] else X).to(dtype)


def _run_dtype(G: Tensor, method: str, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return work_dtype(G.dtype)
    check_dtype(method, dtype)
    return dtype


def check_dtype(method: str, dtype: torch.dtype) -> None:
    """Raises ValueError for a dtype that is not floating-point or in which the method cannot run.

    >>> check_dtype("quintic", torch.bfloat16)
    """
    if not dtype.is_floating_point:
        raise ValueError(f"polar factors are computed in a floating-point dtype; got {dtype}")
    if POLAR[method].bfloat16 is None and work_dtype(dtype) != dtype:
        able = [word for word, row in POLAR.items() if row.bfloat16]
        raise ValueError(f"method {method!r} runs in float32 or wider; got {dtype}, in which {', '.join(able)} can run")


def _normalised(X: Tensor, overwrite: bool = False) -> Tensor:
    """``X`` at Frobenius norm 1; NaN throughout in place of a matrix that is not finite."""
    peak = torch.maximum(X.amax((-2, -1), keepdim=True), -X.amin((-2, -1), keepdim=True))
    peak = torch.where(peak == 0, torch.ones_like(peak), peak)
    X = X.div_(peak) if overwrite else X / peak
    size = torch.linalg.matrix_norm(X, keepdim=True)
    size = torch.where(torch.isfinite(peak), size, torch.full_like(size, torch.nan))
    size = torch.where(size == 0, torch.ones_like(size), size)
    return X.div_(size) if overwrite else X / size
