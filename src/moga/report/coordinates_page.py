"""The figures, the page and the text of a coordinate check."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moga.report.axes import octave_ticks
from moga.report.causes import causes, largest_slope, offending, verdict
from moga.report.charts import Figure as Picture
from moga.report.charts import base_layout, chart, entry
from moga.report.coordinates import RMS, Check, Parameter, load_check
from moga.report.files import write_picture, write_whole
from moga.report.html import Card, Chart, render, settings_of
from moga.report.slopes import ERRORS, Finding
from moga.report.theme import DASHES, GRID, VERDICTS, short_names, verbatim

__all__ = ["check_figure", "check_png", "module_rows", "parameter_rows", "text", "write_check_report"]

_DOTS_PER_INCH = 110
KINDS = {"fails": "no", "undecided": "maybe", "passes": "yes"}
PICTURES = {"start": "size at the start", "change": "change after the last step"}
PICKS: dict[str, Callable[[Any], float | None]] = {  # out of a record's module
    "start": lambda one: float(one["start"][RMS]),
    "change": lambda one: None if one["change"][-1] is None else float(one["change"][-1][RMS]),
}
Line = tuple[str, str, list[float]]  # name of a module, verdict on what is shown, relative sizes
SHOWN = 8  # rows of a table in a terminal


def write_check_report(directory: str | Path) -> tuple[Path, list[Check]]:
    """Write ``report.html`` and ``check.png`` beside the records; return the page's path and the cases.

    Raises StudyError where the directory holds no check, or one that is not finished.
    """
    directory = Path(directory)
    checks = load_check(directory)
    write_picture(directory / "check.png", check_png(checks), _DOTS_PER_INCH)
    page = directory / "report.html"
    write_whole(page, _render(checks).encode())
    return page, checks


def text(checks: Sequence[Check]) -> str:
    """The verdict of each case, and the first modules that do not pass, with their slopes."""
    blocks = []
    for check in checks:
        rows = [module for module, _ in offending(check)]
        lines = [verdict(check)]
        if rows:
            cells = [("module", "start", "change", "own", "verdict")]
            cells += [(one.name, str(one.start), str(one.change), str(one.own), one.word) for one in rows[:SHOWN]]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
            lines += [f"  and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
        blocks.append("\n".join(lines))
    left_out = checks[0].left_out
    if left_out:
        blocks.append(f"left out, as not all of their runs are there: {', '.join(left_out)}")
    return "\n\n".join(blocks)


def module_rows(check: Check) -> list[dict[str, Any]]:
    """One row per module, those that do not pass first, each with its cause."""
    texts = causes(check)
    first = [module for module, _ in offending(check)]
    rest = [module for module in check.modules if module not in first]
    return [
        {
            "name": module.name,
            "type": module.type,
            "word": module.word,
            "start": str(module.start),
            "changes": [str(found) for found in module.changes],
            "own": str(module.own),
            "one": str(module.others["1"]),
            "largest": str(module.others["inf"]),
            "cause": texts.get(module.name, ""),
        }
        for module in [*first, *rest]
    ]


def parameter_rows(check: Check) -> list[dict[str, str]]:
    """One row per parameter: role, fan at the largest size, and slopes of its entries, its update and its scale."""
    found: dict[str, Parameter] = {one.name: one for module in check.modules for one in module.parameters}
    largest = check.sizes[-1]
    return [
        {
            "name": one.name,
            "role": one.role or "unknown",
            "norm": one.norm or "",
            "fan": ", ".join(map(str, one.fans.get(largest) or [])),
            "weight": str(one.weight),
            "update": str(one.update),
            "scale": _plain(one.scale),
            "rule": _plain(one.rule),
        }
        for one in found.values()
    ]


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def _render(checks: Sequence[Check]) -> str:
    """The page as one string of HTML that opens without a network."""
    study, left_out = checks[0].study, checks[0].left_out
    if left_out:
        study = {"unfinished": study["commands"][-1] if study["commands"] else ""} | study
    rates = {f"learning rate of {check.title}": f"{check.records[0]['config']['lr']:g}" for check in checks}
    return render(
        "coordinates.html",
        study=study,
        left_out=left_out,
        records=[record for check in checks for record in check.records],
        title=f"Coordinate check: {study['settings']['model']}",
        over=study["settings"]["over"],
        mark=f"{study['settings']['mark']:g}",
        errors=ERRORS,
        steps=len(checks[0].modules[0].changes),
        cards=[_card(check) for check in checks],
        cases=[
            {
                "title": check.title,
                "charts": [_chart(check, what) for what in PICTURES],
                "modules": module_rows(check),
                "parameters": parameter_rows(check),
            }
            for check in checks
        ],
        settings=rates | settings_of(study),
        sizes=", ".join(map(str, checks[0].sizes)),
        seeds=len({record["config"]["seed"] for record in checks[0].records}),
    )


def _card(check: Check) -> Card:
    passing = sum(module.word == "passes" for module in check.modules)
    found = largest_slope(check)
    numbers = [("modules that pass", f"{passing} of {len(check.modules)}", "")]
    numbers += [("largest slope", str(found[0]), f"octaves per doubling, of {found[1]}")] if found else []
    numbers.append(("mark", f"±{check.settings['mark']:g}", "octaves per doubling"))
    sentence = verdict(check).removeprefix(f"{check.title}: {check.word}. ")
    return Card(check.title, numbers, sentence, KINDS[check.word], check.word)


def _chart(check: Check, what: str) -> Chart:
    over = check.settings["over"]
    alt = f"{check.title}: {PICTURES[what]} of every module against {over}, relative to the smallest {over}"
    title = f"{PICTURES[what]}, relative to the smallest {over}"
    return Chart(title, alt, [check_figure(check, what)], group=check.title)


def _lines(check: Check, what: str) -> list[Line]:
    """(module, verdict on what is shown, line) of each module that has a slope, the worst last, which is on top.

    A line is the geometric mean over seeds at each size, over that of the smallest one.
    """
    found = []
    for module in check.modules:
        finding: Finding = getattr(module, what)
        if finding.slope is None:
            continue
        values = check.values("modules", module.name, PICKS[what])
        means = [sum(math.log(value or 1.0) for value in many.values()) / len(many) for many in values.values()]
        found.append((module.name, finding.word, [math.exp(mean - means[0]) for mean in means]))
    return sorted(found, key=lambda one: -list(VERDICTS).index(one[1]))


def _range(many: Sequence[Sequence[Line]]) -> tuple[float, float]:
    """The range of relative sizes, at least from a half to two: what is flat looks flat."""
    numbers = [number for lines in many for _, _, line in lines for number in line]
    return min([0.5, *numbers]) / 1.1, max([2.0, *numbers]) * 1.1


def check_figure(check: Check, what: str) -> Picture:
    """Size against width, relative to the smallest, as a plotly dictionary: a line per module; flat is right."""
    layout = base_layout(check.settings["over"], f"{PICTURES[what]}, relative")
    layout["xaxis"] |= {"type": "log", "tickvals": check.sizes, "ticktext": [str(size) for size in check.sizes]}
    layout["xaxis"]["range"] = [math.log10(check.sizes[0] / 1.1), math.log10(check.sizes[-1] * 1.1)]
    lines = _lines(check, what)
    low, high = _range([lines])
    ticks = [2.0**power for power in octave_ticks(math.log2(low), math.log2(high))]
    layout["yaxis"] |= {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" for tick in ticks],
    }
    traces: list[dict[str, Any]] = []
    for name, word, line in lines:
        colour, dash, width, _ = VERDICTS[word]
        traces.append(
            {"type": "scatter", "mode": "lines", "name": name, "legendgroup": word, "x": check.sizes, "y": line,
             "line": {"color": colour, "dash": dash, "width": width},
             "hovertemplate": f"<b>{name}</b>: {word}<br>%{{x}}: %{{y:.3g}}<extra></extra>"}
        )  # fmt: skip
    legend = [entry(word, word, colour, dash) for word, (colour, dash, *_) in VERDICTS.items()]
    columns = ["module", "verdict", check.settings["over"], "seed", "size"]
    rows = [
        [name, word, size, seed, value]
        for name, word, _ in lines
        for size, many in check.values("modules", name, PICKS[what]).items()
        for seed, value in many.items()
    ]
    return chart(traces, layout, legend=legend, columns=columns, rows=rows)


def check_png(checks: Sequence[Check]) -> Figure:
    """A row per case: sizes at the start, and changes after the last step, with one scale."""
    recipes = [str(check.records[0]["config"]["recipe"]) for check in checks]
    names = short_names(recipes)
    figure = Figure(figsize=(8.2, 2.7 * len(checks) + 0.4), layout="constrained")
    panels = figure.subplots(len(checks), len(PICTURES), sharey=True, squeeze=False)
    lines = {(row, what): _lines(check, what) for row, check in enumerate(checks) for what in PICTURES}
    for (row, what), panel in zip(lines, panels.flat, strict=True):
        _draw(panel, checks[row], lines[row, what])
        title = checks[row].title.replace(recipes[row], names[recipes[row]], 1)
        panel.set_title(f"{verbatim(title)}: {checks[row].word}\n{PICTURES[what]}", loc="left", fontsize=8.5)
        panel.set_ylim(*_range(list(lines.values())))
    for row in panels:
        row[0].set_ylabel("relative size", fontsize=8.5)
    for panel in panels[-1]:
        panel.set_xlabel(checks[0].settings["over"], fontsize=8.5)
    return figure


def _draw(panel: Axes, check: Check, lines: Sequence[Line]) -> None:
    for _, word, line in lines:
        colour, dash, width, _ = VERDICTS[word]
        style: Any = DASHES[dash]
        panel.plot(check.sizes, line, linestyle=style, color=colour, linewidth=width)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(check.sizes, [str(size) for size in check.sizes])
    panel.minorticks_off()
    panel.grid(color=GRID, linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)
