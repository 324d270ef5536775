"""The interactive figures, as plain plotly dictionaries: data and layout, nothing drawn yet.

The horizontal axis is log2 of the learning rate, drawn as a linear axis of exponents with powers of two as its labels:
error bars in octaves are then symmetric, and every recipe's axis can span the same number of octaves.
"""

from __future__ import annotations

import math
from typing import Any

from moga.report.axes import LossAxis, clipped, loss_axis, octave_ticks
from moga.report.results import Record, Results, final_loss
from moga.report.theme import RECIPE_STYLES, describe_rate, format_number, power_of_two
from moga.study.fit import Summary, WidthFit

__all__ = ["base_layout", "drift_figure", "edge_side", "edge_sides", "transfer_panel"]

Figure = dict[str, Any]

INK = "#1f2430"
GRID = "#e8eaef"
BAND = "#f3f4f7"
EDGE = "edge of the grid: optimum unknown"
LOST = "diverged or above the axis"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def base_layout(x_title: str, y_title: str) -> Figure:
    """What every figure shares: white, thin grid, room for the labels and no more."""
    axis = {"gridcolor": GRID, "linecolor": "#aab0bd", "zeroline": False, "ticks": "outside", "tickcolor": "#aab0bd"}
    return {
        "font": {"family": FONT, "size": 13, "color": INK},
        "margin": {"l": 54, "r": 12, "t": 10, "b": 48},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "hoverlabel": {"font": {"family": FONT, "size": 13}},
        "showlegend": False,
        "xaxis": {**axis, "title": {"text": x_title, "standoff": 8, "font": {"size": 12.5}}},
        "yaxis": {**axis, "title": {"text": y_title, "standoff": 6, "font": {"size": 12.5}}, "automargin": True},
    }


def edge_side(fit: WidthFit) -> str:
    """``left`` or ``right``: the end of the grid at which an optimum at the edge lies."""
    return "left" if fit.optimum is not None and fit.optimum.lr == fit.lrs[0] else "right"


def edge_sides(summary: Summary) -> list[str]:
    """The ends of the grid at which some width has its lowest loss."""
    return sorted({edge_side(fit) for fit in summary.widths if fit.optimum is not None and fit.optimum.edge})


def transfer_panel(results: Results, summary: Summary) -> Figure:
    """Validation loss against learning rate for one recipe: a curve per width, its optimum, and what diverged."""
    axis = loss_axis(results)
    layout = base_layout("learning rate", "validation loss (nats per token)")
    low, high = results.octaves[summary.recipe]
    ticks = octave_ticks(low, high)
    layout["xaxis"] |= {
        "range": [low, high],
        "tickvals": ticks,
        "ticktext": [power_of_two(2.0**tick) for tick in ticks],
    }
    layout["yaxis"] |= {"range": [axis.bottom, axis.top], "tickvals": axis.ticks}
    layout["annotations"] = [_note(EDGE, axis.bottom, "bottom", side) for side in edge_sides(summary)]
    if axis.band:
        layout["shapes"] = [_band(axis)]
        layout["annotations"].append(_note(LOST, axis.top, "top", "left"))
    traces = []
    for fit in summary.widths:
        traces += _width_traces(results, summary, fit, axis)
    return {"data": traces, "layout": layout}


def _width_traces(results: Results, summary: Summary, fit: WidthFit, axis: LossAxis) -> list[Figure]:
    """Everything that belongs to one width; the page's legend switches these together by ``meta.width``."""
    colour = results.colours[fit.width]
    common = {"type": "scatter", "meta": {"width": fit.width}, "name": fit.name, "showlegend": False}
    runs = results.runs(summary.recipe, fit.width)
    on_grid = [run for run in runs if run["config"]["lr"] in fit.lrs]
    apart = [run for run in runs if run["config"]["lr"] not in fit.lrs]
    traces = [_mean_line(fit, colour, common, axis.floor), _mean_points(fit, colour, common, results.loss_range[1])]
    if fit.seeds > 1:
        traces.append(_points(on_grid, common, {"size": 4, "color": colour, "opacity": 0.45}, "seed", axis.floor))
    if apart:
        marker = {"size": 9, "color": colour, "symbol": "circle-open", "line": {"width": 2}}
        traces.append(_points(apart, common, marker, f"checked at the smallest {fit.over}'s optimum, seed", axis.floor))
    traces += _marks_above(results, summary, fit, axis, common)
    if fit.optimum is not None:
        traces.append(_optimum(fit, colour, common))
    return traces


