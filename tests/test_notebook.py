"""The notebook of the examples runs, and what it shows was really made, by anybody, in this order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "transfer.ipynb"
SETTINGS, LESS = "STEPS, SEEDS = 120, 2", "STEPS, SEEDS = 60, 1"
FACTS = """
import json, math
print(json.dumps({
    "drift": {name: verdict.drift for name, verdict in found.verdicts.items()},
    "widths": sorted(set(found.frame.width.tolist())),
    "finite": bool(found.frame.loss.dropna().map(math.isfinite).all()),
    "runs": len(found.frame),
}))
"""


@pytest.fixture
def book() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def outputs(book: Any) -> list[Any]:
    return [output for cell in book.cells for output in cell.get("outputs", [])]


def pictures(book: Any) -> list[str]:
    return [output.data["image/png"] for output in outputs(book) if "image/png" in output.get("data", {})]


def test_it_runs(book, tmp_path):
    """With fewer steps and one seed; the functions of its cells are those of the study."""
    cells = [cell for cell in book.cells if SETTINGS in cell.source]
    assert len(cells) == 1
    cells[0].source = cells[0].source.replace(SETTINGS, LESS)
    book.cells.append(nbformat.v4.new_code_cell(FACTS))
    for cell in book.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(book, timeout=170, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    facts = json.loads(outputs(book)[-1].text)
    assert facts["widths"] == [32, 64, 128] and facts["finite"] and facts["runs"] >= 36
    assert facts["drift"].keys() == {"muon", "adamw"}
    assert all(isinstance(drift, float) and abs(drift) < 4 for drift in facts["drift"].values()), facts
    assert len(pictures(book)) == 1
    shown = "".join(output.get("data", {}).get("text/html", "") for output in outputs(book))
    assert "36/36" in shown, "the bar"
    assert "octave per doubling of width" in shown, "the verdict"
    assert not [output for output in outputs(book) if output.get("name") == "stderr"]


def test_what_it_shows_is_whole_small_and_of_no_machine(book):
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert NOTEBOOK.stat().st_size < 200_000
    assert len(pictures(book)) == 1
    text = re.sub(r'"image/png": "[^"]*"', "", NOTEBOOK.read_text(encoding="utf-8"))
    assert not re.search(r"(?<![\w<.])/(?:work|home|root|tmp|usr|opt|Users)\b|ipykernel_\d|0x[0-9a-f]{6}", text)
    assert not [output for output in outputs(book) if output.output_type == "error" or output.get("name") == "stderr"]
