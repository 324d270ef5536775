"""The numbers of the page as rows of finished text, so that the template only lays them out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup

from moga.report.plots import edge_side
from moga.report.results import Results
from moga.report.theme import describe_rate, format_number
from moga.study.fit import Summary, WidthFit

__all__ = ["RecipeRow", "WidthRow", "environments", "headline", "recipe_rows", "settings_rows", "width_rows"]

# What a verdict looks like: word, sign. The sign carries the meaning where colour cannot.
_STATUS = {True: ("transfers", "✓"), False: ("does not transfer", "✗"), None: ("unknown", "?")}


@dataclass(frozen=True)
class RecipeRow:
    """One recipe over all widths. ``status`` is transfers, does not transfer or unknown."""

    recipe: str
    status: str
    sign: str
    verdict: str
    drift: str
    regret: str
    best_loss: str
    largest: int
    tokens: str
    seconds: str
    tokens_per_second: str


@dataclass(frozen=True)
class WidthRow:
    """One recipe at one width. ``unknown`` marks an optimum that the grid does not enclose."""

    recipe: str
    width: int
    parameters: str
    optimum: Markup
    unknown: bool
    best_loss: str
    runs: str
    tokens: str
    seconds: str
    tokens_per_second: str


def recipe_rows(results: Results) -> list[RecipeRow]:
    """A row per recipe, in the order of the records."""
    return [_recipe_row(results, summary) for summary in results.summaries]


def _recipe_row(results: Results, summary: Summary) -> RecipeRow:
    status, sign = _STATUS[summary.transfers]
    drift = format_number(summary.drift, 2, signed=True)
    if summary.drift is not None and summary.drift_stderr is not None:
        drift += f" ± {summary.drift_stderr:.2f}"
    largest = summary.widths[-1]
    tokens, seconds, speed = _costs(results, summary.recipe, None)
    return RecipeRow(
        recipe=summary.recipe,
        status=status,
        sign=sign,
        verdict=summary.verdict,
        drift=drift if summary.drift is not None else "unknown",
        regret=format_number(summary.regret) if summary.regret is not None else "unknown",
        best_loss=format_number(largest.best_loss),
        largest=largest.width,
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=speed,
    )


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
        best_loss=format_number(fit.best_loss),
        runs=f"{len(runs)}" + (f", {lost} diverged" if lost else ""),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=speed,
    )


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


def settings_rows(results: Results) -> list[tuple[str, str]]:
    """The settings that every run shares, and the corpus, as name and text."""
    rows = [(name.replace("_", " "), _plain(value)) for name, value in results.study["settings"].items()]
    rows += [(f"corpus {name.replace('_', ' ')}", _plain(value)) for name, value in results.study["corpus"].items()]
    return [(name, text) for name, text in rows if name != "corpus"]


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return str(value)


def environments(results: Results) -> list[dict[str, str]]:
    """The machines and versions that the runs were made with, each once."""
    found: list[dict[str, str]] = []
    for record in results.records:
        words = {name: _plain(value) for name, value in record["environment"].items()}
        if words not in found:
            found.append(words)
    return found
