"""A tiny GPT-2, 80 sequences and a list of losses: what every trainer is tried on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import moga

STEPS, BATCH = 20, 4


@dataclass
class Run:
    """A fresh model, as in a new process, whose every forward pass in training adds its loss to ``losses``."""

    seed: int = 0
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = GPT2Config(
            vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2, tie_word_embeddings=False,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            self.model = GPT2LMHeadModel(config)
            moga.initialize_(self.model, "moga-row")
        self.model.register_forward_hook(lambda module, args, output: self.losses.append(output.loss.item()))


def train_steps(accelerator: Accelerator, prepared: Sequence[Any], parts: int, first: int, last: int) -> None:
    """Steps [first, last), each of so many batches, of what ``accelerator.prepare`` returned."""
    model, optimizer, loader, scheduler = prepared
    for i, batch in enumerate(skip_first_batches(loader, first * parts), first * parts):
        if i == last * parts:
            break
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def sequences() -> list[dict[str, Tensor]]:
    """20 batches of 4 sequences; every token follows from the one before it, so there is something to learn."""
    starts = torch.arange(STEPS * BATCH).unsqueeze(1)
    tokens = (starts * 7 + 5 * torch.arange(8)) % 32
    return [{"input_ids": row, "labels": row} for row in tokens]


@pytest.fixture
def data() -> list[dict[str, Tensor]]:
    return sequences()


@pytest.fixture(params=["moga-row", "muon"])
def recipe(request: pytest.FixtureRequest) -> str:
    """One recipe with one average per weight, one that mixes momentum and Adam."""
    return request.param


@pytest.fixture
def tools() -> Any:
    """What tests need besides: conftest cannot be imported under importlib's mode."""
    return sys.modules[__name__]


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Any:
    """Accelerate keeps settings in singletons, and a new process has none of them."""
    reset()
    yield
    reset()


def reset() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
