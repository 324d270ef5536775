"""Recipes against independent values and against torch.optim."""

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import moga
from moga.optim import constraints

CASES = json.loads((Path(__file__).parents[1] / "cases" / "updates.json").read_text())
RECIPE = {"adamw-rescaled": "mup-adamw"}  # where the cases have another name
EXACT = ("muon", "hyperp")  # computed with the exact polar factor


def recipe_of(case):
    return RECIPE.get(case["optimizer"], case["optimizer"])


TORCH_HAS = {"sgd", "heavy-ball", "rmsprop", "adam"}  # compared with torch below
BY_HAND = {"signsgd", "scion", "shampoo", "shampoo-accumulated"}  # compared with their formulas below


def test_every_recipe_has_independent_values():
    assert {recipe_of(case) for case in CASES} | TORCH_HAS | BY_HAND == set(moga.RECIPES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['optimizer']}-{c['shape']}")
def test_reference_values(case):
    options = dict(case["options"])
    decay = options.pop("wd")
    if recipe_of(case) not in ("hyperp", "spel"):
        options["weight_decay"] = decay
    if case["optimizer"] in EXACT:
        options["polar"] = "exact"
    weight = nn.Parameter(torch.tensor(case["W0"], dtype=torch.float64))
    optimizer = moga.optimizer([("w", weight)], recipe_of(case), roles={"w": "hidden"}, **options)
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


