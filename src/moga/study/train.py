"""One training run: a `Run` in, the "result" of its record out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from moga.rules.recipes import resolve_recipe, usable
from moga.study.batches import moved
from moga.study.data import Corpus
from moga.study.factories import is_path
from moga.study.models import next_token_loss
from moga.study.products import faster_products
from moga.study.settings import Run, Settings
from moga.study.tasks import Task, make_optimizer, make_task, text_held_out

Progress = Callable[[int, float], None]

# A run has diverged when a loss is not finite, or stays a margin above the initial loss for so many steps in a row.
DIVERGED_STEPS = 10
CURVE_POINTS = 50


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


def train(run: Run, corpus: Corpus | None, progress: Progress | None = None, device: str = "cpu") -> dict[str, Any]:
    """Train and validate; equal runs give equal results, bit for bit, on one machine with one number of threads.

    Returns the "result" of the run's record: loss (held-out, nats per token or what one's own loss is; None if
    diverged), diverged, curve (at most 50 pairs: step, mean training loss since the pair before), seconds (of
    training), tokens (trained on; of one's own data see `count_of`), tokens_per_second, parameters.
    """
    task = make_task(run, corpus)
    task.model.to(device)
    accelerator = Accelerator(cpu=True, mixed_precision="no")
    parameters = sum(parameter.numel() for parameter in task.model.parameters())
    with faster_products(run):
        start = time.perf_counter()
        model, losses, tokens = _optimize(run, task, accelerator, progress or (lambda step, loss: None), device)
        seconds = time.perf_counter() - start
        diverged = has_diverged(losses, run.settings.margin)
        loss = math.nan if diverged else mean_loss(model, task)
    diverged = diverged or has_diverged([losses[0], loss])
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
    run: Run, task: Task, accelerator: Accelerator, progress: Progress, device: str
) -> tuple[nn.Module, list[float], int]:
    """The loop; returns the prepared model, the training loss of every step up to the last or to divergence, tokens."""
    settings = run.settings
    # A gradient that is not finite reaches the weights and so the loss: a skipped step would hide the divergence.
    optimizer = make_optimizer(run, task.model, nonfinite="propagate", **optimizer_options(run))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(settings))
    model, optimizer, scheduler = accelerator.prepare(
        task.model, optimizer, scheduler, device_placement=[False, False, False]
    )
    model.train()
    losses: list[float] = []
    tokens = 0
    for step in range(settings.steps):
        batch = moved(task.batch(step), device)
        loss = task.loss(model, batch)
        losses.append(loss.item())
        if step == 0 and not math.isfinite(losses[0]):
            raise ValueError(
                f"the loss of {settings.family} at {settings.over} {run.size} is {losses[0]} before the first step, so "
                "no learning rate is to blame: look at the model, its start and the first batch"
            )
        tokens += task.count(batch)
        progress(step + 1, losses[-1])
        if has_diverged(losses, settings.margin):
            break
        accelerator.backward(loss)
        if settings.clip is not None:
            accelerator.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
    return model, losses, tokens


def optimizer_options(run: Run) -> dict[str, Any]:
    """Those of the settings' hyper-parameters that some update of the recipe uses (others would be refused).

    >>> sorted(optimizer_options(Run("adamw", 32, 0.001, 0, Settings())))
    ['betas', 'weight_decay']
    """
    if is_path(run.recipe):
        return {}
    used = {word for update in resolve_recipe(run.recipe).values() for word in usable(update)}
    options = {name: getattr(run.settings, name) for name in ("weight_decay", "momentum", "betas") if name in used}
    return {name: value for name, value in options.items() if value is not None}


def has_diverged(losses: list[float], margin: float = 1.0) -> bool:
    """The last loss is not finite, or the last losses all lie more than a margin above the first.

    >>> has_diverged([5.5, 7.0]), has_diverged([5.5] + [7.0] * DIVERGED_STEPS), has_diverged([5.5, math.nan])
    (False, True, True)
    """
    if not math.isfinite(losses[-1]):
        return True
    return len(losses) > DIVERGED_STEPS and min(losses[-DIVERGED_STEPS:]) > losses[0] + margin


def curve(losses: list[float]) -> list[list[float]]:
    """At most 50 pairs [step, mean loss of the steps since the pair before]; losses that are not finite are left out.

    >>> curve([4.0, 3.0]), len(curve([1.0] * 101))
    ([[1, 4.0], [2, 3.0]], 34)
    """
    finite = losses if math.isfinite(losses[-1]) else losses[:-1]
    stride = -(-len(finite) // CURVE_POINTS) or 1
    chunks = [(first, finite[first : first + stride]) for first in range(0, len(finite), stride)]
    return [[first + len(chunk), sum(chunk) / len(chunk)] for first, chunk in chunks]


def validate(model: nn.Module, corpus: Corpus, context: int) -> float:
    """Mean loss over the held-out windows, in nats per token."""
    return _mean(model, next_token_loss, text_held_out(corpus, context))


def mean_loss(model: nn.Module, task: Task) -> float:
    """Mean loss over a task's held-out batches, in their weights."""
    return _mean(model, task.loss, task.held_out())


@torch.no_grad()
def _mean(
    model: nn.Module, loss: Callable[[nn.Module, Any], torch.Tensor], batches: Iterable[tuple[Any, int]]
) -> float:
    device = str(next(model.parameters()).device)
    model.eval()
    total, weights = 0.0, 0
    for batch, weight in batches:
        total += loss(model, moved(batch, device)).item() * weight
        weights += weight
    return total / weights


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch computes with `count` threads inside, and with as many as before outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
