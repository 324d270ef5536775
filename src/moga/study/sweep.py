"""A study: every run of a plan that is not on disk yet, then the runs that measure the regret."""

from __future__ import annotations

import itertools
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from moga.study.data import Corpus, load_corpus
from moga.study.devices import devices_of, kind_of, name_of
from moga.study.factories import is_path
from moga.study.lock import hold_study
from moga.study.prices import Estimate, estimate, price_list, within_budget
from moga.study.products import has_faster_products
from moga.study.records import StudyError, append_record, read_records, read_runs, run_record
from moga.study.refine import refine_runs, regret_runs
from moga.study.settings import Plan, Run, counted, number, settings_dict
from moga.study.tasks import code_of, settled_roles, source_of
from moga.study.workers import Listener, Workers


@dataclass
class Active:
    """A run in progress: steps done and the last training loss (None before the first report)."""

    run: Run
    step: int = 0
    loss: float | None = None


@dataclass
class State:
    """The progress of a phase ("grid", "refine 1" and so on, "regret").

    Counts include the runs that were on disk (`reused`). active: by worker. seconds_left: an estimate, None before
    there is one. latest: the record written just now.
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
    """What a call did. notes: why a regret run was not possible. left_out: what budget and refinement did not reach."""

    directory: Path
    ran: int
    reused: int
    diverged: int
    notes: tuple[str, ...]
    seconds: float
    left_out: tuple[str, ...] = ()


def run_sweep(
    plan: Plan,
    directory: str | Path,
    *,
    data: str | Path | None = None,
    workers: int | None = None,
    threads: int = 1,
    device: str = "cpu",
    command: str = "",
    progress: Callable[[State], None] | None = None,
    budget: float | None = None,
    refine: float | None = None,
    announce: Callable[[Estimate], None] | None = None,
) -> Outcome:
    """Do what is missing of a plan; each finished run is one line in the directory, and is never done twice.

    A regret run is one at the largest size, at exactly the rate that was fitted at the smallest one.

    Args:
        plan: the grid. A directory may be extended by further recipes, rates, sizes and seeds.
        directory: new, empty, or with a study of the same settings.
        data: a text file, a directory of text files, or ``package.module:function`` (see :mod:`moga.study.tasks`);
            None is the source of Python's standard library.
        workers: processes; None for one per CPU or accelerator; 1 trains in this process. threads: of each worker.
        device: as torch names it; a kind such as "cuda" is all of that kind, which the workers take in turn.
        command: kept in the study's file. progress: called in this process after every report of a worker.
        budget: seconds; what does not fit is left out, and the notes say it. No run begins after them.
        refine: octaves; rates are added until no optimum is at an edge and every standard error is at most this.
        announce: called with the cost of the grid before it starts.

    Raises:
        StudyError: what `hold_study`, `read_records`, `append_record` and `Workers` raise; an optimizer of one's own
            whose code changed since its runs.
        ValueError: a number that is too small; a text that is too short (see `load_corpus`); what `settled_roles` and
            `within_budget` and `devices_of` raise.
    """
    devices = devices_of(device)
    workers = workers if workers is not None else cpus() if kind_of(device) == "cpu" else len(devices)
    workers, threads = counted("workers", workers), counted("threads", threads)
    budget, refine = _limit("budget", budget), _limit("refine", refine)
    if refine is not None and len(set(plan.seeds)) < 2:
        raise ValueError("the error of an optimum (refine) is taken over seeds, and there is one; give two at least")
    start = time.perf_counter()
    plan = replace(plan, settings=replace(plan.settings, device=kind_of(device)))
    plan, corpus, source = _with_sources(plan, data)
    tell = progress or (lambda state: None)
    options = _Options(Path(directory), workers, threads, devices, tell, refine, budget, start)
    text = None if data is None else str(data)
    crew = Workers(workers, text, threads, devices, options.over)
    with hold_study(directory, settings_dict(plan.settings), source, command), crew:
        _check_optimizers(plan, read_runs(directory)[1])
        runs, left_out = _grid(plan, options, corpus, announce)
        notes: list[str] = []
        counts = [0, 0, 0]
        for phase, wanted in _phases(plan, options, runs, left_out, notes):
            state = _run_phase(phase, wanted, options, crew)
            counts = [counts[0] + state.done - state.reused, counts[1] + state.reused, counts[2] + state.diverged]
    seconds = time.perf_counter() - start
    return Outcome(Path(directory), counts[0], counts[1], counts[2], tuple(notes), seconds, tuple(left_out))


@dataclass(frozen=True)
class _Options:
    """How runs are made: where, by how many workers on which devices, who is told, and how long."""

    directory: Path
    workers: int
    threads: int
    devices: tuple[str, ...]
    progress: Callable[[State], None]
    refine: float | None
    budget: float | None
    start: float

    def over(self) -> bool:
        """Whether the budget is spent."""
        return self.budget is not None and time.perf_counter() - self.start > self.budget


def _limit(name: str, given: float | None) -> float | None:
    if given is not None and not number(name, given) > 0:
        raise ValueError(f"{name} must be above 0, got {given}")
    return None if given is None else number(name, given)


def _with_sources(plan: Plan, data: str | Path | None) -> tuple[Plan, Corpus | None, Mapping[str, Any]]:
    """The plan with fingerprints of data and code and with settled roles; the text; and the data in words."""
    own = data is not None and is_path(str(data)) and not Path(data).exists()
    settings = replace(plan.settings, data=str(data) if own else "")
    corpus = None if own else load_corpus(data, context=settings.context)
    settings = replace(settings, corpus=corpus.fingerprint if corpus else "", code=source_of(settings))
    plan = replace(plan, settings=settings)
    plan = replace(plan, settings=replace(settings, roles=settled_roles(plan)))
    return plan, corpus, corpus.describe() if corpus else {"name": str(data), "sha256": code_of(str(data))}


def _check_optimizers(plan: Plan, records: list[dict[str, Any]]) -> None:
    now = {recipe: code_of(recipe) for recipe in plan.rates}
    for record in records:
        recipe = record["config"]["recipe"]
        if now.get(recipe, "") and record["environment"].get("optimizer") != now[recipe]:
            raise StudyError(
                f"the code of {recipe} changed since its runs in this directory, which cannot be compared with new "
                "ones; give another directory (--out)"
            )


def _grid(
    plan: Plan, options: _Options, corpus: Corpus | None, announce: Callable[[Estimate], None] | None
) -> tuple[list[Run], list[str]]:
    """The runs of the plan that the budget allows, and what it leaves out; with the cost announced."""
    runs = plan.runs()
    if options.budget is None and announce is None:
        return runs, []
    records = read_records(options.directory)
    done = {record["key"] for record in records}
    left_out: tuple[str, ...] = ()
    if not (missing := [run for run in runs if run.key not in done]):
        return runs, []
    priced = missing if options.budget is None else runs
    prices = price_list(priced, records, corpus, options.threads, options.devices[0])
    if options.budget is not None:
        runs, left_out = within_budget(runs, prices, options.budget, options.workers, done)
    if announce is not None:
        ahead = estimate([run for run in runs if run.key not in done], prices, options.workers)
        announce(replace(ahead, left_out=left_out))
    return runs, list(left_out)


def _phases(
    plan: Plan, options: _Options, runs: list[Run], left_out: list[str], notes: list[str]
) -> Iterator[tuple[str, list[Run]]]:
    """The grid, rounds of finer rates, the regret; each from the records so far."""
    yield "grid", runs
    sizes, seeds = ({one.size for one in runs}, {one.seed for one in runs})
    plan = replace(plan, sizes=tuple(sorted(sizes)), seeds=tuple(sorted(seeds)))
    for count in itertools.count(1) if options.refine is not None else ():
        records = read_records(options.directory)
        finer, said = refine_runs(records, plan, options.refine or math.inf)
        if options.over() or {run.key for run in finer} <= {record["key"] for record in records}:
            left_out.extend(said)
            break
        yield f"refine {count}", finer
    finer, said = regret_runs(read_records(options.directory), plan)
    notes.extend(said)
    yield "regret", finer
    if options.over():
        left_out.append(f"the budget of {options.budget:.0f} s is spent; the same command goes on where it ended")


def _run_phase(phase: str, runs: list[Run], options: _Options, crew: Workers) -> State:
    board = _Board(phase, runs, options)
    crew.execute(board.missing, board.listener)
    return board.state


class _Board:
    """Keeps the state of one phase up to date, writes records, and estimates the time that is left."""

    def __init__(self, phase: str, runs: list[Run], options: _Options) -> None:
        known = {record["key"]: record for record in read_records(options.directory)}
        reused = [known[run.key] for run in runs if run.key in known]
        diverged = sum(record["result"]["diverged"] for record in reused)
        self.missing = [run for run in runs if run.key not in known]
        self.state = State(phase, len(runs), len(reused), len(reused), diverged)
        self.listener = Listener(self._on_step, self._on_done)
        self._directory, self._progress = options.directory, options.progress
        self._environment = dict(environment(options.threads, min(options.workers, max(1, len(self.missing)))))
        if (device := options.devices[0]) != "cpu":
            self._environment["device"] = name_of(device)
        self._start, self._finished = time.perf_counter(), 0.0
        self._progress(self.state)

    def _on_step(self, worker: int, run: Run, step: int, loss: float) -> None:
        self.state.active[worker] = Active(run, step, loss)
        self.state.latest = None
        self._report()

    def _on_done(self, worker: int, run: Run, result: dict[str, Any]) -> None:
        record = run_record(run.config(), result, self._environment)
        if is_path(run.recipe):
            record["environment"]["optimizer"] = code_of(run.recipe)
        if has_faster_products(run) and "device" not in self._environment:
            record["environment"]["products"] = "oneDNN"
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
