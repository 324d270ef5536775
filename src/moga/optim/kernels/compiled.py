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
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from moga.optim.averages import State, States, lookahead
from moga.optim.kernels.build import Numbers, available
from moga.optim.kernels.jobs import jobs_of, normalised
from moga.optim.matrices import Group
from moga.optim.rounding import DROPPED

IMPLEMENTATIONS = ("auto", "c", "triton", "plain")

STORED = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "float64"}
NUMBERS: dict[torch.dtype, Any] = {
    torch.bool: ctypes.c_bool,
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
}
PLAIN_TYPES = (Tensor, nn.Parameter)
KEYS: dict[str, tuple[str, ...]] = {"adam": ("exp_avg", "exp_avg_sq", "step"), "mean": ("momentum_buffer",), "none": ()}

WIDER = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 2, torch.float64: 1}  # bytes of an average for one


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
    traced = torch.compiler.is_compiling()
    reach = normalised(group) if group["implementation"] in ("auto", "c") and not traced else None
    if reach is None or not all(_readable(number) for number in (group["lr"], finite)):
        return range(len(weights))
    keys = KEYS["adam" if reach == "adam" else group["average"]]
    averages, count = keys[:2], keys[2] if len(keys) > 2 else None
    wider = {dtype: n for dtype, n in WIDER.items() if group["rounding"] == "nearest" or dtype not in DROPPED}
    taken: defaultdict[torch.dtype, list[tuple[int, torch.Size, list[int]]]] = defaultdict(list)
    left: list[int] = []
    for i, (weight, grad, state) in enumerate(zip(weights, grads, states, strict=True)):
        dtype = weight.dtype
        fits = dtype in wider and grad.dtype == dtype
        if fits and (addresses := _addresses(weight, grad, state, averages, count, wider[dtype])):
            taken[dtype].append((i, weight.shape, addresses))
        else:
            left.append(i)
    for dtype, found in taken.items():
        members, shapes, addresses_of_all = zip(*found, strict=True)
        jobs = jobs_of(shapes, group, reach)
        library = None if jobs is None else available(STORED[dtype], group["implementation"])
        if library is None:
            left += members
        elif finite is None or _read(finite):
            _take(library.moga_step, jobs, addresses_of_all, group, decay)
            changed = [[weights[i] for i in members], *[[states[i][key] for i in members] for key in keys]]
            torch.autograd.graph.increment_version(list(chain.from_iterable(changed)))
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


def _addresses(
    weight: Tensor, grad: Tensor, state: State, averages: Sequence[str], count: str | None, wider: int
) -> list[int] | None:
    """Where the tensors of a weight are, in the places of step.c; None unless all are as it takes them.

    ``wider`` is how many bytes an average has for each byte of the weight. Called for every weight at every step: of
    many small ones this is what a step costs, and no attribute of a tensor is asked for twice.
    """
    if type(weight) not in PLAIN_TYPES or not (weight.is_cpu and weight.is_contiguous()):
        return None
    if type(grad) is not Tensor or not (grad.is_cpu and grad.is_contiguous()):
        return None
    size = weight.nbytes
    if grad.nbytes != size or not size or grad.is_neg() or weight.is_neg():  # memory holds -x then
        return None
    found = [weight.data_ptr(), grad.data_ptr(), 0, 0, 0]
    place = 2
    for key in averages:  # no -x: they are made here
        average = state[key]
        if average.nbytes != wider * size or not (average.is_cpu and average.is_contiguous()):
            return None
        found[place] = average.data_ptr()
        place += 1
    if count:
        steps = state[count]
        if steps.nbytes != 4 or not steps.is_cpu:
            return None
        found[4] = steps.data_ptr()
    return found


def _take(step: Callable[..., int], jobs: Any, addresses: Sequence[Sequence[int]], group: Group, decay: float) -> None:
    """The step of the tensors at those addresses."""
    table = array("q", chain.from_iterable(addresses))
    first, second = group["betas"] if group["norm"] == "adam" else (group["momentum"], lookahead(group))
    numbers = Numbers(_read(group["lr"]) * group["lr_scale"], decay, first, second, group["eps"])
    if step(table.buffer_info()[0], len(addresses), jobs, len(jobs), numbers, torch.get_num_threads()):
        raise MemoryError("the compiled step found no memory for its list of tasks; no weight was changed")


def look(group: Group, grads: Iterable[Tensor]) -> tuple[bool, list[Tensor]]:
    """Whether the gradients of a group that the compiled code takes hold no NaN or Inf; and the others.

    Raises Unavailable as :func:`moga.optim.kernels.build.available`.
    """
    grads = list(grads)
    traced = torch.compiler.is_compiling()
    if group["implementation"] not in ("auto", "c") or traced or normalised(group) is None:
        return True, grads
    taken: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)
    others: list[Tensor] = []
    for grad in grads:
        fits = type(grad) is Tensor and grad.is_cpu and grad.is_contiguous() and grad.dtype in STORED
        (taken[grad.dtype] if fits else others).append(grad)
    for dtype, members in taken.items():
        library = available(STORED[dtype], group["implementation"])
        if library is None:
            others += members
            continue
        table = array("q", chain.from_iterable((grad.data_ptr(), grad.numel()) for grad in members))
        if not library.moga_finite(table.buffer_info()[0], len(members), torch.get_num_threads()):
            return False, others
    return True, others
