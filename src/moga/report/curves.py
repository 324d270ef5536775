"""Training curves to choose from: each width at its best rate, or every rate of one width."""

from __future__ import annotations

import math
from typing import Any

from moga.report.charts import base_layout, chart, entry
from moga.report.results import Record, Results, final_loss
from moga.report.theme import dashes, describe_rate, power_of_two, sequential

__all__ = ["curve_views"]

Shown = tuple[Record, str, tuple[str, str]]  # a run, its name in the legend, its colour and dash


def curve_views(results: Results) -> list[dict[str, Any]]:
    """One view per choice: ``label`` and, per recipe, the figure to show.

    Within a view all recipes share the loss axis. It reaches from the lowest loss to the highest first loss, so that a
    run that blows up leaves through the top instead of flattening the others.
    """
    views = [_best_view(results)]
    views += [_rates_view(results, width) for width in results.widths]
    return views


def _best_view(results: Results) -> dict[str, Any]:
    chosen: dict[str, list[Shown]] = {}
    for summary in results.summaries:
        chosen[summary.recipe] = []
        for fit in summary.widths:
            if not math.isfinite(fit.best_loss):
                continue
            rate = min(zip(fit.losses, fit.lrs, strict=True))[1]
            runs = [run for run in results.runs(summary.recipe, fit.width) if run["config"]["lr"] == rate]
            style = results.colours[fit.width], results.dashes[fit.width]
            chosen[summary.recipe] += [(run, fit.name, style) for run in runs]
    return _view(results.over, f"Each {results.over} at its best learning rate", results.unit, chosen)


def _rates_view(results: Results, width: int) -> dict[str, Any]:
    chosen = {}
    for summary in results.summaries:
        runs = results.runs(summary.recipe, width)
        rates = sorted({run["config"]["lr"] for run in runs})
        styles = dict(zip(rates, zip(sequential(len(rates)), dashes(len(rates)), strict=True), strict=True))
        chosen[summary.recipe] = [(run, power_of_two(run["config"]["lr"]), styles[run["config"]["lr"]]) for run in runs]
    label = f"{results.over.capitalize()} {width}: every learning rate"
    return _view(results.over, label, results.unit, chosen)


def _view(over: str, label: str, unit: str, chosen: dict[str, list[Shown]]) -> dict[str, Any]:
    axis = _shared_range([run for runs in chosen.values() for run, *_ in runs])
    return {"label": label, "panels": {recipe: _panel(over, unit, runs, axis) for recipe, runs in chosen.items()}}


def _panel(over: str, unit: str, runs: list[Shown], axis: list[float]) -> dict[str, Any]:
    layout = base_layout("step", f"training loss ({unit})")
    layout["yaxis"] |= {"range": axis}
    if not runs:
        words = {"text": "every run diverged", "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
        layout["annotations"] = [words]
    legend = {name: entry(name, name, *style) for _, name, style in runs}
    columns = ["recipe", over, "learning_rate", "seed", "diverged", "step", "training_loss"]
    return chart([_curve(over, *shown) for shown in runs], layout, legend=list(legend.values()), columns=columns)


def _curve(over: str, run: Record, name: str, style: tuple[str, str]) -> dict[str, Any]:
    """A line; that of a run that diverged ends in a cross."""
    config, curve = run["config"], run["result"]["curve"]
    lost = not math.isfinite(final_loss(run))
    row = [config["recipe"], config[over], config["lr"], config["seed"], lost]
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "meta": {"row": row},
        "x": [step for step, _ in curve],
        "y": [loss if _finite(loss) else None for _, loss in curve],
        "line": {"color": style[0], "width": 1.6, "dash": style[1]},
        "text": f"{over} {config[over]}, learning rate {describe_rate(config['lr'])}, seed {config['seed']}"
        + (", diverged" if lost else ""),
        "hovertemplate": "%{text}<br>step %{x}: loss %{y:.4g}<extra></extra>",
    }
    if lost:
        sizes = [0] * (len(curve) - 1) + [9]
        trace |= {"mode": "lines+markers", "marker": {"symbol": "x", "color": style[0], "size": sizes[-len(curve) :]}}
    return trace


def _finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _shared_range(runs: list[Record]) -> list[float]:
    curves = [[loss for _, loss in run["result"]["curve"] if _finite(loss)] for run in runs]
    curves = [curve for curve in curves if curve]
    if not curves:
        return [0.0, 1.0]
    low, high = min(map(min, curves)), max(curve[0] for curve in curves)
    margin = 0.05 * (high - low) or 0.05
    return [low - margin, high + margin]
