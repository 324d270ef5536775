import importlib
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moga.report.results import load_results
from moga.study import prices
from moga.study.fit import transfer_summary
from moga.study.lock import hold_study
from moga.study.prices import Estimate, Price
from moga.study.records import StudyError, append_record, config_key, read_records, read_study
from moga.study.refine import regret_runs
from moga.study.settings import Plan, Settings
from moga.study.sweep import State, run_sweep

RATES = (0.0625, 0.25, 1.0, 4.0)


def losses(directory: Path) -> dict[str, float | None]:
    return {record["key"]: record["result"]["loss"] for record in read_records(directory)}


@pytest.fixture
def plan(small: Settings) -> Plan:
    return Plan({"moga-row": RATES}, (16, 32), settings=replace(small, corpus=""))


@pytest.fixture
def done(plan: Plan, text_file: Path, tmp_path: Path) -> Path:
    """A finished study."""
    run_sweep(plan, tmp_path / "done", data=text_file, workers=1, command="moga transfer")
    return tmp_path / "done"


def test_records_and_study_say_everything(done: Path, plan: Plan, small: Settings) -> None:
    study, records = read_study(done), read_records(done)
    assert study["settings"]["corpus"] == study["corpus"]["sha256"] == small.corpus
    assert study["commands"] == ["moga transfer"]
    for record in records:
        assert set(record) == {"key", "config", "result", "environment"}
        assert record["key"] == config_key(record["config"])
        assert record["config"].items() >= study["settings"].items()
        assert {"moga", "torch", "transformers", "python", "machine", "cpus", "threads"} <= set(record["environment"])
    assert {run.key for run in replace(plan, settings=small).runs()} <= {record["key"] for record in records}


def test_the_regret_run_is_at_exactly_the_smallest_width_optimum(done: Path) -> None:
    (summary,) = transfer_summary(read_records(done))
    assert summary.regret_lr is not None
    extra = [one["config"] for one in read_records(done) if one["config"]["lr"] not in RATES]
    assert [(one["width"], one["lr"]) for one in extra] == [(32, summary.regret_lr)]
    assert summary.regret is not None
    assert math.isfinite(summary.regret)


def test_a_finished_study_does_nothing_again(done: Path, plan: Plan, text_file: Path) -> None:
    before = (done / "records.jsonl").read_bytes()
    outcome = run_sweep(plan, done, data=text_file, workers=1)
    assert (outcome.ran, outcome.reused, outcome.notes) == (0, 9, ())
    assert (done / "records.jsonl").read_bytes() == before


def test_a_cut_line_is_run_again_with_the_same_result(done: Path, plan: Plan, text_file: Path) -> None:
    before = losses(done)
    path = done / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:100])
    outcome = run_sweep(plan, done, data=text_file, workers=1)
    assert (outcome.ran, outcome.reused) == (6, 3)
    assert losses(done) == before


def test_a_study_can_be_extended(done: Path, plan: Plan, text_file: Path) -> None:
    larger = Plan({"moga-row": (*RATES, 8.0), "adamw": (0.01,)}, (16, 32), (0, 1), settings=plan.settings)
    states: list[State] = []
    outcome = run_sweep(larger, done, data=text_file, workers=1, progress=lambda state: states.append(replace(state)))
    grid = [state for state in states if state.phase == "grid"]
    assert (grid[0].total, grid[0].done, grid[0].reused) == (24, 8, 8)
    assert grid[-1].done == 24
    assert outcome.reused >= 8
    assert "no run for the regret of adamw: unknown" in outcome.notes[0]


def test_other_settings_are_refused_before_anything_runs(done: Path, plan: Plan, text_file: Path) -> None:
    other = replace(plan, settings=replace(plan.settings, steps=9))
    with pytest.raises(StudyError, match=r"other settings \(steps: 8 there, 9 now\)"):
        run_sweep(other, done, data=text_file, workers=1)


def test_another_text_is_another_study(done: Path, plan: Plan) -> None:
    with pytest.raises(StudyError, match=r"other settings \(corpus: "):
        run_sweep(plan, done, workers=1)


