"""How long one optimizer step takes, side by side with peers in one process: `python benchmarks/step_time.py --help`.

Contestants take turns, one step each per round, on the same weights and gradients; a ratio is the median over rounds of
the ratio within a round, so that a machine whose speed drifts changes both sides alike.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import moga

GPT2_BLOCK = [(2304, 768), (768, 768), (3072, 768), (768, 3072)]  # query, key and value; output; up; down
GPT2_VECTORS = [(768,), (768,), (2304,), (768,), (768,), (768,), (3072,), (768,)]
WORKLOADS: dict[str, list[tuple[int, ...]]] = {
    "gpt2-hidden": GPT2_BLOCK * 12,  # the 48 hidden matrices of GPT-2 small
    "gpt2": [(50257, 768), (1024, 768), *(GPT2_BLOCK + GPT2_VECTORS) * 12, (768,), (768,)],
    "small-400": [(16, 16)] * 400,  # nothing but the cost of a call
    "test": [(6, 4), (4,)],
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
RATE = 1e-6  # small: weights and gradients stay of one size over any number of steps

Step = Callable[[], Any]


def ours(norm: str, **words: Any) -> Callable[[list[nn.Parameter]], Step]:
    """A moga step: one group for matrices, one for vectors, as a recipe would make them."""

    def make(weights: list[nn.Parameter]) -> Step:
        kinds = ((2, "out,in"), (1, "vector"))
        members = [([w for w in weights if w.ndim == ndim], layout) for ndim, layout in kinds]
        groups = [
            {"params": some, "norm": norm if layout == "out,in" or norm == "adam" else "sign", "layout": layout}
            | {"scale": 1.0}
            | ({"polar": "quintic"} if norm == "spectral" and layout == "out,in" else {})
            for some, layout in members
            if some
        ]
        return moga.SteepestDescent(groups, RATE, **{"weight_decay": 0.1, "nonfinite": "propagate", **words}).step

    return make


def peer(package: str, name: str, mark: str = "", **words: Any) -> Callable[[list[nn.Parameter]], Step]:
    """The step of an optimizer of another package; ImportError where it is not installed.

    Muon gets the matrices alone; ``mark`` is the key of a group that says so to those that ask for it.
    """

    def make(weights: list[nn.Parameter]) -> Step:
        kind = getattr(importlib.import_module(package), name, None)
        if kind is None:
            raise ImportError(f"{package} has no {name}")
        members = [w for w in weights if w.ndim == 2 or "Muon" not in name]
        return kind([{"params": members, **({mark: True} if mark else {})}], lr=RATE, **words).step

    return make


CONTESTANTS: dict[str, Callable[[list[nn.Parameter]], Step]] = {
    "torch SGD fused": peer("torch.optim", "SGD", momentum=0.95, weight_decay=0.1, fused=True),
    "torch AdamW fused": peer("torch.optim", "AdamW", weight_decay=0.1, fused=True),
    "moga row": ours("row"),
    "moga column": ours("column"),
    "moga sign": ours("sign"),
    "moga adam": ours("adam"),
    "moga row, skip": ours("row", nonfinite="skip"),
    "moga column, skip": ours("column", nonfinite="skip"),
    "moga sign, skip": ours("sign", nonfinite="skip"),
    "moga adam, skip": ours("adam", nonfinite="skip"),
    "moga row, plain": ours("row", implementation="plain"),
    "moga column, plain": ours("column", implementation="plain"),
    "moga sign, plain": ours("sign", implementation="plain"),
    "moga adam, plain": ours("adam", implementation="plain"),
    "pytorch_optimizer Lion": peer("pytorch_optimizer", "Lion", weight_decay=0.1),
    "heavyball SignLaProp": peer("heavyball", "SignLaProp"),
    "torch Muon": peer("torch.optim", "Muon", weight_decay=0.1),
    "moga spectral": ours("spectral"),
    "moga spectral, bfloat16": ours("spectral", polar_dtype="bfloat16"),
    "pytorch_optimizer Muon": peer("pytorch_optimizer", "Muon", mark="use_muon"),
    "heavyball Muon": peer("heavyball", "Muon"),
}
SLOW = tuple(name for name in CONTESTANTS if "uon" in name or "spectral" in name)
FUSED = tuple(name for name in CONTESTANTS if name.endswith(("fused", "skip"))) + tuple(
    f"moga {norm}" for norm in ("row", "column", "sign", "adam")
)
PEERS = ("torch SGD fused", "moga row", "moga row, plain", "pytorch_optimizer Lion", "heavyball SignLaProp")
MUONS = ("torch Muon", "moga spectral", "moga spectral, bfloat16")
# What --suite measures, each with one thread and with two: workload, dtype, contestants, rounds.
SUITE = (
    ("gpt2-hidden", "float32", FUSED, 25),
    ("gpt2", "float32", FUSED, 15),
    ("small-400", "float32", FUSED, 200),
    ("gpt2-hidden", "bfloat16", FUSED, 25),
    ("gpt2-hidden", "float32", PEERS, 7),
    ("gpt2-hidden", "float32", MUONS, 3),
)


def tensors(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[nn.Parameter]:
    """Weights with gradients."""
    generator = torch.Generator().manual_seed(0)

    def normal(shape: tuple[int, ...], size: float) -> Tensor:
        return (torch.randn(shape, generator=generator) * size).to(dtype)

    weights = [nn.Parameter(normal(shape, 0.02)) for shape in shapes]
    for weight in weights:
        weight.grad = normal(tuple(weight.shape), 1e-3)
    return weights


def contestant(name: str, weights: list[nn.Parameter]) -> tuple[Step, Step]:
    """Its step, and what gives it its gradients back first: parameters of its own on the memory that all share.

    heavyball drops the gradients that it has used; whoever came next would have had nothing to do.
    """
    own, grads = [nn.Parameter(weight.data) for weight in weights], [weight.grad for weight in weights]

    def refill() -> None:
        for weight, grad in zip(own, grads, strict=True):
            weight.grad = grad

    refill()
    return CONTESTANTS[name](own), refill


def timed(steps: dict[str, tuple[Step, Step]], rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of every round: all take turns, after two steps that are not counted (state, a compiler)."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 2):
        for name, (step, refill) in steps.items():
            refill()
            start = clock()
            step()
            if turn >= 2:
                seconds[name].append(clock() - start)
    return seconds


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile; of one value, three times that."""
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def machine(*packages: str) -> dict[str, Any]:
    """What the figures depend on besides the code; ``packages`` are those beside torch and moga."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    found = {}
    for package in ("torch", "moga", *packages):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return {
        "processor": names[0] if names else platform.processor(),
        "processors": len(names),
        "python": platform.python_version(),
        "versions": found,
    }


def results(seconds: dict[str, list[float]], bases: tuple[str, ...]) -> list[dict[str, Any]]:
    """A row per contestant: milliseconds and ratios to the bases, each with its quartiles."""
    rows = []
    for name, values in seconds.items():
        row: dict[str, Any] = {"name": name, "ms": [1e3 * value for value in quartiles(values)]}
        for base in bases:
            if base in seconds:
                row[f"/ {base}"] = ratios(values, seconds[base])
        if name.endswith(", skip") and (unasked := name.removesuffix(", skip")) in seconds:
            row["/ without skip"] = ratios(values, seconds[unasked])
        rows.append(row)
    return rows


def ratios(values: list[float], base: list[float]) -> list[float]:
    """Quartiles of the ratios within each round."""
    return list(quartiles([a / b for a, b in zip(values, base, strict=True)]))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown: median (first to third quartile)."""
    known = dict.fromkeys(key for row in rows for key in row)
    heads = [*(key for key in known if key != "/ without skip"), *(key for key in known if key == "/ without skip")]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        digits = [(key, ".3f" if key != "ms" else ".2f") for key in heads[1:]]
        cells = ["{1:{f}} ({0:{f}} to {2:{f}})".format(*row[key], f=form) if key in row else "" for key, form in digits]
        lines.append([row["name"], *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def arguments(given: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suite", action="store_true", help="all that README.md shows, with one thread and with two")
    parser.add_argument("--workload", choices=WORKLOADS, default="gpt2-hidden")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, help="default: torch's own")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=CONTESTANTS, help="by name; default: all but Muon's"
    )
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: of this thread, for a machine that is shared"
    )
    parser.add_argument("--json", type=Path, help="write the figures there too")
    chosen = parser.parse_args(given)
    chosen.threads = chosen.threads or torch.get_num_threads()
    if chosen.clock == "cpu" and chosen.threads != 1:
        parser.error("--clock cpu sees one thread alone: say --threads 1")
    return chosen


