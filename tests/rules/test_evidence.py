"""Steps move the output of every block as far in a wide network as in a narrow one; with a wrong scale they do not."""

import codecs
import importlib
import sys
from pathlib import Path

import pytest
from scripts import load_script

import moga.study
from moga.study.data import load_corpus
from moga.study.records import StudyError, read_records

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    """docs/block_changes.py, and on the path examples/, from which it takes the networks."""
    before = list(sys.path)
    yield load_script("docs/block_changes.py")
    sys.path[:] = before


def measured(script, model, recipe, plant="none", sizes=(64, 128, 256, 512), steps=20):
    """Slopes of two seeds."""
    corpus = load_corpus(Path(codecs.__file__), context=script.CONTEXT)
    plan = script.plan_of(model, corpus, sizes, steps)
    [case] = [one for one in plan.cases if (one.recipe, one.plant) == (recipe, plant)]
    runs = [(n, seed, script.changes(plan, case, n, seed, corpus)) for n in sizes for seed in (0, 1)]
    assert all(one["loss"][-1] < one["loss"][0] for _, _, one in runs)
    return script.slopes([(n, seed, one["changes"]) for n, seed, one in runs])


OUTPUTS = {
    "gpt2": ["transformer.h.0", "transformer.h.1", "lm_head"],
    "llama": ["model.layers.0", "model.layers.1", "lm_head"],
    "residual": ["blocks.0", "blocks.1", "head"],
}


@pytest.mark.parametrize(
    ("model", "recipe"),
    [("gpt2", "moga-row"), ("gpt2", "mup-adamw"), ("llama", "moga-column"), ("residual", "moga-row")],
)
def test_every_block_moves_as_far_at_every_width(script, model, recipe):
    found = measured(script, model, recipe)
    assert list(found) == [(name, str(step)) for name in OUTPUTS[model] for step in (1, 5, 20)]
    assert script.flat(found), found


def test_so_it_does_under_muon(script, monkeypatch):
    """One block and five steps: polar factors of wide matrices are slow on a CPU. The records have all of it."""
    monkeypatch.setattr(importlib.import_module("blocks"), "LAYERS", 1)
    found = measured(script, "gpt2", "muon", steps=5)
    assert list(found) == [(name, step) for name in ("transformer.h.0", "lm_head") for step in "15"]
    assert script.flat(found), found


@pytest.mark.parametrize("model", ["gpt2", "residual"])
@pytest.mark.parametrize("plant", ["scale", "fan"])
def test_a_wrong_scale_fails_the_same_check(script, model, plant):
    """One that is left out moves the blocks more in wider networks, the vocabulary as fan the logits."""
    found = measured(script, model, "moga-row", plant, sizes=(64, 128, 256), steps=5)
    assert not script.flat(found)
    *blocks, logits = OUTPUTS[model]
    for name in blocks if plant == "scale" else [logits]:
        assert found[name, "1"].value > 0.3 and found[name, "5"].value > script.MARK


@pytest.mark.parametrize(("power", "flat"), [(0.09, True), (-0.09, True), (0.11, False), (-0.11, False)])
def test_the_mark(script, power, flat):
    runs = [(n, seed, {"block": {"1": n**power}}) for n in (64, 512) for seed in (0, 1)]
    assert script.flat(script.slopes(runs)) == flat


@pytest.fixture(scope="module")
def records(script):
    return read_records(script.RECORDS)


def test_all_runs_are_recorded(script, records):
    assert len(records) == len(script.MODELS) * len(script.CASES) * len(script.SIZES) * len(script.SEEDS)
    for model, outputs in OUTPUTS.items():
        for case in script.CASES:
            runs = script.recorded(records, model, case)
            assert sorted(run[:2] for run in runs) == [(n, seed) for n in script.SIZES for seed in script.SEEDS]
            assert all(list(changes) == outputs for _, _, changes in runs)
    assert all(one["result"]["loss"][1] < one["result"]["loss"][0] for one in records)


def test_the_records_are_flat_where_scales_are_right(script, records):
    for model, outputs in OUTPUTS.items():
        for case in script.CASES:
            found = script.slopes(script.recorded(records, model, case))
            assert script.flat(found) == (case.plant == "none"), (model, case, found)
            assert max(one.stderr for one in found.values()) < 0.05 or case.plant != "none"  # as the page says
            moved = {"scale": outputs[:-1], "fan": outputs[-1:]}.get(case.plant, [])
            for name in outputs:
                slope = found[name, "1"].value
                assert slope > 0.3 if name in moved else abs(slope) <= script.MARK, (model, case, found)


def test_the_page_shows_the_records(script, records):
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    for row in script.table(records):
        assert f"\n{row}\n" in page
    panels = script.figure(records).axes
    assert len(panels) == len(OUTPUTS) * 3
    assert all(len(panel.get_lines()) == 3 * len(script.CASES) for panel in panels)
    tops = [line.get_ydata()[-1] for line in panels[0].get_lines()]  # one step of GPT-2, the cases in their order
    assert max(tops[:15]) < 1.25 and min(tops[15], tops[16], tops[20]) > 1.8


def test_moga_report_says_what_draws_them(script):
    with pytest.raises(StudyError, match="holds records of 'blocks', which no study of moga draws; .*block_changes.py"):
        moga.study.load(script.RECORDS)
