"""Whether all gradients of a step are finite, asked before any weight moves and answered alike on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moga.geometry.polar import work_dtype
from moga.optim.checks import named
from moga.optim.distributed.exchange import group_of
from moga.optim.distributed.pieces import is_sharded
from moga.optim.matrices import Group

NONFINITE = ("skip", "raise", "propagate")


def all_finite(
    groups: Sequence[Group], grads: Mapping[Tensor, Tensor], nonfinite: str, places: Mapping[Tensor, Any]
) -> Tensor | None:
    """A boolean tensor without dimensions, or None for "propagate", and where there is no gradient.

    ``grads`` are the gradients by parameter; of sharded parameters, which have ``places``, the shards, and other ranks
    are asked too.

    Raises FloatingPointError for "raise" if one is not finite, RuntimeError for sparse gradients.

    >>> w = torch.zeros(2)
    >>> all_finite([{"params": [w]}], {w: torch.tensor([1.0, torch.inf])}, "skip", {})
    tensor(False)
    """
    found = [
        (name, _as_used(grads[weight], weight)) for group in groups for name, weight in named(group) if weight in grads
    ]
    for name, grad in found:
        if grad.is_sparse:
            raise RuntimeError(f"parameter {name!r} has a sparse gradient; use sparse=False in its nn.Embedding")
    if nonfinite == "propagate" or not (found or places):
        return None
    device = found[0][1].device if found else next(iter(places)).device
    peaks = [peak.to(device, non_blocking=True) for peak in _extremes(grad for _, grad in found)]
    finite = torch.isfinite(torch.stack(peaks)) if peaks else torch.ones(1, dtype=torch.bool, device=device)
    ok: Tensor = _everywhere(finite.all(), places)
    if nonfinite == "raise" and not ok:
        bad = [str(name) for name, grad in found if not torch.isfinite(grad).all()]
        whose = f"the gradient of {', '.join(bad)}" if bad else "a gradient on another rank"
        raise FloatingPointError(
            f"{whose} holds NaN or Inf; no weight was changed. Look for the cause in the loss, or drop such steps with "
            'nonfinite="skip"'
        )
    return ok


def _as_used(grad: Tensor, weight: Tensor) -> Tensor:
    """A float64 gradient beside a narrower weight is finite if it is so in the arithmetic of the step."""
    wide = work_dtype(weight.dtype)
    return grad.to(wide) if grad.dtype == torch.float64 != wide else grad


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
