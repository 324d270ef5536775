"""The polar factor ``U V^T`` of a matrix ``G = U S V^T``: the direction of steepest descent under the spectral norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Coefficients of x -> a x + b x^3 + c x^5, chosen for a steep slope at 0 (Keller Jordan et al., "Muon", 2024). The map
# does not converge to 1: its fixed points are 0.868 and 1.264, and the first of them repels.
QUINTIC = (3.4445, -4.7750, 2.0315)


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which tensors of ``dtype`` are computed with: float32, or float64 for float64.

    >>> work_dtype(torch.bfloat16), work_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


def _exact(X: Tensor, steps: int) -> Tensor:
    """From the singular value decomposition; singular values that are rounding errors count as 0."""
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    floor = S[..., :1] * torch.finfo(X.dtype).eps * max(X.shape[-2:])
    factor: Tensor = (U * (S > floor).to(X.dtype).unsqueeze(-2)) @ Vh
    return factor


def _quintic(X: Tensor, steps: int) -> Tensor:
    """Newton-Schulz from the Frobenius norm: odd polynomials of X act on its singular values alone."""
    a, b, c = QUINTIC
    tall = X.shape[-2] > X.shape[-1]
    X = X.mT if tall else X
    for _ in range(steps):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    return X.mT if tall else X


POLAR: dict[str, Callable[[Tensor, int], Tensor]] = {"exact": _exact, "quintic": _quintic}


def polar_factor(G: Tensor, method: str = "exact", steps: int = 5) -> Tensor:
    """The polar factor of matrices (..., out, in), in the shape and dtype of ``G``; zero where ``G`` is zero.

    - ``exact``: ``U V^T`` over the non-zero singular values. A rank-deficient ``G`` gives the partial isometry of its
      own row and column spaces, so that zero rows and columns stay zero.
    - ``quintic``: ``steps`` Newton-Schulz iterations in float32 or wider. After five, a singular value that is at least
      0.002 of the Frobenius norm ends between 0.68 and 1.21; smaller ones are multiplied by up to 3.4445^5 = 485.

    ``G`` is divided by its largest entry, then by its Frobenius norm, so the result does not depend on its size.
    A matrix with a non-finite entry gives NaN.

    Raises ValueError for an unknown method.

    >>> polar_factor(torch.tensor([[0.0, 2.0], [-1.0, 0.0]]))
    tensor([[ 0.,  1.],
            [-1.,  0.]])
    >>> S = torch.linalg.svdvals(polar_factor(torch.diag(torch.tensor([1.0, 0.5, 0.1])), "quintic"))
    >>> bool((S > 0.68).all() and (S < 1.21).all())
    True
    """
    if method not in POLAR:
        raise ValueError(f"unknown polar factor method {method!r}; the methods are {', '.join(sorted(POLAR))}")
    if G.ndim < 2:
        raise ValueError(f"a matrix (..., out, in) is needed; got shape {tuple(G.shape)}")
    if G.numel() == 0:
        return torch.zeros_like(G)
    X = G.to(work_dtype(G.dtype))
    peak = X.abs().amax((-2, -1), keepdim=True)
    finite = torch.isfinite(peak)
    X = torch.where(finite, X / torch.where(peak == 0, torch.ones_like(peak), peak), torch.zeros_like(X))
    size = torch.linalg.matrix_norm(X, keepdim=True)
    X = POLAR[method](X / torch.where(size == 0, torch.ones_like(size), size), steps)
    return torch.where(finite, X, torch.full_like(X, torch.nan)).to(G.dtype)
