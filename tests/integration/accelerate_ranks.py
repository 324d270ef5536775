"""accelerate with DDP, as torchrun starts it: equal to one process, and resumed to the same losses, for two recipes.

torchrun --nproc-per-node 2 tests/integration/accelerate_ranks.py DIRECTORY
"""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # and not where pytest looks for doctests
    faulthandler.dump_traceback_later(float(os.environ.get("MOGA_CASE_LIMIT", "200")), exit=True)
sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch
from accelerate import Accelerator, DistributedType
from integration.conftest import BATCH, STEPS, Run, reset, sequences, train_steps
from torch.nn.parallel import DistributedDataParallel

import moga

PARTS = 2  # of the batch of a process; each is one sequence


def made(recipe: str, seed: int, steps: int, **options: Any) -> tuple[Run, torch.optim.Optimizer, Any]:
    """A fresh model and what trains it; ``steps`` are those that the scheduler takes."""
    own = Run(seed)
    optimizer = moga.optimizer(own.model, recipe, lr=0.1, weight_decay=0.1, **options)
    return own, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)


def one_process(recipe: str) -> list[float]:
    """The losses of whole batches, without accelerate."""
    own, optimizer, scheduler = made(recipe, 0, STEPS)
    for batch in torch.utils.data.DataLoader(sequences(), batch_size=BATCH):
        own.model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return own.losses


def ranks(recipe: str, first: int, last: int, *, load: str = "", save: str = "", seed: int = 0, **options: Any) -> Any:
    """The losses of steps [first, last) as means over parts and processes; fresh objects, as in a new process."""
    reset()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
    assert accelerator.distributed_type == DistributedType.MULTI_CPU and accelerator.num_processes * PARTS == BATCH
    own, optimizer, scheduler = made(recipe, seed, STEPS * accelerator.num_processes, **options)  # it steps for each
    loader = torch.utils.data.DataLoader(sequences(), batch_size=1)
    prepared = accelerator.prepare(own.model, optimizer, loader, scheduler)
    assert isinstance(prepared[0], DistributedDataParallel)
    if load:
        accelerator.load_state(load)
    train_steps(accelerator, prepared, PARTS, first, last)
    if save:
        accelerator.save_state(save)
    everywhere = accelerator.reduce(torch.tensor(own.losses, dtype=torch.float64), "mean")
    return everywhere.reshape(-1, PARTS).mean(1).tolist()


def main(directory: str) -> None:
    torch.set_num_threads(1)
    for recipe, options in (("moga-row", {}), ("muon", {"distribute": "owners"})):
        path = f"{directory}/{recipe}"
        expected = one_process(recipe)
        whole = ranks(recipe, 0, STEPS, **options)
        begun = ranks(recipe, 0, STEPS // 2, save=path, **options)
        resumed = ranks(recipe, STEPS // 2, STEPS, load=path, seed=1, **options)
        assert whole == pytest.approx(expected, abs=1e-4), (recipe, whole, expected)
        assert begun + resumed == pytest.approx(whole, abs=1e-6), (recipe, begun + resumed, whole)
    print("equal", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
    # Not the usual end: a thread of gloo that still holds a tensor when Python ends aborts the process, now and then.
    os._exit(0)
