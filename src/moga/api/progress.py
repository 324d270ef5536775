"""What a study shows while it runs: a live bar in a terminal or a notebook, one plain line per run anywhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from moga.study.prices import Estimate
    from moga.study.sweep import State

__all__ = ["WORDS", "ahead", "check_word", "duration", "show_progress", "watch_records", "watch_sweep"]

WORDS = ("auto", "none")
REDRAW = 0.5  # seconds between two pictures in a notebook
PHASES = {"grid": "sweep", "regret": "regret"}


def duration(seconds: float | None) -> str:
    """Seconds as a person says them; an unknown time is three dots.

    >>> duration(7.4), duration(200), duration(7300), duration(None)
    ('7 s', '3 min 20 s', '2 h 1 min', '...')
    """
    if seconds is None or not math.isfinite(seconds):
        return "..."
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def ahead(cost: Estimate) -> str:
    """What a sweep will take, before it starts."""
    work = f"{cost.runs} run{'s' * (cost.runs != 1)}, {cost.steps:,} steps, {cost.tokens:.2g} tokens"
    said = f"{work}, {cost.flops:.2g} FLOPs (6 x parameters x tokens)"
    workers = f"{cost.workers} worker{'s' * (cost.workers != 1)}"
    return "\n".join([f"ahead: {said}: about {duration(cost.seconds)} of training on {workers}", *cost.left_out])


def check_word(word: str) -> None:
    """Raise ValueError for a word of `progress` that is none."""
    if word not in WORDS:
        raise ValueError(f"unknown word {word!r} for progress; the words are {', '.join(WORDS)}")


@contextmanager
def watch_sweep(word: str) -> Iterator[tuple[Callable[[State], None] | None, Callable[[Estimate], None] | None]]:
    """What to give the state of a sweep to, and before it its cost; with the word "none" nobody is told."""
    check_word(word)
    if word == "none":
        yield None, None
        return
    console = Console(stderr=True)
    with show_progress(console) as progress:
        yield progress, lambda cost: console.print(ahead(cost), markup=False, highlight=False, soft_wrap=True)


def watch_records(word: str, line: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any], int, int], None]:
    """What to give each record to, how many are done, and of how many: it shows the record's line."""
    check_word(word)
    console = Console(stderr=True)
    picture = _Picture() if console.is_jupyter else None

    def tell(record: dict[str, Any], done: int, total: int) -> None:
        text = f"[{done}/{total}] {line(record)}"
        if picture is not None:
            picture.draw(Text(text), last=done == total)
        else:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    return tell if word == "auto" else lambda record, done, total: None


@contextmanager
def show_progress(console: Console) -> Iterator[Callable[[State], None]]:
    """A function to give the state of the sweep to, as often as it likes."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
    )
    if console.is_jupyter:
        bar = _NotebookBar(Progress(*columns, console=console))
        yield bar
        bar.draw(last=True)
    elif not console.is_terminal:
        yield _Lines(console)
    else:
        with Progress(*columns, console=console, refresh_per_second=5) as progress:
            yield _Bar(progress)


class _Picture:
    """One output of a notebook cell, drawn anew in its place: rich's own live display needs widgets there."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = -math.inf

    def draw(self, what: RenderableType, *, last: bool = False) -> None:
        """Draw, if the last picture is old enough or this is the last one."""
        from IPython import display

        if time.monotonic() - self._drawn < REDRAW and not last:
            return
        self._drawn = time.monotonic()
        if self._handle is None:
            self._handle = display.display(what, display_id=True)
        else:
            self._handle.update(what)


class _Bar:
    """One bar per phase, with the losses of the runs in progress and the time that is left."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, state: State) -> None:
        if state.phase not in self._tasks:
            if state.total == 0:
                return
            name = PHASES.get(state.phase, state.phase)
            self._tasks[state.phase] = self._progress.add_task(name, total=state.total, status="starting")
        self._progress.update(self._tasks[state.phase], completed=state.done, status=_status(state))


class _NotebookBar(_Bar):
    """The same bars as a table in the output of a notebook cell."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._picture = _Picture()

    def __call__(self, state: State) -> None:
        super().__call__(state)
        self.draw()

    def draw(self, *, last: bool = False) -> None:
        if self._tasks:
            self._picture.draw(self._progress.make_tasks_table(self._progress.tasks), last=last)


def _status(state: State) -> str:
    parts = [
        f"{item.run.recipe} {item.run.size}: {_loss(item.loss)}"
        for item in state.active.values()
        if item.loss is not None
    ]
    if state.diverged:
        parts.append(f"{state.diverged} diverged")
    if state.done < state.total:
        parts.append(f"{duration(state.seconds_left)} left")
    return "  ".join(parts)


class _Lines:
    """A line when a phase starts and one for each run that finishes: readable in a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""

    def __call__(self, state: State) -> None:
        if state.phase != self._phase and state.total:
            self._phase = state.phase
            reused = f", {state.reused} of them from before" if state.reused else ""
            self._print(f"{PHASES.get(state.phase, state.phase)}: {state.total} run{'s' * (state.total != 1)}{reused}")
        if state.latest is not None:
            left = f", {duration(state.seconds_left)} left" if state.done < state.total else ""
            self._print(f"[{state.done}/{state.total}] {_finished(state.latest)}{left}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _finished(record: dict[str, Any]) -> str:
    config, result = record["config"], record["result"]
    loss = "diverged" if result["diverged"] else f"loss {_loss(result['loss'])}"
    over = config.get("over", "width")
    return f"{config['recipe']}, {over} {config[over]}, lr {config['lr']:.4g}, seed {config['seed']}: {loss}"


def _loss(loss: float | None) -> str:
    return f"{loss:.3f}" if loss is not None and math.isfinite(loss) else "diverged"
