import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moga.study.records import StudyError
from moga.study.settings import Run, Settings
from moga.study.workers import Listener, Workers

QUIET = Listener(lambda worker, run, step, loss: None, lambda worker, run, result: None)


def runs(settings: Settings, count: int = 2) -> list[Run]:
    return [Run("adamw", 16, 0.001 * (1 + index), 0, settings) for index in range(count)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_run_is_named_and_ends_the_workers(workers: int, small: Settings, text_file: Path) -> None:
    message = (
        r"the run adamw, width 16, lr 0.00\d, seed 0 failed; what is finished is kept(.|\n)*the text changed while"
    )
    with pytest.raises(StudyError, match=message), Workers(workers, str(text_file)) as crew:
        crew.execute(runs(replace(small, corpus="other")), QUIET)
    assert not multiprocessing.active_children()


def test_code_that_changes_under_a_study_ends_it(small: Settings, text_file: Path) -> None:
    message = "the code of the model or the data changed while the study was running"
    with pytest.raises(StudyError, match=message), Workers(data=str(text_file)) as crew:
        crew.execute(runs(replace(small, code="other")), QUIET)


def test_two_workers_share_the_runs_until_they_die(small: Settings, text_file: Path) -> None:
    done: list[str] = []

    def kill_after_four(worker: int, run: Run, result: dict[str, Any]) -> None:
        done.append(run.key)
        if len(done) == 4:
            for child in multiprocessing.active_children():
                child.kill()
                child.join()

    todo = runs(small, 6)
    message = r"a worker died with exit code -9 in the run adamw, width 16.*use fewer workers"
    with pytest.raises(StudyError, match=message), Workers(2, str(text_file)) as crew:
        crew.execute(todo, Listener(QUIET.on_step, kill_after_four))
    assert set(done) <= {run.key for run in todo}
    assert len(set(done)) == len(done) >= 4
    assert not multiprocessing.active_children()


def test_processes_stay_from_phase_to_phase(small: Settings, text_file: Path) -> None:
    done: list[str] = []
    listener = Listener(QUIET.on_step, lambda worker, run, result: done.append(run.key))
    over: list[bool] = []
    todo = runs(small, 6)
    with Workers(2, str(text_file), over=lambda: bool(over)) as crew:
        crew.execute(todo[:2], listener)
        pids = {child.pid for child in multiprocessing.active_children()}
        crew.execute(todo[2:3], listener)
        crew.execute(todo[3:5], listener)
        assert {child.pid for child in multiprocessing.active_children()} == pids
        over.append(True)
        crew.execute(todo[5:], listener)
    assert len(pids) == 2
    assert sorted(done) == sorted(run.key for run in todo[:5])
    assert not multiprocessing.active_children()


def test_a_process_that_dies_between_phases_is_told(small: Settings, text_file: Path) -> None:
    with Workers(2, str(text_file)) as crew:
        crew.execute(runs(small), QUIET)
        for child in multiprocessing.active_children():
            child.kill()
            child.join()
        with pytest.raises(StudyError, match="a worker died with exit code -9"):
            crew.execute(runs(small, 3), QUIET)


def test_nothing_to_do_starts_nothing() -> None:
    with Workers(4) as crew:
        crew.execute([], QUIET)
        assert not multiprocessing.active_children()
