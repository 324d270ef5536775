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


def test_words_of_torch_are_answered_in_ours():
    group = {"params": [nn.Parameter(torch.ones(2, 2))], **GOOD}
    with pytest.raises(TypeError, match="has no keyword 'nesterov'; the keywords are .* Here nesterov is lookahead"):
        SteepestDescent([group], 0.1, nesterov=True)
    with pytest.raises(TypeError, match="has no keyword 'spam'; the keywords are momentum, [a-z_, ]+$"):
        SteepestDescent([group], 0.1, spam=True)
    with pytest.raises(ValueError, match="unknown key 'fused'; the keys are .*. Here fused is implementation"):
        SteepestDescent([{**group, "fused": True}], 0.1)


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
        ({"layout": "io"}, {}, ValueError, "unknown layout 'io'; a layout is 'vector'"),
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
        ({"trust_clip": 1.0}, {}, TypeError, "trust_clip must be two numbers; got 1.0"),
        ({"trust_clip": ["a", 1]}, {}, TypeError, r"trust_clip\[0\] must be a number; got 'a'"),
        ({"trust_clip": [-1, 1]}, {}, ValueError, r"trust_clip\[0\] = -1 is out of range"),
        ({}, {"betas": 0.9}, TypeError, "betas must be two numbers; got 0.9"),
        ({}, {"betas": (0.9, 0.9, 0.9)}, TypeError, r"betas must be two numbers; got \[0.9, 0.9, 0.9\]"),
        ({}, {"betas": ("a", 0.9)}, TypeError, r"betas\[0\] must be a number; got 'a'"),
        ({}, {"maximize": "no"}, TypeError, "maximize must be True or False; got 'no'"),
        ({"decays": "no"}, {}, TypeError, "decays must be True or False; got 'no'"),
        ({"norm": ["row"]}, {}, ValueError, r"unknown norm \['row'\] in a parameter group; the words are sign"),
        ({"layout": ["out,in"]}, {}, ValueError, r"unknown layout \['out,in'\]"),
        ({"p": "2"}, {}, TypeError, "p must be a number, inf included; got '2'"),
        (
            {"lr_sacle": 0.1},
            {},
            ValueError,
            "a parameter group has the unknown key 'lr_sacle'; the keys are params, .*lr_scale",
        ),
        ({3: 0.1}, {}, ValueError, "a parameter group has the unknown key 3; the keys are params, "),
        ({"blocks": [1, 2]}, {}, ValueError, r"parameter 0: blocks \[1, 2\] do not add up to the 2 outputs"),
        ({"blocks": [5]}, {}, ValueError, r"parameter 0: blocks \[5\] do not add up to the 2 outputs"),
        ({"blocks": 2}, {}, TypeError, "blocks must be a list of whole numbers; got 2"),
        ({"blocks": [1.0, 1.0]}, {}, TypeError, r"blocks\[0\] must be a whole number; got 1.0"),
        ({"interleave": "1"}, {}, TypeError, "interleave must be a whole number; got '1'"),
        ({"skipped": "a"}, {}, TypeError, "skipped must be a whole number; got 'a'"),
        ({"scale": [1.0, 2.0]}, {}, ValueError, "scale has 2 numbers for 1 blocks; give one number, or one per block"),
        ({"param_names": []}, {}, ValueError, r"param_names must be a list with one name per tensor, here 1; got \[\]"),
        (
            {"param_names": None},
            {},
            ValueError,
            "param_names must be a list with one name per tensor, here 1; got None",
        ),
        ({"param_names": ["a", "b"]}, {}, ValueError, "param_names must be a list with one name per tensor, here 1"),
        (
            {"param_names": [3]},
            {},
            ValueError,
            r"param_names must be a list with one name per tensor, here 1; got \[3\]",
        ),
        ({"params": None}, {}, TypeError, "'params' of a group are tensors or .* pairs; got None"),
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
            r"parameter 0: layout 'out,in' needs a tensor of 2 dimensions; got shape \(3,\)",
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
    with pytest.raises(ValueError, match="a parameter group lacks 'params', its tensors or"):
        SteepestDescent([dict(GOOD)], lr=0.1)
    with pytest.raises(ValueError, match="the name 'w' is given twice; a saved state is matched to parameters by"):
        SteepestDescent(
            [{"params": [("w", weight)], **GOOD}, {"params": [("w", nn.Parameter(torch.ones(2, 2)))], **GOOD}], lr=0.1
        )
    for nothing in (None, nn.Linear(2, 2)):
        with pytest.raises(
            TypeError, match=f"SteepestDescent needs parameter groups; got {type(nothing).__name__}: make"
        ):
            SteepestDescent(nothing, lr=0.1)
    with pytest.raises(TypeError, match="a parameter group is a dict; got list: make groups with moga.param_groups"):
        SteepestDescent([{"params": [weight], **GOOD}], lr=0.1).add_param_group([weight])
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
    weight = [("w", nn.Parameter(bad.clone()))]
    recipe = {"hidden": {"norm": "spectral", "constraint": constraint}}
    for make in (
        lambda: SteepestDescent([{"params": weight, **group}], lr=0.1),
        lambda: moga.optimizer(weight, recipe, lr=0.1, roles={"w": "hidden"}),
    ):
        with pytest.warns(UserWarning, match=f"parameter 'w' {text}") as caught:
            make()
        assert caught[0].filename == __file__
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


def test_every_key_that_the_rules_make_and_schedulers_add_is_known(entry, tools):
    model = tools.Network()
    optimizer = entry.optimizer(model)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
    torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1)
    torch.optim.swa_utils.SWALR(optimizer, 0.05)
    optimizer.state_dict()
    for group in optimizer.param_groups:
        group["params"] = list(zip(group.pop("param_names"), group["params"], strict=True))
    SteepestDescent(optimizer.param_groups, lr=0.1)


