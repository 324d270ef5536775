"""The main figures as PNG files, for a paper, a slide or a README."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from moga.report.axes import LossAxis, clipped, loss_axis
from moga.report.files import write_picture
from moga.report.plots import EDGE, LOST, edge_side, edge_sides
from moga.report.results import Results
from moga.report.theme import BAND, DASHES, GRID, SOFT, STRONG, recipe_style, verbatim
from moga.study.fit import Summary, WidthFit

__all__ = ["drift_png", "transfer_png", "write_figures"]

_COLUMNS = 3
_DOTS_PER_INCH = 160


def write_figures(results: Results) -> list[Path]:
    """Write ``transfer.png`` and ``drift.png`` beside the records and return their paths."""
    drawn = {"transfer.png": transfer_png(results), "drift.png": drift_png(results)}
    paths = []
    for name, figure in drawn.items():
        path = results.directory / name
        write_picture(path, figure, _DOTS_PER_INCH)
        paths.append(path)
    return paths


def transfer_png(results: Results) -> Figure:
    """Loss against learning rate, a panel per recipe with one loss axis, at most three panels in a row."""
    count = len(results.summaries)
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(4.1 * columns + 0.5, 3.5 * rows + 0.55), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for index, (summary, panel) in enumerate(zip(results.summaries, axes.flat, strict=False)):
        _transfer_panel(panel, results, summary)
        if index % columns == 0:
            panel.set_ylabel(f"validation loss ({results.unit})")
    for unused in axes.flat[count:]:
        unused.set_visible(False)
    handles = [_handle(results, width) for width in results.widths]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False)
    return figure


def _handle(results: Results, width: int) -> Line2D:
    style: dict[str, Any] = {"color": results.colours[width], "linestyle": DASHES[results.dashes[width]]}
    return Line2D([], [], marker="o", markersize=4, label=f"{results.over} {width}", **style)


def _transfer_panel(panel: Axes, results: Results, summary: Summary) -> None:
    axis = loss_axis(results)
    for fit in summary.widths:
        _draw_width(panel, results, summary, fit, axis)
    low, high = results.octaves[summary.recipe]
    _style(panel)
    panel.set_xscale("log", base=2)
    panel.set_xlim(2**low, 2**high)
    panel.set_ylim(axis.bottom, axis.top)
    panel.set_yticks(axis.ticks)
    panel.set_xlabel("learning rate")
    panel.set_title(verbatim(results.names[summary.recipe]), loc="left", fontweight="bold", fontsize=11)
    for side in edge_sides(summary):
        _note(panel, EDGE, 0.01 if side == "left" else 0.99, 0.01, side, "bottom")
    if axis.band:
        panel.axhspan(axis.floor, axis.top, color=BAND, zorder=0)
        _note(panel, LOST, 0.01, 0.985, "left", "top")


def _note(panel: Axes, text: str, x: float, y: float, side: str, anchor: str) -> None:
    panel.text(x, y, text, ha=side, va=anchor, transform=panel.transAxes, fontsize=7.5, color=SOFT)


def _draw_width(panel: Axes, results: Results, summary: Summary, fit: WidthFit, axis: LossAxis) -> None:
    colour, top = results.colours[fit.width], results.loss_range[1]
    dash: Any = DASHES[results.dashes[fit.width]]
    xs, ys = clipped([math.log2(rate) for rate in fit.lrs], fit.losses, axis.floor)
    line = [(math.nan, math.nan) if x is None or y is None else (2.0**x, y) for x, y in zip(xs, ys, strict=True)]
    panel.plot([x for x, _ in line], [y for _, y in line], color=colour, linewidth=1.6, linestyle=dash)
    pairs = list(zip(fit.lrs, fit.losses, strict=True))
    shown = [(rate, loss) for rate, loss in pairs if loss <= top]
    panel.plot([rate for rate, _ in shown], [loss for _, loss in shown], "o", color=colour, markersize=3.5)
    lost = list(results.diverged(summary.recipe, fit.width))
    above = [rate for rate, loss in pairs if top < loss < math.inf and rate not in lost]
    for rates, symbol in ((lost, "x"), (above, "^")):
        panel.plot(
            rates, [axis.marks[fit.width]] * len(rates), symbol, color=colour, markersize=4.5, markeredgewidth=1.4
        )
    if fit.optimum is None:
        return
    if fit.optimum.edge:
        arrow = "<" if edge_side(fit) == "left" else ">"
        (mark,) = panel.plot([fit.optimum.lr], [fit.optimum.loss], arrow, color=colour, zorder=5)
        mark.set(markersize=11, markerfacecolor="none", markeredgewidth=1.8)
        return
    rate, spread = fit.optimum.lr, fit.optimum.stderr_log2 or 0.0
    bar = [[rate - rate * 2**-spread], [rate * 2**spread - rate]]
    drawn = panel.errorbar(
        [rate], [fit.optimum.loss], xerr=bar, fmt="D", color=colour, zorder=5, capsize=3, elinewidth=1.8
    )
    drawn.lines[0].set(markersize=8, markeredgecolor="white", markeredgewidth=1.2)


def drift_png(results: Results) -> Figure:
    """The move of each recipe's best learning rate with width, in octaves; flat is transfer."""
    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    panel = figure.subplots()
    _style(panel)
    panel.axhline(0, color=STRONG, linewidth=1)
    for index, summary in enumerate(results.summaries):
        found = [(fit.width, fit.optimum) for fit in summary.widths if fit.known and fit.optimum]
        if len(found) < 2:
            continue
        colour, _, marker, word = recipe_style(index)
        dash: Any = DASHES[word]
        panel.errorbar(
            [width for width, _ in found],
            [math.log2(optimum.lr / found[0][1].lr) for _, optimum in found],
            yerr=[optimum.stderr_log2 or 0.0 for _, optimum in found],
            color=colour,
            marker=marker,
            markersize=5.5,
            linewidth=1.6,
            linestyle=dash,
            capsize=2.5,
            label=verbatim(results.names[summary.recipe]),
        )
    panel.set_xscale("log", base=2)
    panel.set_xticks(results.widths, [str(width) for width in results.widths])
    panel.minorticks_off()
    low, high = panel.get_ylim()
    reach = max(0.5, abs(low), abs(high))
    panel.set_ylim(-reach, reach)
    panel.set_xlabel(results.over)
    panel.set_ylabel("move of the best learning rate (octaves)")
    if panel.get_legend_handles_labels()[0]:
        panel.legend(frameon=False, fontsize=8.5)
    else:
        panel.text(0.5, 0.6, "no recipe has two known optima", ha="center", transform=panel.transAxes)
    return figure


def _style(panel: Axes) -> None:
    panel.grid(color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
