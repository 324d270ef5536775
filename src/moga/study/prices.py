"""What runs will cost, before they are made, and which of them fit into a budget of time."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from moga.study.batches import moved
from moga.study.data import Corpus
from moga.study.devices import finish
from moga.study.products import faster_products
from moga.study.settings import Run
from moga.study.tasks import make_optimizer, make_task
from moga.study.train import optimizer_options, threads

PROBE_STEPS = 3  # the first one is not counted: it allocates


@dataclass(frozen=True)
class Price:
    """Seconds and tokens of a step, and parameters of the model."""

    seconds: float
    tokens: float
    parameters: int


Prices = Mapping[tuple[str, int], Price]  # by recipe and size


@dataclass(frozen=True)
class Estimate:
    """What is ahead. flops: 6 per parameter and token. seconds: of training, with all workers. left_out: in words."""

    runs: int
    steps: int
    tokens: float
    flops: float
    seconds: float
    workers: int
    left_out: tuple[str, ...] = ()


def price_list(
    runs: Iterable[Run],
    records: Iterable[Mapping[str, Any]],
    corpus: Corpus | None,
    thread_count: int,
    device: str = "cpu",
) -> dict[tuple[str, int], Price]:
    """The price of a step for every recipe and size: of a run on record, or else measured on a few steps."""
    found = {}
    for record in records:
        config, result = record["config"], record["result"]
        if not result["diverged"]:
            steps, size = config["steps"], config[config.get("over", "width")]
            price = Price(result["seconds"] / steps, result["tokens"] / steps, result["parameters"])
            found[config["recipe"], size] = price
    with threads(thread_count):
        for run in runs:
            if (run.recipe, run.size) not in found:
                with faster_products(run):
                    found[run.recipe, run.size] = _measured(run, corpus, device)
    return found


def _measured(run: Run, corpus: Corpus | None, device: str) -> Price:
    task = make_task(run, corpus)
    task.model.to(device)
    optimizer = make_optimizer(run, task.model, **optimizer_options(run))
    task.model.train()
    start, tokens = 0.0, 0
    for step in range(PROBE_STEPS):
        if step == 1:
            finish(device)
            start = time.perf_counter()
        batch = moved(task.batch(step), device)
        tokens = task.count(batch)
        torch.autograd.backward(task.loss(task.model, batch))
        optimizer.step()
        optimizer.zero_grad()
    finish(device)
    seconds = (time.perf_counter() - start) / (PROBE_STEPS - 1)
    return Price(seconds, tokens, sum(parameter.numel() for parameter in task.model.parameters()))


def estimate(runs: Sequence[Run], prices: Prices, workers: int) -> Estimate:
    """The cost of runs by a price list.

    >>> from moga.study.settings import Settings
    >>> runs = [Run("adamw", 32, rate, 0, Settings(steps=100)) for rate in (0.1, 0.2)]
    >>> ahead = estimate(runs, {("adamw", 32): Price(0.5, 1000, 2000)}, workers=2)
    >>> ahead.steps, ahead.tokens, ahead.flops, ahead.seconds
    (200, 200000, 2400000000, 50.0)
    """
    known = [(run.settings.steps, prices[run.recipe, run.size]) for run in runs]
    workers = max(1, min(workers, len(runs)))
    return Estimate(
        len(runs),
        sum(steps for steps, _ in known),
        sum(steps * price.tokens for steps, price in known),
        sum(6 * steps * price.tokens * price.parameters for steps, price in known),
        sum(steps * price.seconds for steps, price in known) / workers,
        workers,
    )


def within_budget(
    runs: Sequence[Run], prices: Prices, budget: float, workers: int, done: Collection[str] = ()
) -> tuple[list[Run], tuple[str, ...]]:
    """The runs that fit into ``budget`` seconds, and what is left out, in words.

    Whole sizes are taken, all recipes and rates of one seed together: first the sizes of the first seed from the
    smallest, then those of the next seed. The runs for the regret are counted with them. done: keys that cost nothing.

    Raises:
        ValueError: not even the two smallest sizes fit.
    """
    sizes = sorted({run.size for run in runs})
    chosen: list[tuple[int, int]] = []
    last = sizes[-1]
    for seed in sorted({run.seed for run in runs}):
        for size in sizes:
            if size <= last and _seconds([*chosen, (seed, size)], runs, prices, done) / workers <= budget:
                chosen.append((seed, size))
        last = max((size for _, size in chosen), default=0)
    taken = {size for _, size in chosen}
    if len(taken) < min(2, len(sizes)):
        least = _seconds([(min(run.seed for run in runs), size) for size in sizes[:2]], runs, prices, done) / workers
        raise ValueError(
            f"a budget of {budget:.0f} s holds no two sizes: {runs[0].settings.over} {sizes[0]} and {sizes[1]} take "
            f"about {least:.0f} s with one seed; give more time, fewer rates or recipes, or smaller sizes"
        )
    kept = [run for run in runs if (run.seed, run.size) in chosen]
    return kept, _left_out([run for run in runs if (run.seed, run.size) not in chosen], budget)


def _seconds(chosen: Sequence[tuple[int, int]], runs: Sequence[Run], prices: Prices, done: Collection[str]) -> float:
    """Of the chosen (seed, size) on one worker, with a run for the regret of each recipe and seed at the largest."""
    largest = max(size for _, size in chosen)
    seconds = 0.0
    for run in runs:
        if (run.seed, run.size) in chosen and run.key not in done:
            seconds += run.settings.steps * prices[run.recipe, run.size].seconds
    regret = {(run.recipe, run.seed) for run in runs if run.size == largest and (run.seed, run.size) in chosen}
    return seconds + sum(runs[0].settings.steps * prices[recipe, largest].seconds for recipe, _ in regret)


def _left_out(runs: Sequence[Run], budget: float) -> tuple[str, ...]:
    seeds: dict[int, set[int]] = {}
    for run in sorted(runs, key=lambda one: one.size):
        seeds.setdefault(run.size, set()).add(run.seed)
    parts = [
        f"{runs[0].settings.over} {size} (seed{'s' * (len(found) > 1)} {', '.join(map(str, sorted(found)))})"
        for size, found in seeds.items()
    ]
    return (f"left out to stay within {budget:.0f} s: {', '.join(parts)}",) if parts else ()
