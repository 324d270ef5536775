"""Words, ranges and tensors that a group cannot have, and the texts that say so; sizes of the last update."""

import math
import warnings

import pytest
import torch
from torch import nn

import moga
from moga import SteepestDescent
from moga.rules.updates import COMBINATIONS, CONSTRAINTS, STEPS, UPDATES

GOOD = {"norm": "row", "layout": "out,in", "scale": 1.0}


@pytest.mark.parametrize(
    "changes,options,error,text",
    [
        ({}, {"lr": -1.0}, ValueError, "lr = -1.0 is out of range; allowed is a finite 0 <= lr"),
        ({}, {"lr": math.nan}, ValueError, "lr = nan is out of range"),
        ({}, {"lr": math.inf}, ValueError, "lr = inf is out of range"),
        ({}, {"momentum": 1.0}, ValueError, "momentum = 1.0 is out of range; allowed is a finite 0 <= momentum < 1"),
        ({}, {"lookahead": -0.1}, ValueError, "lookahead = -0.1 is out of range"),
        ({}, {"betas": (0.9, 1.5)}, ValueError, r"betas\[1\] = 1.5 is out of range"),
        ({}, {"eps": -1e-8}, ValueError, "eps = -1e-08 is out of range"),
        ({}, {"weight_decay": -0.1}, ValueError, "weight_decay = -0.1 is out of range"),
        ({}, {"lr": "0.1"}, TypeError, "lr must be a number; got '0.1'"),
        ({}, {"lr": None}, TypeError, "lr must be a number; got None"),
        ({}, {"lr": torch.ones(2)}, TypeError, "lr must be a number; got tensor"),
        ({}, {"momentum": None}, TypeError, "momentum must be a number; got None"),
        ({"p": 0.5}, {}, ValueError, "norm 'row' needs p >= 1, inf included; got p = 0.5"),
        ({"norm": "column", "q": 1.5}, {}, ValueError, "norm 'column' needs q >= 2, inf included; got q = 1.5"),
        ({"scale": math.nan}, {}, ValueError, r"scale\[0\] = nan is out of range"),
        ({"scale": "x"}, {}, TypeError, r"scale\[0\] must be a number; got 'x'"),
        ({"lr_scale": -1.0}, {}, ValueError, "lr_scale = -1.0 is out of range"),
        ({"decay_scale": math.nan}, {}, ValueError, "decay_scale = nan is out of range"),
        (
            {},
            {"nonfinite": "ignore"},
            ValueError,
            "unknown word nonfinite='ignore'; the words are skip, raise, propagate",
        ),
        ({"norm": "rows"}, {}, ValueError, "unknown norm 'rows' in a parameter group; the words are sign, column, row"),
        ({"layout": "io"}, {}, ValueError, "unknown layout 'io' in a parameter group; the words are out,in, in,out"),
        ({"polar": "svd"}, {}, ValueError, "unknown polar 'svd' in a parameter group; the words are exact, "),
        (
            {"step": "long"},
            {},
            ValueError,
            "unknown step 'long' in a parameter group; the words are fixed, dual, trust",
        ),
        (
            {"constraint": "ball"},
            {},
            ValueError,
            "unknown constraint 'ball' in a parameter group; the words are decay, sp",
        ),
        (
            {"average": "max"},
            {},
            ValueError,
            "unknown average 'max' in a parameter group; the words are mean, sum, none",
        ),
        (
            {"calibration": "all"},
            {},
            ValueError,
            "unknown calibration 'all' in a parameter group; the words are none, f",
        ),
        (
            {},
            {"state_dtype": "fp8"},
            ValueError,
            "unknown state_dtype 'fp8' in a parameter group; the words are float32",
        ),
        (
            {},
            {"rounding": "down"},
            ValueError,
            "unknown rounding 'down' in a parameter group; the words are nearest, st",
        ),
        (
            {"trust_clip": [2, 1]},
            {},
            ValueError,
            r"trust_clip = \[2, 1\] is out of range; allowed is 0 <= least <= most",
        ),
        ({"alpha": 1.0}, {}, ValueError, "alpha = 1.0 is out of range; allowed is a finite 0 <= alpha < 1"),
        (
            {"constraint": "sphere"},
            {"weight_decay": 0.1},
            ValueError,
            "weight_decay = 0.1 would be undone by the constraint 'sphere', which fixes the size of a weight; say",
        ),
        ({"params": []}, {}, ValueError, "a parameter group is empty; give it at least one tensor"),
        (
            {"params": [nn.Parameter(torch.ones(3))]},
            {},
            ValueError,
            r"shape \(3,\); layout 'out,in' needs two dimensions",
        ),
        (
            {"params": [nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))]},
            {},
            TypeError,
            "parameter 0 is torch.complex64; a real floating-point tensor is needed",
        ),
    ],
)
def test_errors(changes, options, error, text):
    group = {"params": [nn.Parameter(torch.ones(2, 2))], **GOOD, **changes}
    with pytest.raises(error, match=text):
        SteepestDescent([group], **{"lr": 0.1, **options})


