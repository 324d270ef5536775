"""The largest curvature of a loss at a point, in the norm of a network: a bound from below by a power iteration.

With the Hessian H and a norm of updates, whose dual is that of gradients, the curvature is the norm of H between them:

    max <D1, H D2> over |D1|, |D2| <= 1   =   max dual(H D) over |D| <= 1.

The iteration ``D <- direction(H D)`` never makes ``dual(H D)`` smaller: H is symmetric, so with D' = direction(H D)

    dual(H D') >= <D, H D'> = <D', H D> = dual(H D)        for |D| = 1.

Where it stops growing, D and D' are the pair (D1, D2): equal, opposite, or taking turns (a 2-cycle, in which
``dual(H D)`` is constant). It can be a local maximum, so several starts are needed, and the result is a bound from
below. In the Euclidean norm it is the power method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moga.geometry.network import NetworkNorm

Tensors = Mapping[str, Tensor]
Loss = Callable[[dict[str, Tensor]], Tensor]
Product = Callable[[Tensors], Tensors]

PATIENCE = 2  # steps in a row without growth that end a climb: one alone can be a saddle


def hessian(loss: Loss, point: Tensors) -> tuple[Tensors, Product]:
    """The gradient of the loss at the point, by name, and the function ``D -> H D``.

    The Hessian is the derivative of ``torch.func.grad``. Multiplied from the left (``torch.func.vjp``) rather than
    from the right (``torch.func.jvp``): H is symmetric, so both are H D, but this keeps the graph of the gradient for
    the next product (a third of the time on a small GPT-2) and needs no forward-mode formula of any operation.

    Raises TypeError for a loss that does not return a tensor without dimensions, ValueError for a gradient that is
    not finite.

    >>> gradient, product = hessian(lambda at: (at["w"] ** 3).sum(), {"w": torch.tensor([1.0, 2.0])})
    >>> gradient["w"], product({"w": torch.tensor([1.0, 1.0])})["w"]  # 3 w^2 and 6 w D
    (tensor([ 3., 12.]), tensor([ 6., 12.]))
    """

    def scalar(values: dict[str, Tensor]) -> Tensor:
        found = loss(values)
        if not isinstance(found, Tensor) or found.ndim:
            what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise TypeError(f"the loss must return a tensor without dimensions, as its mean or sum is; got {what}")
        return found

    gradient, pullback, *_ = torch.func.vjp(torch.func.grad(scalar), dict(point))
    if bad := [name for name, tensor in gradient.items() if not torch.isfinite(tensor).all()]:
        raise ValueError(f"the gradient of {bad[0]} is not finite at this point, so nothing can be measured there")
    return gradient, lambda D: pullback({name: D[name] for name in gradient})[0]


@dataclass(frozen=True)
class Peak:
    """Where a climb ended. ``value``: ``dual(H D)``, the largest seen; ``D``: the update of size 1 that reaches it.

    ``steps``: products with H. ``settled``: it stopped because it no longer grew, not because steps ran out.
    """

    value: float
    D: Tensors
    steps: int
    settled: bool


def climb(product: Product, norm: NetworkNorm, D: Tensors, steps: int, tolerance: float) -> Peak:
    """Repeat ``D <- direction(H D)`` until ``dual(H D)`` grew by no more than ``tolerance`` (relative) twice in a row.

    Raises ValueError for a product with H that is not finite.

    >>> from moga.geometry import network, norms
    >>> H = torch.tensor([[2.0, -1.0], [-1.0, 2.0]])
    >>> sign = network.NetworkNorm((network.Layer("w", norms.norm("sign"), "vector", fan=((1, 1),)),))
    >>> peak = climb(lambda D: {"w": H @ D["w"]}, sign, {"w": torch.tensor([1.0, 0.0])}, steps=9, tolerance=1e-6)
    >>> peak.value, peak.D["w"]  # |H D|_1 is 3 at D = (1, 0) and 6 at (1, -1)
    (6.0, tensor([ 1., -1.]))
    """
    peak, flat = Peak(0.0, D, 0, False), 0
    for step in range(1, steps + 1):
        image = product(D)
        following = unit(norm, image)
        value = float(sum((image[name] * D_next).sum() for name, D_next in following.items()))  # dual(H D), by its law
        if not math.isfinite(value):
            raise ValueError("a product with the Hessian is not finite at this point, so nothing can be measured there")
        flat = flat + 1 if value <= peak.value * (1 + tolerance) else 0
        settled = flat == PATIENCE or value == 0
        if value > peak.value:
            peak = Peak(value, D, step, settled)
        if settled:
            return Peak(peak.value, peak.D, step, True)
        D = following
    return Peak(peak.value, peak.D, steps, False)


def unit(norm: NetworkNorm, values: Tensors) -> Tensors:
    """The update of size 1 along the tensors, none of which is missing, so that none is None."""
    return {name: tensor for name, tensor in norm.direction(values).items() if tensor is not None}
