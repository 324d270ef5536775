"""One self-contained HTML page: plotly.js, figures, tables and words in one file that opens without a network."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from moga.report.curves import curve_views
from moga.report.figures import write_figures
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
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_resource("template.html"))
    return template.render(
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
        figures=_json(_figures(results)),
        style=Markup(_resource("style.css")),
        script=Markup(_resource("page.js")),
        plotly=Markup(get_plotlyjs()),
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


def _json(value: Any) -> Markup:
    """JSON that may stand inside a script element: no text in it can end the element."""
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))


def _resource(name: str) -> str:
    return files("moga.report").joinpath(name).read_text(encoding="utf-8")
