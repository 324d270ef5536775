"""One step of one group, twice: ``reference`` for one tensor, in the words of the formula, and ``batched`` for many.

    M_t = b1 M_{t-1} + (1 - b1) G          momentum
    L   = b2 M_{t-1} + (1 - b2) G          lookahead: b2 = b1^2 is Nesterov's, b2 = 0 none, b2 < b1 Lion's
    W  <- (1 - lr decay) W - lr scale direction(L)

``adam`` replaces the direction by ``m / (sqrt(v) + eps)`` with Adam's bias-corrected averages. State and arithmetic
are in float32, or in float64 for float64 weights; weights of lower precision are rounded once, at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from moga.geometry.layout import from_matrices, to_matrices
from moga.geometry.norms import NORMS, norm
from moga.geometry.polar import polar_factor, work_dtype

Group = dict[str, Any]
State = dict[str, Tensor]

UPDATES = (*NORMS, "adam")


def new_state(weight: Tensor, group: Group) -> State:
    """The state of a weight before its first step: all zeros.

    >>> sorted(new_state(torch.zeros(2, 3), {"norm": "row"})), sorted(new_state(torch.zeros(2), {"norm": "adam"}))
    (['momentum_buffer'], ['exp_avg', 'exp_avg_sq', 'step'])
    """

    def zeros() -> Tensor:
        return torch.zeros_like(weight, dtype=work_dtype(weight.dtype), memory_format=torch.preserve_format)

    if group["norm"] == "adam":
        step = torch.zeros((), dtype=torch.float32, device=weight.device)
        return {"step": step, "exp_avg": zeros(), "exp_avg_sq": zeros()}
    return {"momentum_buffer": zeros()}


def lookahead(group: Group) -> float:
    """b2 of the group: its ``lookahead``, or ``momentum`` squared where that is None.

    >>> round(lookahead({"momentum": 0.9, "lookahead": None}), 2)
    0.81
    """
    b2 = group["lookahead"]
    return float(group["momentum"] ** 2 if b2 is None else b2)


def unscaled_direction(group: Group) -> Callable[[Tensor], Tensor]:
    """The function of matrices (..., out, in) that the group's words name, without the scale of its norm."""
    if group["norm"] == "spectral":
        return lambda L: polar_factor(L, group["polar"])
    steepest = norm(group["norm"], p=group["p"], q=group["q"])
    return lambda L: NORMS[steepest.name].direction(L, steepest.p, steepest.q)


def scales(group: Group, count: int) -> list[float]:
    """The scale of each of ``count`` blocks: one number may stand for all.

    >>> scales({"scale": 0.5}, 2), scales({"scale": [0.5, 0.25]}, 2)
    ([0.5, 0.5], [0.5, 0.25])
    """
    scale = group["scale"]
    return list(scale) if isinstance(scale, (list, tuple)) else [scale] * count


def reference(weight: Tensor, grad: Tensor, state: State, group: Group) -> None:
    """One step of one weight, in place: the specification that ``batched`` is held to."""
    W, G = weight.to(work_dtype(weight.dtype)), grad.to(work_dtype(weight.dtype))
    if group["norm"] == "adam":
        b1, b2 = group["betas"]
        state["step"] += 1
        state["exp_avg"].mul_(b1).add_((1 - b1) * G)
        state["exp_avg_sq"].mul_(b2).add_((1 - b2) * G * G)
        t = state["step"].item()
        D = (state["exp_avg"] / (1 - b1**t)) / ((state["exp_avg_sq"] / (1 - b2**t)).sqrt() + group["eps"])
        direction: Callable[[Tensor], Tensor] = lambda D: D  # noqa: E731
    else:
        b1, b2 = group["momentum"], lookahead(group)
        D = b2 * state["momentum_buffer"] + (1 - b2) * G
        state["momentum_buffer"].mul_(b1).add_((1 - b1) * G)
        direction = unscaled_direction(group)
    matrices = to_matrices(D, group["layout"], group["blocks"])
    matrices = [s * direction(X) for s, X in zip(scales(group, len(matrices)), matrices, strict=True)]
    lr = group["lr"] * group["lr_scale"]
    W = (1 - lr * decay(group)) * W - lr * from_matrices(matrices, group["layout"], weight.shape)
    weight.copy_(W)


