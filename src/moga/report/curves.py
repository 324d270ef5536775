"""Training curves to choose from: each width at its best rate, or every rate of one width."""

from __future__ import annotations

import math
from typing import Any

from moga.report.plots import base_layout
from moga.report.results import Record, Results, final_loss
from moga.report.theme import describe_rate, power_of_two, sequential

__all__ = ["curve_views"]


def curve_views(results: Results) -> list[dict[str, Any]]:
    """One view per choice: ``label`` and, per recipe, the figure to show.

    Within a view all recipes share the loss axis. It reaches from the lowest loss to the highest first loss, so that a
    run that blows up leaves through the top instead of flattening the others.
    """
    views = [_best_view(results)]
    views += [_rates_view(results, width) for width in results.widths]
    return views


def _best_view(results: Results) -> dict[str, Any]:
    chosen: dict[str, list[tuple[Record, str, str]]] = {}
    for summary in results.summaries:
        chosen[summary.recipe] = []
        for fit in summary.widths:
            if not math.isfinite(fit.best_loss):
                continue
            rate = min(zip(fit.losses, fit.lrs, strict=True))[1]
            runs = [run for run in results.runs(summary.recipe, fit.width) if run["config"]["lr"] == rate]
            chosen[summary.recipe] += [(run, results.colours[fit.width], fit.name) for run in runs]
    return _view(f"Each {results.over} at its best learning rate", chosen)


def _rates_view(results: Results, width: int) -> dict[str, Any]:
    chosen = {}
    for summary in results.summaries:
        runs = results.runs(summary.recipe, width)
        rates = sorted({run["config"]["lr"] for run in runs})
        colours = dict(zip(rates, sequential(len(rates)), strict=True)) if rates else {}
        chosen[summary.recipe] = [
            (run, colours[run["config"]["lr"]], power_of_two(run["config"]["lr"])) for run in runs
        ]
    return _view(f"{results.over.capitalize()} {width}: every learning rate", chosen)


def _view(label: str, chosen: dict[str, list[tuple[Record, str, str]]]) -> dict[str, Any]:
    axis = _shared_range([run for runs in chosen.values() for run, _, _ in runs])
    return {"label": label, "panels": {recipe: _panel(runs, axis) for recipe, runs in chosen.items()}}


def _panel(runs: list[tuple[Record, str, str]], axis: list[float]) -> dict[str, Any]:
    layout = base_layout("step", "training loss (nats per token)")
    layout["yaxis"] |= {"range": axis}
    layout |= {
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top", "font": {"size": 12}},
        "margin": layout["margin"] | {"b": 96},
    }
    if not runs:
        words = {"text": "every run diverged", "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
        layout["annotations"] = [words]
    named: set[str] = set()
    traces = []
    for run, colour, name in runs:
        traces.append(_curve(run, colour, name, first=name not in named))
        named.add(name)
    return {"data": traces, "layout": layout}


def _curve(run: Record, colour: str, name: str, *, first: bool) -> dict[str, Any]:
    config, curve = run["config"], run["result"]["curve"]
    lost = not math.isfinite(final_loss(run))
    over = config.get("over", "width")
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "showlegend": first,
        "x": [step for step, _ in curve],
        "y": [loss if _finite(loss) else None for _, loss in curve],
        "line": {"color": colour, "width": 1.6, "dash": "dot" if lost else "solid"},
        "text": f"{over} {config[over]}, learning rate {describe_rate(config['lr'])}, seed {config['seed']}"
        + (", diverged" if lost else ""),
        "hovertemplate": "%{text}<br>step %{x}: loss %{y:.3f}<extra></extra>",
    }


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
