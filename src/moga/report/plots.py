"""The figures of the page of a transfer study, as plotly dictionaries: nothing is drawn yet.

The horizontal axis is log2 of the learning rate, drawn as a linear axis of exponents with powers of two as its labels:
error bars in octaves are then symmetric, and every recipe's axis can span the same number of octaves.
"""

from __future__ import annotations

import html
import math
from typing import Any

from moga.report.axes import LossAxis, clipped, loss_axis, octave_ticks
from moga.report.charts import Figure, base_layout, chart, entry
from moga.report.results import Record, Results, final_loss
from moga.report.theme import (
    BAND,
    PAPER,
    SOFT,
    STRONG,
    describe_rate,
    format_loss,
    format_number,
    power_of_two,
    recipe_style,
)
from moga.study.fit import Summary, WidthFit

__all__ = ["drift_figure", "edge_side", "edge_sides", "transfer_panel", "width_legend"]

EDGE = "edge of the grid: optimum unknown"
LOST = "diverged or above the axis"


def edge_side(fit: WidthFit) -> str:
    """``left`` or ``right``: the end of the grid at which an optimum at the edge lies."""
    return "left" if fit.optimum is not None and fit.optimum.lr == fit.lrs[0] else "right"


def edge_sides(summary: Summary) -> list[str]:
    """The ends of the grid at which some width has its lowest loss."""
    return sorted({edge_side(fit) for fit in summary.widths if fit.optimum is not None and fit.optimum.edge})


def transfer_panel(results: Results, summary: Summary) -> Figure:
    """Validation loss against learning rate for one recipe: a curve per width, its optimum, and what diverged."""
    axis = loss_axis(results)
    layout = base_layout("learning rate", f"validation loss ({results.unit})")
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
    columns = ["recipe", results.over, "learning_rate", "seed", "validation_loss", "diverged"]
    return chart(traces, layout, legend=width_legend(results), columns=columns, rows=_run_rows(results, summary))


def width_legend(results: Results) -> list[Figure]:
    """An entry per width."""
    return [
        entry(str(width), f"{results.over} {width}", colour, results.dashes[width])
        for width, colour in results.colours.items()
    ]


def _run_rows(results: Results, summary: Summary) -> list[list[Any]]:
    return [
        [summary.recipe, config[results.over], config["lr"], config["seed"], result["loss"], result["diverged"]]
        for config, result in ((run["config"], run["result"]) for run in results.runs(summary.recipe))
    ]


def _width_traces(results: Results, summary: Summary, fit: WidthFit, axis: LossAxis) -> list[Figure]:
    """Everything that belongs to one width; the page's legend switches these together."""
    colour = results.colours[fit.width]
    common = {"type": "scatter", "legendgroup": str(fit.width), "name": fit.name}
    runs = results.runs(summary.recipe, fit.width)
    on_grid = [run for run in runs if run["config"]["lr"] in fit.lrs]
    apart = [run for run in runs if run["config"]["lr"] not in fit.lrs]
    line = {"color": colour, "width": 2, "dash": results.dashes[fit.width]}
    traces = [_mean_line(fit, line, common, axis.floor), _mean_points(fit, colour, common, results.loss_range[1])]
    if fit.seeds > 1:
        traces.append(_points(on_grid, common, {"size": 4, "color": colour, "opacity": 0.45}, "seed", axis.floor))
    if apart:
        marker = {"size": 9, "color": colour, "symbol": "circle-open", "line": {"width": 2}}
        traces.append(_points(apart, common, marker, f"checked at the smallest {fit.over}'s optimum, seed", axis.floor))
    traces += _marks_above(results, summary, fit, axis, common)
    if fit.optimum is not None:
        traces.append(_optimum(fit, colour, common))
    return traces


def _mean_line(fit: WidthFit, line: Figure, common: Figure, top: float) -> Figure:
    """Through the means over seeds; a rate at which a seed diverged is a gap."""
    xs, ys = clipped([math.log2(rate) for rate in fit.lrs], fit.losses, top)
    return common | {"x": xs, "y": ys, "mode": "lines", "line": line, "hoverinfo": "skip"}


def _mean_points(fit: WidthFit, colour: str, common: Figure, top: float) -> Figure:
    shown = [(rate, loss) for rate, loss in zip(fit.lrs, fit.losses, strict=True) if loss <= top]
    seeds = f", mean of {fit.seeds} seeds" if fit.seeds > 1 else ""
    return common | {
        "x": [math.log2(rate) for rate, _ in shown],
        "y": [loss for _, loss in shown],
        "mode": "markers",
        "marker": {"color": colour, "size": 6},
        "text": [
            f"<b>{fit.name}</b><br>learning rate {describe_rate(rate)}<br>loss {format_loss(loss)}{seeds}"
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
            f"<br>loss {format_loss(final_loss(run))}<br>{what} {run['config']['seed']}"
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
            {rate: f"loss {format_loss(loss)}, above the axis" for rate, loss in above.items()},
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
        "marker": {"symbol": "diamond", "size": 12, "color": colour, "line": {"width": 2, "color": PAPER}},
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
    layout["yaxis"] |= {"zeroline": True, "zerolinecolor": STRONG, "zerolinewidth": 1.5}
    traces, legend, rows = [], [], []
    for index, summary in enumerate(results.summaries):
        found = [fit for fit in summary.widths if fit.known]
        if len(found) > 1:
            style = recipe_style(index)
            traces.append(_drift_trace(summary, found, index))
            name = results.names[summary.recipe]
            legend.append(entry(summary.recipe, name, style.colour, style.dash, style.symbol))
            rows += _move_rows(summary, found)
    moves = [abs(y) + error for one in traces for y, error in zip(one["y"], one["error_y"]["array"], strict=True)]
    reach = max([0.5, *(1.25 * move for move in moves)])
    layout["yaxis"] |= {"range": [-reach, reach]}
    columns = ["recipe", results.over, "fitted_optimum", "standard_error_octaves", "move_octaves"]
    return chart(traces, layout, legend=legend, columns=columns, rows=rows)


def _move_rows(summary: Summary, found: list[WidthFit]) -> list[list[Any]]:
    optima = [(fit.width, fit.optimum) for fit in found if fit.optimum is not None]
    first = optima[0][1].lr
    return [[summary.recipe, width, one.lr, one.stderr_log2, math.log2(one.lr / first)] for width, one in optima]


def _drift_trace(summary: Summary, found: list[WidthFit], index: int) -> Figure:
    colour, symbol, _, dash = recipe_style(index)
    optima = [fit.optimum for fit in found if fit.optimum is not None]
    name = html.escape(summary.recipe, quote=False)  # plotly leaves out what stands in angles
    return {
        "type": "scatter",
        "name": summary.recipe,
        "legendgroup": summary.recipe,
        "x": [math.log2(fit.width) for fit in found],
        "y": [math.log2(optimum.lr / optima[0].lr) for optimum in optima],
        "error_y": {
            "array": [optimum.stderr_log2 or 0.0 for optimum in optima],
            "visible": any(optimum.stderr_log2 for optimum in optima),
            "thickness": 1.5,
        },
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"color": colour, "symbol": symbol, "size": 9},
        "text": [
            f"<b>{name}</b>, {fit.name}<br>best learning rate {describe_rate(optimum.lr)}"
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
        "font": {"size": 11, "color": SOFT},
    }
