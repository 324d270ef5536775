"""docs/recipes.md says what the table says."""

import json
from pathlib import Path

import pytest
from scripts import load_script

import moga

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def maker():
    return load_script("docs/make_recipes.py")


def test_the_page_is_made_from_the_table(maker):
    written = (DOCS / "recipes.md").read_text(encoding="utf-8")
    assert written == maker.page(), "run: python docs/make_recipes.py"


def test_every_recipe_has_its_row(maker):
    rows = [line.split(" | ")[0] for line in maker.page().splitlines()]
    assert all(rows.count(f"| `{name}`") >= 1 for name in moga.RECIPES)


def test_state_is_what_the_optimizer_makes(maker):
    states = {name: maker.state(moga.rules.resolve_recipe(name)["hidden"]) for name in moga.RECIPES}
    assert states["moga-row"] == states["muon"] == states["hyperp"] == "1"
    assert (states["adamw"], states["sgd"], states["rmsprop"]) == ("2", "0", "1")
    assert states["muown"] == "1 + 4 numbers a row"
    assert states["shampoo-accumulated"] == "out^2 + in^2 numbers in float64"


def test_every_recipe_says_what_was_chosen(maker):
    assert all(recipe.chosen for recipe in moga.RECIPES.values())
    rows = [line.split(" | ")[0] for line in maker.page().splitlines()]
    assert all(rows.count(f"| `{name}`") >= 2 for name in moga.RECIPES)  # in the first table and in that of choices


@pytest.fixture(scope="module")
def trainer():
    return load_script("docs/which_lr.py")


def test_the_runs_of_the_page_are_those_of_its_script(trainer):
    """And they show what the page says: the same optimizers have the same losses, and good rates stay good."""
    results = json.loads(trainer.RESULTS.read_text(encoding="utf-8"))
    assert results == trainer.rows({run["optimizer"]: run["losses"] for run in results})
    losses = {run["optimizer"]: run["losses"] for run in results}
    adamw, muon = (
        losses["`torch.optim.AdamW`, its rate"],
        losses["`torch.optim.Muon` and `torch.optim.AdamW`, their rates"],
    )
    for label in ("`adamw`", "`mup-adamw`, each parameter at its old rate"):
        assert losses[label] == pytest.approx(adamw, abs=1e-3)
    assert losses["`muon`, `original`, the others at AdamW's rate"] == pytest.approx(muon, abs=5e-3)
    assert all(max(losses[label]) < min(adamw) for label in ("`mup-adamw`", "`moga-row`", "`moga-column`"))
    worse = [a - b for a, b in zip(losses["`moga-row`, each parameter at AdamW's step"], adamw, strict=True)]
    assert all(0.365 < difference < 0.395 for difference in worse)
    assert losses["`moga-row`, from Muon's rate"] == pytest.approx(muon, abs=0.07)


def test_the_script_of_the_page_trains_every_run(trainer, monkeypatch):
    """Two steps of each: rows that are the same optimizer take the same steps."""
    corpus = trainer.load_corpus(Path(trainer.__file__), context=trainer.CONTEXT)
    monkeypatch.setattr(trainer, "WIDTH", 16)
    monkeypatch.setattr(trainer, "BATCH", 2)
    ends = {label: trainer.train(run, 0, corpus, steps=2) for label, (_, _, run) in trainer.RUNS.items()}
    adamw = ends["`torch.optim.AdamW`, its rate"]
    for label in ("`adamw`", "`mup-adamw`, each parameter at its old rate"):
        assert ends[label] == pytest.approx(adamw, abs=1e-4)
    assert len({round(loss, 5) for loss in ends.values()}) > 5
