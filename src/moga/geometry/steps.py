"""The two forms of a step of steepest descent, for every norm, and the classical methods as rows of one table.

- ``fixed``, the trust region: ``D = direction(G)`` maximises ``<G, D>`` over ``measure(D) <= 1``. The step is -lr D;
  lr is its size.
- ``dual``, the penalty: ``D = dual(G) direction(G)`` maximises ``<G, D> - measure(D)^2 / 2``. The step is -lr D; for a
  loss that is 1/lr-smooth in the norm it lowers the bound ``loss - <G, lr D> + |lr D|^2 / (2 lr)`` the most.

``fixed`` forgets the size of the gradient, ``dual`` is proportional to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from moga.geometry import names


class Dual(Protocol):
    """What a step needs of a norm."""

    def dual(self, G: Tensor) -> Tensor:
        """``max <G, D>`` over ``measure(D) <= 1``, a tensor of the leading shape."""

    def direction(self, G: Tensor) -> Tensor:
        """The maximiser, in the shape of ``G``."""


def _times_dual(norm: Dual, G: Tensor) -> Tensor:
    size = norm.dual(G)
    return (norm.direction(G.to(size.dtype)) * size.reshape(*size.shape, *[1] * (G.ndim - size.ndim))).to(G.dtype)


STEPS: dict[str, Callable[[Dual, Tensor], Tensor]] = {
    "fixed": lambda norm, G: norm.direction(G),
    "dual": _times_dual,
}


def steepest_step(norm: Dual, G: Tensor, step: str = "fixed") -> Tensor:
    """What is multiplied by -lr, for a gradient ``G`` in the shape that the norm takes: (..., n) or (..., out, in).

    Raises ValueError for an unknown word.

    >>> import torch
    >>> g = torch.tensor([3.0, -4.0])
    >>> [steepest_step(names.norm("l2"), g, step) for step in STEPS]
    [tensor([ 0.6000, -0.8000]), tensor([ 3., -4.])]
    >>> steepest_step(names.norm("linf"), g, "dual")
    tensor([ 7., -7.])
    """
    if step not in STEPS:
        raise ValueError(f"unknown step {step!r}; the words are {', '.join(STEPS)}")
    return STEPS[step](norm, G)


@dataclass(frozen=True)
class Method:
    """A classical method: steepest descent under a norm of the whole parameter vector, in one of the two forms."""

    norm: str
    step: str
    M: str = ""  # what the norm's matrix is, where it has one


METHODS: dict[str, Method] = {
    "gradient descent": Method("l2", "dual"),
    "normalised gradient descent": Method("l2", "fixed"),
    "sign descent": Method("linf", "fixed"),
    "scaled sign descent": Method("linf", "dual"),
    "greedy coordinate descent": Method("l1", "dual"),
    "preconditioned gradient descent": Method("mahalanobis", "dual", "the preconditioner"),
    "Newton": Method("mahalanobis", "dual", "the Hessian"),
    "natural gradient": Method("mahalanobis", "dual", "the Fisher information"),
}


def method_step(method: str, g: Tensor, M: Tensor | None = None) -> Tensor:
    """What a method of :data:`METHODS` multiplies by -lr, for a gradient ``g`` (..., n) and its matrix ``M``.

    Raises ValueError for an unknown method, and as :func:`moga.norm` where ``M`` is missing, not wanted or not
    positive definite.

    >>> import torch
    >>> g = torch.tensor([3.0, -4.0])
    >>> method_step("greedy coordinate descent", g)
    tensor([ 0., -4.])
    >>> method_step("Newton", g, M=torch.tensor([1.0, 4.0]))  # H = diag(1, 4)
    tensor([ 3., -1.])
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; the methods are {', '.join(METHODS)}")
    row = METHODS[method]
    chosen = names.norm(row.norm, M=M)
    return steepest_step(chosen, g, row.step)