SGD = torch.optim.SGD
PEERS = [  # recipe, our words, torch's class, its words
    ("sgd", {}, SGD, {}),
    ("sgd", {"weight_decay": 0.1}, SGD, {"weight_decay": 0.1}),
    ("heavy-ball", {"momentum": 0.8}, SGD, {"momentum": 0.8}),
    ("heavy-ball", {"momentum": 0.8, "lookahead": None}, SGD, {"momentum": 0.8, "nesterov": True}),
    ("rmsprop", {}, torch.optim.RMSprop, {}),
    ("rmsprop", {"alpha": 0.8, "eps": 1e-4}, torch.optim.RMSprop, {"alpha": 0.8, "eps": 1e-4}),
    ("adam", {}, torch.optim.Adam, {}),
    ("adam", {"betas": (0.8, 0.9), "eps": 1e-4}, torch.optim.Adam, {"betas": (0.8, 0.9), "eps": 1e-4}),
    ("adam", {"weight_decay": 0.1}, torch.optim.Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("adamw", {"weight_decay": 0.1}, torch.optim.AdamW, {"weight_decay": 0.1}),
]


@pytest.mark.parametrize("nonfinite", ["skip", "propagate"])
@pytest.mark.parametrize("recipe,own,peer,words", PEERS, ids=lambda value: value if isinstance(value, str) else None)
def test_what_torch_has_equals_torch(recipe, own, peer, words, nonfinite):
    ours, theirs = network(), network()
    stated = {"roles": {"0.weight": "hidden", "3.weight": "hidden"}, "decay_vectors": True, "nonfinite": nonfinite}
    a, b = moga.optimizer(ours, recipe, lr=1e-2, **own, **stated), peer(theirs.parameters(), lr=1e-2, **words)
    torch.testing.assert_close(train(ours, a), train(theirs, b), rtol=1e-11, atol=1e-12)


def follow(recipe, role, grads, **options):
    """The weights of a matrix of zeros after the steps of a recipe along ``grads``."""
    weight = nn.Parameter(torch.zeros_like(grads[0]))
    optimizer = moga.optimizer([("w", weight)], recipe, roles={"w": role}, **options)
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
    return weight.detach()


def power(A, exponent):
    values, vectors = torch.linalg.eigh(A)
    return vectors @ torch.diag(values**exponent) @ vectors.mT


GRADS = list(torch.randn(3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind())


def test_signsgd_by_hand():
    expected = -0.1 * sum(grad.sign() for grad in GRADS)
    torch.testing.assert_close(follow("signsgd", "hidden", GRADS, lr=0.1), expected)


def test_shampoo_by_hand():
    root = lambda G: power(G @ G.mT, -0.5)  # noqa: E731
    torch.testing.assert_close(
        follow("shampoo", "hidden", [G.mT for G in GRADS], lr=0.1), -0.1 * sum(root(G.mT) @ G.mT for G in GRADS)
    )
    A, B, expected = 0.01 * torch.eye(6).double(), 0.01 * torch.eye(4).double(), torch.zeros_like(GRADS[0])
    for G in GRADS:
        A, B = A + G @ G.mT, B + G.mT @ G
        expected -= 0.1 * power(A, -0.25) @ G @ power(B, -0.25)
    torch.testing.assert_close(follow("shampoo-accumulated", "hidden", GRADS, lr=0.1, damping=0.01), expected)


SCION = {  # role: radius, and the oracle of arXiv 2502.07529 for a matrix of 6 x 4
    "hidden": (50.0, lambda M: (6 / 4) ** 0.5 * torch.linalg.svd(M, full_matrices=False)[0] @ torch.linalg.svd(M)[2]),
    "output": (3000.0, lambda M: M.sign() / 4),
}


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("role", SCION)
def test_scion_by_hand(role, constrained):
    radius, oracle = SCION[role]
    momentum, expected, lr = torch.zeros_like(GRADS[0]), torch.zeros_like(GRADS[0]), 2.0**-6
    for grad in GRADS:
        momentum = 0.9 * momentum + 0.1 * grad
        expected = (1 - lr * constrained) * expected - lr * radius * oracle(momentum)
    weights = follow("scion", role, GRADS, lr=lr, polar="exact", **({} if constrained else {"weight_decay": 0.0}))
    torch.testing.assert_close(weights, expected)


def test_scion_normalises_each_token_of_an_embedding():
    table = nn.Embedding(5, 4).double()
    start = table.weight.detach().clone()
    optimizer = moga.optimizer(table, "scion", lr=2.0**-6, weight_decay=0.0)
    table.weight.grad = torch.randn(5, 4, dtype=torch.float64)
    optimizer.step()
    step = (start - table.weight.detach()) / 2**-6 / 3000
    torch.testing.assert_close(step.square().mean(1), torch.ones(5).double())  # RMS 1 for every token


ADAMW_BESIDE = {  # recipe: norm, step and constraint of its hidden matrices
    "muon": ("spectral", "fixed", "decay"),
    "muown": ("spectral", "fixed", "row_magnitude"),
    "hyperp": ("spectral", "fixed", "sphere"),
    "orscale": ("spectral", "trust_ratio", "decay"),
    "orscale-lm": ("spectral", "trust_ratio", "decay"),
    "spel": ("spectral", "fixed", "stiefel"),
    "rmnp": ("row", "fixed", "decay"),
    "shampoo": ("spectral", "fixed", "decay"),
    "shampoo-accumulated": ("shampoo", "fixed", "decay"),
}


@pytest.mark.parametrize("name", sorted(ADAMW_BESIDE))
def test_inputs_outputs_and_vectors_of_a_published_recipe_are_on_adamw(name):
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 6), nn.Linear(6, 7, bias=False))
    nn.init.orthogonal_(model[1].weight)
    groups = moga.param_groups(model, name, roles={"1.weight": "hidden", "2.weight": "output"})
    rest = [group for group in groups if group["role"] != "hidden"]
    assert {group["role"] for group in rest} == {"input", "output", "vector"}
    assert {(g["norm"], g["constraint"]) for g in rest} == {("adam", "decay")}
    output = 1 / 6 if name == "muon" else 1.0  # muon divides the step of an output by its in
    assert {g["role"]: g["scale"] for g in rest} == {"input": 1.0, "output": output, "vector": 1.0}
    [hidden] = [(g["norm"], g["step"], g["constraint"]) for g in groups if g["role"] == "hidden"]
    assert hidden == ADAMW_BESIDE[name]
    twin = copy.deepcopy(model)
    ours = moga.SteepestDescent(groups, lr=0.01)
    own = [{"params": [twin[0].weight]}, {"params": [twin[2].weight], "lr": 0.01 * output}]
    theirs = torch.optim.AdamW(own, lr=0.01, weight_decay=0, betas=rest[0]["betas"])
    for step in range(3):
        for net, optimizer in ((model, ours), (twin, theirs)):
            for weight in net.parameters():
                weight.grad = torch.full_like(weight, 1.0 + step)
            optimizer.step()
    torch.testing.assert_close([model[0].weight, model[2].weight], [twin[0].weight, twin[2].weight])


def test_a_zero_row_of_muown_stays_and_the_others_move():
    weight = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    with pytest.warns(UserWarning, match="has rows of zeros"):
        optimizer = moga.optimizer([("w", weight)], "muown", lr=0.1, roles={"w": "hidden"})
    for _ in range(3):
        weight.grad = torch.ones(2, 2)
        optimizer.step()
    assert weight[0].tolist() == [0, 0] and weight.isfinite().all() and weight[1, 0] != 1


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_orscale_lm_fixes_its_reference_at_the_first_step_with_weight_and_gradient(start):
    """Until then the ratio is 1, at that step it is 1, and then it follows the size of the weight."""
    weight = nn.Parameter(start * torch.eye(3))
    optimizer = moga.optimizer([("w", weight)], "orscale-lm", lr=0.1, polar="exact", roles={"w": "hidden"})
    first = 2 if start == 0 else 1
    for step in range(1, 4):
        before, weight.grad = weight.detach().clone(), -torch.eye(3)
        optimizer.step()
        c = optimizer.state[weight]["calibration"].item()
        size = (weight.detach() - before).diagonal() / (0.1 * 0.2 * 3**0.5)
        ratio = before[0, 0].item() / (c * 0.2 * 3**0.5) if step > first else 1.0
        torch.testing.assert_close(size, torch.full((3,), ratio), rtol=1e-4, atol=1e-4)
        assert (c != 0) == (step >= first)


