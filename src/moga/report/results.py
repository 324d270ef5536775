"""What a directory of records says, gathered once for the page, the tables and the PNGs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from moga.report.theme import dashes, sequential, short_names
from moga.study.fit import Summary, transfer_summary
from moga.study.records import StudyError, own_functions, read_runs

__all__ = ["NATS", "Results", "final_loss", "load_results"]

Record = dict[str, Any]

NATS = "nats per token"


def final_loss(record: Record) -> float:
    """Validation loss of a run, of text in nats per token; infinity for a run that diverged.

    >>> final_loss({"result": {"loss": None, "diverged": True}})
    inf
    """
    loss = record["result"]["loss"]
    return math.inf if record["result"]["diverged"] or loss is None else float(loss)


@dataclass(frozen=True)
class Results:
    """The records of one directory and the summaries computed from them; axes and colours follow from these."""

    directory: Path
    study: dict[str, Any]
    records: list[Record]
    summaries: list[Summary]

    @property
    def over(self) -> str:
        """What grows, "width" or "depth"; where it is the depth, what is called a width here is a depth."""
        word: str = self.study["settings"].get("over", "width")
        return word

    @property
    def unit(self) -> str:
        """Of the losses: of a model or data of one's own (``module:function``) only their owner knows it."""
        return "units of your loss" if own_functions(self.study["settings"]) else NATS

    @cached_property
    def names(self) -> dict[str, str]:
        """Recipe -> its name in legends and panels."""
        return short_names(summary.recipe for summary in self.summaries)

    @property
    def averaged(self) -> str:
        """Over how many seeds the points of the curves are means, "2" or "1 to 2"; "" where every width has one."""
        counts = [fit.seeds for summary in self.summaries for fit in summary.widths if fit.seeds]
        low, high = min(counts, default=1), max(counts, default=1)
        return "" if high == 1 else str(high) if low == high else f"{low} to {high}"

    @cached_property
    def widths(self) -> list[int]:
        """Every width that occurs, ascending."""
        return sorted({fit.width for summary in self.summaries for fit in summary.widths})

    @cached_property
    def colours(self) -> dict[int, str]:
        """One colour per width, the same in every figure."""
        return dict(zip(self.widths, sequential(len(self.widths)), strict=True))

    @cached_property
    def dashes(self) -> dict[int, str]:
        """One dash per width, for those who do not see the colours."""
        return dict(zip(self.widths, dashes(len(self.widths)), strict=True))

    @property
    def seeds(self) -> list[int]:
        """Every seed that occurs, ascending."""
        return sorted({record["config"]["seed"] for record in self.records})

    def runs(self, recipe: str, width: int | None = None) -> list[Record]:
        """The runs of a recipe, at one width where that is given, by ascending learning rate and seed."""
        chosen = [
            record
            for record in self.records
            if record["config"]["recipe"] == recipe and width in (None, record["config"][self.over])
        ]
        return sorted(chosen, key=lambda record: (record["config"]["lr"], record["config"]["seed"]))

    def diverged(self, recipe: str, width: int) -> dict[float, tuple[int, int]]:
        """Learning rate -> (runs that diverged, runs), for the rates at which at least one did."""
        runs = self.runs(recipe, width)
        total = Counter(record["config"]["lr"] for record in runs)
        bad = Counter(record["config"]["lr"] for record in runs if not math.isfinite(final_loss(record)))
        return {rate: (count, total[rate]) for rate, count in bad.items()}

    @cached_property
    def loss_range(self) -> tuple[float, float]:
        """Lowest and highest loss that the shared axis shows, without margins.

        Diverged runs have no place on it. The top leaves out the far ends of the curves where they would flatten the
        valleys (more than four times as high above the best loss as the median), but never the best loss of a width.
        """
        losses = [loss for loss in map(final_loss, self.records) if math.isfinite(loss)]
        if not losses:
            return 0.0, 1.0
        low, high = min(losses), max(losses)
        best = [fit.best_loss for s in self.summaries for fit in s.widths if math.isfinite(fit.best_loss)]
        top = max(low + 4.0 * (median(losses) - low), low + 1.25 * (max(best, default=low) - low))
        high = min(high, top)
        return (low, high) if high > low else (low - 0.05, low + 0.05)

    @cached_property
    def octaves(self) -> dict[str, tuple[float, float]]:
        """Range of log2(lr) per recipe, all of one length, so that equal slopes look equal."""
        ends = {}
        for summary in self.summaries:
            rates = [math.log2(record["config"]["lr"]) for record in self.runs(summary.recipe)]
            ends[summary.recipe] = (min(rates), max(rates))
        span = max(high - low for low, high in ends.values())
        span = max(span, 1.0) + 0.7
        return {recipe: ((low + high - span) / 2, (low + high + span) / 2) for recipe, (low, high) in ends.items()}


def load_results(directory: str | Path) -> Results:
    """Read ``study.json`` and ``records.jsonl`` of a directory that ``moga transfer`` wrote.

    Raises StudyError where there is no study, or where no run has finished yet.
    """
    directory = Path(directory)
    study, records = read_runs(directory)
    if not records:
        raise StudyError(f"no finished run in {directory}: run `moga transfer --out {directory}` first")
    return Results(directory, study, records, transfer_summary(records))
