"""The figures and the page of a study of smoothness."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moga.report.charts import base_layout, chart, entry
from moga.report.constants import AXES, CONSTANTS, FROM_BELOW, Constants, case_words, load_constants, power
from moga.report.files import write_picture, write_whole
from moga.report.html import Card, Chart, render
from moga.report.smoothness import page_tables
from moga.report.theme import DASHES, GRID, recipe_style

__all__ = ["cards", "constants_figure", "constants_png", "write_smoothness_report"]

_DOTS_PER_INCH = 160
Case = Mapping[str, int]


def write_smoothness_report(directory: str | Path) -> Path:
    """Write ``report.html`` and a PNG per axis with more than one size beside the records; return the page's path.

    Raises StudyError where the directory holds no study of smoothness or no finished measurement.
    """
    found = load_constants(directory)
    for axis in AXES:
        if found.panels(axis):
            path = found.directory / f"smoothness-{'depth' if axis == 'layers' else axis}.png"
            write_picture(path, constants_png(found, axis), _DOTS_PER_INCH)
    page = found.directory / "report.html"
    write_whole(page, _render(found).encode())
    return page


def _render(found: Constants) -> str:
    """The page as one string of HTML that opens without a network."""
    return render(
        "smoothness.html",
        study=found.study,
        records=found.records,
        title=f"Lipschitz and smoothness constants: {found.study['settings']['family']}",
        cards=cards(found),
        charts=[
            _chart(found, constant, axis, case)
            for axis in AXES
            for case in found.panels(axis)
            for constant in CONSTANTS
        ],
        tables=page_tables(found),
        from_below=FROM_BELOW,
        grew=sum(not record["result"]["settled"] for record in found.records),
        span=_span(found),
    )


def _span(found: Constants) -> str:
    """Which widths and seeds were measured, for every depth and number of steps.

    Widths of the same seeds stand together.
    """
    parts = []
    for steps in found.sizes("trained"):
        for layers in found.sizes("layers"):
            seeds: dict[int, set[int]] = {}
            for one in found.chosen(layers=layers, trained=steps):
                seeds.setdefault(one["config"]["width"], set()).add(one["config"]["seed"])
            shared: dict[tuple[int, ...], list[int]] = {}
            for width in sorted(seeds):
                shared.setdefault(tuple(sorted(seeds[width])), []).append(width)
            said = [f"width {_listed(widths)} with seed {_listed(same)}" for same, widths in shared.items()]
            parts += [f"{layers} layers, after {steps} steps: {' and '.join(said)}"] if said else []
    return "; ".join(parts)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def cards(found: Constants) -> list[Card]:
    """Per norm how smoothness grows along the first axis that has several sizes, after the most training."""
    axis = next((axis for axis in AXES if found.panels(axis)), "width")
    case = (found.panels(axis) or [{AXES[axis]: found.sizes(AXES[axis])[-1], "trained": found.sizes("trained")[-1]}])[
        -1
    ]
    shown = []
    for norm in found.norms:
        series = found.series("smoothness", axis, norm=norm, **case)
        if not series:
            continue
        size, values = list(series.items())[-1]
        grown = power(series)
        numbers = [("exponent of smoothness", str(grown), f"octaves per doubling of the {axis}")] if grown else []
        numbers += [("theory", f"{found.exponent(norm):g}", "")] if axis == "width" else []
        numbers.append((f"smoothness at {axis} {size}", f"{sum(values) / len(values):.4g}", "at least"))
        shown.append(Card(norm, numbers, f"Hidden matrices in the norm {norm}; {case_words(axis, case)}."))
    return shown


def _chart(found: Constants, constant: str, axis: str, case: Case) -> Chart:
    title = f"{CONSTANTS[constant]}; {case_words(axis, case)}"
    alt = f"{CONSTANTS[constant]} against {axis}, a line per norm; {case_words(axis, case)}"
    return Chart(title, alt, [constants_figure(found, constant, axis, case)], group="constants")


def constants_figure(found: Constants, constant: str, axis: str, case: Case) -> dict[str, Any]:
    """One constant along an axis as a plotly dictionary: a line per norm, both axes in powers of two.

    The dotted line is the theory's power of the width, from the first point.
    """
    layout = base_layout(axis, CONSTANTS[constant])
    layout["xaxis"] |= {"type": "log", "tickvals": found.sizes(axis), "ticktext": [str(x) for x in found.sizes(axis)]}
    layout["yaxis"] |= {"type": "log"}
    traces: list[dict[str, Any]] = []
    legend, rows = [], []
    for index, norm in enumerate(found.norms):
        colour, symbol, _, dash = recipe_style(index)
        legend.append(entry(norm, norm, colour, dash, symbol))
        chosen = found.chosen(norm=norm, **case)
        rows += [
            [norm, one["config"][axis], one["config"]["seed"], one["result"][constant]]
            for one in sorted(chosen, key=lambda one: (one["config"][axis], one["config"]["seed"]))
        ]
        line = _line(found, constant, axis, case, norm)
        common = {"type": "scatter", "legendgroup": norm, "x": [x for x, _ in line]}
        measured = {
            "name": norm,
            "y": [y for _, y in line],
            "mode": "lines+markers",
            "line": {"color": colour, "dash": dash},
            "marker": {"color": colour, "symbol": symbol, "size": 9},
            "hovertemplate": f"<b>{norm}</b><br>{axis} %{{x}}<br>%{{y:.4g}}<extra></extra>",
        }
        traces.append(common | measured)
        if theory := _theory(found, constant, axis, norm, line):
            dotted = {"color": colour, "dash": "dot", "width": 1.2}
            drawn = {"name": f"{norm}: theory", "y": theory, "mode": "lines", "line": dotted}
            traces.append(common | drawn | {"hoverinfo": "skip"})
    return chart(traces, layout, legend=legend, columns=["norm", axis, "seed", constant], rows=rows)


def _line(found: Constants, constant: str, axis: str, case: Case, norm: str) -> list[tuple[int, float]]:
    """(size, geometric mean over seeds) where every seed's value is above 0, so that it has a logarithm."""
    series = found.series(constant, axis, norm=norm, **case)
    return [
        (size, math.exp(sum(map(math.log, values)) / len(values)))
        for size, values in series.items()
        if all(value > 0 for value in values)
    ]


