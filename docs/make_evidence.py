"""Write docs/evidence.md from records/: ``python docs/make_evidence.py``. A test compares the two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import moga.study
from moga.study.fit import Summary
from moga.study.records import read_records, read_study

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("evidence.md")

# Directory of records -> what was asked, and where the answer is read in words.
STUDIES = {
    "gpt2-width": "Does the best rate of five optimizers stay as a GPT-2 becomes wider? ([README](../README.md))",
    "gpt2-norms": "And with other exponents: rows with p = 1.5, 2, 3, columns with q = 2, 4? (`examples/norms.py`)",
    "gpt2-depth-1K": "As a GPT-2 becomes deeper, branches by 1/K? ([depth](depth.md))",
    "gpt2-depth-1sqrt2K": "The same with branches by 1/sqrt(2K).",
    "gpt2-depth-none": "The same with branches as they are.",
    "digits-depth-1K": "As a residual convolution network becomes deeper, branches by 1/K? (`examples/digits.py`)",
    "digits-depth-1sqrt2K": "The same with branches by 1/sqrt(2K).",
    "digits-depth-none": "The same with branches as they are.",
    "check-recipes": "Do activations and their changes keep their size, for every norm? ([check](check.md))",
    "check-faults": "Are three planted faults found? ([check](check.md))",
    "blocks": "What do a few steps change in every block of three kinds of networks? ([check](check.md))",
    "smoothness-width": "How do smoothness constants of four norms grow with width? ([smoothness](smoothness.md))",
}

HEAD = """# Recorded studies

What this project claims of training was measured by the commands below; their records are committed, one line for each
run, and `moga report records/NAME` draws them again. This page is made from them by `python docs/make_evidence.py`.
*Drift* is how far the best rate moves from the smallest size to the largest, in octaves per doubling; *regret* is what
the rate tuned at the smallest costs at the largest, in nats; losses are the lowest of each size.
"""


def verdict_table(rows: Sequence[tuple[Sequence[str], Summary]], names: Sequence[str]) -> Iterator[str]:
    """Markdown: a row for each verdict, behind cells of its own under the ``names``; all have the same sizes."""
    sizes = [fit.width for fit in rows[0][1].widths]
    heads = [*names, "drift", "regret", *(f"loss at {size}" for size in sizes)]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for cells, one in rows:
        drift = "unknown" if one.drift is None else f"{one.drift:+.2f}"
        regret = "unknown" if one.regret is None else f"{one.regret:+.3f}"
        losses = [f"{fit.best_loss:.3f}" if math.isfinite(fit.best_loss) else "diverged" for fit in one.widths]
        yield f"| {' | '.join([*cells, drift, regret, *losses])} |"


def section(name: str, question: str) -> Iterator[str]:
    """What was asked, the commands, how much they computed and where, and the verdicts of a transfer study."""
    place = ROOT / "records" / name
    study, records = read_study(place), read_records(place)
    versions = sorted({_made_with(record["environment"]) for record in records})
    yield f"## {name}\n\n{question}\n"
    yield from (f"    {command}" for command in study["commands"])
    yield f"\n{len(records)} records, made with {'; '.join(versions)}."
    if study["settings"].get("measure") is None:
        found = moga.study.load(place)
        rows = [((f"`{recipe}`",), one) for recipe, one in found.verdicts.items()]
        yield "\n" + "\n".join(verdict_table(rows, ["recipe"]))
    yield ""


def _made_with(environment: dict[str, object]) -> str:
    words = {key: environment[key] for key in ("torch", "transformers", "python")}
    return f"{', '.join(f'{key} {value}' for key, value in words.items())} on {environment['machine']}"


def page() -> str:
    """The text of the page."""
    return HEAD + "\n" + "\n".join(line for name, asked in STUDIES.items() for line in section(name, asked))


if __name__ == "__main__":
    PAGE.write_text(page())
