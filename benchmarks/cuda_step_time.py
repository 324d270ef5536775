"""How long one optimizer step takes on a GPU, beside peers and beside a copy: `--help` lists the choices.

As step_time.py, with the clock of the device. Every step is queued behind a wait, so that the time of the host's calls
does not count; "call ms" is that time. "of copy" is the part of the device's copy bandwidth that a step reaches with
the bytes that it cannot do without: weight, gradient and averages read, weight and averages written, once each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from step_time import WORKLOADS, Step, machine, ours, peer, quartiles, results, table, tensors
from torch import nn

WAIT = 100_000_000  # cycles of the device, some 50 ms: longer than the host takes to queue a step
COPIED = 1 << 30  # bytes
TARGET = 0.85  # of the copy's bandwidth, for row and sign

CONTESTANTS: dict[str, Callable[[list[nn.Parameter]], Step]] = {
    "torch SGD fused": peer("torch.optim", "SGD", momentum=0.95, weight_decay=0.1, fused=True),
    "torch AdamW fused": peer("torch.optim", "AdamW", weight_decay=0.1, fused=True),
    **{f"moga {norm}": ours(norm) for norm in ("row", "sign", "column", "adam")},
    "moga row, skip": ours("row", nonfinite="skip"),
    **{f"moga {norm}, plain": ours(norm, implementation="plain") for norm in ("row", "sign", "column", "adam")},
    "torch Muon": peer("torch.optim", "Muon", weight_decay=0.1),
    "dion Muon": peer("dion", "Muon", mu=0.95, nesterov=True, weight_decay=0.1, use_triton=True),
    "gram-newton-schulz Muon": peer("gram_newton_schulz", "Muon", weight_decay=0.1),
    "moga spectral": ours("spectral"),
    "moga spectral, triton": ours("spectral", implementation="triton"),
    "moga spectral, bfloat16": ours("spectral", polar_dtype="bfloat16"),
    "moga spectral, bfloat16, plain": ours("spectral", polar_dtype="bfloat16", implementation="plain"),
}
BASES = ("torch SGD fused", "torch AdamW fused", "torch Muon", "dion Muon", "gram-newton-schulz Muon")
# (tensors read or written in the dtype of the weights, in the dtype of the averages); torch's have the weights' dtype
MOVED = {"torch SGD": (5, 0), "torch AdamW": (7, 0), "moga row": (3, 2), "moga sign": (3, 2), "moga column": (3, 2)}
MOVED["moga adam"] = (3, 4)


def moved_bytes(name: str, entries: int, width: int) -> int | None:
    """What a step has to read and write for weights of ``width`` bytes each; None where products take the time."""
    for start, (stored, averages) in MOVED.items():
        if name.startswith(start):
            return entries * (stored * width + averages * 4)
    return None


def queued(step: Step) -> tuple[float, float]:
    """Seconds of one step on the device, and of its call on the host."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(WAIT)
    begin.record()
    start = time.perf_counter()
    step()
    called = time.perf_counter() - start
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, called


def timed(steps: dict[str, Step], rounds: int, clock: Callable[[Step], tuple[float, float]]) -> tuple[Any, Any]:
    """Seconds on the device and of the calls, by name: all take turns, after two rounds that are not counted."""
    device: dict[str, list[float]] = {name: [] for name in steps}
    calls: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            seconds, called = clock(step)
            if turn >= 2:
                device[name].append(seconds)
                calls[name].append(called)
    return device, calls


