"""What all figures of the pages share: a plotly dictionary, with the entries of its legend and its numbers as a table.

The page's script draws the legend as buttons, for keyboards and for groups of figures, and saves the table as CSV.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moga.report.theme import GRID, INK, LINE, PAPER

__all__ = ["Figure", "base_layout", "chart", "entry"]

Figure = dict[str, Any]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def chart(
    traces: Sequence[Figure],
    layout: Figure,
    *,
    legend: Sequence[Figure],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]] | None = None,
) -> Figure:
    """A figure. Without ``rows`` the table has one row per point of each trace: its ``meta["row"]``, then x and y."""
    table = {"columns": list(columns)} | ({} if rows is None else {"rows": rows})
    return {"data": list(traces), "layout": layout, "legend": list(legend), "table": table}


def entry(group: str, name: str, colour: str, dash: str, symbol: str = "") -> Figure:
    """A line of a legend; it shows or hides the traces of its ``legendgroup``, the tooltip of a short name."""
    return {"group": group, "name": name, "colour": colour, "dash": dash, "symbol": symbol}


def base_layout(x_title: str, y_title: str) -> Figure:
    """White, thin grid, room for the labels and no more; the legend stands outside."""
    axis = {"gridcolor": GRID, "linecolor": LINE, "zeroline": False, "ticks": "outside", "tickcolor": LINE}
    return {
        "font": {"family": FONT, "size": 13, "color": INK},
        "margin": {"l": 54, "r": 12, "t": 10, "b": 48},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "hoverlabel": {"font": {"family": FONT, "size": 13}},
        "showlegend": False,
        "xaxis": {**axis, "title": {"text": x_title, "standoff": 8, "font": {"size": 12.5}}},
        "yaxis": {**axis, "title": {"text": y_title, "standoff": 6, "font": {"size": 12.5}}, "automargin": True},
    }
