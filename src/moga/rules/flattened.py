"""Tensors that a wrapper has flattened: many weights end to end, or pieces of them, without rows and columns.

The marks are attributes that the wrappers set; no library is imported to look for them.
"""

from __future__ import annotations

from torch import Tensor

# attribute -> who sets it. FSDP1 marks its flat parameter and, with use_orig_params=True, the pieces of it that stand
# in the place of the weights; DeepSpeed marks what ZeRO stage 3 partitions (the data of which has size 0).
MARKS = {
    "_is_flat_param": "FSDP1 (FullyShardedDataParallel)",
    "_fsdp_flattened": "FSDP1 (FullyShardedDataParallel)",
    "ds_id": "DeepSpeed ZeRO",
}
WHY = (
    "A flat tensor holds weights end to end, or pieces of them: it has no rows or columns, and the size of a step is "
    "measured in those. Use FSDP2, torch.distributed.fsdp.fully_shard, which keeps every weight a matrix, or "
    "DistributedDataParallel where the model fits on one device."
)
INSTEAD = {
    "FSDP1 (FullyShardedDataParallel)": "use_orig_params=True does not help: its parameters are flat pieces too.",
    "DeepSpeed ZeRO": "ZeRO flattens in each of its stages 1, 2 and 3.",
}


def flattened_by(tensor: Tensor) -> str | None:
    """Who flattened the tensor, or None for one that nobody has marked.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.ones(6))
    >>> flattened_by(w)
    >>> w.ds_id = 0
    >>> flattened_by(w)
    'DeepSpeed ZeRO'
    """
    for mark, wrapper in MARKS.items():
        value = getattr(tensor, mark, None)
        if value is not None and value is not False:  # a ds_id may be 0
            return wrapper
    return None


def refuse_flattened(name: str | int, tensor: Tensor) -> None:
    """Raises ValueError for a tensor that a wrapper has flattened; the text says what to use instead."""
    wrapper = flattened_by(tensor)
    if wrapper is not None:
        shape = tuple(tensor.shape)
        raise ValueError(f"parameter {name!r}, shape {shape}, was flattened by {wrapper}. {WHY} {INSTEAD[wrapper]}")
