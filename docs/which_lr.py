"""Train one small LLaMA with torch's AdamW and Muon and with moga's recipes at the rates that docs/recipes.md gives.

``python docs/which_lr.py`` trains everything (ten minutes on one core) and writes docs/which_lr.json, from which
``python docs/make_recipes.py`` makes the table of that page. LLaMA, because ``torch.optim.Muon`` takes a stored tensor
for one matrix (out, in), and in GPT-2 the tensors are (in, out) and hold query, key and value in one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import moga
from moga.study.data import Corpus, load_corpus, training_windows
from moga.study.models import FAMILIES, next_token_loss
from moga.study.train import validate

RESULTS = Path(__file__).with_name("which_lr.json")
WIDTH, LAYERS, HEADS, CONTEXT, BATCH, STEPS, WARMUP, SEEDS = 64, 2, 4, 64, 16, 200, 20, (0, 1)
ADAMW, MUON, R = 3e-3, 0.02, 0.2
BETAS = (0.9, 0.95)
Optimizers = Callable[[nn.Module], list[torch.optim.Optimizer]]


def adamw(lr: float) -> Optimizers:
    """torch's, on all parameters."""
    return lambda model: [torch.optim.AdamW(model.parameters(), lr=lr, betas=BETAS, weight_decay=0.0)]


def muon_and_adamw(model: nn.Module) -> list[torch.optim.Optimizer]:
    """torch's Muon on the hidden matrices and torch's AdamW on all others."""
    hidden = [one.parameter for one in moga.find_roles(model) if one.role == "hidden"]
    others = [weight for weight in model.parameters() if not any(weight is one for one in hidden)]
    return [
        torch.optim.Muon(hidden, lr=MUON, weight_decay=0.0),
        torch.optim.AdamW(others, lr=ADAMW, betas=BETAS, weight_decay=0.0),
    ]


def recipe(name: str, lr: float, keep: bool = False, **options: object) -> Optimizers:
    """A recipe of moga's at one rate; ``keep`` leaves every parameter that is on Adam at AdamW's rate."""

    def make(model: nn.Module) -> list[torch.optim.Optimizer]:
        groups = moga.param_groups(model, name, **options)
        kept = {
            parameter: {"lr_scale": ADAMW / (lr * group["scale"])}
            for group in groups
            if keep and group["norm"] == "adam"
            for parameter in group["param_names"]
        }
        return [moga.optimizer(model, name, lr=lr, overrides=kept, **options)]

    return make


def same_steps(lr: float) -> Optimizers:
    """moga-row with every parameter's step at the RMS of AdamW's, R times its rate, inputs and vectors included."""

    def make(model: nn.Module) -> list[torch.optim.Optimizer]:
        sizes = {}
        for group in moga.param_groups(model, "moga-row"):
            for parameter, weight in zip(group["param_names"], group["params"], strict=True):
                unit = 1.0 if group["norm"] == "sign" else weight.shape[-1] ** -0.5  # RMS of a row of 2-norm 1
                sizes[parameter] = {"lr_scale": ADAMW * R / (lr * group["scale"] * unit)}
        return [moga.optimizer(model, "moga-row", lr=lr, overrides=sizes)]

    return make


RUNS: dict[str, tuple[str, float, Optimizers]] = {
    "`torch.optim.AdamW`, a third of its rate": ("", ADAMW / 3, adamw(ADAMW / 3)),
    "`torch.optim.AdamW`, its rate": ("", ADAMW, adamw(ADAMW)),
    "`torch.optim.AdamW`, three times its rate": ("", 3 * ADAMW, adamw(3 * ADAMW)),
    "`adamw`": ("the same", ADAMW, recipe("adamw", ADAMW, betas=BETAS)),
    "`mup-adamw`, each parameter at its old rate": (
        "3e-3 * 64",
        ADAMW * WIDTH,
        recipe("mup-adamw", ADAMW * WIDTH, keep=True, betas=BETAS),
    ),
    "`mup-adamw`": ("3e-3 * 64", ADAMW * WIDTH, recipe("mup-adamw", ADAMW * WIDTH, betas=BETAS)),
    "`moga-row`": ("3e-3 * 0.2 * 64", ADAMW * R * WIDTH, recipe("moga-row", ADAMW * R * WIDTH)),
    "`moga-row`, each parameter at AdamW's step": ("3e-3 * 0.2 * 64", ADAMW * R * WIDTH, same_steps(ADAMW * R * WIDTH)),
    "`moga-column`": ("3e-3 * 0.2 * 64", ADAMW * R * WIDTH, recipe("moga-column", ADAMW * R * WIDTH)),
    "`torch.optim.Muon` and `torch.optim.AdamW`, their rates": ("", MUON, muon_and_adamw),
    "`muon`, `original`, the others at AdamW's rate": (
        "the same",
        MUON,
        recipe("muon", MUON, keep=True, shape="original"),
    ),
    "`muon`, `rms`, the others at AdamW's rate": ("0.02", MUON, recipe("muon", MUON, keep=True)),
    "`moga-row`, from Muon's rate": (
        "0.02 * sqrt(64)",
        MUON * math.sqrt(WIDTH),
        recipe("moga-row", MUON * math.sqrt(WIDTH)),
    ),
}


def train(optimizers: Optimizers, seed: int, corpus: Corpus, steps: int = STEPS) -> float:
    """The held-out loss in nats per byte; same weights and data for every optimizer, no weight decay."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = FAMILIES["llama"](WIDTH, LAYERS, HEADS, CONTEXT)
    made = optimizers(model)
    schedule = lambda t: min(1.0, (t + 1) / WARMUP) * (1 - t / steps)  # noqa: E731
    schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, schedule) for optimizer in made]
    for step in range(steps):
        windows = torch.from_numpy(training_windows(corpus, BATCH, CONTEXT, seed, step))
        next_token_loss(model, windows).backward()
        for optimizer in made:
            optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        model.zero_grad()
    return validate(model, corpus, CONTEXT)


def rows(losses: Mapping[str, list[float]]) -> list[dict[str, Any]]:
    """What the page shows of each run, as plain data."""
    return [
        {"optimizer": label, "lr": lr, "from": origin, "losses": losses[label]}
        for label, (origin, lr, _) in RUNS.items()
    ]


if __name__ == "__main__":
    text = load_corpus(context=CONTEXT)
    losses = {}
    for label, (_, _, optimizers) in RUNS.items():
        losses[label] = [round(train(optimizers, seed, text), 4) for seed in SEEDS]
        print(label, losses[label], flush=True)
    RESULTS.write_text(json.dumps(rows(losses), indent=1) + "\n", encoding="utf-8")
