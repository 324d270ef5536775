"""One step of the tensors of a group, in few calls; ``reference.py`` says the same for one tensor, in plain formulas.

    M_t = b1 M_{t-1} + (1 - b1) G          momentum
    L   = b2 M_{t-1} + (1 - b2) G          lookahead: b2 = b1^2 is Nesterov's, b2 = b1 none, b2 < b1 Lion's
    W  <- (1 - lr decay) W - lr scale direction(L)

The words ``norm`` (also adaptive ones), ``step`` and ``constraint`` of the group each replace a part of this. State
and arithmetic are in float32, or in float64 for float64 weights; weights of lower precision are rounded once, at the
end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from moga.geometry.layout import to_matrices
from moga.geometry.polar import work_dtype
from moga.geometry.vectors import nonzero
from moga.optim.adaptive import ADAPTIVE, adam
from moga.optim.averages import State, States, Step, step_input
from moga.optim.constraints import kept, row_gradients, row_lengths, sphere, stiefel, tangent
from moga.optim.kernels.compiled import leave
from moga.optim.kernels.triton_launch import leave_to_triton
from moga.optim.matrices import Group, blocks_in, on_matrices, scale_, scaled, stacks, unstack
from moga.optim.rounding import Noise, write_
from moga.optim.steps import calibrated, sized_direction, trust_ratio

# Entries of the tensors that take a step together, at most (or one tensor). Temporaries hold a few times as many. On a
# CPU larger ones come fresh from the system, page by page, which takes longer than filling them.
TOGETHER = {"cpu": 1 << 21, "other": 1 << 26}


def new_state(weight: Tensor, group: Group, zeros: Callable[[torch.dtype], Tensor] | None = None) -> State:
    """The state of a weight before its first step: zeros, but for Shampoo's damping and the lengths of rows.

    ``zeros`` makes averages of the weight's shape, where they are not to be whole tensors.

    >>> from moga.optim.checks import PLAIN
    >>> [sorted(new_state(torch.zeros(2, 3), {**PLAIN, "norm": word})) for word in ("row", "adam")]
    [['momentum_buffer'], ['exp_avg', 'exp_avg_sq', 'step']]
    """
    wide = work_dtype(weight.dtype)
    stored = torch.bfloat16 if group["state_dtype"] == "bfloat16" else wide

    def average() -> Tensor:
        return zeros(stored) if zeros else torch.zeros_like(weight, dtype=stored, memory_format=torch.preserve_format)

    counter = {"step": torch.zeros((), dtype=torch.float32, device=weight.device)}
    if group["norm"] in ADAPTIVE:
        row = ADAPTIVE[group["norm"]]
        own = row.other(weight, group)
        return (counter if row.counted else {}) | {name: average() for name in row.full} | own
    state = {} if group["average"] == "none" else {"momentum_buffer": average()}
    if group["step"] == "trust_ratio" and group["calibration"] == "first_step":
        leading = to_matrices(weight, group["layout"])[0].shape[:-2]
        state["calibration"] = torch.zeros(*leading, max(1, len(group["blocks"])), dtype=wide, device=weight.device)
    if group["constraint"] == "row_magnitude":
        length = row_lengths(to_matrices(weight.detach().to(wide), group["layout"])[0])
        names = ("magnitude_exp_avg", "magnitude_exp_avg_sq")
        state |= {"magnitude": length, "length": length.clone(), **counter}
        state |= {name: torch.zeros_like(length) for name in names}
    return state


def decay(group: Group) -> float:
    """The decoupled weight decay of the group, to be multiplied by lr.

    >>> decay({"weight_decay": 0.1, "decay_scale": 1.0, "decays": False})
    0.0
    """
    return float(group["weight_decay"] * group["decay_scale"]) if group["decays"] else 0.0


def batched(
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: States,
    group: Group,
    finite: Tensor | None,
    noise: Noise | None = None,
) -> None:
    """One step of the weights of a group, in place, in few calls; no change at all where ``finite`` is False.

    ``finite`` is a boolean tensor of no dimensions, or None for always. It is never read on the host. ``noise`` is
    where stochastic rounding takes its bits from.
    """
    buckets: defaultdict[Any, list[int]] = defaultdict(list)
    left = leave(weights, grads, states, group, decay(group), finite)
    for i in leave_to_triton(left, weights, grads, states, group, decay(group), finite):
        buckets[weights[i].shape, weights[i].dtype, weights[i].device].append(i)
    room: list[Tensor] = []
    for (shape, dtype, device), members in _parts(buckets):
        if shape.numel() == 0:
            continue
        wide = work_dtype(dtype)
        mask = None if finite is None else finite.to(device, non_blocking=True)
        lr = rate(group, wide, device, mask)
        targets = [weights[i] for i in members]
        W, G = [weight.to(wide) for weight in targets], [grads[i].to(wide) for i in members]
        moved = _move(W, G, [states[i] for i in members], lr, Step(group, wide, mask, noise, room))
        if moved[0] is not targets[0]:
            write_(targets, moved, group["rounding"], noise)


def _parts(buckets: Mapping[Any, list[int]]) -> Iterator[tuple[Any, list[int]]]:
    """The buckets (shape, dtype, device), the large ones in parts."""
    for key, members in buckets.items():
        shape, _, device = key
        most = max(1, TOGETHER.get(device.type, TOGETHER["other"]) // max(1, shape.numel()))
        yield from ((key, members[first : first + most]) for first in range(0, len(members), most))


def _move(W: list[Tensor], G: list[Tensor], states: States, lr: float | Tensor, step: Step) -> list[Tensor]:
    """Advance the states and return the new weights; ``W`` itself, changed in place, where that is possible."""
    group = step.group
    if group["norm"] in ADAPTIVE:
        D = ADAPTIVE[group["norm"]].directions(G, states, step)
        return descend(W, scale_(D, group), lr, decay(group))
    if group["constraint"] == "row_magnitude":
        return _rows(W, G, states, lr, step)
    L = step_input(G, states, step)
    if group["constraint"] == "stiefel":
        D = scaled(sized_direction(group), group, on_matrices(tangent, group, W, L))
        return on_matrices(lambda X, D: stiefel(X, D, lr), group, W, D)
    D = scaled(sized_direction(group), group, L)
    if group["constraint"] == "sphere":
        return on_matrices(lambda X, D: sphere(X, D, lr), group, W, D)
    if group["step"] == "trust_ratio":
        return descend(W, _trusted(W, D, states, step), lr, 0.0)
    return descend(W, D, lr, decay(group))


def rate(group: Group, dtype: torch.dtype, device: torch.device, mask: Tensor | None) -> float | Tensor:
    """lr of the group, 0 where ``mask`` drops the step.

    >>> rate({"lr": 0.5, "lr_scale": 2.0}, torch.float32, torch.device("cpu"), torch.tensor(False))
    tensor(0.)
    """
    lr: float | Tensor = group["lr"] * group["lr_scale"]
    if isinstance(lr, Tensor):
        lr = lr.to(device, non_blocking=True).reshape(())
    return lr if mask is None else mask.to(dtype) * lr


def descend(W: list[Tensor], D: list[Tensor], lr: float | Tensor, per_lr: float) -> list[Tensor]:
    """``W <- (1 - lr per_lr) W - lr D``, in place; D is written to as well."""
    torch._foreach_mul_(D, lr)
    if per_lr:
        torch._foreach_mul_(W, 1 - lr * per_lr)
    torch._foreach_sub_(W, D)
    return W


def _trusted(W: Sequence[Tensor], Q: Sequence[Tensor], states: States, step: Step) -> list[Tensor]:
    """``clip(ratio) (wd W + Q)`` for each logical matrix; fixes the ratio's reference at the first step."""
    group, per_lr, first = step.group, decay(step.group), 0
    least, most = group["trust_clip"]
    weights, steps, result = stacks(W, group), stacks(Q, group), []
    count = blocks_in(weights, group) or 1
    for X, Y in zip(weights, steps, strict=True):
        D, c = per_lr * X + Y, None
        if group["calibration"] == "first_step":
            saved = [state["calibration"][..., first : first + count] for state in states]
            old = torch.stack(saved).reshape(*X.shape[:-2], 1, 1)
            c = step.masked([calibrated(old, X, Y, D)], [old])[0]
            torch._foreach_copy_(saved, list(c.reshape(len(saved), *saved[0].shape).unbind()))
        result.append(trust_ratio(X, D, c, least, most) * D)
        first += count
    return unstack(result, group, W[0].shape)


