"""The data of `moga inspect`: kinds of parameters, what each gets, relative to a base, and warnings."""

from __future__ import annotations

import json

import pytest
import torch
from models.decoders import DECODERS, LAYERS, build
from torch import nn

import moga
from moga.study.inspection import Weights, collapsed, inspect_model, inspect_named
from moga.study.named import Wanted


def by_pattern(found):
    return {kind["pattern"]: kind for kind in found["kinds"]}


@pytest.mark.parametrize("family", DECODERS)
def test_every_parameter_is_in_one_kind_and_as_in_the_groups(family):
    with torch.device("meta"):
        model = build(family, 32)
    found = inspect_model(model, "moga-row")
    names = [name for kind in found["kinds"] for name in kind["names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert len({kind["pattern"] for kind in found["kinds"]}) == len(found["kinds"])
    groups = {name: group for group in moga.param_groups(model, "moga-row") for name in group["param_names"]}
    for kind in found["kinds"]:
        for name in kind["names"]:
            group = groups[name]
            assert all(kind[key] == group[key] for key in ("role", "layout", "blocks", "interleave", "fan", "decays"))
            assert set(kind["scale"]) == ({*group["scale"]} if isinstance(group["scale"], list) else {group["scale"]})
    assert found["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert found["tensors"] == sum(row["tensors"] for row in found["roles"]) == len(names)
    assert json.loads(json.dumps(found)) == found


def test_kinds_are_in_the_order_of_the_model_and_roles_by_role():
    model = build("gpt2", 32)
    found = inspect_model(model, "moga-row")
    kinds = list(by_pattern(found))
    order = [name for name, _ in model.named_parameters()]
    firsts = [order.index(kind["names"][0]) for kind in found["kinds"]]
    assert firsts == sorted(firsts)
    assert kinds[:4] == [
        "transformer.wte.weight",
        "transformer.wpe.weight",
        f"transformer.h.{{0..{LAYERS - 1}}}.ln_1.weight",
        f"transformer.h.{{0..{LAYERS - 1}}}.ln_1.bias",
    ]
    assert kinds[-1] == "lm_head.weight"
    assert [(row["role"], row["update"], row["decays"]) for row in found["roles"]] == [
        ("input", "sign", True),
        ("hidden", "row p=2", True),
        ("output", "row p=2", True),
        ("vector", "sign", False),
    ]


def test_what_is_treated_in_another_way_is_another_kind():
    layers = [nn.Linear(16, 16, bias=False) for _ in range(4)]
    found = inspect_model(nn.Sequential(nn.Embedding(16, 16), *layers), "muon", roles={"4.weight": "output"})
    assert [(row["pattern"], row["role"]) for row in found["kinds"]] == [
        ("0.weight", "input"),
        ("{1..3}.weight", "hidden"),
        ("4.weight", "output"),
    ]


def test_what_a_constraint_holds_is_not_decayed():
    found = inspect_model(build("gpt2", 32), "hyperp")
    assert {row["role"]: row["decays"] for row in found["roles"]} == {
        "input": True,
        "hidden": False,
        "output": True,
        "vector": False,
    }


@pytest.mark.parametrize(
    ("recipe", "hidden", "output"),
    [
        ("mup-adamw", 1 / 4, 1 / 4),  # 1 / in
        ("moga-row", 1 / 2, 1 / 2),  # 1 / sqrt(in)
        ("muon", 1, 1 / 4),  # sqrt(out / in); 1 / in
        ("scion", 1, 1 / 4),  # a radius is no matter of width
        ("adamw", 1, 1),
    ],
)
def test_learning_rates_relative_to_a_base_of_a_quarter_of_the_width(recipe, hidden, output):
    found = inspect_model(build("llama", 128), recipe, base=build("llama", 32))
    relative = {row["role"]: row["relative"] for row in found["roles"]}
    assert relative["hidden"] == pytest.approx([hidden] * 2)
    assert relative["output"] == pytest.approx([output] * 2)
    assert relative["vector"] == [1, 1]
    assert found["kinds"][0]["relative"] == pytest.approx([2.0 if recipe == "scion" else 1.0])  # column: sqrt(out)
    without = inspect_model(build("llama", 128), recipe)
    assert all(row["relative"] is None for row in (*without["kinds"], *without["roles"]))


def test_a_tied_model_is_warned_of_once():
    found = inspect_model(build("gpt2", 32, tie_word_embeddings=True), "moga-row")
    assert [row["role"] for row in found["roles"]] == ["input", "tied", "hidden", "vector"]
    [warning] = found["warnings"]
    assert "moga.scale_logits_(model, base_width=" in warning


def test_weights_are_measured_only_where_there_are_some():
    model = build("gpt2", 32)
    assert inspect_model(model, "muon")["starts"] == []
    found = inspect_model(model, "muon", weights=Weights(model))
    assert [row["pattern"] for row in found["starts"]][2] == f"transformer.h.{{0..{LAYERS - 1}}}.attn.c_attn.weight"
    assert any("that is no function of width" in warning for warning in found["warnings"])


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["a.0.b.0.w", "a.0.b.1.w", "a.1.b.0.w", "a.1.b.1.w"], "a.{0..1}.b.{0..1}.w"),
        (["a.3.b.0.w", "a.3.b.1.w"], "a.3.b.{0..1}.w"),
        (["10.w", "2.w"], "{2,10}.w"),
        (["conv1.w2"], "conv1.w2"),
        (["0.e.1.w", "1.e.0.w"], "*.e.*.w"),  # not every pair
    ],
)
def test_names_are_collapsed(names, word):
    assert collapsed(names) == word


