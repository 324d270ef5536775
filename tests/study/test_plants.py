"""Planted faults are what they say, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import moga
from moga.study.plants import PLANTS, check_plant, plant_in_groups, plant_in_weights


def groups(recipe: str):
    model = nn.Sequential(nn.Embedding(9, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 9, bias=False))
    return moga.param_groups(model, recipe, roles={"2.weight": "output"})


@pytest.mark.parametrize(
    ("recipe", "word", "scales"),
    [
        ("moga-row", "none", {"input": 1, "hidden": 1 / 4, "output": 1 / 4}),
        ("moga-row", "scale", {"input": 1, "hidden": 1, "output": 1 / 4}),
        ("moga-row", "fan", {"input": 1, "hidden": 1 / 4, "output": 1 / 3}),
        ("muon", "scale", {"input": 1, "hidden": 0.2 * 4, "output": 1 / 16}),  # 0.2 sqrt(max(out, in))
        ("mup-adamw", "fan", {"input": 1, "hidden": 1 / 16, "output": 1 / 9}),
        ("mup-adamw", "init", {"input": 1, "hidden": 1 / 16, "output": 1 / 16}),
    ],
)
def test_faults_of_scales(recipe, word, scales):
    found = plant_in_groups(groups(recipe), word)
    assert {group["role"]: np.squeeze(group["scale"]) for group in found} == pytest.approx(scales)
    assert [group["fan"] for group in found if group["role"] == "output"] == [[[1, 9 if word == "fan" else 16]]]


@pytest.mark.parametrize("word", PLANTS)
def test_a_fault_of_the_start(word):
    model = nn.Linear(400, 300)
    before = model.weight.detach().clone()
    plant_in_weights(model, word, seed=0)
    assert torch.equal(model.weight, before) == (word != "init")
    if word == "init":
        assert model.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_faults_that_cannot_be():
    with pytest.raises(ValueError, match="unknown fault 'scales' to plant; the words are none, scale, fan, init"):
        check_plant("scales")
    hidden = moga.param_groups([("w", torch.nn.Parameter(torch.ones(2, 2)))], "moga-row", roles={"w": "hidden"})
    with pytest.raises(ValueError, match="the fault 'fan' is one of the role 'output', which no parameter"):
        plant_in_groups(hidden, "fan")