EXOTIC = [
    (
        lambda: moga.optimizer(None, "moga-row", lr=0.1),
        r"a model or a list of \(name, tensor\) pairs is needed; got NoneT",
    ),
    (
        lambda: moga.optimizer(torch.tensor(1.0), "moga-row", lr=0.1),
        "a model or a list of .* pairs is needed; got Tensor",
    ),
    (lambda: moga.optimizer(nn.Linear, "moga-row", lr=0.1), "a model or a list of .* pairs is needed; got type"),
    (
        lambda: moga.optimizer(nn.Linear(2, 2), "moga-row", 0.1, roles={0: "hidden"}),
        "roles has the key 0; a key is a pat",
    ),
    (
        lambda: moga.optimizer(nn.Linear(2, 2), "sgd", 0.1, roles={"*": "hidden"}, overrides={0: {}}),
        "overrides has the key 0; a key is a pattern of parameter names, a string",
    ),
    (
        lambda: moga.optimizer(nn.Linear(2, 2), "sgd", 0.1, roles={"*": "hidden"}, decay_vectors="no"),
        "decay_vectors must be True or False; got 'no'",
    ),
    (lambda: moga.norm(p="1.5", q=2), "p must be a number, inf included; got '1.5'"),
    (lambda: moga.norm("row", p=torch.ones(2)), "p must be a number, inf included; got tensor"),
    (lambda: moga.norm(["row"]), r"the name of a norm is a string; got \['row'\]"),
    (lambda: moga.norm("mahalanobis", M="x"), "M must be real and floating-point; got 'x'"),
    (lambda: moga.norm("row").measure([[1.0]]), r"a matrix is a tensor \(..., out, in\); got list"),
    (lambda: moga.norm("l2").measure([1.0]), r"a vector is a tensor \(..., n\); got list"),
]


@pytest.mark.parametrize("call,text", EXOTIC, ids=[text for _, text in EXOTIC])
def test_wrong_types_in_exotic_places(call, text):
    with pytest.raises(TypeError, match=text):
        call()


@pytest.mark.parametrize("key", ["norm", "step", "constraint", "average", "shape", "polar"])
@pytest.mark.parametrize("value", [["rms"], {}, None, 2], ids=str)
def test_words_that_are_no_words(key, value):
    update = {"norm": "spectral", key: value}
    with pytest.raises(ValueError, match=f"unknown {key} "):
        moga.optimizer([("w", nn.Parameter(torch.ones(2, 2)))], {"hidden": update}, 0.1, roles={"w": "hidden"})


def test_groups_made_by_hand_are_described():
    groups = [{"params": [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))], **GOOD}]
    for described in (groups, SteepestDescent(groups, lr=0.1).param_groups):
        assert moga.describe(described).splitlines()[1].split() == [
            "-",
            "row",
            "out,in",
            "-",
            "1",
            "2",
            "12",
            "0,",
            "1",
        ]


HELD_WEIGHT = [("w", nn.Parameter(torch.eye(2)))]


@pytest.mark.parametrize(
    "named,recipe,role,why",
    [
        (HELD_WEIGHT, "hyperp", "hidden", "the constraint 'sphere' holds the size of the weights"),
        (HELD_WEIGHT, "spel", "hidden", "the constraint 'stiefel' holds the size of the weights"),
        ([("b", nn.Parameter(torch.ones(2)))], "adamw", "vector", "vectors decay only with decay_vectors=True"),
    ],
)
def test_a_decay_that_reaches_nothing_is_said(named, recipe, role, why):
    with pytest.warns(UserWarning, match=f"weight_decay = 0.1 decays no parameter: {why}") as caught:
        moga.optimizer(named, recipe, lr=0.1, roles={"*": role}, weight_decay=0.1)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moga.optimizer(named, recipe, lr=0.1, roles={"*": role})
        moga.optimizer(named, recipe, lr=0.1, roles={"*": role}, weight_decay=0.0)
        more = [*named, ("x", nn.Parameter(torch.eye(2)))]
        moga.optimizer(
            more, "adamw", lr=0.1, roles={"*": "hidden"} if role == "hidden" else {"x": "hidden"}, weight_decay=0.1
        )


def test_a_decay_of_the_class_that_reaches_nothing_is_said():
    group = {"params": [nn.Parameter(torch.ones(2, 2))], **GOOD, "decays": False}
    with pytest.warns(UserWarning, match="weight_decay = 0.1 decays no parameter: all groups say decays=False or dec"):
        SteepestDescent([group], lr=0.1, weight_decay=0.1)


@pytest.mark.parametrize("apart", [False, True])
def test_two_tensors_over_one_memory_are_refused(apart):
    one = torch.nn.Parameter(torch.zeros(3, 2))
    two, other = torch.nn.Parameter(one.data), torch.nn.Parameter(one.data.clone())
    common = {"norm": "sign", "layout": "out,in", "scale": 1.0}
    groups = [{"params": [("a", one), ("b", other)], **common}, {"params": [("c", two)], **common}]
    if not apart:
        groups = [{"params": [("a", one), ("c", two)], **common}]
    with pytest.raises(ValueError, match="'a' and 'c' are two tensors over one memory; make them one, as in module"):
        moga.SteepestDescent(groups, lr=0.1)
    halves = torch.zeros(4, 2)
    moga.SteepestDescent([{"params": [torch.nn.Parameter(half) for half in halves.split(2)], **common}], lr=0.1)