def test_a_family_is_compared_with_half_of_its_width_or_with_its_base():
    found = inspect_named("gpt2", Wanted(64, 1))
    assert (found["model"], found["start"], found["other"], found["base"]) == (
        "gpt2, width 64, 1 layer",
        "moga",
        "width 32",
        None,
    )
    assert found["warnings"] == []
    found = inspect_named("gpt2", Wanted(64, 1, start="own", recipe="mup-adamw"), "16")
    assert (found["other"], found["base"]) == ("the base", "width 16")
    assert by_pattern(found)["transformer.h.0.attn.c_attn.weight"]["relative"] == [0.25] * 3
    [warning] = found["warnings"]
    assert "changes with width, as its power +0." in warning


def save(model, directory):
    model.config.save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize("family", DECODERS)
def test_a_config_directory_of_every_family(family, tmp_path):
    large, small = (save(build(family, width), tmp_path / str(width)) for width in (64, 32))
    found = inspect_named(large, Wanted(recipe="mup-adamw"), small)
    assert found["other"] == "the base"
    assert {row["role"] for row in found["roles"]} == {"input", "hidden", "output", "vector"}
    matrices = [row for row in found["starts"] if row["role"] == "output"]
    assert matrices and all(row["growth"] > 0 for row in matrices)
    assert any("size of these weights at the start changes with width" in warning for warning in found["warnings"])


def test_a_saved_base_has_no_weights_to_compare_with(tmp_path):
    large, small = build("llama", 64), build("llama", 32)
    moga.save_base(small, tmp_path / "base.json")
    found = inspect_named(save(large, tmp_path), Wanted(recipe="mup-adamw"), str(tmp_path / "base.json"))
    assert found["base"].endswith("base.json") and found["other"] is None
    assert {row["role"]: row["relative"] for row in found["roles"]}["hidden"] == [0.5, 0.5]


def test_a_refusal_of_initialize_is_a_warning(tmp_path, monkeypatch):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.temperature = nn.Parameter(torch.ones(1))

    monkeypatch.setattr("moga.study.named.call_factory", lambda *_: type("Made", (), {"model": Odd()}))
    found = inspect_named("a.b:c", Wanted(roles={"head.weight": "output"}))
    assert found["warnings"][-1].startswith("moga.initialize_ refuses this model: no known start for temperature")
    assert all(row["wanted"] is None for row in found["starts"])


def test_the_same_twice():
    assert inspect_named("llama", Wanted(32, 1, start="own")) == inspect_named("llama", Wanted(32, 1, start="own"))
