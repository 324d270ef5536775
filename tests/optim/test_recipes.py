"""Recipes against independent values and against torch.optim."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import moga

CASES = json.loads((Path(__file__).parents[1] / "cases" / "updates.json").read_text())
RECIPE = {
    "moga-row": "moga-row",
    "moga-column": "moga-column",
    "muon": "muon",
    "lion": "lion",
    "adamw": "adamw",
    "adamw-rescaled": "mup-adamw",
}
KNOWN = [case for case in CASES if case["optimizer"] in RECIPE]


def test_every_recipe_of_the_table_has_reference_values():
    assert {RECIPE[case["optimizer"]] for case in KNOWN} == set(moga.RECIPES)


@pytest.mark.parametrize("case", KNOWN, ids=lambda c: f"{c['optimizer']}-{c['shape']}")
def test_reference_values(case):
    options = dict(case["options"])
    options["weight_decay"] = options.pop("wd")
    if case["optimizer"] == "muon":
        options["polar"] = "exact"
    weight = nn.Parameter(torch.tensor(case["W0"], dtype=torch.float64))
    optimizer = moga.optimizer([("w", weight)], RECIPE[case["optimizer"]], roles={"w": "hidden"}, **options)
    for grad, expected in zip(case["grads"], case["W"], strict=True):
        weight.grad = torch.tensor(grad, dtype=torch.float64)
        optimizer.step()
        torch.testing.assert_close(
            weight.data, torch.tensor(expected, dtype=torch.float64), rtol=case["rtol"], atol=case["atol"]
        )


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3)).to(dtype)


def train(model, optimizer, steps=20):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(8, 6, generator=generator, dtype=torch.float64).to(next(model.parameters()).dtype)
        optimizer.zero_grad()
        (model(x) ** 2).sum().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.8, 0.9)])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("nonfinite", ["skip", "raise", "propagate"])
def test_adamw_equals_torch(betas, maximize, nonfinite):
    ours, theirs = network(), network()
    words = {"betas": betas, "eps": 1e-6, "weight_decay": 0.1}
    stated = {"roles": {"0.weight": "hidden", "3.weight": "hidden"}}
    a = moga.optimizer(
        ours, "adamw", lr=1e-2, decay_vectors=True, nonfinite=nonfinite, maximize=maximize, **words, **stated
    )
    b = torch.optim.AdamW(theirs.parameters(), lr=1e-2, maximize=maximize, **words)
    torch.testing.assert_close(train(ours, a), train(theirs, b), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_muon_equals_torch_within_the_rounding_of_its_bfloat16_products(weight_decay):
    """torch.optim.Muon iterates in bfloat16 (eight bits), so a step may differ by about 2^-8 of itself."""
    torch.manual_seed(0)
    start = torch.randn(24, 16)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    words = {"momentum": 0.9, "weight_decay": weight_decay}
    a = moga.optimizer([("w", ours)], "muon", lr=0.1, shape="original", roles={"w": "hidden"}, **words)
    b = torch.optim.Muon([theirs], lr=0.1, nesterov=True, adjust_lr_fn="original", **words)
    moved = 0.0
    for _ in range(20):
        grad = torch.randn(24, 16) + 0.3 * start
        ours.grad, theirs.grad = grad.clone(), grad.clone()
        before = ours.detach().clone()
        a.step()
        b.step()
        moved += (ours - before).norm().item()
        assert (ours - theirs).norm() < 0.02 * moved


def test_the_default_lookahead_is_nesterov():
    """The default lookahead, momentum squared, is the averaged Nesterov step of torch.optim.Muon."""
    torch.manual_seed(0)
    weight, buffer = nn.Parameter(torch.zeros(3, 3, dtype=torch.float64)), torch.zeros(3, 3, dtype=torch.float64)
    optimizer = moga.optimizer([("w", weight)], "moga-row", lr=1.0, momentum=0.9, roles={"w": "hidden"})
    for _ in range(5):
        weight.grad = torch.randn(3, 3, dtype=torch.float64)
        buffer.lerp_(weight.grad, 1 - 0.9)
        before, nesterov = weight.detach().clone(), weight.grad.lerp(buffer, 0.9)
        optimizer.step()
        torch.testing.assert_close(before - weight, moga.norm("row").direction(nesterov))
