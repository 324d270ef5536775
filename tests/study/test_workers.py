import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moga.study.records import StudyError
from moga.study.settings import Run, Settings
from moga.study.workers import Listener, execute

QUIET = Listener(lambda worker, run, step, loss: None, lambda worker, run, result: None)


def runs(settings: Settings, count: int = 2) -> list[Run]:
    return [Run("adamw", 16, 0.001 * (1 + index), 0, settings) for index in range(count)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_run_is_named_and_ends_the_workers(workers: int, small: Settings, text_file: Path) -> None:
    message = (
        r"the run adamw, width 16, lr 0.00\d, seed 0 failed; what is finished is kept(.|\n)*the text changed while"
    )
    with pytest.raises(StudyError, match=message):
        execute(runs(replace(small, corpus="other")), QUIET, data=str(text_file), workers=workers)
    assert not multiprocessing.active_children()


def test_code_that_changes_under_a_study_ends_it(small: Settings, text_file: Path) -> None:
    with pytest.raises(StudyError, match="the code of the model or the data changed while the study was running"):
        execute(runs(replace(small, code="other")), QUIET, data=str(text_file))


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
    with pytest.raises(StudyError, match=message):
        execute(todo, Listener(QUIET.on_step, kill_after_four), data=str(text_file), workers=2)
    assert set(done) <= {run.key for run in todo}
    assert len(set(done)) == len(done) >= 4
    assert not multiprocessing.active_children()


def test_nothing_to_do_starts_nothing() -> None:
    execute([], QUIET, workers=4)
