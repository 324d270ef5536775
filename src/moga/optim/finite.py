"""Whether all gradients of a step are finite, asked before any weight moves and answered alike on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moga.geometry.polar import work_dtype
from moga.optim.checks import named
from moga.optim.distributed.exchange import group_of
from moga.optim.distributed.pieces import is_sharded
from moga.optim.kernels.compiled import look
from moga.optim.matrices import Group

NONFINITE = ("skip", "raise", "propagate")


def all_finite(
    groups: Sequence[Group], grads: Sequence[Sequence[Tensor | None]], nonfinite: str, places: Mapping[Tensor, Any]
) -> Tensor | None:
    """A boolean tensor without dimensions, or None for "propagate", and where there is no gradient.

    ``grads`` are the gradients of every group, in the order of its parameters; of sharded parameters, which have
    ``places``, the shards, and other ranks are asked too.

    Raises FloatingPointError for "raise" if one is not finite, RuntimeError for sparse gradients.

    >>> group = {"params": [torch.zeros(2)], "implementation": "plain"}
    >>> all_finite([group], [[torch.tensor([1.0, torch.inf])]], "skip", {})
    tensor(False)
    """
    for group, some in zip(groups, grads, strict=True):
        if any(grad is not None and grad.is_sparse for grad in some):
            sparse = [name for name, _, grad in _found(group, some) if grad.is_sparse]
            raise RuntimeError(f"parameter {sparse[0]!r} has a sparse gradient; use sparse=False in its nn.Embedding")
    if nonfinite == "propagate":
        return None
    device = next((grad.device for some in grads for grad in some if grad is not None), None)
    if device is None and not places:
        return None
    ok = _everywhere(_here(groups, grads, device or next(iter(places)).device), places)
    if nonfinite == "raise" and not ok:
        pairs = [pair for some in zip(groups, grads, strict=True) for pair in _found(*some)]
        bad = [str(name) for name, weight, grad in pairs if not torch.isfinite(_as_used(grad, weight)).all()]
        whose = f"the gradient of {', '.join(bad)}" if bad else "a gradient on another rank"
        raise FloatingPointError(
            f"{whose} holds NaN or Inf; no weight was changed. Look for the cause in the loss, or drop such steps with "
            'nonfinite="skip"'
        )
    return ok


def _found(group: Group, grads: Sequence[Tensor | None]) -> Iterator[tuple[str | int, Tensor, Tensor]]:
    """Name, parameter and gradient of the parameters that have one."""
    for (name, weight), grad in zip(named(group), grads, strict=True):
        if grad is not None:
            yield name, weight, grad


def _as_used(grad: Tensor, weight: Tensor) -> Tensor:
    """A float64 gradient beside a narrower weight is finite if it is so in the arithmetic of the step."""
    return grad.to(work_dtype(weight.dtype)) if grad.dtype == torch.float64 != weight.dtype else grad


def _here(groups: Sequence[Group], grads: Sequence[Sequence[Tensor | None]], device: torch.device) -> Tensor:
    """Whether all gradients that this rank has are finite, as a tensor on that device."""
    finite = True
    others: list[Tensor] = []
    for group, some in zip(groups, grads, strict=True):
        ok, rest = look(group, (_as_used(grad, weight) for _, weight, grad in _found(group, some)))
        finite, others = finite and ok, others + rest
    peaks = [peak.to(device, non_blocking=True) for peak in _extremes(others)] if finite else []
    return torch.isfinite(torch.stack(peaks)).all() if peaks else torch.full((), finite, device=device)


def _everywhere(ok: Tensor, places: Mapping[Tensor, Any]) -> Tensor:
    """Whether ``ok`` holds on every rank that holds a shard of the same parameters: one number in one all-reduce.

    One for each set of ranks, where parameters lie on several meshes. Ranks that hold whole parameters see the same
    gradients and need not ask.
    """
    for ranks in dict.fromkeys(place.grid.ranks for place in places.values() if is_sharded(place.weight)):
        if len(ranks) > 1:
            bad = (~ok).float()
            dist.all_reduce(bad, dist.ReduceOp.MAX, group_of(ranks))
            ok = bad == 0
    return ok


def _extremes(grads: Iterable[Tensor]) -> list[Tensor]:
    """Numbers that are all finite exactly where the tensors are: extreme entries, never sums, which could overflow."""
    full = [grad for grad in grads if grad.numel()]
    if all(grad.is_cpu for grad in full):  # one pass; torch's norm of many tensors is 15 times slower here
        return [extreme for grad in full for extreme in torch.aminmax(grad)]
    return list(torch._foreach_norm(full, ord=math.inf)) if full else []
