"""Measure how far steps move the output of every block, against width, and draw it: ``python docs/block_changes.py``.

Three networks (examples/blocks.py) x the recipes whose learning rate is said to be the same at every width, and two
faults that are planted on purpose, x widths x seeds. Runs that are in records/blocks are not made again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from moga.report.slopes import Slope, slope  # noqa: E402
from moga.report.theme import GRID, recipe_style  # noqa: E402
from moga.study.coordinates import measure  # noqa: E402
from moga.study.coordinates_models import roles_of  # noqa: E402
from moga.study.coordinates_plan import Case, CheckPlan, CheckSettings, small_rate  # noqa: E402
from moga.study.data import Corpus, load_corpus, training_windows  # noqa: E402
from moga.study.records import append_record, close_study, open_study, read_records, run_record  # noqa: E402
from moga.study.sweep import environment  # noqa: E402
from moga.study.train import threads  # noqa: E402

RECORDS = ROOT / "records" / "blocks"
# Model -> which of its modules are blocks, or give the logits.
MODELS = {
    "gpt2": r"transformer\.h\.\d+|lm_head",
    "llama": r"model\.layers\.\d+|lm_head",
    "residual": r"blocks\.\d+|head",
}
RECIPES = ("moga-row", "moga-column", "muon", "mup-adamw", "scion")
PLANTS = {"scale": "scale left out", "fan": "vocabulary as fan"}
WRONG = {"scale": "#2a2a2a", "fan": "#b00020"}  # colours
TICKS = (0.5, 1, 2, 4)
SIZES, SEEDS, STEPS = (64, 128, 256, 512), (0, 1), (1, 5, 20)
CONTEXT, BATCH = 8, 2
MARK = 0.1  # the largest slope that is flat
RMS = 1  # where a record's mean norms have p = 2

Changes = dict[str, dict[str, float]]  # output -> step -> root mean square of its change since the start


def rate(recipe: str) -> float:
    """Half of the smallest rate that a sweep tries: at it losses fall, and little saturates."""
    return 2.0**-15 if recipe == "scion" else 8 * small_rate(recipe)  # scion's unit is thousands of times larger


CASES = [
    *(Case(recipe, rate(recipe)) for recipe in RECIPES),
    *(Case("moga-row", rate("moga-row"), one) for one in PLANTS),
]


def plan_of(model: str, corpus: Corpus, sizes: Sequence[int] = SIZES, steps: int = STEPS[-1]) -> CheckPlan:
    settings = CheckSettings(
        f"blocks:{model}", context=CONTEXT, batch=BATCH, steps=steps, mark=MARK, corpus=corpus.fingerprint
    )
    return CheckPlan(tuple(CASES), tuple(sizes), SEEDS, settings)


def changes(plan: CheckPlan, case: Case, size: int, seed: int, corpus: Corpus) -> dict[str, Any]:
    """The "result" of a record: the loss before and after all steps, and how far blocks and logits moved."""
    settings = plan.settings
    windows = torch.from_numpy(training_windows(corpus, BATCH, CONTEXT, seed, 0))
    result = measure(settings, case, size, seed, windows, roles_of(plan))
    wanted = MODELS[settings.model.partition(":")[2]]
    found: Changes = {
        name: {str(step): module["change"][step - 1][RMS] for step in STEPS if step <= settings.steps}
        for name, module in result["modules"].items()
        if re.fullmatch(wanted, name)
    }
    return {"loss": [result["loss"][0], result["loss"][-1]], "changes": found, "seconds": result["seconds"]}


def slopes(runs: Sequence[tuple[int, int, Changes]]) -> dict[tuple[str, str], Slope]:
    """By output and step: the slope of log2(change) against log2(width). Runs are (width, seed, changes)."""
    return {
        (name, step): slope({size: {s: one[name][step] for n, s, one in runs if n == size} for size, _, _ in runs})
        for name, steps in runs[0][2].items()
        for step in steps
    }


def largest(found: dict[tuple[str, str], Slope], step: int) -> Slope:
    """The slope furthest from zero of all outputs after so many steps."""
    return max((one for (_, at), one in found.items() if at == str(step)), key=lambda one: abs(one.value))


def flat(found: dict[tuple[str, str], Slope]) -> bool:
    """Whether every output's change has a slope of at most :data:`MARK` after every number of steps."""
    return all(abs(one.value) <= MARK for one in found.values())


