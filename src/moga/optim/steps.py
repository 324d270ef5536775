"""From the step's input to the step: the direction of a norm, and the three words for its size.

fixed        scale direction(L)                          size 1 in the group's norm
dual         scale direction(L) dual(L)                  proportional to the gradient
trust_ratio  clip(|W|_F / (c |D|_F)) D, D = wd W + scale direction(L)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from moga.geometry.norms import NORMS, norm
from moga.geometry.polar import POLAR_DTYPES, polar_factor
from moga.geometry.vectors import nonzero
from moga.optim.kernels.onednn import by_onednn
from moga.optim.kernels.triton_launch import product_for
from moga.optim.matrices import Group, frobenius
from moga.rules.updates import operator_norm

LARGE = 128  # sides from which oneDNN's products are faster than MKL's
TRUST_EPS = 1e-6  # published: keeps the ratio finite where the step is zero; in units of a Frobenius norm


def unscaled_direction(group: Group, overwrite: bool = False) -> Callable[[Tensor], Tensor]:
    """The function of matrices (..., out, in) that the group's words name, without the scale of its norm.

    ``overwrite`` allows it to use the memory of its argument: large fresh memory costs more than filling it.
    """
    if group["norm"] == "spectral":
        dtype = POLAR_DTYPES[group.get("polar_dtype", "float32")]
        # contiguous: else each product of matrices copies them
        words: dict[str, Any] = {"method": group["polar"], "dtype": dtype, "overwrite": overwrite}

        def polar(L: Tensor) -> Tensor:
            with by_onednn(min(L.shape[-2:]) >= LARGE and group.get("implementation") in ("auto", "c")):
                return polar_factor(L.contiguous(), product=product_for(L, group), **words)

        return polar
    if group["norm"] == "euclidean":
        return lambda L: L / nonzero(frobenius(L))
    steepest = norm(group["norm"], p=group["p"], q=group["q"])
    return lambda L: NORMS[steepest.name].direction(L, steepest.p, steepest.q)


def unscaled_size(group: Group) -> Callable[[Tensor], Tensor]:
    """The norm in which ``unscaled_direction`` has size 1, as a function (..., out, in) -> (...).

    An adaptive update is measured by its largest entry, Shampoo's by its largest singular value.

    >>> unscaled_size({"norm": "adam"})(torch.tensor([[1.0, -3.0]]))
    tensor(3.)
    """
    if group["norm"] == "euclidean":
        return lambda W: frobenius(W)[..., 0, 0]
    steepest = operator_norm(group)
    return lambda W: NORMS[steepest.name].size(W, steepest.p, steepest.q)


def sized_direction(group: Group) -> Callable[[Tensor, float | Tensor], Tensor]:
    """The function (L, scale) -> the step before lr, for the steps "fixed" and "dual".

    ``scale`` is a number, or a tensor that has one for each block (blocks, 1, 1) or row (out, 1).

    >>> group = {"norm": "sign", "step": "dual", "p": None, "q": None}
    >>> sized_direction(group)(torch.tensor([[1.0, -3.0]]), 0.5)  # the dual norm is 0.5 (1 + 3)
    tensor([[ 1., -1.]])
    """
    if group["step"] != "dual":
        direction = unscaled_direction(group, overwrite=group["average"] != "none")  # then it is the gradient itself
        return lambda L, scale: direction(L).mul_(scale)
    if group["norm"] == "euclidean":
        return lambda L, scale: L * scale**2  # the direction times its dual norm is the gradient itself
    direction = unscaled_direction(group)
    steepest = norm(group["norm"], p=group["p"], q=group["q"])
    dual = NORMS[steepest.name].dual
    return lambda L, scale: direction(L) * (scale**2 * dual(L, steepest.p, steepest.q)[..., None, None])


def trust_ratio(W: Tensor, D: Tensor, first: Tensor | None, least: float, most: float) -> Tensor:
    """``clip(|W|_F / (c |D|_F), least, most)`` for matrices (..., out, in), as (..., 1, 1).

    ``first`` is c, of the same shape, where 0 stands for "not yet fixed" and gives 1; None is c = 1.

    >>> W, D = torch.full((2, 2), 3.0), torch.full((2, 2), 4.0)
    >>> trust_ratio(W, D, None, 0.5, 1.5), trust_ratio(W, D, torch.tensor([[0.75]]), 0.5, 1.5)
    (tensor([[0.7500]]), tensor([[1.0000]]))
    """
    if first is None:
        return (frobenius(W) / (frobenius(D) + TRUST_EPS)).clamp(least, most)
    ratio = (frobenius(W) / (first * frobenius(D) + TRUST_EPS)).clamp(least, most)
    return torch.where(first == 0, torch.ones_like(ratio), ratio)


def calibrated(first: Tensor, W: Tensor, Q: Tensor, D: Tensor) -> Tensor:
    """c with ``|W|_F / (c |D|_F) == 1``, from the first step at which neither the weight nor the direction Q is zero.

    >>> calibrated(torch.zeros(1, 1), torch.ones(2, 2), torch.ones(2, 2), torch.full((2, 2), 4.0))
    tensor([[0.2500]])
    """
    now = torch.where(frobenius(Q) == 0, torch.zeros_like(first), frobenius(W) / nonzero(frobenius(D)))
    return torch.where(first == 0, now, first)
