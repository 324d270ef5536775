"""docs/recipes.md says what the table says."""

import importlib.util
from pathlib import Path

import pytest

import moga

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_recipes", DOCS / "make_recipes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
