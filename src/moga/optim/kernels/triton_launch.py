"""The tensors of a group that Triton's kernels take, and their launches.

As the compiled step (:mod:`moga.optim.kernels.compiled`) on a GPU: ``row`` with p = 2, ``column`` with q = 2, ``sign``
and ``adam`` with fixed steps and decay, contiguous weights and gradients of float32, bfloat16 or float16 rounded to the
nearest, float32 averages. All others take the step of tensor operations.

No step waits for the device. The flag of finite gradients, a tensor as learning rate and the counts of steps are read
there by every program, and no number of a launch but a learning rate that is no tensor changes between steps: so a
step can be captured in a CUDA graph, after one step that was not. torch.compile traces the tensor operations instead,
and makes kernels of its own from them.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from moga.geometry.polar import POLAR_DTYPES
from moga.optim.averages import State, States, lookahead
from moga.optim.kernels.compiled import KEYS, PLAIN_TYPES
from moga.optim.kernels.jobs import ADAM, COLUMNS, ROWS, SIGN, jobs_of, normalised
from moga.optim.kernels.triton_available import available
from moga.optim.kernels.triton_tables import DOWN, Launch, address_table, launches
from moga.optim.matrices import Group
from moga.optim.rounding import DROPPED

STORED = {torch.float32: "float32", torch.bfloat16: "uint16", torch.float16: "float16"}  # as triton_step.py has them
WARPS = 8


def leave_to_triton(
    left: Sequence[int],
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: States,
    group: Group,
    decay: float,
    finite: Tensor | None,
) -> Sequence[int]:
    """Take the step of every tensor of ``left`` that has a kernel; returns the places of the others.

    Nothing moves where ``finite`` is False; ``decay`` is multiplied by lr.

    Raises Unavailable as :func:`moga.optim.kernels.triton_available.available`.
    """
    if group["implementation"] not in ("auto", "triton") or torch.compiler.is_compiling():
        return left
    reach = normalised(group)
    if reach is None:
        return left
    keys = KEYS["adam" if reach == "adam" else group["average"]]
    exact = group["rounding"] == "nearest"
    taken: defaultdict[Any, list[int]] = defaultdict(list)
    others: list[int] = []
    for i in left:
        weight = weights[i]
        fits = (exact or weight.dtype not in DROPPED) and _fits(weight, grads[i], states[i], keys)
        (taken[weight.dtype, weight.device] if fits else others).append(i)
    for (_, device), members in taken.items():
        jobs = jobs_of(tuple([weights[i].shape for i in members]), group, reach)
        if jobs is None or not available(device, group["implementation"]):
            others += members
            continue
        tensors = [[weights[i], grads[i], *[states[i][key] for key in keys]] for i in members]
        take(tensors, bytes(jobs), group, decay, None if finite is None else finite.to(device, non_blocking=True))
    return sorted(others)


def product_for(L: Tensor, group: Group) -> Callable[..., Tensor] | None:
    """The kernel for the symmetric products of polar factors of matrices, where it is to be used, else None.

    "auto" leaves products in float32 to torch: without tensor cores, half of the work need not be less time.
    """
    word, dtype = group.get("implementation"), POLAR_DTYPES[group.get("polar_dtype", "float32")] or L.dtype
    if word not in ("auto", "triton") or torch.compiler.is_compiling():
        return None
    if dtype not in (torch.bfloat16, *([torch.float32] if word == "triton" else [])) or not available(L.device, word):
        return None
    from moga.optim.kernels.triton_product import symmetric_product

    return symmetric_product


def _fits(weight: Tensor, grad: Tensor, state: State, keys: Sequence[str]) -> bool:
    """Whether all tensors of a weight are as the kernels read them. Called for every weight at every step."""
    shape, dtype, device = weight.shape, weight.dtype, weight.device
    if type(weight) not in PLAIN_TYPES or dtype not in STORED or not weight.is_contiguous() or not weight.numel():
        return False
    if type(grad) is not Tensor or grad.dtype != dtype or grad.device != device or grad.shape != shape:
        return False
    if not grad.is_contiguous() or grad.is_neg() or weight.is_neg():
        return False
    for key in keys[:2]:
        average = state[key]
        if average.dtype != torch.float32 or average.device != device or average.shape != shape:
            return False
        if not average.is_contiguous() or average.is_neg():
            return False
    return True


def take(tensors: Sequence[Sequence[Tensor]], jobs: bytes, group: Group, decay: float, finite: Tensor | None) -> None:
    """The step of tensors (weight, gradient, averages, step count), all of one dtype on one device."""
    weight = tensors[0][0]
    rest = [0] * (5 - len(tensors[0]))
    numbers = array("q", [address for one in tensors for address in [*[x.data_ptr() for x in one], *rest]])
    if group["norm"] == "adam":
        counts = [one[4] for one in tensors]
        torch._foreach_add_(counts, 1.0 if finite is None else [finite.float()] * len(counts))
    on = torch.cuda.device(weight.device) if weight.is_cuda else contextlib.nullcontext()
    with on:
        addresses, aligned = address_table(numbers.tobytes(), weight.device)
        words = _words(group, decay, finite, weight, len(tensors[0]) > 2)
        for launch in launches(jobs, weight.device):
            _run(launch, addresses, words, aligned)
    torch.autograd.graph.increment_version([x for one in tensors for x in [one[0], *one[2:]]])


def _words(group: Group, decay: float, finite: Tensor | None, weight: Tensor, kept: bool) -> dict[str, Any]:
    """What all launches of a group are told; each kernel takes its own part of it."""
    import triton.language as tl

    lr = group["lr"]
    if isinstance(lr, Tensor):
        lr = lr.item() if lr.is_cpu and not weight.is_cpu else lr.to(weight.device, non_blocking=True)
    b1, second = group["betas"] if group["norm"] == "adam" else (group["momentum"], lookahead(group))
    t1, t2 = 1 - b1, 1 - second if group["norm"] == "adam" else second
    return {
        "finite": finite,
        "lr": lr if isinstance(lr, Tensor) else float(lr),
        "lr_scale": float(group["lr_scale"]),
        "decay": decay,
        "t1": min(t1, 1 - t1),
        "t2": min(t2, 1 - t2),
        "LR_ON_DEVICE": isinstance(lr, Tensor),
        "FAR1": t1 >= 0.5,
        "FAR2": t2 >= 0.5,
        "KEPT": kept,
        "STORED": getattr(tl, STORED[weight.dtype]),
        "log1": math.log(b1) if b1 else -math.inf,
        "log2": math.log(second) if second else -math.inf,
        "eps": float(group["eps"]),
        "num_warps": WARPS,
    }


def _run(launch: Launch, addresses: Tensor, words: dict[str, Any], aligned: bool) -> None:
    from moga.optim.kernels import triton_step as step

    kernels = {SIGN: [step.sign_step], ROWS: [step.row_step], ADAM: [step.adam_step]}
    kernels[COLUMNS] = [step.column_sums, step.column_step]
    words = {
        **words,
        "tasks": launch.tasks,
        "jobs": launch.jobs,
        "addresses": addresses,
        "ALIGNED": aligned and launch.aligned,
        "R": launch.shape[0],
        "C": launch.shape[1],
        "ONCE": launch.once,
        "DOWN": DOWN,
    }
    if launch.room:
        words["sums"] = torch.empty(launch.room, dtype=torch.float64, device=addresses.device)
    for kernel in kernels[launch.kind]:
        own = {name: words[name] for name in (*kernel.arg_names, "num_warps")}
        kernel[(len(launch.tasks),)](**own)