def label(case: Case) -> str:
    return PLANTS.get(case.plant, case.recipe)


def recorded(records: Sequence[dict[str, Any]], model: str, case: Case) -> list[tuple[int, int, Changes]]:
    keys = {"model": f"blocks:{model}", "recipe": case.recipe, "lr": case.lr, "plant": case.plant}
    rows = [one for one in records if keys.items() <= one["config"].items()]
    return [(one["config"]["size"], one["config"]["seed"], one["result"]["changes"]) for one in rows]


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The rows of docs/check.md."""
    for case in CASES:
        found = [slopes(recorded(records, model, case)) for model in MODELS]
        cells = [", ".join(f"{largest(one, step).value:+.2f}" for step in STEPS) for one in found]
        name = f"`{case.recipe}`" if case.plant == "none" else f"`{case.recipe}`, {label(case)}"
        yield f"| {name} | {' | '.join(cells)} | {'flat' if all(map(flat, found)) else 'grows'} |"


def figure(records: Sequence[dict[str, Any]]) -> Figure:
    """A row per model, a column per number of steps; a line per case and output, relative to the smallest width."""
    drawn = Figure(figsize=(8.2, 8.0), layout="constrained")
    panels = drawn.subplots(len(MODELS), len(STEPS), sharex=True, sharey=True)
    for model, row in zip(MODELS, panels, strict=True):
        for step, panel in zip(STEPS, row, strict=True):
            _draw(panel, records, model, str(step))
            panel.set_title(f"{model}, {step} step{'s' * (step > 1)}", loc="left", fontsize=9)
        row[0].set_ylabel("change, relative", fontsize=8.5)
    for panel in panels[-1]:
        panel.set_xlabel("width", fontsize=8.5)
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return drawn


def _draw(panel: Axes, records: Sequence[dict[str, Any]], model: str, step: str) -> None:
    for index, case in enumerate(CASES):
        right, style = case.plant == "none", recipe_style(index)
        runs = recorded(records, model, case)
        for place, name in enumerate(runs[0][2]):
            logs = [torch.tensor([one[name][step] for n, _, one in runs if n == size]).log2().mean() for size in SIZES]
            panel.plot(
                SIZES,
                [2 ** float(one - logs[0]) for one in logs],
                "-" if right else "--",
                color=style.colour if right else WRONG[case.plant],
                marker=style.marker,
                markersize=3.5,
                linewidth=1.2,
                label=label(case) if place == 0 else None,
            )
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(SIZES, [str(size) for size in SIZES])
    panel.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    panel.minorticks_off()
    panel.grid(color=GRID, linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)


def run() -> None:
    corpus = load_corpus(context=CONTEXT)
    common = {"measure": "blocks", "steps": list(STEPS), "mark": MARK}
    open_study(RECORDS, common, corpus.describe(), "python docs/block_changes.py")
    done = {one["key"] for one in read_records(RECORDS)}
    for seed in SEEDS:
        for model in MODELS:
            plan = plan_of(model, corpus)
            for case in CASES:
                for size in SIZES:
                    config = plan.config(case, size, seed)
                    record = run_record(config, None, environment(1, 1))
                    if record["key"] not in done:
                        append_record(RECORDS, record | {"result": changes(plan, case, size, seed, corpus)})
                        print(seed, model, label(case), size, flush=True)
    close_study(RECORDS)


if __name__ == "__main__":
    with threads(1):
        run()
    found = read_records(RECORDS)
    figure(found).savefig(RECORDS / "blocks.png", dpi=110, facecolor="white")
    print("\n".join(table(found)))
