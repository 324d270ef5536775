"""What a run wants to know about a step: how large it was and how large the weights are, per group, in its own norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from moga.geometry.polar import work_dtype
from moga.optim.distributed.pieces import whole
from moga.optim.matrices import Group, blocks_of
from moga.optim.steps import unscaled_size


def copies(groups: Sequence[Group]) -> list[list[Tensor]]:
    """The weights of every group as they are now."""
    return [[weight.detach().clone() for weight in group["params"]] for group in groups]


def measure(groups: Sequence[Group], before: Sequence[Sequence[Tensor]]) -> list[dict[str, Any]]:
    """Per group the size of the weights and of their change, as tensors: nothing waits for the device.

    >>> w = torch.tensor([[1.0, -3.0]])
    >>> group = {"params": [w + 0.5], "norm": "sign", "layout": "out,in", "blocks": (), "interleave": 1, "scale": 0.5}
    >>> measure([group], [[w]])
    [{'norm': 'sign', 'update': tensor(1.), 'weight': tensor(5.)}]
    """
    rows = []
    for group, old in zip(groups, before, strict=True):
        known: dict[str, Any] = {key: group[key] for key in ("role", "norm") if key in group}
        if "param_names" in group:
            known["names"] = list(group["param_names"])
        changes = [_wide(new) - _wide(x) for new, x in zip(group["params"], old, strict=True)]
        rows.append({**known, "update": largest(changes, group), "weight": largest(group["params"], group)})
    return rows


def largest(tensors: Sequence[Tensor], group: Group) -> Tensor | float:
    """The largest size of the logical matrices of all tensors, in units in which a step of lr = 1 has size 1."""
    size, found = unscaled_size(group), []
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        for matrices, scale in blocks_of(_wide(tensor), group):
            found.append(size(matrices).max() / scale if scale else torch.zeros(()))
    return torch.stack([one.to(found[0].device, torch.float32) for one in found]).max() if found else 0.0


def plain(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with numbers instead of tensors: waits for the device."""
    return [{key: float(value) if key in ("update", "weight") else value for key, value in row.items()} for row in rows]


def _wide(tensor: Tensor) -> Tensor:
    return whole(tensor.detach()).to(work_dtype(tensor.dtype))