def rows_of(
    device: dict[str, list[float]], calls: dict[str, list[float]], copies: list[float], entries: int, width: int
) -> list[dict[str, Any]]:
    """A row per contestant: milliseconds, ratios to the peers, part of the copy's bandwidth, milliseconds of the call.

    ``copies`` are the seconds in which :data:`COPIED` bytes were read and written, round by round.
    """
    rows = results(device, BASES)
    for row in rows:
        seconds = device[row["name"]]
        moved = moved_bytes(row["name"], entries, width)
        if moved is not None:
            bandwidths = [2 * COPIED / copy for copy in copies]
            row["of copy"] = list(quartiles([moved / s / b for s, b in zip(seconds, bandwidths, strict=True)]))
        row["call ms"] = [1e3 * value for value in quartiles(calls[row["name"]])]
    return rows


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, each with what was measured."""
    median = {row["name"]: row["ms"][1] for row in rows}
    said = []
    for row in rows:
        name = row["name"]
        if name in ("moga row", "moga sign"):
            share = row["of copy"][1]
            said.append(f"{name}: {share:.2f} of the copy's bandwidth, {_met(share >= TARGET)} (target {TARGET})")
        if name in ("moga row", "moga sign", "moga column", "moga adam") and "/ torch AdamW fused" in row:
            ratio = row["/ torch AdamW fused"][1]
            said.append(f"{name}: {ratio:.2f} of fused AdamW's time, {_met(ratio < 1)} (target: below 1)")
    peers = [name for name in BASES if "Muon" in name and name in median]
    for name in (name for name in median if name.startswith("moga spectral") and peers):
        best = min(peers, key=lambda one: median[one])
        ratio = median[name] / median[best]
        said.append(f"{name}: {ratio:.2f} of the time of {best}, {_met(ratio <= 1)} (target: at most 1)")
    return said


def _met(yes: bool) -> str:
    return "met" if yes else "MISSED"


def ready(names: Iterable[str], weights: list[nn.Parameter]) -> dict[str, Step]:
    """The steps of those that can take one, on parameters of their own in the memory that all share."""
    steps = {}
    for name in names:
        own = [nn.Parameter(weight.data) for weight in weights]
        for one, weight in zip(own, weights, strict=True):
            one.grad = weight.grad
        try:
            step = CONTESTANTS[name](own)
            step()
        except Exception as error:  # of a peer that is not installed, or does not run on this device
            print(f"left out: {name} ({type(error).__name__}: {error})")
            continue
        steps[name] = step
    return steps


def measured(shapes: list[tuple[int, ...]], dtype: torch.dtype, names: Iterable[str], rounds: int) -> list[Any]:
    """The rows for one dtype, on the current GPU."""
    weights = []
    for weight in tensors(shapes, dtype):
        there = nn.Parameter(weight.data.cuda())
        there.grad = None if weight.grad is None else weight.grad.cuda()
        weights.append(there)
    source = torch.ones(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    device, calls = timed({"copy": lambda: target.copy_(source), **ready(names, weights)}, rounds, queued)
    copies = device.pop("copy")
    return rows_of(device, calls, copies, sum(weight.numel() for weight in weights), dtype.itemsize)


def main(given: list[str] | None = None) -> int:
    """Measure, print the tables and write the files; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", choices=WORKLOADS, default="gpt2-hidden")
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--out", type=Path, default=Path("cuda_step_time"), help="writes OUT.json and OUT.md")
    chosen = parser.parse_args(given)
    if not torch.cuda.is_available():
        print(
            f"There is no GPU that torch {torch.__version__} can use: torch.cuda.is_available() is False. Run this on "
            "a machine with one, with a build of torch for CUDA or ROCm; benchmarks/step_time.py measures a CPU.",
            file=sys.stderr,
        )
        return 2
    about = machine("pytorch_optimizer", "heavyball")
    about |= {
        "gpu": torch.cuda.get_device_name(),
        "workload": chosen.workload,
        "rounds": chosen.rounds,
    }
    rows = {
        word: measured(WORKLOADS[chosen.workload], getattr(torch, word), chosen.only, chosen.rounds)
        for word in chosen.dtypes
    }
    text = report(about, rows)
    print(text)
    chosen.out.with_suffix(".json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    chosen.out.with_suffix(".md").write_text(text + "\n")
    return 0


def report(about: dict[str, Any], rows: dict[str, list[dict[str, Any]]]) -> str:
    """The tables as Markdown, with the machine before and the verdicts after each."""
    parts = ["\n".join(f"- {key}: {value}" for key, value in about.items())]
    for word, some in rows.items():
        parts += [f"## {word}", table(some), "\n".join(f"- {one}" for one in verdicts(some))]
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