def test_errors_of_lists():
    weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ValueError, match="empty parameter list"):
        SteepestDescent([], lr=0.1)
    with pytest.raises(
        ValueError, match="a parameter group lacks 'norm', 'layout', 'scale'; make groups with moga.param_groups"
    ):
        SteepestDescent([weight], lr=0.1)
    with pytest.raises(ValueError, match="some parameters appear in more than one parameter group"):
        SteepestDescent([{"params": [weight], **GOOD}, {"params": [weight], **GOOD}], lr=0.1)
    with pytest.raises(ValueError, match="parameter 1 is given twice"), pytest.warns(UserWarning, match="duplicate"):
        SteepestDescent([{"params": [weight, weight], **GOOD}], lr=0.1)


def test_a_refused_group_leaves_the_optimizer_as_it_was():
    optimizer = SteepestDescent([{"params": [("w", nn.Parameter(torch.ones(2, 2)))], **GOOD}], lr=0.1)
    with pytest.raises(ValueError, match="scale"):
        optimizer.add_param_group({"params": [("x", nn.Parameter(torch.ones(2, 2)))], **GOOD, "lr_scale": -1.0})
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients_are_refused():
    table = nn.Embedding(4, 3, sparse=True)
    optimizer = SteepestDescent([{"params": [("table", table.weight)], **GOOD}], lr=0.1)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="parameter 'table' has a sparse gradient; use sparse=False"):
        optimizer.step()


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("norm", UPDATES)
def test_the_combinations_that_exist_and_the_others(norm, step, constraint):
    weight = nn.Parameter(torch.eye(2))
    group = {"params": [weight], **GOOD, "norm": norm, "step": step, "constraint": constraint}
    if (norm, step, constraint) in COMBINATIONS:
        optimizer = SteepestDescent([group], lr=0.1)
        weight.grad = torch.arange(4.0).reshape(2, 2)
        optimizer.step()
        assert not torch.equal(weight, torch.eye(2))
    else:
        text = f"norm '{norm}', step '{step}' and constraint '{constraint}' do not exist together; .*: euclidean dual"
        with pytest.raises(ValueError, match=text):
            SteepestDescent([group], lr=0.1)


START = {
    "stiefel": (2 * torch.eye(2, 3), "is not on the Stiefel manifold: its Gram matrix differs from the identity by 3"),
    "sphere": (torch.zeros(2, 3), "is zero, and the constraint 'sphere' keeps its size: it can never move"),
    "row_magnitude": (torch.eye(3)[:, :1], "has rows of zeros, which 'row_magnitude' gives no direction"),
}