def decay(group: Group) -> float:
    """The decoupled weight decay of the group, to be multiplied by lr.

    >>> decay({"weight_decay": 0.1, "decay_scale": 1.0, "decays": False})
    0.0
    """
    return float(group["weight_decay"] * group["decay_scale"]) if group["decays"] else 0.0


def batched(
    weights: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State], group: Group, finite: Tensor | None
) -> None:
    """One step of the weights of a group, in place, in few calls; no change at all where ``finite`` is False.

    ``finite`` is a boolean tensor of no dimensions, or None for always. It is never read on the host.
    """
    buckets: defaultdict[Any, list[int]] = defaultdict(list)
    for i, weight in enumerate(weights):
        buckets[weight.shape, weight.dtype, weight.device].append(i)
    for (shape, dtype, device), members in buckets.items():
        if shape.numel() == 0:
            continue
        state = [states[i] for i in members]
        G = [grads[i].to(work_dtype(dtype)) for i in members]
        mask = None if finite is None else finite.to(device, non_blocking=True)
        D = _adam(G, state, group, mask) if group["norm"] == "adam" else _steepest(G, state, group, mask)
        lr = group["lr"] * group["lr_scale"]
        if mask is not None:
            lr = mask.to(work_dtype(dtype)) * lr
        elif isinstance(lr, Tensor):
            lr = lr.to(device, non_blocking=True)
        torch._foreach_mul_(D, lr)
        W = [weights[i].to(work_dtype(dtype)) for i in members]
        if decay(group):
            torch._foreach_mul_(W, 1 - lr * decay(group))
        torch._foreach_sub_(W, D)
        if W[0] is not weights[members[0]]:
            torch._foreach_copy_([weights[i] for i in members], W)


def _steepest(G: list[Tensor], states: list[State], group: Group, finite: Tensor | None) -> list[Tensor]:
    """Advance the momentum and return the scaled directions. A gradient equal to the momentum leaves it as it is."""
    M = [state["momentum_buffer"] for state in states]
    if finite is not None:
        G = [torch.where(finite, g, m) for g, m in zip(G, M, strict=True)]
    L = torch._foreach_lerp(G, M, lookahead(group))
    torch._foreach_lerp_(M, G, 1 - group["momentum"])
    return _by_block(L, group, unscaled_direction(group))


def _adam(G: list[Tensor], states: list[State], group: Group, finite: Tensor | None) -> list[Tensor]:
    b1, b2 = group["betas"]
    m, v = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
    steps = [state["step"] for state in states]
    squares = list(torch._foreach_mul(G, G))
    if finite is not None:
        G = [torch.where(finite, g, old) for g, old in zip(G, m, strict=True)]
        squares = [torch.where(finite, g, old) for g, old in zip(squares, v, strict=True)]
    counted = torch.ones_like(steps[0]) if finite is None else finite.to(torch.float32)
    torch._foreach_add_(steps, [counted] * len(steps))
    torch._foreach_lerp_(m, G, 1 - b1)
    torch._foreach_lerp_(v, squares, 1 - b2)
    t = torch.stack(steps).to(m[0].dtype).clamp(min=1)
    D = torch._foreach_div(v, list((1 - b2**t).unbind()))
    torch._foreach_sqrt_(D)
    torch._foreach_add_(D, group["eps"])
    torch._foreach_reciprocal_(D)
    torch._foreach_mul_(D, m)
    torch._foreach_div_(D, list((1 - b1**t).unbind()))
    return _by_block(D, group, lambda X: X)


def _by_block(L: Sequence[Tensor], group: Group, function: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """``scale * function`` of every logical matrix of tensors of one shape, all tensors stacked in one call."""
    layout, shape = group["layout"], L[0].shape
    stacks = [torch.stack(same) for same in zip(*(to_matrices(x, layout, group["blocks"]) for x in L), strict=True)]
    stacks = [function(X).mul_(s) for X, s in zip(stacks, scales(group, len(stacks)), strict=True)]
    return [from_matrices([X[i] for X in stacks], layout, shape) for i in range(len(L))]
