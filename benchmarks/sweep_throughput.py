"""Runs per hour of `moga transfer` beside a plain loop over the same runs, side by side: `--help` lists the choices.

A round is one study of the quick preset (its widths, steps and recipes, two rates of each, three seeds: as many runs
as the preset has), made by `run_sweep` with its workers of one thread, start of the processes included, and then run by
run by the loop below, with all threads. Rounds differ in their seeds; a ratio is taken within a round, and the losses
of the same run are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import convert_outputs_to_fp32
from step_time import machine
from torch import nn
from torch.optim import Optimizer
from transformers.activations import ACT2FN

import moga
from moga.study.data import Corpus, load_corpus, training_windows
from moga.study.models import build_model, next_token_loss
from moga.study.presets import preset
from moga.study.products import faster_products
from moga.study.records import read_records
from moga.study.settings import Plan, Run
from moga.study.sweep import cpus, run_sweep
from moga.study.train import optimizer_options, schedule, threads, validate

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
EQUAL = 1e-3  # nats between two losses that are called the same
# What `--where` tells apart, by torch's own names.
KINDS = {
    "matrix products": ("mm", "addmm", "bmm"),
    "attention": (ATTENTION, f"{ATTENTION}_backward"),
    "gelu": ("gelu", "gelu_backward"),
    "layer norms": ("native_layer_norm", "native_layer_norm_backward"),
    "cross entropy": ("_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward"),
}


def made(run: Run) -> tuple[nn.Module, Optimizer]:
    """A fresh model of a run and its optimizer."""
    settings = run.settings
    shape = {"layers": settings.layers, "head_size": settings.head_size, "context": settings.context}
    model = build_model(settings.family, run.size, seed=run.seed, recipe=run.recipe, **shape)
    return model, moga.optimizer(model, run.recipe, lr=run.lr, nonfinite="propagate", **optimizer_options(run))


def as_transformers_makes_it(model: nn.Module) -> nn.Module:
    """With the gelu that a GPT-2 has by default, which is composed of eight operations."""
    for module in model.modules():
        if hasattr(module, "act"):
            module.act = ACT2FN["gelu_new"]
    return model


def autocast(model: nn.Module) -> nn.Module:
    """Products in bfloat16, as `accelerate` has them with `mixed_precision="bf16"`."""
    model.forward = convert_outputs_to_fp32(torch.autocast("cpu", torch.bfloat16)(model.forward))
    return model


def nudged(model: nn.Module) -> nn.Module:
    """With weights that begin one part in 2^23 larger: how far rounding alone carries a loss."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 2**-23)
    return model


# What the loop trains: the study's model, or what becomes of it.
MODELS: dict[str, Callable[[nn.Module], Any]] = {
    "same": lambda model: model,
    "gelu_new": as_transformers_makes_it,
    "autocast": autocast,
    "compile": torch.compile,
    "nudged": nudged,
}


def plain(run: Run, corpus: Corpus, word: str = "same") -> float:
    """The held-out loss of a run, made by nothing but a loop; ``word`` is one of :data:`MODELS`."""
    settings = run.settings
    model, optimizer = made(run)
    model = MODELS[word](model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(settings))
    for step in range(settings.steps):
        windows = training_windows(corpus, settings.batch, settings.context, run.seed, step)
        next_token_loss(model, torch.from_numpy(windows)).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return validate(model, corpus, settings.context)


def plan_of(seeds: tuple[int, ...], widths: tuple[int, ...], steps: int, first: int) -> Plan:
    """The quick preset at two rates of each recipe: of two no optimum is fitted, so a study makes no further runs.

    first: which of the preset's rates, from 0. From the optimum on, a run amplifies rounding, which the number of
    threads and the library of the products change: the loop does not even repeat its own losses with another number.
    """
    quick = preset("quick")
    rates = {recipe: every[first : first + 2] for recipe, every in quick.rates.items()}
    settings = replace(quick.settings, steps=steps, warmup=min(quick.settings.warmup, steps - 1))
    return replace(quick, rates=rates, sizes=widths, seeds=seeds, settings=settings)


def round_of(plan: Plan, corpus: Corpus, workers: int, loop_threads: int, word: str = "same") -> dict[str, Any]:
    """Both sides on one plan: its number of runs, seconds of each, the largest difference of a run's losses and in how
    many runs it is more than :data:`EQUAL`."""
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        run_sweep(plan, place, workers=workers)
        study = time.perf_counter() - start
        found = {record["key"]: record["result"]["loss"] for record in read_records(place)}
    settings = replace(plan.settings, corpus=corpus.fingerprint)
    runs = replace(plan, settings=settings).runs()
    with threads(loop_threads):
        start = time.perf_counter()
        losses = {run.key: plain(run, corpus, word) for run in runs}
        loop = time.perf_counter() - start
    apart = [abs(losses[key] - found[key]) for key in losses]
    other = sum(one > EQUAL for one in apart)
    return {"runs": len(runs), "study": study, "loop": loop, "apart": max(apart), "other": other}


