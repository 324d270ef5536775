"""Runs on worker processes (or in this one): each worker loads torch, transformers and the corpus once.

The parent and a worker speak over a pipe. To the worker: a `Run`, or None to end. From it: ("ready",), ("step", step,
loss), ("done", result) or ("failed", text). A worker whose parent is gone finds the pipe closed and ends, so none is
left behind; SIGINT is left to the parent, which ends its workers.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from moga.study.data import Corpus, load_corpus
from moga.study.records import StudyError
from moga.study.settings import Run
from moga.study.tasks import source_of
from moga.study.train import threads as limit_threads
from moga.study.train import train

REPORT_EVERY = 0.25  # seconds between two reports of one worker


@dataclass(frozen=True)
class Listener:
    """What is called in the parent: on_step(worker, run, step, loss) and on_done(worker, run, result)."""

    on_step: Callable[[int, Run, int, float], None]
    on_done: Callable[[int, Run, dict[str, Any]], None]


def execute(
    runs: Sequence[Run],
    listener: Listener,
    *,
    data: str | None = None,
    workers: int = 1,
    threads: int = 1,
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Train all runs, in their order, on `workers` processes of `threads` threads each; 1 worker is this process.

    No run begins once `over()` is true.

    Raises:
        StudyError: a run that failed with an exception, or a worker that died.
    """
    workers = min(workers, len(runs))
    if workers == 0:
        return
    if workers == 1:
        _execute_here(runs, listener, data, threads, over)
    else:
        _execute_on_processes(list(runs), listener, data, workers, threads, over)


def _execute_here(
    runs: Sequence[Run], listener: Listener, data: str | None, threads: int, over: Callable[[], bool]
) -> None:
    corpus = _load(runs[0], data)
    with limit_threads(threads):
        for run in runs:
            if over():
                return
            report = _throttled(lambda step, loss, run=run: listener.on_step(0, run, step, loss))  # type: ignore[misc]
            try:
                _check_sources(run, corpus)
                result = train(run, corpus, report)
            except Exception as error:
                raise StudyError(_failure(run, f"{type(error).__name__}: {error}")) from error
            listener.on_done(0, run, result)


def _execute_on_processes(
    runs: list[Run], listener: Listener, data: str | None, workers: int, threads: int, over: Callable[[], bool]
) -> None:
    # spawn: a forked copy of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    pool: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        for worker in range(workers):
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(target=_work, args=(theirs, data, threads), daemon=True)
            process.start()
            theirs.close()
            pool[ours] = (worker, process)
        _serve(runs, listener, pool, over)
    finally:
        for connection, (_, process) in pool.items():
            connection.close()
            _stop(process)


def _serve(
    runs: list[Run], listener: Listener, pool: dict[Connection, tuple[int, BaseProcess]], over: Callable[[], bool]
) -> None:
    """Hand out runs in order and pass on what comes back, until all are done or `over()` and what began has ended."""
    waiting = list(runs)
    active: dict[Connection, Run] = {}
    while waiting or active:
        for connection in wait(list(pool)):
            assert isinstance(connection, Connection)
            worker, process = pool[connection]
            try:
                kind, *content = connection.recv()
            except (EOFError, ConnectionError) as error:
                raise _death(active.get(connection), process) from error
            if kind == "step":
                listener.on_step(worker, active[connection], *content)
                continue
            if kind == "failed":
                raise StudyError(_failure(active[connection], content[0]))
            if kind == "done":
                listener.on_done(worker, active.pop(connection), content[0])
            if over():
                waiting.clear()
            if waiting:
                active[connection] = waiting.pop(0)
                try:
                    connection.send(active[connection])
                except ConnectionError as error:
                    raise _death(active[connection], process) from error


def _work(connection: Connection, data: str | None, threads: int) -> None:
    """A worker's life. A closed pipe means that the parent is gone or does not need it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    corpus = None
    try:
        with limit_threads(threads):
            connection.send(("ready",))
            while (run := connection.recv()) is not None:
                try:
                    corpus = corpus or _load(run, data)
                    _check_sources(run, corpus)
                    result = train(run, corpus, _throttled(lambda step, loss: connection.send(("step", step, loss))))
                except ConnectionError:
                    raise
                except Exception:
                    connection.send(("failed", traceback.format_exc()))
                    return
                connection.send(("done", result))
    except (EOFError, ConnectionError):
        return


def _load(run: Run, data: str | None) -> Corpus | None:
    """The text, or None where the data come from a function."""
    return None if run.settings.data else load_corpus(data, context=run.settings.context)


def _check_sources(run: Run, corpus: Corpus | None) -> None:
    if corpus is not None and run.settings.corpus != corpus.fingerprint:
        raise StudyError("the text changed while the study was running; begin another study with the new text")
    if run.settings.code != source_of(run.settings):
        raise StudyError("the code of the model or the data changed while the study was running; begin another study")


def _throttled(report: Callable[[int, float], None]) -> Callable[[int, float], None]:
    """Pass on a report when the last one is old enough."""
    last = 0.0

    def maybe_report(step: int, loss: float) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_EVERY:
            last = time.monotonic()
            report(step, loss)

    return maybe_report


def _stop(process: BaseProcess) -> None:
    process.terminate()
    process.join(timeout=5)
    if process.is_alive():
        process.kill()
        process.join()


def _failure(run: Run, reason: str) -> str:
    return f"the run {run} failed; what is finished is kept, and the same command goes on from there. {reason}"


def _death(run: Run | None, process: BaseProcess) -> StudyError:
    process.join(timeout=5)
    what = f"in the run {run}" if run else "before its first run (a script needs `if __name__ == '__main__':`)"
    return StudyError(
        f"a worker died with exit code {process.exitcode} {what}; what is finished is kept, and the same command goes "
        "on from there. Exit code -9 often means too little memory: use fewer workers"
    )
