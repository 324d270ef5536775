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
from collections.abc import Callable
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


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    found = {}
    for package in ("torch", "moga", "pytorch_optimizer", "heavyball"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return {
        "processor": names[0] if names else platform.processor(),
        "processors": len(names),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "versions": found,
    }


def results(seconds: dict[str, list[float]], bases: tuple[str, ...]) -> list[dict[str, Any]]:
    """A row per contestant: milliseconds and ratios to the bases, each with its quartiles."""
    rows = []
    for name, values in seconds.items():
        row: dict[str, Any] = {"name": name, "ms": [1e3 * value for value in quartiles(values)]}
        for base in bases:
            if base in seconds:
                row[f"/ {base}"] = list(quartiles([a / b for a, b in zip(values, seconds[base], strict=True)]))
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown: median (first to third quartile)."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        digits = [(key, ".3f" if key != "ms" else ".2f") for key in heads[1:]]
        cells = ["{1:{f}} ({0:{f}} to {2:{f}})".format(*row[key], f=form) if key in row else "" for key, form in digits]
        lines.append([row["name"], *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def arguments(given: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
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
    if chosen.clock == "cpu" and (chosen.threads or torch.get_num_threads()) != 1:
        parser.error("--clock cpu sees one thread alone: say --threads 1")
    return chosen


def main(given: list[str] | None = None) -> None:
    """Measure, print the table and write the file."""
    chosen = arguments(given)
    before = torch.get_num_threads()
    torch.set_num_threads(chosen.threads or before)
    weights, steps = tensors(WORKLOADS[chosen.workload], getattr(torch, chosen.dtype)), {}
    for name in chosen.only or [name for name in CONTESTANTS if name not in SLOW]:
        try:
            steps[name] = contestant(name, weights)
        except ImportError as missing:
            print(f"left out: {name} ({missing}); pip install 'moga[bench]'")
    rows = results(
        timed(steps, chosen.rounds, CLOCKS[chosen.clock]), ("torch SGD fused", "torch AdamW fused", "torch Muon")
    )
    about = machine() | {key: str(value) for key, value in vars(chosen).items() if key not in ("json", "threads")}
    torch.set_num_threads(before)
    print(*(f"{key}: {value}" for key, value in about.items()), table(rows), sep="\n")
    if chosen.json:
        chosen.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