def _mean_line(fit: WidthFit, colour: str, common: Figure, top: float) -> Figure:
    """Through the means over seeds; a rate at which a seed diverged is a gap."""
    xs, ys = clipped([math.log2(rate) for rate in fit.lrs], fit.losses, top)
    return common | {"x": xs, "y": ys, "mode": "lines", "line": {"color": colour, "width": 2}, "hoverinfo": "skip"}


def _mean_points(fit: WidthFit, colour: str, common: Figure, top: float) -> Figure:
    shown = [(rate, loss) for rate, loss in zip(fit.lrs, fit.losses, strict=True) if loss <= top]
    seeds = f", mean of {fit.seeds} seeds" if fit.seeds > 1 else ""
    return common | {
        "x": [math.log2(rate) for rate, _ in shown],
        "y": [loss for _, loss in shown],
        "mode": "markers",
        "marker": {"color": colour, "size": 6},
        "text": [
            f"<b>{fit.name}</b><br>learning rate {describe_rate(rate)}<br>loss {format_number(loss)}{seeds}"
            for rate, loss in shown
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _points(runs: list[Record], common: Figure, marker: Figure, what: str, top: float) -> Figure:
    finite = [run for run in runs if final_loss(run) <= top]
    return common | {
        "x": [math.log2(run["config"]["lr"]) for run in finite],
        "y": [final_loss(run) for run in finite],
        "mode": "markers",
        "marker": marker,
        "text": [
            f"<b>{common['name']}</b><br>learning rate {describe_rate(run['config']['lr'])}"
            f"<br>loss {format_number(final_loss(run))}<br>{what} {run['config']['seed']}"
            for run in finite
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _marks_above(results: Results, summary: Summary, fit: WidthFit, axis: LossAxis, common: Figure) -> list[Figure]:
    """Crosses for runs that diverged, triangles for losses above the axis, in the band at the top."""
    high = results.loss_range[1]
    colour, height = results.colours[fit.width], axis.marks[fit.width]
    lost = results.diverged(summary.recipe, fit.width)
    above = {
        rate: loss
        for rate, loss in zip(fit.lrs, fit.losses, strict=True)
        if math.isfinite(loss) and loss > high and rate not in lost
    }
    marks: list[tuple[str, list[float], dict[float, str]]] = [
        ("x", list(lost), {rate: f"{count} of {total} runs diverged" for rate, (count, total) in lost.items()}),
        (
            "triangle-up",
            list(above),
            {rate: f"loss {format_number(loss)}, above the axis" for rate, loss in above.items()},
        ),
    ]
    return [
        common
        | {
            "x": [math.log2(rate) for rate in rates],
            "y": [height] * len(rates),
            "mode": "markers",
            "marker": {"symbol": symbol, "size": 8, "color": colour},
            "text": [f"<b>{fit.name}</b><br>learning rate {describe_rate(rate)}<br>{words[rate]}" for rate in rates],
            "hovertemplate": "%{text}<extra></extra>",
        }
        for symbol, rates, words in marks
        if rates
    ]


def _optimum(fit: WidthFit, colour: str, common: Figure) -> Figure:
    """The fitted optimum with its standard error; at the edge of the grid, an open arrow that points off it."""
    optimum = fit.optimum
    assert optimum is not None
    if optimum.edge:
        return common | {
            "x": [math.log2(optimum.lr)],
            "y": [optimum.loss],
            "mode": "markers",
            "marker": {
                "symbol": f"triangle-{edge_side(fit)}-open",
                "size": 15,
                "color": colour,
                "line": {"width": 2.5},
            },
            "text": [f"<b>{fit.name}</b><br>lowest loss at the edge of the grid:<br>the optimum is unknown"],
            "hovertemplate": "%{text}<extra></extra>",
        }
    spread = optimum.stderr_log2
    words = f"<b>{fit.name}</b><br>fitted optimum {describe_rate(optimum.lr)}"
    words += f"<br>± {format_number(spread, 2)} octaves" if spread is not None else "<br>one seed: no uncertainty"
    return common | {
        "x": [math.log2(optimum.lr)],
        "y": [optimum.loss],
        "mode": "markers",
        "marker": {"symbol": "diamond", "size": 12, "color": colour, "line": {"width": 2, "color": "#ffffff"}},
        "error_x": {"array": [spread or 0.0], "visible": bool(spread), "color": colour, "thickness": 2.5, "width": 6},
        "text": [words],
        "hovertemplate": "%{text}<extra></extra>",
    }


def drift_figure(results: Results) -> Figure:
    """How far each recipe's optimum moves, in octaves from its smallest width with a known optimum.

    A flat line is a learning rate that transfers. Widths without a known optimum have no point, and a recipe needs two.
    """
    layout = base_layout(results.over, "move of the best learning rate (octaves)")
    layout["xaxis"] |= {
        "range": [math.log2(results.widths[0]) - 0.2, math.log2(results.widths[-1]) + 0.2],
        "tickvals": [math.log2(width) for width in results.widths],
        "ticktext": [str(width) for width in results.widths],
    }
    layout["yaxis"] |= {"zeroline": True, "zerolinecolor": "#8a91a0", "zerolinewidth": 1.5}
    layout |= {"showlegend": True, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}}
    traces = []
    for index, summary in enumerate(results.summaries):
        found = [fit for fit in summary.widths if fit.known]
        if len(found) > 1:
            traces.append(_drift_trace(summary, found, index))
    moves = [abs(y) for trace in traces for y in trace["y"]]
    reach = max([0.5, *(1.25 * move for move in moves)])
    layout["yaxis"] |= {"range": [-reach, reach]}
    return {"data": traces, "layout": layout}


def _drift_trace(summary: Summary, found: list[WidthFit], index: int) -> Figure:
    colour, symbol, _ = RECIPE_STYLES[index % len(RECIPE_STYLES)]
    optima = [fit.optimum for fit in found if fit.optimum is not None]
    return {
        "type": "scatter",
        "name": summary.recipe,
        "x": [math.log2(fit.width) for fit in found],
        "y": [math.log2(optimum.lr / optima[0].lr) for optimum in optima],
        "error_y": {
            "array": [optimum.stderr_log2 or 0.0 for optimum in optima],
            "visible": any(optimum.stderr_log2 for optimum in optima),
            "thickness": 1.5,
        },
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "symbol": symbol, "size": 9},
        "text": [
            f"<b>{summary.recipe}</b>, {fit.name}<br>best learning rate {describe_rate(optimum.lr)}"
            for fit, optimum in zip(found, optima, strict=True)
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _band(axis: LossAxis) -> Figure:
    return {
        "type": "rect",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": axis.floor,
        "y1": axis.top,
        "fillcolor": BAND,
        "line": {"width": 0},
        "layer": "below",
    }


def _note(text: str, height: float, anchor: str, side: str) -> Figure:
    """A small grey remark at the left or right border of a panel."""
    return {
        "xref": "paper",
        "x": 0.01 if side == "left" else 0.99,
        "xanchor": side,
        "y": height,
        "yanchor": anchor,
        "text": text,
        "showarrow": False,
        "bgcolor": BAND,
        "font": {"size": 11, "color": "#5b6270"},
    }