def where(width: int, corpus: Corpus, tries: int = 20) -> dict[str, float]:
    """Milliseconds by kind of work of one step of moga-row on one thread: of each kind the least of so many."""
    settings = replace(preset("quick").settings, corpus=corpus.fingerprint)
    run = Run("moga-row", width, 2**-5, 0, settings)
    model, optimizer = made(run)
    found = []
    with threads(1):
        for step in range(tries):
            windows = torch.from_numpy(training_windows(corpus, settings.batch, settings.context, run.seed, step))
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                next_token_loss(model, windows).backward()
            own = {event.key: event.self_cpu_time_total / 1e3 for event in profiler.key_averages()}
            kinds = {kind: sum(own.get(f"aten::{name}", 0.0) for name in names) for kind, names in KINDS.items()}
            kinds["all else"] = sum(own.values()) - sum(kinds.values())
            found.append(kinds | {"optimizer": _milliseconds(optimizer.step)})
            optimizer.zero_grad()
    least = {kind: min(kinds[kind] for kinds in found) for kind in found[0]}
    return least | {"sum": sum(least.values())}


def _milliseconds(step: Callable[[], Any]) -> float:
    """Processor time of the second of two calls: the first one after a profile can take 40 times as long."""
    step()
    start = time.thread_time()
    step()
    return 1e3 * (time.thread_time() - start)


def where_table(found: dict[int, dict[str, float]]) -> str:
    """Markdown: a row per kind of work, a column per width."""
    lines = ["| ms of one step at width | " + " | ".join(map(str, found)) + " |", "| --- " * (1 + len(found)) + "|"]
    for kind in next(iter(found.values())):
        lines.append(f"| {kind} | " + " | ".join(f"{kinds[kind]:.1f}" for kinds in found.values()) + " |")
    return "\n".join(lines)


def table(rounds: list[dict[str, Any]]) -> str:
    """Markdown: a row per round and the medians."""
    rows = [[3600 * one["runs"] / one["study"], 3600 * one["runs"] / one["loop"]] for one in rounds]
    rows = [[*row, row[0] / row[1]] for row in rows]
    rows.append([statistics.median(column) for column in zip(*rows, strict=True)])
    names = [*(str(number + 1) for number in range(len(rounds))), "median (losses: all)"]
    whole = {key: sum(one[key] for one in rounds) for key in ("runs", "other")}
    losses = [*rounds, whole | {"apart": max(one["apart"] for one in rounds)}]
    heads = ("round", "study, runs/h", "loop, runs/h", "study / loop", "losses apart", f"by more than {EQUAL:g}")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for name, (study, loop, ratio), one in zip(names, rows, losses, strict=True):
        apart = f"{one['apart']:.1e} | {one['other']} of {one['runs']}"
        lines.append(f"| {name} | {study:.0f} | {loop:.0f} | {ratio:.2f} | {apart} |")
    return "\n".join(lines)


def main(given: list[str] | None = None) -> None:
    """Measure, print the table and write the file."""
    quick = preset("quick")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--widths", type=int, nargs="+", default=quick.sizes)
    parser.add_argument("--steps", type=int, default=quick.settings.steps)
    parser.add_argument("--first", type=int, default=0, choices=range(4), help="of the two rates, from 0 upwards")
    parser.add_argument("--seeds", type=int, default=3, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=cpus(), help="of the study, one thread each; default: one a CPU")
    parser.add_argument("--threads", type=int, default=cpus(), help="of the loop; default: one a CPU")
    parser.add_argument(
        "--model", choices=MODELS, default="same", help="of the loop; gelu_new: as transformers makes it"
    )
    parser.add_argument("--where", action="store_true", help="show instead what one step on one thread spends time on")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    chosen = parser.parse_args(given)
    corpus = load_corpus(context=quick.settings.context)
    about = machine("transformers") | {"processors": cpus(), "workers": chosen.workers}
    about |= {"loop_threads": chosen.threads, "steps": chosen.steps, "model": chosen.model}
    if chosen.where:
        print("A plain step:", where_table({width: where(width, corpus) for width in chosen.widths}), sep="\n\n")
        with faster_products(Run("moga-row", chosen.widths[0], 2**-5, 0, quick.settings)) as faster:
            if faster:
                found = {width: where(width, corpus) for width in chosen.widths}
                print("\nWith products by oneDNN, as a study has them here:", where_table(found), sep="\n\n")
        return
    rounds = []
    for round_ in range(chosen.rounds):
        seeds = tuple(range(round_ * chosen.seeds, (round_ + 1) * chosen.seeds))
        plan = plan_of(seeds, tuple(chosen.widths), chosen.steps, chosen.first)
        rounds.append(round_of(plan, corpus, chosen.workers, chosen.threads, chosen.model))
    print(json.dumps(about))
    print(table(rounds))
    if chosen.json:
        chosen.json.write_text(json.dumps({"about": about, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
