"""Runs on worker processes (or in this one): each worker loads torch, transformers and the corpus once.

The parent and a worker speak over a pipe. To the worker: a `Run`, or None to end. From it: ("ready",), ("step", step,
loss), ("warned", text), ("done", result) or ("failed", text). A worker whose parent is gone finds the pipe closed and
ends, so none is left behind; SIGINT is left to the parent, which ends its workers.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from moga.rules.logits import user_level
from moga.study.data import Corpus, load_corpus
from moga.study.failures import reason_of
from moga.study.functions import pack, unpack
from moga.study.memory import keep_memory
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


@dataclass
class Workers:
    """Processes of `threads` threads each, `count` at most, or this process where there is no use for two.

    They begin with the first runs that need them and stay for those of later phases, until the `with` statement ends.
    Workers take the devices in turn. No run begins once `over()` is true.
    """

    count: int = 1
    data: str | None = None
    threads: int = 1
    devices: Sequence[str] = ("cpu",)
    over: Callable[[], bool] = lambda: False
    _pool: dict[Connection, tuple[int, BaseProcess]] = field(default_factory=dict, init=False)
    _idle: list[Connection] = field(default_factory=list, init=False)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for connection, (_, process) in self._pool.items():
            connection.close()
            _stop(process)

    def execute(self, runs: Sequence[Run], listener: Listener) -> None:
        """Train all runs, in their order.

        Raises:
            StudyError: a run that failed with an exception, or a worker that died.
        """
        wanted = min(self.count, len(runs))
        if wanted > 1:
            self._begin(wanted)
        if wanted and self._pool:
            self._serve(list(runs), listener)
        elif wanted:
            _execute_here(runs, listener, self.data, self.threads, self.devices[0], self.over)

    def _begin(self, wanted: int) -> None:
        # spawn: a forked copy of a process that has used torch's threads can hang.
        context, given = multiprocessing.get_context("spawn"), pack()
        for worker in range(len(self._pool), wanted):
            ours, theirs = context.Pipe()
            arguments = (theirs, self.data, self.threads, self.devices[worker % len(self.devices)], given)
            process: BaseProcess = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pool[ours] = (worker, process)

    def _serve(self, waiting: list[Run], listener: Listener) -> None:
        """Hand out runs and pass on what comes back, until all are done or `over()` and what began has ended."""
        active: dict[Connection, Run] = {}
        while True:
            if self.over():
                waiting.clear()
            while waiting and self._idle:
                self._hand_out(waiting.pop(0), self._idle.pop(0), active)
            if not waiting and not active:
                return
            for connection in wait(list(self._pool)):
                assert isinstance(connection, Connection)
                worker, process = self._pool[connection]
                try:
                    kind, *content = connection.recv()
                except (EOFError, ConnectionError) as error:
                    raise _death(active.get(connection), process) from error
                if kind == "step":
                    listener.on_step(worker, active[connection], *content)
                    continue
                if kind == "warned":
                    warnings.warn(content[0], stacklevel=user_level())
                    continue
                if kind == "failed":
                    raise StudyError(_failure(active[connection], content[0]))
                if kind == "done":
                    listener.on_done(worker, active.pop(connection), content[0])
                self._idle.append(connection)

    def _hand_out(self, run: Run, connection: Connection, active: dict[Connection, Run]) -> None:
        active[connection] = run
        try:
            connection.send(run)
        except ConnectionError as error:
            raise _death(run, self._pool[connection][1]) from error


def _execute_here(
    runs: Sequence[Run], listener: Listener, data: str | None, threads: int, device: str, over: Callable[[], bool]
) -> None:
    corpus = _load(runs[0], data)
    with limit_threads(threads):
        for run in runs:
            if over():
                return
            report = _throttled(lambda step, loss, run=run: listener.on_step(0, run, step, loss))  # type: ignore[misc]
            try:
                _check_sources(run, corpus)
                result = train(run, corpus, report, device)
            except Exception as error:
                raise StudyError(_failure(run, reason_of(error))) from error
            listener.on_done(0, run, result)


def _work(connection: Connection, data: str | None, threads: int, device: str, given: bytes) -> None:
    """A worker's life. A closed pipe means that the parent is gone or does not need it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_memory()
    warnings.showwarning = lambda message, *_: connection.send(("warned", str(message)))
    corpus = None
    try:
        unpack(given)
        with limit_threads(threads):
            connection.send(("ready",))
            while (run := connection.recv()) is not None:
                try:
                    corpus = corpus or _load(run, data)
                    _check_sources(run, corpus)
                    report = _throttled(lambda step, loss: connection.send(("step", step, loss)))
                    result = train(run, corpus, report, device)
                except ConnectionError:
                    raise
                except Exception as error:
                    connection.send(("failed", reason_of(error)))
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
    what = f"in the run {run}" if run else "while it had no run (a script needs `if __name__ == '__main__':`)"
    return StudyError(
        f"a worker died with exit code {process.exitcode} {what}; what is finished is kept, and the same command goes "
        "on from there. Exit code -9 often means too little memory: use fewer workers"
    )
