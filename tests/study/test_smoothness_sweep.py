"""Studies of smoothness: what a plan holds, records that are made once, and what a measurement says."""

from __future__ import annotations

import pytest
import torch

import moga
from moga.study.data import validation_windows
from moga.study.models import build_model, next_token_loss
from moga.study.records import StudyError, config_key, read_records, read_study
from moga.study.smoothness_plan import SmoothnessPlan, SmoothnessSettings, block_recipe, norm_word, parse_norm
from moga.study.smoothness_sweep import measure, run_smoothness

SMALL = {"head_size": 8, "context": 8, "windows": 2, "batch": 2, "random": 1, "steps": 3}


def small_plan(**changes) -> SmoothnessPlan:
    settings = SmoothnessSettings(**SMALL | changes.pop("settings", {}))
    return SmoothnessPlan(**{"norms": ("row",), "widths": (8,), "layers": (1,), "settings": settings} | changes)


def results(directory) -> dict[str, dict]:
    """What was measured, by key, without the time that it took."""
    return {
        record["key"]: {name: value for name, value in record["result"].items() if name != "seconds"}
        for record in read_records(directory)
    }


def test_a_study_goes_on_where_it_stopped(tmp_path, text_file):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    plan = small_plan(norms=("row", "spectral"), trained=(0, 2))
    said = []
    assert run_smoothness(plan, whole, data=text_file, progress=lambda *state: said.append(state[1:])) == 4
    assert said == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert run_smoothness(plan, whole, data=text_file) == 0
    # Last things first: the later measurements must not depend on which were made before.
    for count, changes in ((1, {"norms": ("spectral",), "trained": (2,)}), (1, {"trained": (0,)}), (2, {})):
        part = {"norms": ("row", "spectral"), "trained": (0, 2)} | ({"norms": ("row",)} if count == 1 else {}) | changes
        assert run_smoothness(small_plan(**part), pieces, data=text_file, command="again") == count
    assert results(whole) == results(pieces)
    assert read_study(pieces)["commands"] == ["again"]


def test_a_record_says_what_was_measured(tmp_path, text_file, corpus):
    run_smoothness(small_plan(norms=("spectral",), trained=(1,)), tmp_path / "x", data=text_file)
    [record] = read_records(tmp_path / "x")
    config, result = record["config"], record["result"]
    assert record["key"] == config_key(config)
    named = ("measure", "norm", "width", "layers", "trained", "seed")
    assert [config[name] for name in named] == ["smoothness", "spectral", 8, 1, 1, 0]
    assert result["exponent"] == 0.5
    assert result["lipschitz"] == pytest.approx(sum(one["lipschitz"] for one in result["layers"].values()), rel=1e-4)
    assert result["smoothness"] >= max(one["smoothness"] for one in result["layers"].values())
    assert {one["role"] for one in result["layers"].values()} == {"input", "hidden", "output", "vector"}
    assert len(result["layers"]) == 17  # two tables, twelve tensors of a block, two of the last norm, the output
    assert config["corpus"] == read_study(tmp_path / "x")["settings"]["corpus"]


def test_the_measured_loss_is_the_models_on_held_out_text(corpus):
    settings = SmoothnessSettings(**SMALL)
    model = build_model("llama", 8, layers=1, head_size=8, context=8, seed=0)
    model.set_attn_implementation("eager")
    model.lm_head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    loss = next_token_loss(model, torch.from_numpy(validation_windows(corpus, 8, 16)))
    loss.backward()
    gradients = {name: tensor.grad for name, tensor in model.named_parameters()}
    found = measure(model, "row", settings, corpus)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    groups = moga.param_groups(model, "moga-row")  # the block norm of row: inputs by sign, output by row
    duals = moga.block_norm(groups).duals({name: gradients[name] for group in groups for name in group["param_names"]})
    assert found["lipschitz"] == pytest.approx(float(sum(value.sum() for value in duals.values())), rel=1e-4)