@pytest.mark.parametrize("name", ["workers", "threads"])
def test_workers_and_threads_are_counted_from_one(name: str, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1, got 0"):
        run_sweep(plan, tmp_path, **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1, got 1.5"):
        run_sweep(plan, tmp_path, **{name: 1.5})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_count_may_be_numpys(plan: Plan, tmp_path: Path, text_file: Path) -> None:
    one = replace(plan, rates={"adamw": (0.01,)}, sizes=(8,), seeds=(0,))
    run_sweep(one, tmp_path, data=text_file, workers=np.int64(1), threads=np.int64(1))  # type: ignore[arg-type]
    [record] = read_records(tmp_path)
    assert record["environment"]["threads"] == 1


def test_runs_of_another_study_are_not_read(plan: Plan, tmp_path: Path, text_file: Path) -> None:
    one = replace(plan, rates={"adamw": (0.01,)}, sizes=(8,), seeds=(0,))
    run_sweep(one, tmp_path, data=text_file, workers=1)
    [record] = read_records(tmp_path)
    config = record["config"] | {"steps": 9, "lr": 0.02}
    append_record(tmp_path, record | {"config": config, "key": config_key(config)})
    for read in (load_results, lambda place: run_sweep(one, place, data=text_file, workers=1)):
        with pytest.raises(StudyError, match=r"holds a run of another study \(steps is 9, and"):
            read(tmp_path)


@pytest.mark.parametrize("name", ["budget", "refine"])
def test_budget_and_error_are_above_zero(name: str, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{name} must be above 0, got 0"):
        run_sweep(plan, tmp_path, **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"{name} must be a number, got \[1\]"):
        run_sweep(plan, tmp_path, **{name: [1]})  # type: ignore[arg-type]


def test_the_error_of_an_optimum_takes_two_seeds(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the error of an optimum \(refine\) is taken over seeds, and there is one"):
        run_sweep(plan, tmp_path, refine=0.1)


def test_two_sweeps_in_one_directory_are_kept_apart(done: Path, plan: Plan, text_file: Path) -> None:
    settings = read_study(done)["settings"]
    with hold_study(done, settings, {}), pytest.raises(StudyError, match="done is in use: process .* is writing to it"):
        run_sweep(plan, done, data=text_file, workers=1)


def test_a_spent_budget_begins_no_run_and_goes_on_later(
    done: Path, plan: Plan, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.perf_counter

    def after_an_hour(state: State) -> None:
        if state.done == 3:
            monkeypatch.setattr(time, "perf_counter", lambda: clock() + 3600)

    outcome = run_sweep(plan, tmp_path / "a", data=text_file, workers=1, budget=3000, progress=after_an_hour)
    monkeypatch.undo()
    assert len(read_records(tmp_path / "a")) == outcome.ran == 3
    assert outcome.left_out == ("the budget of 3000 s is spent; the same command goes on where it ended",)
    run_sweep(plan, tmp_path / "a", data=text_file, workers=1)
    assert losses(tmp_path / "a") == losses(done)


def test_a_budget_leaves_out_the_largest_sizes(
    plan: Plan, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "_measured", lambda run, *_: Price(100.0 if run.size > 32 else 0.01, 64, 1000))
    plan = replace(plan, sizes=(16, 32, 64))
    outcome = run_sweep(plan, tmp_path, data=text_file, workers=1, budget=600)
    assert {record["config"]["width"] for record in read_records(tmp_path)} == {16, 32}
    assert outcome.left_out == ("left out to stay within 600 s: width 64 (seed 0)",)


def test_a_refined_grid_closes_around_its_optimum(plan: Plan, text_file: Path, tmp_path: Path) -> None:
    rates = {"moga-row": (0.001, 0.002, 0.004)}
    plan = replace(plan, rates=rates, sizes=(16,), seeds=(0, 1))
    outcome = run_sweep(plan, tmp_path, data=text_file, workers=1, refine=5.0)
    (summary,) = transfer_summary(read_records(tmp_path))
    assert outcome.ran > 6
    assert summary.widths[0].known or "no optimum within 6 octaves" in outcome.left_out[0]


def test_the_cost_is_said_before_anything_runs(plan: Plan, text_file: Path, tmp_path: Path) -> None:
    said: list[Estimate] = []

    def announce(cost: Estimate) -> None:
        assert not read_records(tmp_path)
        said.append(cost)

    run_sweep(plan, tmp_path, data=text_file, workers=1, announce=announce)
    # 4 rates of 8 steps of 4 windows of 16 tokens; a model has 543 w + 12 w^2 parameters
    sizes = [543 * width + 12 * width**2 for width in (16, 32)]
    assert (said[0].runs, said[0].steps, said[0].tokens) == (8, 64, 64 * 64)
    assert said[0].flops == 6 * 4 * 8 * 64 * sum(sizes)


def test_an_optimizer_that_was_changed_is_not_mixed(text_file: Path, tmp_path: Path, plan: Plan, monkeypatch) -> None:
    source = "import torch\n\ndef make(model, lr):\n    return torch.optim.SGD(model.parameters(), lr)\n"
    (tmp_path / "sweep_optimizer.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    plan = replace(plan, rates={"sweep_optimizer:make": (0.1,)}, sizes=(16,))
    run_sweep(plan, "out", data=text_file, workers=1)
    assert run_sweep(plan, "out", data=text_file, workers=1).ran == 0
    (tmp_path / "sweep_optimizer.py").write_text(source.replace("lr)\n", "lr / 2)\n"))
    with pytest.raises((StudyError, ValueError), match="sweep_optimizer.py changed since it was imported"):
        run_sweep(plan, "out", data=text_file, workers=1)
    importlib.reload(sys.modules["sweep_optimizer"])
    with pytest.raises(StudyError, match="the code of sweep_optimizer:make changed since its runs in this directory"):
        run_sweep(plan, "out", data=text_file, workers=1)


def test_an_optimum_at_the_edge_gets_no_regret_run(plan: Plan, text_file: Path, tmp_path: Path) -> None:
    outcome = run_sweep(replace(plan, rates={"moga-row": (1e-9, 2e-9)}), tmp_path, data=text_file, workers=1)
    assert outcome.ran == 4
    assert len(outcome.notes) == 1
    assert "no run for the regret of moga-row: unknown whether it transfers: width 16 has only 2" in outcome.notes[0]


def test_divergence_is_recorded_and_the_study_goes_on(plan: Plan, text_file: Path, tmp_path: Path) -> None:
    rates = {"moga-row": (0.25, 1e5)}
    outcome = run_sweep(
        replace(plan, rates=rates, sizes=(16,), settings=replace(plan.settings, steps=30)),
        tmp_path,
        data=text_file,
        workers=1,
    )
    assert (outcome.ran, outcome.diverged) == (2, 1)
    assert sorted(one["result"]["loss"] is None for one in read_records(tmp_path)) == [False, True]


def test_progress_says_what_is_running_and_what_is_left(plan: Plan, text_file: Path, tmp_path: Path) -> None:
    states: list[State] = []
    actives: list[int] = []

    def progress(state: State) -> None:
        states.append(replace(state))
        actives.extend(active.step for active in state.active.values())

    run_sweep(plan, tmp_path, data=text_file, workers=1, progress=progress)
    assert {state.phase for state in states} == {"grid", "regret"}
    assert sum(state.latest is not None for state in states) == 9
    assert states[-1].seconds_left == 0.0
    assert actives
    assert all(state.seconds_left is None or state.seconds_left >= 0 for state in states)


def test_a_rate_equal_but_for_its_last_digits_is_not_run_again(done: Path, plan: Plan, small: Settings) -> None:
    records = read_records(done)
    for record in records:
        if record["config"]["lr"] not in RATES:
            record["config"]["lr"] *= 1 + 1e-14
    runs, _ = regret_runs(records, replace(plan, settings=small))
    assert [run.lr for run in runs] == [records[-1]["config"]["lr"]]


def test_an_interrupt_here_leaves_a_study_that_goes_on(done: Path, plan: Plan, text_file: Path, tmp_path: Path) -> None:
    def interrupt(state: State) -> None:
        if state.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, tmp_path / "a", data=text_file, workers=1, progress=interrupt)
    assert len(read_records(tmp_path / "a")) == 2
    run_sweep(plan, tmp_path / "a", data=text_file, workers=1)
    assert losses(tmp_path / "a") == losses(done)


SCRIPT = """
import sys
from moga.study.settings import Plan, Settings
from moga.study.sweep import run_sweep
if __name__ == "__main__":
    settings = Settings(layers=1, head_size=8, context=16, batch=4, steps=8, warmup=2)
    plan = Plan({"moga-row": (0.0625, 0.25, 1.0, 4.0)}, (16, 32), settings=settings)
    run_sweep(plan, sys.argv[1], data=sys.argv[2], workers=2)
"""


def alive(process: int) -> bool:
    """A process that has ended but that nobody waited for ("Z") is not alive."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_ctrl_c_stops_the_workers_and_any_number_of_them_gives_the_same(
    done: Path, plan: Plan, text_file: Path, tmp_path: Path
) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, out, text_file],
        stderr=subprocess.PIPE,
        start_new_session=True,
        # what a shell runs in the background ignores the signal, and so would everything below it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 100
    while len(read_records(out)) < 1 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    _, stderr = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in stderr.decode()
    assert len(workers) >= 2
    deadline = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))
    finished = losses(out)
    assert 1 <= len(finished) < 9
    run_sweep(plan, out, data=text_file, workers=1)
    assert losses(out) == pytest.approx(losses(done), abs=1e-6)
