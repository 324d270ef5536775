"""The figures of docs/steepest-descent.md. Each PNG carries the numbers that it shows, so that a test can read them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from figures import adam, classical, polar, width
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from moga.report.theme import RECIPE_STYLES

Drawn = list[dict[str, object]]  # of every line: its label, xs and ys

BLUE, ORANGE, GREEN, PINK, BROWN, INK = (colour for colour, _, _ in RECIPE_STYLES)
MARKERS = [marker for _, _, marker in RECIPE_STYLES]
STYLE = {"linewidth": 1.8, "markersize": 5.5}
SIZE, DOTS_PER_INCH = (4.8, 3.4), 150  # 720 pixels across, with letters that a phone can show


def panels(rows: int = 1, height: float = SIZE[1]) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    axes = list(figure.subplots(rows, squeeze=False)[:, 0])
    for axis in axes:
        axis.grid(color="#e8eaef", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def note(axis: Axes, x: float, y: float, text: str, **options: object) -> None:
    axis.annotate(text, (x, y), color="#3d4452", fontsize=9.5, **options)


def two_digits(x: float) -> str:
    """Two decimals, and no sign where nothing else is left."""
    return f"{x:.2f}".replace("-0.00", "0.00")


def distances() -> Figure:
    figure, (axis,) = panels()
    grid = torch.linspace(-0.6, 2.6, 3201, dtype=torch.float64)
    separations = torch.linspace(0, 2, 41, dtype=torch.float64)
    here = classical.bump(grid, separations.new_tensor(0.0), 0.05)
    there = [classical.bump(grid, separation, 0.05) for separation in separations]
    w1 = [float(classical.wasserstein(here, p, grid)) for p in there]
    js = [float(classical.jensen_shannon(here, p)) for p in there]
    axis.plot(separations, w1, color=BLUE, label="W1", **STYLE)
    axis.plot(separations, js, color=ORANGE, linestyle="--", label="Jensen-Shannon", **STYLE)
    note(axis, 1.35, math.log(2) - 0.15, "log 2: no slope")
    axis.set(xlabel="distance of the two peaks", ylabel="divergence (W1: length, JS: nats)")
    axis.legend(frameon=False)
    return figure


def quadratic() -> Figure:
    figure, axes = panels(2, height=6.0)
    shown = sorted({round(1450 ** (i / 50)) for i in range(51)})
    for axis, schedule in zip(axes, classical.SCHEDULES, strict=True):
        for i, (method, (colour, _, marker)) in enumerate(zip(classical.FOUR, RECIPE_STYLES, strict=False)):
            sizes = classical.descend(method, schedule).norm(dim=-1)
            # what oscillates has its largest distance in some of the following steps, not just at this one
            kept = [(t, size) for t in shown if (size := float(sizes[t : t + 2 + t // 10].max())) > 1e-6]
            style = {"color": colour, "marker": marker, "linestyle": ("-", "--")[i % 2], "markevery": (3 * i, 10)}
            axis.loglog(*zip(*kept, strict=True), label=method, **style, **STYLE)
        axis.set(ylim=(1e-3, 2), ylabel="distance to the minimum")
        axis.set_title(f"rate {schedule}", loc="left", fontsize=10.5)
    axes[1].set_xlabel("step")
    axes[0].legend(frameon=False, fontsize=9, loc="lower left")
    return figure


def coordinates() -> Figure:
    figure, (axis,) = panels(height=4.2)
    rows = [
        ("gradient descent", "theta", ORANGE, "-", "s"),
        ("gradient descent", "xi", ORANGE, "--", "^"),
        ("natural gradient", "theta", BLUE, "-", "o"),
        ("natural gradient", "xi", BLUE, "--", "D"),
    ]
    for method, name, colour, line, marker in rows:
        path = classical.fit_path(method, name, 0.05, 120)
        style = {"color": colour, "linestyle": line, "marker": marker, "markevery": 12, **STYLE}
        axis.plot(*path.T.tolist(), label=f"{method} in {name}", **style)
    newton = classical.fit_path("Newton", "xi", 1.0, 6)
    axis.plot(*newton.T.tolist(), color=INK, marker="x", linestyle=":", label="Newton in xi", **STYLE)
    note(axis, *classical.BEGIN.tolist(), "start", xytext=(0, -10), textcoords="offset points", ha="left", va="top")
    axis.set(xlabel="theta1", ylabel="theta2 = exp(xi2)")
    axis.legend(frameon=False, fontsize=9)
    return figure


def adam_noise() -> Figure:
    figure, (axis,) = panels()
    mus = tuple(i / 2 for i in range(9))
    measured = adam.noisy_steps(mus)
    fine = [i / 20 for i in range(81)]
    for index, (name, colour, marker) in enumerate((("mean", BLUE, "o"), ("s.d.", ORANGE, "s"))):
        axis.plot(fine, [adam.noisy_theory(mu)[index] for mu in fine], color=colour, label=f"{name}, formula", **STYLE)
        axis.plot(mus, [row[index] for row in measured], marker, color=colour, label=f"{name}, run", markersize=5.5)
    axis.set(xlabel="mean of the gradient over its s.d.", ylabel="Adam's step at lr = 1")
    axis.legend(frameon=False)
    return figure


def stability() -> Figure:
    figure, (axis,) = panels()
    rows = [("b2 = b1", "momentum", 0.9, BLUE, "o"), ("b2 = b1^2", None, 0.81, ORANGE, "s")]
    fine = [i / 4 for i in range(1, 169)]
    coarse = (*(float(i) for i in range(2, 36, 3)), 38.5, 40.5)
    for name, word, b2, colour, marker in rows:
        end = 1.1 * adam.stability_limit(0.9, b2)
        line = [x for x in fine if x <= end]
        axis.plot(line, [adam.growth(x, 0.9, b2) for x in line], color=colour, label=f"{name}, polynomial", **STYLE)
        dots = [(x, y) for x, y in zip(coarse, adam.measured_growth(coarse, 0.9, word), strict=True) if x <= end]
        axis.plot(*zip(*dots, strict=True), marker, color=colour, label=f"{name}, run", markersize=5.5)
        limit = adam.stability_limit(0.9, b2)
        note(axis, limit, 1.0, f"{limit:.4g}", xytext=(-5, 6), textcoords="offset points", ha="right")
    axis.axhline(1, color="#8a91a0", linewidth=1)
    axis.set(xlabel="lr times sharpness", ylabel="growth per step")
    axis.legend(frameon=False, fontsize=9, loc="upper center")
    return figure


def quintic() -> Figure:
    figure, (axis,) = panels()
    x = torch.logspace(-4, 0, 301, dtype=torch.float64)
    rows = (("quintic", 5, BLUE, "-"), ("cubic", 5, ORANGE, "--"), ("cubic", 16, GREEN, ":"))
    for method, steps, colour, line in rows:
        y = polar.iterate(method, x, steps)
        axis.semilogx(x.tolist(), y.tolist(), color=colour, linestyle=line, label=f"{method}, {steps} steps", **STYLE)
    axis.axhline(1, color="#8a91a0", linewidth=1)
    axis.set(xlabel="singular value before", ylabel="after", ylim=(0, 1.62))
    axis.legend(frameon=False, loc="upper left", fontsize=9)
    return figure


def sign_width() -> Figure:
    figure, (axis,) = panels()
    for rank, (colour, _, marker) in zip(width.RANKS, RECIPE_STYLES, strict=False):
        name = f"rank {rank}" if rank else "dense"
        label = f"{name}: slope {two_digits(width.sign_slope(rank))}"
        axis.loglog(width.WIDTHS, width.sign_sizes(rank), color=colour, marker=marker, label=label, **STYLE)
    axis.set_xticks(width.WIDTHS, [str(n) for n in width.WIDTHS])
    axis.minorticks_off()
    axis.set(xlabel="width n", ylabel="spectral norm of sign(G)")
    axis.legend(frameon=False)
    return figure


def network_width() -> Figure:
    figure, axes = panels(2, height=5.6)
    rows = [("adamw", "fixed rate", ORANGE, "s"), ("mup-adamw", "rate / n", BLUE, "o")]
    for axis, what, ylabel in zip(
        axes, ("spectral", "effect"), ("spectral norm of the change", "RMS of its effect"), strict=True
    ):
        for recipe, rate, colour, marker in rows:
            label = f"{rate}: slope {two_digits(width.trained_slope(recipe, what))}"
            axis.loglog(width.WIDTHS, width.trained(recipe, what), color=colour, marker=marker, label=label, **STYLE)
        axis.set_xticks(width.WIDTHS, [str(n) for n in width.WIDTHS])
        axis.minorticks_off()
        axis.set_ylabel(ylabel)
        axis.legend(frameon=False)
    axes[1].set_xlabel("width n")
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "distances": distances,
    "quadratic": quadratic,
    "coordinates": coordinates,
    "adam-noise": adam_noise,
    "stability": stability,
    "quintic": quintic,
    "sign-width": sign_width,
    "network-width": network_width,
}


def drawn(figure: Figure) -> Drawn:
    """Every line of a figure as numbers of four digits."""
    return [
        {"label": line.get_label(), "x": _digits(line.get_xdata()), "y": _digits(line.get_ydata())}
        for panel in figure.axes
        for line in panel.get_lines()
    ]


def _digits(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def write(folder: Path) -> None:
    """All figures as PNGs of 64 colours."""
    for name, make in FIGURES.items():
        figure, file, info = make(), io.BytesIO(), PngInfo()
        figure.savefig(file, dpi=DOTS_PER_INCH, facecolor="white")
        info.add_text("Data", json.dumps(drawn(figure)), zip=True)
        few = Image.open(file).convert("RGB").quantize(64, method=Image.Quantize.FASTOCTREE)
        few.save(folder / f"{name}.png", pnginfo=info, optimize=True)


def read(path: Path) -> Drawn:
    """The numbers that a PNG written here carries."""
    with Image.open(path) as image:
        found: Drawn = json.loads(image.text["Data"])
    return found