@pytest.mark.parametrize("constraint", START)
def test_a_start_that_a_constraint_cannot_work_with_is_said(constraint):
    bad, text = START[constraint]
    group = {**GOOD, "norm": "spectral", "constraint": constraint}
    with pytest.warns(UserWarning, match=f"parameter 'w' {text}"):
        SteepestDescent([{"params": [("w", nn.Parameter(bad.clone()))], **group}], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SteepestDescent([{"params": [("w", nn.Parameter(torch.eye(2, 3)))], **group}], lr=0.1)
        SteepestDescent([{"params": [("w", nn.Parameter(torch.zeros(2, 3, device="meta")))], **group}], lr=0.1)


def test_the_manifold_is_kept_and_reached():
    """Off the manifold the first step lands on it; on it every step stays on it, also in bfloat16 to its rounding."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        weight = nn.Parameter((2 * torch.eye(4, 6)).to(dtype))
        with pytest.warns(UserWarning, match="is not on the Stiefel manifold"):
            optimizer = moga.optimizer([("w", weight)], "spel", lr=0.1, roles={"w": "hidden"})
        for _ in range(5):
            weight.grad = torch.randn(4, 6).to(dtype)
            optimizer.step()
            wide = weight.detach().float()
            torch.testing.assert_close(wide @ wide.mT, torch.eye(4), rtol=0, atol=tolerance)


def test_the_sphere_is_kept():
    weight = nn.Parameter(torch.randn(6, 4))
    size = weight.detach().norm().item()
    optimizer = moga.optimizer([("w", weight)], "hyperp", lr=0.1, roles={"w": "hidden"})
    for _ in range(20):
        weight.grad, before = torch.randn(6, 4), weight.detach().clone()
        optimizer.step()
        assert weight.detach().norm().item() == pytest.approx(size, rel=1e-5)
        assert (weight.detach() - before).norm().item() / size == pytest.approx(0.1, abs=0.06)  # lr is about its angle


def test_last_update(entry, tools):
    """A step of lr has size lr in the group's own norm, where the step is of fixed size and nothing decays."""
    model = tools.Network()
    optimizer = entry.optimizer(model)
    with pytest.raises(RuntimeError, match="no step was watched; call optimizer.watch\\(\\) before the step"):
        optimizer.last_update()
    tools.run(model.parameters(), optimizer, [0])
    optimizer.watch()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    tools.run(model.parameters(), optimizer, [1])
    tools.run(model.parameters(), optimizer, [2])  # nobody watches
    rows = optimizer.last_update()
    assert [row["names"] for row in rows] == [group["param_names"] for group in optimizer.param_groups]
    for row, group in zip(rows, optimizer.param_groups, strict=True):
        assert {type(row[key]) for key in ("update", "weight")} == {float} and row["role"] == group["role"]
        assert row["update"] > 0 and row["weight"] > 0
        fixed = group["step"] == "fixed" and group["constraint"] == "decay" and group["polar"] == "exact"
        if fixed and group["norm"] in ("sign", "row", "column", "spectral"):
            decay = group.get("weight_decay", 0.0) * row["weight"]
            assert row["update"] == pytest.approx(entry.lr, rel=1e-3, abs=entry.lr * decay)
    assert before


def test_a_step_that_nobody_watches_does_nothing_more(tools):
    entry = tools.ENTRIES[0]
    models = [tools.Network(), tools.Network()]
    optimizers = [entry.optimizer(model) for model in models]
    counts = []
    for model, optimizer in zip(models, optimizers, strict=True):
        tools.run(model.parameters(), optimizer, [0])
        if optimizer is optimizers[1]:
            optimizer.watch()
            tools.run(model.parameters(), optimizer, [1])
        with torch.profiler.profile() as profile:
            tools.run(model.parameters(), optimizer, [2])
        counts.append(len(profile.events()))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("recipe", ["adam", "adamw", "mup-adamw", "rmsprop"])
def test_with_eps_zero_entries_without_gradient_rest(recipe):
    weight = nn.Parameter(torch.eye(4))
    optimizer = moga.optimizer([("w", weight)], recipe, lr=0.1, eps=0.0, roles={"w": "hidden"})
    for bad in (math.nan, math.inf):
        weight.grad = torch.full((4, 4), bad)
        optimizer.step()
        assert torch.equal(weight.data, torch.eye(4))
    weight.grad = torch.zeros(4, 4)
    weight.grad[0] = 1.0
    optimizer.step()
    assert torch.equal(weight.data[1:], torch.eye(4)[1:]) and (weight.data[0] < torch.eye(4)[0]).all()
    optimizer.param_groups[0]["lr"] = 0.0
    before = weight.detach().clone()
    optimizer.step()
    assert torch.equal(weight.data, before)


@pytest.mark.parametrize("recipe", ["moga-row", "adamw", "muon"])
def test_lr_may_be_a_tensor_of_one_entry(recipe):
    weights = [nn.Parameter(torch.ones(3, 2)) for _ in range(2)]
    for weight, lr in zip(weights, (torch.tensor([0.1]), 0.1), strict=True):
        weight.grad = torch.arange(6.0).reshape(3, 2)
        moga.optimizer([("w", weight)], recipe, lr=lr, roles={"w": "hidden"}).step()
    torch.testing.assert_close(weights[0].data, weights[1].data)


@pytest.mark.parametrize("recipe", ["moga-row", "muon"])
def test_a_watched_step_that_is_not_finite_is_reported_as_such(recipe):
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = moga.optimizer([("w", weight)], recipe, lr=0.1, nonfinite="propagate", roles={"w": "hidden"})
    weight.grad = torch.full((3, 2), math.nan)
    optimizer.watch()
    optimizer.step()
    assert math.isnan(optimizer.last_update()[0]["update"])
