"""One self-contained HTML page: plotly.js, figures, tables and words in one file that opens without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moga.report.curves import curve_views
from moga.report.figures import write_figures
from moga.report.html import render, resource
from moga.report.plots import drift_figure, transfer_panel
from moga.report.results import Results, load_results
from moga.report.tables import environments, headline, recipe_rows, settings_rows, width_rows

__all__ = ["render_page", "write_report"]


def write_report(directory: str | Path) -> Path:
    """Write ``report.html``, ``transfer.png`` and ``drift.png`` beside the records; return the page's path.

    Raises StudyError where the directory holds no study or no finished run.
    """
    results = load_results(directory)
    write_figures(results)
    path = results.directory / "report.html"
    path.write_text(render_page(results), encoding="utf-8")
    return path


def render_page(results: Results) -> str:
    """The page as one string of HTML. Its content security policy forbids the browser every connection."""
    return render(
        "template.html",
        title=_title(results),
        headline=headline(results),
        recipes=recipe_rows(results),
        over=results.over,
        widths=width_rows(results),
        colours=results.colours,
        seeds=len(results.seeds),
        settings=settings_rows(results),
        environments=environments(results),
        commands=results.study["commands"],
        runs=len(results.records),
        figures=_figures(results),
        script=resource("page.js"),
    )


def _title(results: Results) -> str:
    family, widths = results.study["settings"]["family"], results.widths
    span = f"{results.over} {widths[0]}" if len(widths) == 1 else f"{results.over}s {widths[0]} to {widths[-1]}"
    return f"Learning-rate transfer: {family}, {span}"


def _figures(results: Results) -> dict[str, Any]:
    return {
        "transfer": {summary.recipe: transfer_panel(results, summary) for summary in results.summaries},
        "drift": drift_figure(results),
        "curves": curve_views(results),
    }
