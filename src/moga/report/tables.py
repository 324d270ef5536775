"""The numbers of the page as rows of finished text, so that the template only lays them out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from moga.report.html import Card
from moga.report.plots import edge_side
from moga.report.results import NATS, Results
from moga.report.theme import describe_rate, format_loss, format_number
from moga.study.fit import SAME_RATE, Summary, WidthFit

__all__ = ["WidthRow", "cards", "headline", "optima", "spans", "width_rows"]

# What is said of a recipe: kind, words.
_STATUS = {True: ("yes", "transfers"), False: ("no", "does not transfer"), None: ("maybe", "unknown")}


@dataclass(frozen=True)
class WidthRow:
    """One recipe at one width. ``unknown`` marks an optimum that the grid does not enclose.

    ``optimum`` and ``fitted_loss`` are of the parabola; ``best_loss`` is the lowest measured one, at ``best_rate``.
    """

    recipe: str
    width: int
    parameters: str
    optimum: Markup
    unknown: bool
    fitted_loss: str
    best_loss: str
    best_rate: str
    grid: str
    runs: str
    tokens: str
    seconds: str
    tokens_per_second: str


def cards(results: Results) -> list[Card]:
    """The verdict on each recipe with its numbers, in the order of the records."""
    return [_card(results, summary) for summary in results.summaries]


def _card(results: Results, summary: Summary) -> Card:
    kind, word = _STATUS[summary.transfers]
    drift = format_number(summary.drift, 2, signed=True) if summary.drift is not None else "unknown"
    if summary.drift is not None and summary.drift_stderr is not None:
        drift += f" ± {summary.drift_stderr:.2f}"
    small, large = summary.widths[0], summary.widths[-1]
    tuned = f"{small.optimum.lr:.3g}" if small.known and small.optimum else "unknown"
    numbers = [
        ("drift", drift, "octaves per doubling"),
        ("regret", *_regret(results, summary)),
        ("best learning rate", tuned, f"fitted, at {small.name}"),
        ("lowest loss", format_loss(large.best_loss), f"measured, at {large.name}"),
    ]
    sentence = summary.verdict.removeprefix(f"{summary.recipe}: ")
    return Card(summary.recipe, numbers, sentence[:1].upper() + sentence[1:], kind, word)


def _regret(results: Results, summary: Summary) -> tuple[str, str]:
    """The number, and its unit, its width and the seeds that it is a mean of."""
    large = summary.widths[-1]
    if summary.regret is None or summary.regret_lr is None:
        return "unknown", f"at {large.name}"
    if not math.isfinite(summary.regret):
        return "diverged", f"at {large.name}"
    runs = [(run["config"]["lr"], run["config"]["seed"]) for run in results.runs(summary.recipe, large.width)]
    best = large.lrs[large.losses.index(large.best_loss)]
    tried = {seed for rate, seed in runs if math.isclose(rate, summary.regret_lr, rel_tol=SAME_RATE)}
    count = len(tried & {seed for rate, seed in runs if rate == best})
    number = format_number(summary.regret) if results.unit == NATS else format_loss(summary.regret, 3)
    return number, f"{results.unit}, at {large.name}, {count} seed{'s' * (count != 1)}"


def width_rows(results: Results) -> list[WidthRow]:
    """A row per recipe and width."""
    return [_width_row(results, summary, fit) for summary in results.summaries for fit in summary.widths]


def _width_row(results: Results, summary: Summary, fit: WidthFit) -> WidthRow:
    runs = results.runs(summary.recipe, fit.width)
    lost = sum(count for count, _ in results.diverged(summary.recipe, fit.width).values())
    text, unknown = _optimum_text(fit)
    tokens, seconds, speed = _costs(results, summary.recipe, fit.width)
    return WidthRow(
        recipe=summary.recipe,
        width=fit.width,
        parameters=f"{runs[0]['result']['parameters']:,}",
        optimum=Markup(text),
        unknown=unknown,
        fitted_loss="–" if unknown or fit.optimum is None else format_loss(fit.optimum.loss),
        best_loss=format_loss(fit.best_loss),
        best_rate=_best_rate(fit),
        grid=f"{len(fit.lrs)} × {fit.seeds}",
        runs=f"{len(runs)}" + (f", {lost} diverged" if lost else ""),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=speed,
    )


def _best_rate(fit: WidthFit) -> str:
    """The rate of the lowest measured loss."""
    if not math.isfinite(fit.best_loss):
        return "–"
    return f"{min(zip(fit.losses, fit.lrs, strict=True))[1]:.3g}"


def _optimum_text(fit: WidthFit) -> tuple[str, bool]:
    """The optimum in HTML of our own making (numbers only), and whether it is unknown."""
    if fit.optimum is None:
        return "unknown: every run diverged", True
    if fit.optimum.edge and len(fit.lrs) < 3:
        return f"unknown: {len(fit.lrs)} of the 3 rates that a minimum takes", True
    if fit.optimum.edge:
        side = "below" if edge_side(fit) == "left" else "above"
        end = fit.lrs[0] if side == "below" else fit.lrs[-1]
        return f"unknown: at the edge of the grid, try {side} {describe_rate(end)}", True
    text = describe_rate(fit.optimum.lr)
    if fit.optimum.stderr_log2 is not None:
        text += f" ± {fit.optimum.stderr_log2:.2f} octaves"
    return text, False


def optima(summary: Summary) -> str:
    """The best learning rate at every width, in plain text."""
    found = [
        f"{fit.name} {fit.optimum.lr:.3g}" if fit.known and fit.optimum else f"{fit.name} unknown"
        for fit in summary.widths
    ]
    return f"Best learning rates: {', '.join(found)}"


def _costs(results: Results, recipe: str, width: int | None) -> tuple[str, str, str]:
    """Tokens and seconds of all runs together, and tokens per second over the runs that finished."""
    runs = [record["result"] for record in results.runs(recipe, width)]
    finished = [run["tokens_per_second"] for run in runs if not run["diverged"]]
    speed = f"{fmean(finished):,.0f}" if finished else "–"
    return f"{sum(run['tokens'] for run in runs):,}", f"{sum(run['seconds'] for run in runs):,.1f}", speed


def headline(results: Results) -> str:
    """The answer in one sentence, by recipe: which learning rates transfer, which do not, which stay unknown."""
    groups = {wanted: [s.recipe for s in results.summaries if s.transfers is wanted] for wanted in _STATUS}
    words = {  # alone or first in the sentence, and after another part
        True: ("the learning rate transfers", ""),
        False: ("the learning rate does not transfer", "it does not"),
        None: ("unknown whether the learning rate transfers", "unknown"),
    }
    parts: list[str] = []
    for outcome, (first, later) in words.items():
        if groups[outcome]:
            parts.append(f"{_join(groups[outcome])}: {later if parts else first}")
    return "; ".join(parts) + "."


def _join(names: list[str]) -> str:
    """Names as a reader says them.

    >>> _join(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def spans(results: Results) -> str:
    """Which runs there are, in a sentence per recipe."""
    parts = []
    for summary in results.summaries:
        configs = [run["config"] for run in results.runs(summary.recipe)]
        rates, seeds = {one["lr"] for one in configs}, {one["seed"] for one in configs}
        sizes = _join([str(fit.width) for fit in summary.widths])
        parts.append(
            f"{summary.recipe}: {len(configs)} at {results.over} {sizes}, {len(rates)} learning rates from "
            f"{min(rates):.3g} to {max(rates):.3g}, seeds {_join(sorted(map(str, seeds)))}."
        )
    return " ".join(parts)