def test_weight_decay_of_a_weight_that_a_constraint_holds_is_refused():
    with pytest.raises(
        ValueError, match=r"overrides give w weight_decay = 0.1, which the constraint 'sphere' would undo"
    ):
        moga.param_groups(
            [("w", torch.ones(2, 2))], "hyperp", roles={"w": "hidden"}, overrides={"w": {"weight_decay": 0.1}}
        )


TORCH_SHAPES = {"original": "original", "moonlight": "match_rms_adamw"}  # the factors of shape that torch has


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("size", [(24, 16), (16, 24), (20, 20), (48, 3)], ids=str)
@pytest.mark.parametrize("shape", TORCH_SHAPES)
def test_muon_equals_torch_within_the_rounding_of_its_bfloat16_products(shape, size, weight_decay):
    """torch.optim.Muon iterates in bfloat16 (eight bits), so a step may differ by about 2^-8 of itself."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(size, generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    words = {"momentum": 0.9, "weight_decay": weight_decay}
    a = moga.optimizer([("w", ours)], "muon", lr=0.1, shape=shape, roles={"w": "hidden"}, **words)
    b = torch.optim.Muon([theirs], lr=0.1, nesterov=True, adjust_lr_fn=TORCH_SHAPES[shape], **words)
    moved = 0.0
    for _ in range(20):
        grad = torch.randn(size, generator=generator) + 0.3 * start
        ours.grad, theirs.grad = grad.clone(), grad.clone()
        before = ours.detach().clone()
        a.step()
        b.step()
        moved += (ours - before).norm().item()
        assert (ours - theirs).norm() < 0.02 * moved
    assert moved > 1


def test_torch_has_no_other_shape_of_muon():
    """A shape word that torch learns is to be compared too."""
    weight = nn.Parameter(torch.ones(2, 2))
    for word in (*TORCH_SHAPES.values(), None):
        torch.optim.Muon([weight], adjust_lr_fn=word)
    for word in ("rms", "none", "spectral", "moonlight", "width"):
        with pytest.raises(ValueError, match="not supported"):
            torch.optim.Muon([weight], adjust_lr_fn=word)


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


@pytest.mark.parametrize("nonfinite", ["skip", "propagate"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("size", [2e38, 1e-38])
def test_heavy_ball_at_the_ends_of_float32_does_what_torch_does(size, nesterov, nonfinite):
    """M = b1 M + G; the sum, and not the gradient over 1 - b1, decides when it overflows."""
    ours, theirs = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3, 2))
    words = {"lookahead": None} if nesterov else {}
    a = moga.optimizer([("w", ours)], "heavy-ball", lr=1e-3, roles={"w": "hidden"}, nonfinite=nonfinite, **words)
    b = torch.optim.SGD([theirs], lr=1e-3, momentum=0.9, nesterov=nesterov)
    signs = torch.tensor([[1.0, -1.0], [0.5, 0.1], [-0.25, 0.8]])
    for factor in (0.8, -0.5, 0.4):
        ours.grad, theirs.grad = (factor * size * signs for _ in range(2))
        a.step()
        b.step()
    assert theirs.isfinite().all() and theirs.any()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)


def symmetric(n, seed):
    S = torch.randn(n, n, generator=torch.Generator().manual_seed(seed))
    return S + S.mT


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (64, 64), (96, 200)])
def test_a_gradient_without_a_tangent_part_turns_nothing(shape):
    """What rounding leaves of the tangent part is not made a step of full size, on the manifold and by rows."""
    start = torch.nn.init.orthogonal_(torch.empty(shape), generator=torch.Generator().manual_seed(0))
    square = symmetric(min(shape), 1)
    weight = nn.Parameter(start.clone())
    optimizer = moga.optimizer([("w", weight)], "spel", lr=0.1, roles={"w": "hidden"})
    for _ in range(3):
        weight.grad = weight.detach() @ square if shape[0] >= shape[1] else square @ weight.detach()
        optimizer.step()
    assert (weight - start).norm() < 1e-5 * start.norm()
    weight = nn.Parameter(start.clone())
    optimizer = moga.optimizer([("w", weight)], "muown", lr=0.1, roles={"w": "hidden"})
    factors = torch.linspace(1, 3, shape[0]).unsqueeze(1)
    for _ in range(3):
        weight.grad = factors * weight.detach()
        optimizer.step()
    turned = nn.functional.cosine_similarity(weight, start)
    torch.testing.assert_close(turned.abs(), torch.ones(shape[0]), rtol=0, atol=1e-6)
    assert (weight.norm(dim=1) - start.norm(dim=1)).abs().min() > 0.1  # their lengths do change


def test_without_the_guard_rounding_is_a_full_step(monkeypatch):
    monkeypatch.setattr(constraints, "_above_rounding", lambda T, size, whole: T)
    weight = nn.Parameter(torch.nn.init.orthogonal_(torch.empty(6, 4), generator=torch.Generator().manual_seed(0)))
    start = weight.detach().clone()
    optimizer = moga.optimizer([("w", weight)], "spel", lr=0.1, roles={"w": "hidden"})
    weight.grad = start @ symmetric(4, 1)
    optimizer.step()
    assert (weight - start).norm() > 0.05


def test_a_small_tangent_part_is_a_full_step():
    """The guard above is for rounding: a part of 1e-3 is a direction like any other."""
    weight = nn.Parameter(torch.eye(4))
    optimizer = moga.optimizer([("w", weight)], "spel", lr=0.1, roles={"w": "hidden"})
    weight.grad = torch.eye(4) + 1e-3 * torch.tensor([[0.0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0]])
    optimizer.step()
    assert (weight - torch.eye(4)).norm().item() == pytest.approx(0.2, rel=0.01)  # 0.1 in each of four directions


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_muown_follows_weights_that_are_replaced(dtype):
    """After a load of other weights the step is that of their rows, not one back to the rows of the old ones."""
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(8, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    weight = nn.Parameter(first.to(dtype))
    optimizer = moga.optimizer([("w", weight)], "muown", lr=0.01, roles={"w": "hidden"}, rounding="stochastic")
    for _ in range(4):
        weight.grad = torch.randn(8, 5, generator=generator, dtype=torch.float64).to(dtype)
        optimizer.step()
    kept = optimizer.state[weight]["magnitude"].clone()
    untouched = weight.detach()[4:].clone()
    weight.data.copy_(torch.cat([3 * second[:4].to(dtype), untouched]))
    twin = nn.Parameter(weight.detach().clone())
    fresh = moga.optimizer([("w", twin)], "muown", lr=0.01, roles={"w": "hidden"}, rounding="stochastic")
    saved = optimizer.state_dict()
    for key in ("magnitude", "length"):
        value = saved["state"][0][key].clone()
        value[:4] = 3 * second[:4].to(dtype).to(value.dtype).norm(dim=1, keepdim=True)
        saved["state"][0] = {**saved["state"][0], key: value}
    fresh.load_state_dict(saved)
    weight.grad = torch.randn(8, 5, generator=generator, dtype=torch.float64).to(dtype)
    twin.grad = weight.grad.clone()
    optimizer.step()
    fresh.step()
    torch.testing.assert_close(weight, twin, rtol=0.02 if dtype.itemsize == 2 else 1e-5, atol=1e-5)
    changed = optimizer.state[weight]["magnitude"]
    assert (changed[:4] / kept[:4] - 1).abs().min() > 0.1 and (changed[4:] / kept[4:] - 1).abs().max() < 0.1
    assert (weight.norm(dim=1)[:4] / (3 * second[:4].norm(dim=1)) - 1).abs().max() < 0.1


def test_rows_of_muown_with_a_negative_magnitude_keep_their_sign_when_they_are_replaced():
    weight = nn.Parameter(torch.eye(3))
    optimizer = moga.optimizer([("w", weight)], "muown", lr=0.5, roles={"w": "hidden"})
    for _ in range(4):
        weight.grad = torch.eye(3)  # pushes the lengths of the rows through zero
        optimizer.step()
        if (optimizer.state[weight]["magnitude"] < 0).all():
            break
    assert (optimizer.state[weight]["magnitude"] < 0).all()
    weight.data.mul_(7)
    weight.grad = torch.zeros(3, 3)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    torch.testing.assert_close(optimizer.state[weight]["magnitude"], -weight.detach().norm(dim=1, keepdim=True))


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e6, 1e12, 1e20, 1e30])
@pytest.mark.parametrize("shape, rank", [((6, 4), 4), ((4, 6), 4), ((16, 16), 1)])
def test_accumulated_shampoo_stays_finite_where_rounding_hides_the_damping(size, shape, rank):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(shape))
    optimizer = moga.optimizer([("w", weight)], "shampoo-accumulated", lr=1.0, roles={"w": "hidden"})
    gradient = torch.randn(shape[0], rank) @ torch.randn(rank, shape[1])
    for _ in range(3):
        weight.grad = size * gradient
        before = weight.detach().clone()
        optimizer.step()
        step = before - weight.detach()
        assert step.isfinite().all() and optimizer.skipped == 0
        assert torch.linalg.matrix_norm(step, 2) <= optimizer.param_groups[0]["scale"] * 1.001
