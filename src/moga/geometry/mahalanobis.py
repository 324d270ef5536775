"""The norm ``|x|_M = sqrt(x^T M x)`` of a positive definite ``M``: the geometry of a preconditioner.

Its dual is ``|g|_(M^-1) = sqrt(g^T M^-1 g)`` and its direction ``M^-1 g / |g|_(M^-1)``, so that ``dual * direction``
is ``M^-1 g``: preconditioned gradient descent, Newton's step (M the Hessian), the natural gradient (M the Fisher
information). The laws are those of :mod:`moga.geometry.vectors`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from moga.geometry.polar import work_dtype
from moga.geometry.vectors import as_vector, nonzero, vector_direction, vector_norm


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """The norm ``sqrt(x^T M x)`` of vectors (..., n), for ``M`` (n, n), or (n,) for a diagonal one.

    With the Cholesky factor ``M = L L^T`` it is the 2-norm of ``L^T x``. Arithmetic is in float32, or float64 where
    ``x`` or ``M`` is. ``M`` is copied: the norm does not follow a later change of the caller's tensor.

    Raises ValueError for an ``M`` of another shape and one that is not symmetric, positive definite and finite;
    TypeError for one that is not real and floating-point.

    >>> norm = Mahalanobis(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> round(norm.measure(torch.tensor([1.0, 1.0])).item() ** 2, 4)  # 2 + 1 + 1 + 2
    6.0
    >>> g = torch.tensor([3.0, 0.0])
    >>> [round(x, 4) for x in (norm.dual(g) * norm.direction(g)).tolist()]  # M^-1 g, for M^-1 = [[2, -1], [-1, 2]] / 3
    [2.0, -1.0]
    """

    M: Tensor
    factor: Tensor = field(init=False, repr=False)  # L (n, n), or the square roots of the diagonal (n,); float64

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", _cholesky(self.M))
        object.__setattr__(self, "M", self.M.detach().clone())

    def measure(self, x: Tensor) -> Tensor:
        """The size of ``x`` (..., n) as a tensor of the leading shape.

        >>> Mahalanobis(torch.tensor([4.0, 9.0])).measure(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        tensor([2., 3.])
        """
        unit, peak, factor = self._unit(x)
        y = unit * factor if factor.ndim == 1 else unit @ factor
        return vector_norm(y, 2, dim=-1) * peak

    def dual(self, g: Tensor) -> Tensor:
        """``max <g, d>`` over ``measure(d) <= 1`` for ``g`` (..., n), as a tensor of the leading shape.

        >>> Mahalanobis(torch.tensor([4.0, 9.0])).dual(torch.tensor([1.0, 0.0]))
        tensor(0.5000)
        """
        unit, peak, factor = self._unit(g)
        return vector_norm(_solve(factor, unit), 2, dim=-1) * peak

    def direction(self, g: Tensor) -> Tensor:
        """The ``d`` of size 1 with the largest ``<g, d>``, in the shape and dtype of ``g`` (..., n).

        >>> Mahalanobis(torch.tensor([4.0, 9.0])).direction(torch.tensor([1.0, 0.0]))
        tensor([0.5000, 0.0000])
        """
        unit, _, factor = self._unit(g)
        y = vector_direction(_solve(factor, unit), 2, dim=-1)
        return _solve(factor.mT if factor.ndim == 2 else factor, y, upper=True).to(g.dtype)

    def _unit(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``x`` over its largest entry, so that no square overflows or vanishes; that entry; the factor alike."""
        n = self.factor.shape[0]
        x = as_vector(x)
        if x.shape[-1] != n:
            raise ValueError(f"M is for vectors of {n} entries; got shape {tuple(x.shape)}")
        x = x.to(torch.promote_types(x.dtype, self.M.dtype))
        peak = x.abs().amax(-1, keepdim=True)
        return x / nonzero(peak), peak.squeeze(-1), self.factor.to(x.dtype)


def _solve(factor: Tensor, x: Tensor, upper: bool = False) -> Tensor:
    """``L^-1 x`` for a triangular or a diagonal ``L`` and ``x`` (..., n)."""
    if factor.ndim == 1:
        return x / factor
    solved: Tensor = torch.linalg.solve_triangular(factor, x.unsqueeze(-1), upper=upper)
    return solved.squeeze(-1)


def _cholesky(M: Tensor) -> Tensor:
    """The lower triangular ``L`` with ``M = L L^T``, or the square roots of a diagonal, in float64."""
    if not isinstance(M, Tensor) or not M.is_floating_point():
        raise TypeError(f"M must be real and floating-point; got {M.dtype if isinstance(M, Tensor) else repr(M)}")
    if M.ndim not in (1, 2) or M.shape[0] != M.shape[-1] or M.numel() == 0:
        raise ValueError(f"M must have shape (n, n), or (n,) for a diagonal; got {tuple(M.shape)}")
    tolerance = torch.finfo(work_dtype(M.dtype)).eps ** 0.5
    M = M.detach().double()
    if not torch.isfinite(M).all():
        raise ValueError("M must be finite; it holds NaN or Inf")
    if M.ndim == 1:
        if not (M > 0).all():
            raise ValueError(f"M must be positive definite; its smallest diagonal entry is {M.min().item():.3g}")
        return M.sqrt()
    peak = nonzero(M.abs().max())
    M = M / peak  # an M of 1e-310 would be a singular one to the factorisation
    if (M - M.mT).abs().max() > tolerance:
        raise ValueError("M must be symmetric; M and its transpose differ by more than rounding")
    L, failed = torch.linalg.cholesky_ex((M + M.mT) / 2)
    if failed:
        least = (torch.linalg.eigvalsh(M).min() * peak).item()
        raise ValueError(
            f"M must be positive definite; its smallest eigenvalue is {least:.3g}. Add a multiple of the identity "
            "(damping), or use a positive definite approximation"
        )
    factor: Tensor = L * peak.sqrt()
    return factor
