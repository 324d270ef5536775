"""A study of smoothness: every measurement of a plan that is not on disk yet, one record each."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from moga.geometry.network import block_norm
from moga.optim.build import optimizer as build_optimizer
from moga.rules.groups import param_groups
from moga.study.constants import smoothness, width_exponent
from moga.study.curvature import Loss
from moga.study.data import Corpus, load_corpus, training_windows, validation_windows
from moga.study.lock import hold_study
from moga.study.models import build_model, next_token_loss
from moga.study.records import StudyError, append_record, config_key, read_records, run_record
from moga.study.settings import counted
from moga.study.smoothness_plan import MEASURE, Point, SmoothnessPlan, SmoothnessSettings, block_recipe, parse_norm
from moga.study.sweep import environment
from moga.study.train import threads as with_threads

DIGITS = 5  # significant digits of a measured number in a record

Record = dict[str, Any]
Progress = Callable[[Record, int, int], None]  # a record that was just written, how many are done, of how many


def run_smoothness(
    plan: SmoothnessPlan,
    directory: str | Path,
    *,
    data: str | Path | None = None,
    threads: int = 1,
    command: str = "",
    progress: Progress | None = None,
) -> int:
    """Do what is missing of a plan, in this process, and return how many measurements that were.

    Each finished measurement is one line in the directory, and is never made twice. A model that was trained for
    some of its measurements before is trained again, to the same weights.

    Raises:
        StudyError: what `hold_study` and `read_records` raise; training that diverges.
        ValueError: fewer than one thread; a text that is too short (see `load_corpus`).
    """
    threads = counted("threads", threads)
    corpus = load_corpus(data, context=plan.settings.context)
    plan = replace(plan, settings=replace(plan.settings, corpus=corpus.fingerprint))
    settings = {"measure": MEASURE} | asdict(plan.settings)
    with hold_study(directory, settings, corpus.describe(), command), with_threads(threads):
        known = {record["key"] for record in read_records(directory)}
        missing = {point: _missing(plan, point, known) for point in plan.points()}
        total, done = sum(map(len, missing.values())), 0
        for point, wanted in missing.items():
            for trained, norm, result in _measured(point, wanted, plan.settings, corpus):
                record = run_record(plan.config(point, trained, norm), result, environment(threads, 1))
                append_record(directory, record)
                done += 1
                if progress is not None:
                    progress(record, done, total)
    return done


def _missing(plan: SmoothnessPlan, point: Point, known: Container[str]) -> list[tuple[int, str]]:
    pairs = itertools.product(plan.trained, plan.norms)
    return [pair for pair in pairs if config_key(plan.config(point, *pair)) not in known]


def _measured(
    point: Point, wanted: Sequence[tuple[int, str]], settings: SmoothnessSettings, corpus: Corpus
) -> Iterator[tuple[int, str, Record]]:
    """(step of training, norm, result) of one model, in the order of training."""
    if not wanted:
        return
    model: Any = build_model(
        settings.family,
        point.width,
        layers=point.layers,
        head_size=settings.head_size,
        context=settings.context,
        seed=point.seed,
        recipe=settings.recipe,
    )
    model.set_attn_implementation("eager")  # fused attention has no second derivative
    optimizer = build_optimizer(model, settings.recipe, settings.lr, nonfinite="propagate")
    last = max(trained for trained, _ in wanted)
    for step in range(last + 1):
        for trained, norm in wanted:
            if trained == step:
                yield trained, norm, measure(model, norm, settings, corpus)
        if step < last:
            windows = training_windows(corpus, settings.batch, settings.context, point.seed, step)
            loss = next_token_loss(model, torch.from_numpy(windows))
            if not math.isfinite(loss.item()):
                raise StudyError(
                    f"training at width {point.width} diverged by step {step} with lr {settings.lr:g}: nothing can be "
                    "measured after it; use a smaller learning rate or fewer steps"
                )
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


def measure(model: nn.Module, norm: str, settings: SmoothnessSettings, corpus: Corpus) -> Record:
    """The "result" of a record: the constants of a model's loss on held-out text in the block norm of ``norm``.

    lipschitz, smoothness (from below), of the whole (with loss, start, settled, starts, agreeing, products) and of
    every layer (with its role); exponent: the theory's power of the width for smoothness; parameters; seconds.
    """
    start = time.perf_counter()
    windows = torch.from_numpy(validation_windows(corpus, settings.context, settings.windows * settings.context))
    rule = parse_norm(norm)
    groups = param_groups(model, block_recipe(rule))
    tensors = {
        name: tensor for group in groups for name, tensor in zip(group["param_names"], group["params"], strict=True)
    }
    found = smoothness(_loss(model, windows), tensors, block_norm(groups), random=settings.random, steps=settings.steps)
    roles = {name: group["role"] for group in groups for name in group["param_names"]}
    layers = {
        name: {
            "role": roles[name],
            "lipschitz": _rounded(found.layer_lipschitz[name]),
            "smoothness": _rounded(estimate.value),
            "settled": estimate.settled,
        }
        for name, estimate in found.layer_smoothness.items()
    }
    whole = asdict(found.smoothness)
    return {
        "loss": _rounded(found.loss),
        "lipschitz": _rounded(found.lipschitz),
        "smoothness": _rounded(whole.pop("value")),
        **whole,
        "exponent": width_exponent(rule.p, rule.q),
        "layers": layers,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "seconds": _rounded(time.perf_counter() - start),
    }


def _loss(model: nn.Module, windows: Tensor) -> Loss:
    """The model's loss as a function of its parameters."""

    def loss(values: dict[str, Tensor]) -> Tensor:
        called: Any = lambda **inputs: functional_call(model, values, (), inputs)  # noqa: E731
        return next_token_loss(called, windows)

    return loss


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
