"""How a step is taken where weights have to stay somewhere: on a sphere, on the Stiefel manifold, as lengths and rows.

Functions of stacks of matrices (..., out, in); ``lr`` is a number or a tensor. A step with lr = 0 returns the weight
itself, bit for bit, although the formulas would round it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moga.geometry.polar import polar_factor
from moga.geometry.vectors import nonzero
from moga.optim.matrices import frobenius

Rate = float | Tensor


def kept(moved: Tensor, W: Tensor, lr: Rate) -> Tensor:
    """``moved``, or ``W`` itself where lr is 0 (also the lr of a step that is dropped: ``moved`` may be NaN then).

    >>> kept(torch.tensor([torch.nan]), torch.tensor([1.0]), torch.tensor(0.0))
    tensor([1.])
    """
    if isinstance(lr, Tensor):
        return torch.where(lr != 0, moved, W)
    return moved if lr != 0 else W


def sphere(W: Tensor, D: Tensor, lr: Rate) -> Tensor:
    """``W' = W - lr |W|_F / |D|_F D``, brought back to the Frobenius norm of W: lr is the angle of the step.

    >>> W = torch.tensor([[3.0, 4.0]])
    >>> torch.linalg.norm(sphere(W, torch.tensor([[7.0, -1.0]]), 0.1))
    tensor(5.)
    """
    size = frobenius(W)
    moved = W - lr * (size / nonzero(frobenius(D))) * D
    return kept(moved * (size / nonzero(frobenius(moved))), W, lr)


def tangent(W: Tensor, G: Tensor) -> Tensor:
    """The projection of G on the tangent space of the Stiefel manifold at W: ``G - W sym(W^T G)``.

    W has orthonormal columns if it is tall, orthonormal rows if it is wide (then the same of the transposes).

    >>> W = torch.eye(3)[:, :2]
    >>> T = tangent(W, torch.arange(6.0).reshape(3, 2))
    >>> W.mT @ T + T.mT @ W  # W + dt T stays orthonormal to first order
    tensor([[0., 0.],
            [0., 0.]])
    """
    if W.shape[-2] < W.shape[-1]:
        return tangent(W.mT, G.mT).mT
    if W.shape[-2] == 1:  # +1 and -1 are the manifold: nothing moves; rounding errors would become a full step
        return torch.zeros_like(G)
    product = W.mT @ G
    T = G - W @ (product + product.mT) / 2
    return _above_rounding(T, frobenius(T), frobenius(G))


def stiefel(W: Tensor, D: Tensor, lr: Rate) -> Tensor:
    """``polar(W - lr D)``: the nearest matrix with orthonormal rows or columns.

    >>> moved = stiefel(torch.eye(2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), 1.0)
    >>> torch.allclose(moved @ moved.mT, torch.eye(2), atol=1e-6)
    True
    """
    return kept(polar_factor(W - lr * D, "exact"), W, lr)


def off_manifold(W: Tensor) -> float:
    """The largest entry of ``W^T W - I`` (tall) or ``W W^T - I`` (wide): 0 on the Stiefel manifold.

    >>> off_manifold(2 * torch.eye(3))
    3.0
    """
    W = W.float() if W.shape[-2] >= W.shape[-1] else W.float().mT
    return float((W.mT @ W - torch.eye(W.shape[-1], device=W.device)).abs().max()) if W.numel() else 0.0


def row_lengths(W: Tensor) -> Tensor:
    """The 2-norm of each row, (..., out, in) -> (..., out, 1).

    >>> row_lengths(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[5.],
            [0.]])
    """
    peak = nonzero(W.abs().amax(-1, keepdim=True)) if W.numel() else W.new_ones(*W.shape[:-1], 1)
    size: Tensor = torch.linalg.vector_norm(W / peak, dim=-1, keepdim=True) * peak
    return size


def row_gradients(W: Tensor, G: Tensor, magnitude: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of v and of g where ``W = g v / |v|`` by rows: (..., out, in) and (..., out, 1).

    ``magnitude`` is g and ``length`` is |v|, both (..., out, 1). A row of zeros has no direction: its gradients are 0.

    >>> W, G = torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 6.0]])
    >>> row_gradients(W, G, torch.tensor([[2.0]]), torch.tensor([[4.0]]))
    (tensor([[0., 3.]]), tensor([[5.]]))
    """
    unit = W / nonzero(magnitude)
    of_g = (G * unit).sum(-1, keepdim=True)
    if W.shape[-1] == 1:  # a row of one entry cannot turn; what rounding leaves of 0 would become a step of full size
        return torch.zeros_like(G), of_g
    T = G - unit * of_g
    return magnitude / nonzero(length) * _above_rounding(T, row_lengths(T), row_lengths(G)), of_g


def _above_rounding(T: Tensor, size: Tensor, whole: Tensor) -> Tensor:
    """T, or zero where it is what rounding leaves of a difference: a direction made of that would be a full step.

    Measured for gradients without a tangent part: 2 to 17 units of rounding of their size, for matrices of 2 to 256.
    """
    return torch.where(size <= 128 * torch.finfo(T.dtype).eps * whole, torch.zeros_like(T), T)
