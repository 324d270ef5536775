"""One training run: a `Run` in, the "result" of its record out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from moga.optim.build import optimizer as build_optimizer
from moga.rules.recipes import resolve_recipe, usable
from moga.study.data import Corpus, training_windows, validation_windows
from moga.study.models import build_model, next_token_loss
from moga.study.settings import Run, Settings

Progress = Callable[[int, float], None]

# A run has diverged when a loss is not finite, or stays this far above the initial loss for so many steps in a row.
DIVERGED_MARGIN = 1.0  # nats per token
DIVERGED_STEPS = 10
CURVE_POINTS = 50
VALIDATION_BATCH = 64  # windows


def schedule(settings: Settings) -> Callable[[int], float]:
    """The factor of the learning rate at step 0, 1, ...: linear warm-up to 1, then the decay word; 0 at `steps`.

    >>> factor = schedule(Settings(steps=10, warmup=2))
    >>> [factor(step) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """

    def factor(step: int) -> float:
        if step < settings.warmup:
            return (step + 1) / settings.warmup
        return DECAY[settings.decay]((step - settings.warmup) / (settings.steps - settings.warmup))

    return factor


# Decay word -> factor, as a function of the progress 0..1 after the warm-up.
DECAY: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "constant": lambda progress: 1.0,
}


def train(run: Run, corpus: Corpus, progress: Progress | None = None) -> dict[str, Any]:
    """Train and validate; equal runs give equal results, bit for bit, on one machine with one number of threads.

    Returns the "result" of the run's record: loss (held-out, nats per token; None if diverged), diverged, curve
    (at most 50 pairs: step, mean training loss since the pair before), seconds (of training), tokens (trained on),
    tokens_per_second, parameters.
    """
    settings = run.settings
    model = build_model(
        settings.family,
        run.width,
        layers=settings.layers,
        head_size=settings.head_size,
        context=settings.context,
        seed=run.seed,
        recipe=run.recipe,
    )
    accelerator = Accelerator(cpu=True, mixed_precision="no")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    start = time.perf_counter()
    model, losses = _optimize(run, model, corpus, accelerator, progress or (lambda step, loss: None))
    seconds = time.perf_counter() - start
    diverged = has_diverged(losses)
    loss = math.nan if diverged else validate(model, corpus, settings.context)
    diverged = diverged or has_diverged([losses[0], loss])
    tokens = len(losses) * settings.batch * settings.context
    return {
        "loss": None if diverged else loss,
        "diverged": diverged,
        "curve": curve(losses),
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "parameters": parameters,
    }


def _optimize(
    run: Run, model: nn.Module, corpus: Corpus, accelerator: Accelerator, progress: Progress
) -> tuple[nn.Module, list[float]]:
    """The loop; returns the prepared model and the training loss of every step, up to the last or to divergence."""
    settings = run.settings
    # A gradient that is not finite reaches the weights and so the loss: a skipped step would hide the divergence.
    optimizer = build_optimizer(model, run.recipe, run.lr, nonfinite="propagate", **optimizer_options(run))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(settings))
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    model.train()
    losses: list[float] = []
    for step in range(settings.steps):
        windows = training_windows(corpus, settings.batch, settings.context, run.seed, step)
        loss = next_token_loss(model, torch.from_numpy(windows).to(accelerator.device))
        losses.append(loss.item())
        progress(step + 1, losses[-1])
        if has_diverged(losses):
            break
        accelerator.backward(loss)
        if settings.clip is not None:
            accelerator.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
    return model, losses


def optimizer_options(run: Run) -> dict[str, Any]:
    """Those of the settings' hyper-parameters that some update of the recipe uses (others would be refused).

    >>> sorted(optimizer_options(Run("adamw", 32, 0.001, 0, Settings())))
    ['betas', 'weight_decay']
    """
    used = {word for update in resolve_recipe(run.recipe).values() for word in usable(update)}
    options = {name: getattr(run.settings, name) for name in ("weight_decay", "momentum", "betas") if name in used}
    return {name: value for name, value in options.items() if value is not None}


def has_diverged(losses: list[float]) -> bool:
    """The last loss is not finite, or the last losses all lie more than a margin above the first.

    >>> has_diverged([5.5, 7.0]), has_diverged([5.5] + [7.0] * DIVERGED_STEPS), has_diverged([5.5, math.nan])
    (False, True, True)
    """
    if not math.isfinite(losses[-1]):
        return True
    return len(losses) > DIVERGED_STEPS and min(losses[-DIVERGED_STEPS:]) > losses[0] + DIVERGED_MARGIN


def curve(losses: list[float]) -> list[list[float]]:
    """At most 50 pairs [step, mean loss of the steps since the pair before]; losses that are not finite are left out.

    >>> curve([4.0, 3.0]), len(curve([1.0] * 101))
    ([[1, 4.0], [2, 3.0]], 34)
    """
    finite = losses if math.isfinite(losses[-1]) else losses[:-1]
    stride = -(-len(finite) // CURVE_POINTS) or 1
    chunks = [(first, finite[first : first + stride]) for first in range(0, len(finite), stride)]
    return [[first + len(chunk), sum(chunk) / len(chunk)] for first, chunk in chunks]


@torch.no_grad()
def validate(model: nn.Module, corpus: Corpus, context: int) -> float:
    """Mean loss over the held-out windows, in nats per token."""
    device = next(model.parameters()).device
    windows = torch.from_numpy(validation_windows(corpus, context)).to(device)
    model.eval()
    total = 0.0
    for first in range(0, len(windows), VALIDATION_BATCH):
        part = windows[first : first + VALIDATION_BATCH]
        total += next_token_loss(model, part).item() * len(part)
    return total / len(windows)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch computes with `count` threads inside, and with as many as before outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