def _rows(W: list[Tensor], G: list[Tensor], states: States, lr: float | Tensor, step: Step) -> list[Tensor]:
    """Muown: ``W = g v / |v|`` by rows; v takes the step of the group, g one of Adam with the same lr."""
    group, shape = step.group, W[0].shape
    [X], [Y] = stacks(W, group, "row"), stacks(G, group, "row")
    magnitude, length = (torch.stack([state[key] for state in states]) for key in ("magnitude", "length"))
    of_v, of_g = row_gradients(X, Y, magnitude, length)
    L = step_input(unstack([of_v], group, shape, "row"), states, step)
    [D] = stacks(scaled(sized_direction(group), group, L), group, "row")
    v = X / nonzero(magnitude) * length - lr * D
    g = magnitude - lr * torch.stack(adam(of_g.unbind(), states, step, "magnitude_"))
    new_length = row_lengths(v)
    moved = g * v / nonzero(new_length)
    if decay(group):
        moved = moved - lr * decay(group) * X
        g = row_lengths(moved)
    for key, new, old in (("magnitude", g, magnitude), ("length", new_length, length)):
        torch._foreach_copy_([state[key] for state in states], list(step.masked([new], [old])[0].unbind()))
    return unstack([kept(moved, X, lr)], group, shape, "row")