def _theory(found: Constants, constant: str, axis: str, norm: str, line: list[tuple[int, float]]) -> list[float] | None:
    if (axis, constant) != ("width", "smoothness") or not line:
        return None
    return [line[0][1] * (size / line[0][0]) ** found.exponent(norm) for size, _ in line]


def constants_png(found: Constants, axis: str) -> Figure:
    """A row of panels per constant, a column per thing held, with one scale in a row."""
    cases = found.panels(axis)
    figure = Figure(figsize=(3.9 * len(cases) + 0.5, 3.1 * len(CONSTANTS) + 0.5), layout="constrained")
    panels = figure.subplots(len(CONSTANTS), len(cases), sharey="row", squeeze=False)
    for row, constant in enumerate(CONSTANTS):
        for column, case in enumerate(cases):
            panel = panels[row][column]
            _draw(panel, found, constant, axis, case)
            if column == 0:
                panel.set_ylabel(CONSTANTS[constant])
            if row == 0:
                panel.set_title(case_words(axis, case), loc="left", fontsize=10)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(handles), frameon=False)
    return figure


def _draw(panel: Axes, found: Constants, constant: str, axis: str, case: Case) -> None:
    for index, norm in enumerate(found.norms):
        colour, _, marker, word = recipe_style(index)
        dash: Any = DASHES[word]
        line = _line(found, constant, axis, case, norm)
        sizes = [size for size, _ in line]
        means = [value for _, value in line]
        panel.plot(sizes, means, color=colour, linestyle=dash, marker=marker, markersize=5, label=norm)
        if theory := _theory(found, constant, axis, norm, line):
            panel.plot(sizes, theory, ":", color=colour, linewidth=1)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.set_xticks(found.sizes(axis), [str(size) for size in found.sizes(axis)])
    panel.set_xlabel(axis)
    panel.minorticks_off()
    panel.grid(color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