def test_training_starts_from_the_seed(tmp_path, text_file):
    run_smoothness(small_plan(trained=(0, 1, 2), seeds=(0, 1)), tmp_path / "x", data=text_file)
    losses = {(r["config"]["seed"], r["config"]["trained"]): r["result"]["loss"] for r in read_records(tmp_path / "x")}
    assert losses[0, 0] == losses[1, 0] == pytest.approx(5.5452)  # ln 256: the output starts at zero
    assert len(set(losses.values())) == 5


def test_the_block_norm_of_a_pair():
    """First layer 1 -> q, hidden p -> q, last p -> inf, vectors by their largest entry."""
    rows = {word: block_recipe(parse_norm(word)) for word in ("sign", "row:3", "column:4", "spectral")}
    assert [update["norm"] for update in rows["sign"].values()] == ["sign"] * 4
    assert rows["row:3"] == {
        "input": {"norm": "sign"}, "hidden": {"norm": "row", "p": 3}, "output": {"norm": "row", "p": 3},
        "vector": {"norm": "sign"},
    }  # fmt: skip
    assert rows["column:4"] == {
        "input": {"norm": "column", "q": 4}, "hidden": {"norm": "column", "q": 4}, "output": {"norm": "sign"},
        "vector": {"norm": "sign"},
    }  # fmt: skip
    assert [update["norm"] for update in rows["spectral"].values()] == ["column", "spectral", "row", "sign"]


def test_words_of_norms():
    words = ("sign", "row", "column", "spectral", "row:1.5", "column:4")
    assert tuple(norm_word(parse_norm(word)) for word in words) == words
    assert norm_word(parse_norm(" column:2 ")) == "column"


@pytest.mark.parametrize("word", ["rows", "row:", "row:two", "sign:1", "spectral:2", ":2", "l2"])
def test_words_that_are_no_norm(word):
    with pytest.raises(ValueError, match=f"'{word}' is no norm; give sign, column, row, spectral, with an exponent"):
        parse_norm(word)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norms": ()}, "a study of smoothness needs at least one norm, got none"),
        ({"norms": ("row:0.5",)}, "needs p >= 1"),
        ({"widths": ()}, "a study of smoothness needs at least one width, got none"),
        ({"widths": (12,)}, "width 12 is not a multiple of the head size 8"),
        ({"layers": (0,)}, "a depth must be at least 1, got 0"),
        ({"trained": (-1,)}, "a step of training must be at least 0, got -1"),
        ({"seeds": (-1,)}, "a seed must be at least 0, got -1"),
        ({"settings": {"family": "bert"}}, "unknown model family 'bert'"),
        ({"settings": {"recipe": "foo"}}, "unknown recipe 'foo'"),
        ({"settings": {"windows": 0}}, "windows must be at least 1, got 0"),
        ({"settings": {"random": -1}}, "random must be at least 0, got -1"),
        ({"settings": {"lr": 0}}, "a learning rate must be finite and above 0, got 0"),
    ],
)
def test_plans_that_cannot_be(changes, words):
    with pytest.raises(ValueError, match=words):
        small_plan(**changes)


def test_a_study_of_other_settings_is_refused(tmp_path, text_file):
    run_smoothness(small_plan(), tmp_path, data=text_file)
    with pytest.raises(StudyError, match="other settings .windows: 2 there, 3 now"):
        run_smoothness(small_plan(settings={"windows": 3}), tmp_path, data=text_file)


def test_training_that_diverges_is_said(tmp_path, text_file):
    plan = small_plan(trained=(0, 8), settings={"lr": 1e30})
    with pytest.raises(StudyError, match=r"training at width 8 diverged by step \d with lr 1e\+30: .*smaller learning"):
        run_smoothness(plan, tmp_path, data=text_file)
    assert len(read_records(tmp_path)) == 1  # what was measured before is kept


def test_threads_are_counted(tmp_path):
    with pytest.raises(ValueError, match="threads must be a whole number of at least 1, got 0"):
        run_smoothness(small_plan(), tmp_path, threads=0)
