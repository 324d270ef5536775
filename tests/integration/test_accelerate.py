"""accelerate with gradient accumulation: a run that is resumed has the same losses, and parts are the whole batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

import moga


@pytest.fixture
def train(tools, data, recipe):
    """The losses of steps [first, last) in micro-batches; every call makes fresh objects, as a new process would."""

    def run(first, last, parts, load=None, save=None, seed=0):
        tools.reset()
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
        own = tools.Run(seed)
        optimizer = moga.optimizer(own.model, recipe, lr=0.1, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 20)
        loader = torch.utils.data.DataLoader(data, batch_size=tools.BATCH // parts)
        prepared = accelerator.prepare(own.model, optimizer, loader, scheduler)
        if load:
            accelerator.load_state(load)
        tools.train_steps(accelerator, prepared, parts, first, last)
        if save:
            accelerator.save_state(save)
        return own.losses

    return run


@pytest.mark.parametrize("parts", [1, 2])
def test_a_resumed_run_has_the_same_losses(parts, train, tmp_path):
    whole = train(0, 20, parts)
    assert len(whole) == 20 * parts and sum(whole[-4 * parts :]) < 0.9 * sum(whole[: 4 * parts])
    begun = train(0, 10, parts, save=str(tmp_path))
    resumed = train(10, 20, parts, load=str(tmp_path), seed=1)
    assert begun + resumed == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("recipe", ["moga-row"])
def test_accumulated_parts_are_the_whole_batch(train):
    whole, parts = train(0, 20, 1), train(0, 20, 2)
    assert [(a + b) / 2 for a, b in zip(parts[::2], parts[1::2], strict=True)] == pytest.approx(whole, abs=1e-4)


@pytest.mark.timeout(300)
def test_two_processes_are_one(tmp_path):
    """DDP on the CPU; a process that waits for ever shows where, see the script."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *ranks, Path(__file__).with_name("accelerate_ranks.py"), tmp_path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert run.returncode == 0 and run.stdout.count("equal") == 2, run.stdout + run.stderr
