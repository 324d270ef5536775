"""Checkpoints of a long run on many ranks: the last complete one of a directory, and the words of its run.

A checkpoint is a directory called ``step-`` and seven digits; whatever else lies there is the user's own. It is written
as ``unfinished`` and renamed when every rank has written its part, so one that has a name is complete. The last two are
kept.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

NAME = "step-" + 7 * "[0-9]"
WORDS = "words.json"  # in a checkpoint, beside its tensors
KEPT = 2


def complete(directory: Path) -> list[Path]:
    """The checkpoints of a directory, the last one at the end.

    >>> complete(Path("no-such-directory"))
    []
    """
    return sorted(path for path in directory.glob(NAME) if path.is_dir())


def last(directory: Path, words: Mapping[str, Any], free: Collection[str]) -> tuple[Path | None, str]:
    """The last complete checkpoint, None in a new directory, and a text that says so; the same on every rank.

    The text names the words that are others than those of the checkpoint.

    Args:
        words: settings of the run that wants to go on, plain data.
        free: names of those that may be others.

    Raises NotADirectoryError for a file, and ValueError where other words differ: such a run would be neither the old
    one nor the new one.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"{directory} is a file, and checkpoints want a directory; name another one")
    found = [[(path, json.loads((path / WORDS).read_text())) for path in complete(directory)[-1:]]]
    dist.broadcast_object_list(found)  # what the first rank sees counts
    for path, saved in found[0]:
        pairs = {name: (words.get(name), saved.get(name)) for name in sorted(words.keys() | saved.keys())}
        differ = {name: f"{name} is {new}, and was {old}" for name, (new, old) in pairs.items() if new != old}
        if refused := [text for name, text in differ.items() if name not in free]:
            raise ValueError(f"{path} is of another run: {'; '.join(refused)}. Give what was, or another directory")
        return path, "; ".join([f"going on from {path}", *differ.values()])
    return None, f"from the beginning: no checkpoint in {directory}"


def save(
    directory: Path,
    step: int,
    words: Mapping[str, Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    **others: Any,
) -> None:
    """Write the checkpoint of a step, from all ranks.

    Args:
        words: settings of the run, plain data.
        others: what else has ``state_dict`` and ``load_state_dict``, or is plain data or tensors.
    """
    unfinished = directory / "unfinished"
    # Returns when every rank has written its part.
    state_dict_saver.save(_state(model, optimizer) | others, checkpoint_id=unfinished)
    if dist.get_rank() == 0:
        (unfinished / WORDS).write_text(json.dumps(dict(words)))
        unfinished.rename(directory / f"step-{step:07}")
        for old in complete(directory)[:-KEPT]:
            shutil.rmtree(old)


def load(checkpoint: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **others: Any) -> None:
    """Put what :func:`save` wrote, on any number of ranks, into objects of the same form."""
    state = _state(model, optimizer)
    state_dict_loader.load(state | others, checkpoint_id=checkpoint)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, averages = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": averages}
