"""The tensors of a group that the compiled step takes, and the step itself.

It takes ``row`` with p = 2, ``column`` with q = 2, ``sign`` (also as p = 1 and q = inf) and ``adam``, with fixed steps
and decay and the averages "mean" and "none". Weights and gradients are plain contiguous CPU tensors of one dtype,
averages float32 (float64 beside float64 weights), and lr and the flag of finite gradients lie on the CPU too.

All other tensors take the step of tensor operations: other norms and words, non-contiguous tensors (channels-last
kernels), tensor subclasses, stochastic rounding, averages in bfloat16, blocks whose rows or columns are no runs of
stored entries, and any step that torch.compile traces.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moga.optim.averages import State, States, lookahead
from moga.optim.kernels.build import Numbers, available
from moga.optim.kernels.jobs import jobs_of, normalised
from moga.optim.matrices import Group
from moga.optim.rounding import DROPPED

IMPLEMENTATIONS = ("auto", "c", "plain")

STORED = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "float64"}
NUMBERS: dict[torch.dtype, Any] = {
    torch.bool: ctypes.c_bool,
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
}
PLAIN_TYPES = (Tensor, nn.Parameter)
KEYS: dict[str, tuple[str, ...]] = {"adam": ("exp_avg", "exp_avg_sq", "step"), "mean": ("momentum_buffer",), "none": ()}


def leave(
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: States,
    group: Group,
    decay: float,
    finite: Tensor | None,
) -> Sequence[int]:
    """Take the compiled step of every tensor that has one; returns the places of the others, which have not moved.

    Nothing moves where ``finite`` is False; ``decay`` is multiplied by lr.

    Raises Unavailable as :func:`moga.optim.kernels.build.available`.
    """
    reach = None if group["implementation"] == "plain" or torch.compiler.is_compiling() else normalised(group)
    if reach is None or not all(_readable(number) for number in (group["lr"], finite)):
        return range(len(weights))
    keys = KEYS["adam" if reach == "adam" else group["average"]]
    exact = group["rounding"] == "nearest"
    taken: defaultdict[torch.dtype, list[int]] = defaultdict(list)
    left: list[int] = []
    for i, (weight, grad, state) in enumerate(zip(weights, grads, states, strict=True)):
        dtype = weight.dtype
        fits = dtype in STORED and (exact or dtype not in DROPPED) and _fits(weight, grad, state, keys, dtype)
        (taken[dtype] if fits else left).append(i)
    for dtype, members in taken.items():
        jobs = jobs_of(tuple([weights[i].shape for i in members]), group, reach)
        step = None if jobs is None else available(STORED[dtype], group["implementation"])
        if step is None:
            left += members
        elif finite is None or _read(finite):
            tensors = [[weights[i], grads[i], *[states[i][key] for key in keys]] for i in members]
            _take(step, jobs, tensors, group, decay)
    return sorted(left)


def _readable(number: Any) -> bool:
    if not isinstance(number, Tensor):
        return number is None or isinstance(number, (int, float))
    known = type(number) is Tensor and number.is_cpu and number.dtype in NUMBERS
    return known and number.numel() == 1 and not number.is_neg()


def _read(number: Any) -> float:
    """The value of a number or of a tensor of one entry, from its memory: no operation that could wait is recorded."""
    if not isinstance(number, Tensor):
        return float(number)
    return float(NUMBERS[number.dtype].from_address(number.data_ptr()).value)


def _fits(weight: Tensor, grad: Tensor, state: State, keys: Sequence[str], dtype: torch.dtype) -> bool:
    """Whether all tensors of a weight are as step.c takes them. Called for every weight at every step."""
    shape, wide = weight.shape, torch.float64 if dtype == torch.float64 else torch.float32
    if type(weight) not in PLAIN_TYPES or not (weight.is_cpu and weight.is_contiguous() and shape.numel()):
        return False
    if type(grad) is not Tensor or not (grad.is_cpu and grad.is_contiguous()):
        return False
    if grad.dtype != dtype or grad.shape != shape or grad.is_neg() or weight.is_neg():  # memory holds -x then
        return False
    for key in keys[:2]:
        average = state[key]
        if average.dtype != wide or average.shape != shape or average.is_neg():
            return False
        if not (average.is_cpu and average.is_contiguous()):
            return False
    return len(keys) < 3 or (state[keys[2]].dtype == torch.float32 and state[keys[2]].is_cpu)


def _take(step: Callable[..., int], jobs: Any, tensors: Sequence[Sequence[Tensor]], group: Group, decay: float) -> None:
    """The step of tensors (weight, gradient, averages); autograd learns that they have changed."""
    rest = [0] * (5 - len(tensors[0]))  # step.c has five places
    addresses = array("q", [address for one in tensors for address in [*[x.data_ptr() for x in one], *rest]])
    first, second = group["betas"] if group["norm"] == "adam" else (group["momentum"], lookahead(group))
    numbers = Numbers(_read(group["lr"]) * group["lr_scale"], decay, first, second, group["eps"])
    if step(addresses.buffer_info()[0], len(tensors), jobs, len(jobs), numbers, torch.get_num_threads()):
        raise MemoryError("the compiled step found no memory for its list of tasks; no weight was changed")
    torch.autograd.graph.increment_version([x for one in tensors for x in [one[0], *one[2:]]])
