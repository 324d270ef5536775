"""One self-contained HTML page: plotly.js, figures, tables and words in one file that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moga.report.curves import curve_views
from moga.report.figures import write_figures
from moga.report.files import write_whole
from moga.report.html import Card, Chart, render
from moga.report.plots import drift_figure, transfer_panel
from moga.report.results import NATS, Results, load_results
from moga.report.tables import cards, headline, optima, spans, width_rows
from moga.study.fit import FIT_SCALE
from moga.study.verdicts import TRANSFERS_DRIFT, TRANSFERS_REGRET

__all__ = ["render_page", "write_report"]


def write_report(directory: str | Path) -> Path:
    """Write ``report.html``, ``transfer.png`` and ``drift.png`` beside the records; return the page's path.

    Raises StudyError where the directory holds no study or no finished run, or cannot be written.
    """
    results = load_results(directory)
    write_figures(results)
    path = results.directory / "report.html"
    write_whole(path, render_page(results).encode())
    return path


def render_page(results: Results) -> str:
    """The page as one string of HTML. Its content security policy forbids the browser every connection."""
    verdicts = cards(results)
    return render(
        "template.html",
        study=results.study,
        records=results.records,
        palettes={len(results.widths)} | {len(fit_rates) for fit_rates in _rates(results)},
        title=_title(results),
        headline=headline(results),
        cards=verdicts,
        over=results.over,
        widths=width_rows(results),
        averaged=results.averaged,
        unit=results.unit,
        nats=NATS,
        margin=f"{results.study['settings'].get('margin', 1.0):g}",
        shared=any(record.get("environment", {}).get("workers", 1) > 1 for record in results.records),
        span=spans(results),
        fit_scale=FIT_SCALE,
        regret_limit=TRANSFERS_REGRET,
        drift_limit=TRANSFERS_DRIFT,
        **_charts(results, verdicts),
    )


def _title(results: Results) -> str:
    family, widths = results.study["settings"]["family"], results.widths
    span = f"{results.over} {widths[0]}" if len(widths) == 1 else f"{results.over}s {widths[0]} to {widths[-1]}"
    return f"Learning-rate transfer: {family}, {span}"


def _rates(results: Results) -> list[set[float]]:
    """The learning rates of every recipe and width."""
    return [
        {run["config"]["lr"] for run in results.runs(summary.recipe, width)}
        for summary in results.summaries
        for width in results.widths
    ]


def _charts(results: Results, verdicts: Sequence[Card]) -> dict[str, Any]:
    over, views = results.over, curve_views(results)
    drift = drift_figure(results)
    return {
        "transfer": [
            Chart(
                summary.recipe,
                f"{summary.recipe}: validation loss against learning rate, a line per {over}. {optima(summary)}. "
                f"{summary.verdict.rstrip('.')}",
                [transfer_panel(results, summary)],
                group="loss",
                kind=card.kind,
                word=card.word,
            )
            for summary, card in zip(results.summaries, verdicts, strict=True)
        ],
        "drift": drift["data"]
        and Chart(
            "octaves from the smallest " + over,
            f"Move of each recipe's best learning rate with the {over}, in octaves; a flat line transfers",
            [drift],
            group="move",
        ),
        "views": [view["label"] for view in views],
        "curves": [
            Chart(
                summary.recipe,
                f"{summary.recipe}: training loss against steps",
                [view["panels"][summary.recipe] for view in views],
                group="training",
            )
            for summary in results.summaries
        ],
    }
