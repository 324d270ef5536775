"""Write the measured part of docs/depth.md and its figure from records/: ``python docs/make_depth.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from make_evidence import verdict_table
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import moga.study
from moga.report.theme import GRID, recipe_style

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "depth.md"
BEGIN, END = "<!-- python docs/make_depth.py -->\n", "<!-- end -->\n"
# Model -> rule of its branches -> directory of records.
MODELS = {
    "GPT-2": {"1/K": "gpt2-depth-1K", "1/sqrt(2K)": "gpt2-depth-1sqrt2K", "none": "gpt2-depth-none"},
    "Residual network": {"1/K": "digits-depth-1K", "1/sqrt(2K)": "digits-depth-1sqrt2K", "none": "digits-depth-none"},
}
DASHES = {"1/K": "-", "1/sqrt(2K)": "--", "none": ":"}


def studies(model: str) -> Iterator[tuple[str, moga.study.Transfer]]:
    for rule, directory in MODELS[model].items():
        yield rule, moga.study.load(ROOT / "records" / directory)


def table(model: str) -> Iterator[str]:
    """A head, and a row for each rule and recipe."""
    rows = [
        ((f"`{one.recipe}`", f"`{rule}`"), one) for rule, found in studies(model) for one in found.verdicts.values()
    ]
    return verdict_table(rows, ["recipe", "branches"])


def figure() -> Figure:
    """A row per model: the fitted best rate, and the lowest loss, against depth."""
    drawn = Figure(figsize=(8.2, 0.7 + 2.8 * len(MODELS)), layout="constrained")
    panels = drawn.subplots(len(MODELS), 2, squeeze=False)
    for model, (rates, losses) in zip(MODELS, panels, strict=True):
        for rule, found in studies(model):
            for index, (recipe, one) in enumerate(found.verdicts.items()):
                style = recipe_style(index)
                words = {"color": style.colour, "marker": style.marker, "markersize": 4, "label": f"{recipe}, {rule}"}
                known = [fit for fit in one.widths if fit.known]
                rates.plot([fit.width for fit in known], [fit.optimum.lr for fit in known], DASHES[rule], **words)
                losses.plot(
                    [fit.width for fit in one.widths], [fit.best_loss for fit in one.widths], DASHES[rule], **words
                )
        sizes = [fit.width for fit in one.widths]
        for panel, title in ((rates, "best learning rate (fitted)"), (losses, "lowest loss (measured)")):
            _axes(panel, sizes)
            panel.set_title(f"{model}: {title}", loc="left", fontsize=9)
        rates.set_yscale("log", base=2)
        tried = [
            lr for _, found in studies(model) for one in found.verdicts.values() for fit in one.widths for lr in fit.lrs
        ]
        rates.set_ylim(min(tried), max(tried))
    for panel in panels[-1]:
        panel.set_xlabel("blocks", fontsize=8.5)
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return drawn


def _axes(panel: Axes, sizes: list[int]) -> None:
    panel.set_xscale("log", base=2)
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.minorticks_off()
    panel.grid(color=GRID, linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)


def page() -> str:
    """The text of the page with the tables that the records give."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    tables = "\n".join(f"{model}:\n\n" + "\n".join(table(model)) + "\n" for model in MODELS)
    return before + BEGIN + tables + END + rest.partition(END)[2]


if __name__ == "__main__":
    figure().savefig(ROOT / "records" / "gpt2-depth-1K" / "depth.png", dpi=110, facecolor="white")
    PAGE.write_text(page())
