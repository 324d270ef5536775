"""Directories of records without any training: losses from a formula, so every statement about them is known."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from moga.study.records import append_record, config_key

# Triton reads this where it is imported: its kernels are then run by an interpreter, and need no GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Machines that run tests are shared, so time says nothing; the same examples everywhere make a failure repeatable.
settings.register_profile("moga", deadline=None, derandomize=True)
settings.load_profile("moga")

SETTINGS = {
    "family": "gpt2",
    "layers": 3,
    "head_size": 16,
    "context": 64,
    "batch": 16,
    "steps": 200,
    "warmup": 20,
    "decay": "linear",
    "weight_decay": 0.0,
    "momentum": 0.95,
    "betas": [0.9, 0.95],
    "clip": None,
    "corpus": "0" * 64,
}


@dataclass(frozen=True)
class Fake:
    """A recipe whose loss is a parabola in log2(lr) around an optimum that moves by ``drift`` octaves per doubling."""

    optimum: float = -4.0  # log2 of the best learning rate at the smallest width
    drift: float = 0.0
    diverges: float = 3.0  # octaves above the optimum
    exponents: Sequence[float] = (-7, -6, -5, -4, -3, -2, -1)
    floor: float = 2.2


def fake_record(recipe: str, fake: Fake, doublings: float, width: int, rate: float, seed: int) -> dict[str, Any]:
    """One record; seeds shift the optimum by a tenth of an octave and the loss by a hundredth of a nat."""
    away = math.log2(rate) - fake.optimum - fake.drift * doublings - 0.1 * (seed % 3 - 1)
    lost = away >= fake.diverges
    loss = fake.floor - 0.12 * doublings + 0.09 * away**2 + 0.01 * seed
    curve = [[step, loss + (5.55 - loss) * math.exp(-step / 40) + 0.02 * math.sin(step)] for step in range(0, 201, 5)]
    if lost:
        curve = [[step, 5.55 + 0.1 * step] for step in range(0, 51, 5)]
    config = {"recipe": recipe, "width": width, "lr": rate, "seed": seed, **SETTINGS}
    tokens = 1024 * (50 if lost else 200)
    result = {
        "loss": None if lost else loss,
        "diverged": lost,
        "curve": curve,
        "seconds": tokens * width / 2e6,
        "tokens": tokens,
        "tokens_per_second": 2e6 / width,
        "parameters": 3 * 12 * width**2 + 320 * width,
    }
    environment = {
        "moga": "0.1.0",
        "torch": "2.13.0",
        "transformers": "5.24.0",
        "python": "3.11.7",
        "machine": "x86_64",
        "cpus": 2,
        "threads": 1,
    }
    return {"key": config_key(config), "config": config, "result": result, "environment": environment}


def write_study(
    directory: Path,
    recipes: dict[str, Fake],
    widths: Sequence[int] = (32, 64, 128),
    seeds: Sequence[int] = (0, 1),
    extra: Iterable[dict[str, Any]] = (),
    regret: bool = True,
) -> Path:
    """``study.json`` and ``records.jsonl`` of a sweep; with the runs at the smallest width's optimum where asked."""
    from moga.study.fit import transfer_summary

    directory.mkdir(parents=True, exist_ok=True)
    study = {
        "format": 1,
        "settings": SETTINGS,
        "corpus": {"name": "standard library", "sha256": "0" * 64, "train_bytes": 9_000_000, "held_out_bytes": 500_000},
        "commands": ["moga transfer --preset quick --out runs/demo"],
    }
    (directory / "study.json").write_text(json.dumps(study))
    records = [
        fake_record(recipe, fake, math.log2(width / widths[0]), width, 2.0**exponent, seed)
        for recipe, fake in recipes.items()
        for width in widths
        for seed in seeds
        for exponent in fake.exponents
    ]
    if regret:
        largest = widths[-1]
        for summary in transfer_summary(records):
            if summary.regret_lr is not None and len(widths) > 1:
                fake, doublings = recipes[summary.recipe], math.log2(largest / widths[0])
                records += [
                    fake_record(summary.recipe, fake, doublings, largest, summary.regret_lr, seed) for seed in seeds
                ]
    for record in [*records, *extra]:
        append_record(directory, record)
    return directory


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Path]:
    """Write a directory of records: ``make_study({"adamw": {"drift": -1.0}}, widths=(32, 64))``."""

    def make(recipes: dict[str, dict[str, Any]], **options: Any) -> Path:
        return write_study(tmp_path / "study", {name: Fake(**values) for name, values in recipes.items()}, **options)

    return make


def _browser_left_out() -> bool:
    """Whether the tests in a browser cannot run and nobody asked for them."""
    here = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    return not here and os.environ.get("MOGA_REQUIRE_BROWSER") != "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests in a browser where there is none; `pytest_terminal_summary` says so."""
    if _browser_left_out():
        left_out = [item for item in items if item.get_closest_marker("browser")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _browser_left_out():
        terminalreporter.section("LEFT OUT: the tests in a browser", yellow=True, bold=True)
        terminalreporter.line("No Chromium here. On Debian: apt-get install chromium")