def measured(
    workload: str, dtype: str, names: Iterable[str], rounds: int, threads: int, clock: str
) -> list[dict[str, Any]]:
    """The rows of one table; who is not installed is left out, in words."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    weights, steps = tensors(WORKLOADS[workload], getattr(torch, dtype)), {}
    for name in names:
        try:
            steps[name] = contestant(name, weights)
        except ImportError as missing:
            print(f"left out: {name} ({missing}); pip install 'moga[bench]'")
    seconds = timed(steps, rounds, CLOCKS[clock])
    torch.set_num_threads(before)
    return results(seconds, ("torch SGD fused", "torch AdamW fused", "torch Muon"))


def main(given: list[str] | None = None) -> None:
    """Measure, print the tables and write the file."""
    chosen = arguments(given)
    about, done = machine("pytorch_optimizer", "heavyball") | {"clock": chosen.clock}, []
    print(*(f"{key}: {value}" for key, value in about.items()), sep="\n")
    names = chosen.only or [name for name in CONTESTANTS if name not in SLOW]
    one = [(chosen.workload, chosen.dtype, names, chosen.rounds, chosen.threads)]
    for workload, dtype, some, rounds, threads in (
        [(*row, threads) for threads in (1, 2) for row in SUITE] if chosen.suite else one
    ):
        rows = measured(workload, dtype, some, rounds, threads, chosen.clock)
        words = {"workload": workload, "dtype": dtype, "threads": threads, "rounds": rounds}
        print("", ", ".join(f"{key} {value}" for key, value in words.items()), "", table(rows), sep="\n", flush=True)
        done.append({**words, "rows": rows})
    if chosen.json:
        chosen.json.write_text(json.dumps({"about": about, "tables": done}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
