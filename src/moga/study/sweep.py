"""A study: every run of a plan that is not on disk yet, then the runs that measure the regret."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from moga.study.data import load_corpus
from moga.study.fit import SAME_RATE, Summary, transfer_summary
from moga.study.records import append_record, open_study, read_records
from moga.study.settings import Plan, Run, settings_dict
from moga.study.workers import Listener, execute


@dataclass
class Active:
    """A run in progress: steps done and the last training loss (None before the first report)."""

    run: Run
    step: int = 0
    loss: float | None = None


@dataclass
class State:
    """The progress of a phase ("grid", then "regret"). Counts include the runs that were on disk (`reused`).

    active: by worker. seconds_left: an estimate, None before there is one. latest: the record written just now.
    """

    phase: str
    total: int
    reused: int
    done: int
    diverged: int
    active: dict[int, Active] = field(default_factory=dict)
    seconds_left: float | None = None
    latest: dict[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """What a call did. notes: sentences for the reader (why a regret run was not possible)."""

    directory: Path
    ran: int
    reused: int
    diverged: int
    notes: tuple[str, ...]
    seconds: float


def run_sweep(
    plan: Plan,
    directory: str | Path,
    *,
    data: str | Path | None = None,
    workers: int | None = None,
    threads: int = 1,
    command: str = "",
    progress: Callable[[State], None] | None = None,
) -> Outcome:
    """Do what is missing of a plan; each finished run is one line in the directory, and is never done twice.

    A regret run is one at the largest width, at exactly the rate that was fitted at the smallest one.

    Args:
        plan: the grid. A directory may be extended by further recipes, rates, widths and seeds.
        directory: new, empty, or with a study of the same settings.
        data: a text file or a directory of text files; None is the source of Python's standard library.
        workers: processes; None for one per CPU; 1 trains in this process. threads: of each worker.
        command: kept in the study's file. progress: called in this process after every report of a worker.

    Raises:
        StudyError: what `open_study`, `read_records` and `execute` raise.
        ValueError: workers or threads below 1; a text that is too short (see `load_corpus`).
    """
    workers = cpus() if workers is None else workers
    for name, value in (("workers", workers), ("threads", threads)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    start = time.perf_counter()
    corpus = load_corpus(data, context=plan.settings.context)
    plan = replace(plan, settings=replace(plan.settings, corpus=corpus.fingerprint))
    open_study(directory, settings_dict(plan.settings), corpus.describe(), command)
    counts = [0, 0, 0]
    notes: tuple[str, ...] = ()
    for phase in ("grid", "regret"):
        if phase == "grid":
            runs = plan.runs()
        else:
            runs, notes = regret_runs(read_records(directory), plan)
        board = _Board(phase, runs, Path(directory), threads, workers, progress or (lambda state: None))
        execute(
            board.missing, board.listener, data=None if data is None else str(data), workers=workers, threads=threads
        )
        state = board.state
        counts = [counts[0] + state.done - state.reused, counts[1] + state.reused, counts[2] + state.diverged]
    return Outcome(Path(directory), counts[0], counts[1], counts[2], notes, time.perf_counter() - start)


def regret_runs(records: list[dict[str, Any]], plan: Plan) -> tuple[list[Run], tuple[str, ...]]:
    """The runs at the largest width with the smallest width's optimum (for every seed), and why some are impossible."""
    runs: list[Run] = []
    notes: list[str] = []
    for summary in transfer_summary(records):
        if summary.recipe not in plan.rates:
            continue
        if len(summary.widths) < 2 or summary.regret_lr is None:
            notes.append(f"no run for the regret of {summary.verdict}")
            continue
        runs += _regret_runs_of(summary, records, plan)
    return runs, tuple(notes)


def _regret_runs_of(summary: Summary, records: list[dict[str, Any]], plan: Plan) -> list[Run]:
    lr, width = summary.regret_lr, summary.widths[-1].width
    assert lr is not None
    there = [
        record["config"]
        for record in records
        if record["config"]["recipe"] == summary.recipe and record["config"]["width"] == width
    ]
    # A rate from an earlier fit on another machine, equal but for its last digits, is that rate.
    lr = next((config["lr"] for config in there if abs(config["lr"] - lr) <= SAME_RATE * lr), lr)
    return [
        Run(summary.recipe, width, lr, seed, plan.settings) for seed in sorted({config["seed"] for config in there})
    ]


class _Board:
    """Keeps the state of one phase up to date, writes records, and estimates the time that is left."""

    def __init__(
        self,
        phase: str,
        runs: list[Run],
        directory: Path,
        threads: int,
        workers: int,
        progress: Callable[[State], None],
    ) -> None:
        known = {record["key"]: record for record in read_records(directory)}
        reused = [known[run.key] for run in runs if run.key in known]
        diverged = sum(record["result"]["diverged"] for record in reused)
        self.missing = [run for run in runs if run.key not in known]
        self.state = State(phase, len(runs), len(reused), len(reused), diverged)
        self.listener = Listener(self._on_step, self._on_done)
        self._directory, self._progress = directory, progress
        self._environment = environment(threads, min(workers, max(1, len(self.missing))))
        self._start, self._finished = time.perf_counter(), 0.0
        self._progress(self.state)

    def _on_step(self, worker: int, run: Run, step: int, loss: float) -> None:
        self.state.active[worker] = Active(run, step, loss)
        self.state.latest = None
        self._report()

    def _on_done(self, worker: int, run: Run, result: dict[str, Any]) -> None:
        record = {"key": run.key, "config": run.config(), "result": result, "environment": self._environment}
        append_record(self._directory, record)
        self.state.active.pop(worker, None)
        self.state.done += 1
        self.state.diverged += result["diverged"]
        self.state.latest = record
        self._finished += run.cost
        self._report()

    def _report(self) -> None:
        active = sum(item.run.cost * item.step / item.run.settings.steps for item in self.state.active.values())
        behind = self._finished + active
        ahead = sum(run.cost for run in self.missing) - behind
        if behind > 0:
            self.state.seconds_left = max(0.0, (time.perf_counter() - self._start) * ahead / behind)
        self._progress(self.state)


def cpus() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(threads: int, workers: int) -> Mapping[str, Any]:
    """Where a run was made: versions, machine, CPUs, threads of the worker, and workers beside each other."""
    return {
        "moga": _version("moga"),
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpus": cpus(),
        "threads": threads,
        "workers": workers,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown"
