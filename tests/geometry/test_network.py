"""The block norm of a network: the largest of its layers' sizes, the sum of their duals."""

import pytest
import torch
from torch import nn

from moga.geometry.modular import Atom, modular_norm
from moga.geometry.network import Layer, NetworkNorm, block_norm
from moga.geometry.norms import norm
from moga.rules.groups import param_groups


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.up = nn.Linear(4, 6)
        self.head = nn.Linear(6, 7, bias=False)


def groups_of(recipe):
    return param_groups(Model(), recipe, roles={"head.weight": "output"})


def tensors(groups, seed=0):
    names = [name for group in groups for name in group["param_names"]]
    weights = [weight for group in groups for weight in group["params"]]
    return {name: draw(*w.shape, seed=seed + i) for i, (name, w) in enumerate(zip(names, weights, strict=True))}


def inner(G, D):
    return sum((G[name] * D[name]).sum() for name in G)


RECIPES = ("moga-row", "moga-column", "muon", "mup-adamw", "adamw", "lion")


@pytest.mark.parametrize("recipe", RECIPES)
def test_laws(recipe):
    groups = groups_of(recipe)
    whole, G = block_norm(groups), tensors(groups)
    D = whole.direction(G)
    assert whole.measure(D) == pytest.approx(1)
    assert all(size == pytest.approx(1) for size in whole.sizes(D).values())  # each layer takes its own unit step
    assert inner(G, D) == pytest.approx(whole.dual(G).item())
    for seed in range(1, 20):
        other = tensors(groups, seed)
        size = whole.measure(other)
        assert inner(G, {name: x / size for name, x in other.items()}) <= whole.dual(G) * (1 + 1e-9)
    tiny = whole.direction({name: 1e-30 * g for name, g in G.items()})
    assert all(torch.allclose(tiny[name], D[name]) for name in D)
    assert not any(d.any() for d in whole.direction({name: 0 * g for name, g in G.items()}).values())


def test_moga_row_is_the_published_block_norm():
    """max(|W_first|_{1 -> (inf, mean)}, |W_hidden|_(2, inf), |W_last|_{(2, mean) -> inf}, |b|_inf)."""
    groups = groups_of("moga-row")
    W = tensors(groups)
    expected = {
        "embed.weight": W["embed.weight"].abs().max().item(),  # one-hot inputs: no width in the scale
        "up.weight": W["up.weight"].norm(dim=1).max().item() * 4**0.5,
        "up.bias": W["up.bias"].abs().max().item(),
        "head.weight": W["head.weight"].norm(dim=1).max().item() * 6**0.5,
    }
    sizes = block_norm(groups).sizes(W)
    assert {name: size.item() for name, size in sizes.items()} == pytest.approx(expected)
    assert block_norm(groups).measure(W) == pytest.approx(max(expected.values()))


@pytest.mark.parametrize("word,measured", [("adam", "sign"), ("rmsprop", "sign"), ("shampoo", "spectral")])
def test_adaptive_updates_are_measured_in_a_norm(word, measured):
    plain = {"params": [0], "layout": "out,in"}
    sizes = [block_norm([{**plain, "norm": name}]).measure([draw(3, 4)]) for name in (word, measured)]
    assert sizes[0] == sizes[1]


def test_euclidean_is_the_frobenius_norm():
    G = draw(3, 4)
    whole = block_norm([{"params": [0], "norm": "euclidean", "layout": "in,out", "fan": [[4, 1]]}])
    assert whole.measure([G]) == pytest.approx(G.norm().item()) and whole.dual([G]) == pytest.approx(G.norm().item())
    torch.testing.assert_close(whole.direction([G])["0"], G / G.norm())


def test_spectral_outputs_have_no_out_in_their_scale():
    update = {"norm": "spectral", "shape": "rms"}
    groups = param_groups([("w", draw(9, 4))], {"output": update}, roles={"w": "output"})
    W = draw(9, 4)
    assert block_norm(groups).measure([W]) == pytest.approx(torch.linalg.matrix_norm(W, 2).item() * 4**0.5)


@pytest.mark.parametrize("layout", ["out,in", "in,out"])
@pytest.mark.parametrize("blocks,fan", [([2, 2, 2], [[2, 5]]), ([2, 2, 2], [[2, 5], [1, 5], [2, 1]]), ([1, 3, 2], [])])
@pytest.mark.parametrize("word", ["row", "spectral", "column", "sign"])
def test_every_logical_block_counts_with_its_own_fan(layout, blocks, fan, word):
    group = {"params": [0], "param_names": ["qkv"], "norm": word, "layout": layout, "blocks": blocks, "fan": fan}
    W, rule = draw(6, 5), norm(word)
    stored = W if layout == "out,in" else W.mT.contiguous()
    fans = [tuple(one) for one in fan] * (3 if len(fan) == 1 else 1) or [None] * 3
    parts = W.split(blocks)
    whole = block_norm([group])
    sizes = torch.stack([rule.measure(part, one) for part, one in zip(parts, fans, strict=True)])
    duals = torch.stack([rule.dual(part, one) for part, one in zip(parts, fans, strict=True)])
    steps = torch.cat([rule.direction(part, one) for part, one in zip(parts, fans, strict=True)])
    torch.testing.assert_close(whole.sizes([stored])["qkv"], sizes)
    torch.testing.assert_close(whole.measure([stored]), sizes.max())
    torch.testing.assert_close(whole.dual([stored]), duals.sum())
    torch.testing.assert_close(whole.direction([stored])["qkv"], steps if layout == "out,in" else steps.mT)


def test_the_step_of_the_block_norm_is_what_the_optimizer_moves_by():
    from moga.optim.steepest_descent import SteepestDescent

    groups = groups_of("moga-row")
    optimizer = SteepestDescent(groups, lr=0.25, lookahead=0.0)
    G = {name: g.float() for name, g in tensors(groups).items()}
    before = {name: w.detach().clone() for g in groups for name, w in zip(g["param_names"], g["params"], strict=True)}
    for group in groups:
        for name, weight in zip(group["param_names"], group["params"], strict=True):
            weight.grad = G[name]
    optimizer.step()
    whole = block_norm(optimizer.param_groups)
    moved = {
        name: before[name] - w.detach()
        for g in optimizer.param_groups
        for name, w in zip(g["param_names"], g["params"], strict=True)
    }
    assert whole.measure(moved) == pytest.approx(0.25, rel=1e-5)
    for name, step in whole.direction(G).items():
        torch.testing.assert_close(moved[name], 0.25 * step, rtol=1e-4, atol=1e-6)


def test_none_stands_for_zero_and_lists_are_in_the_order_of_the_groups():
    groups = groups_of("moga-row")
    whole, G = block_norm(groups), tensors(groups)
    in_order = [G[layer.name] for layer in whole.layers]
    assert whole.measure(in_order) == whole.measure(G) and whole.dual(in_order) == whole.dual(G)
    partial = {**G, "up.weight": None}
    assert whole.dual(partial) == pytest.approx((whole.dual(G) - whole.duals(G)["up.weight"].sum()).item())
    assert whole.direction(partial)["up.weight"] is None and "up.weight" not in whole.sizes(partial)
    assert whole.measure([None] * 4) == 0 and whole.dual([None] * 4) == 0


def test_groups_without_names_are_numbered_through():
    bare = {"norm": "sign", "layout": "out,in"}
    whole = block_norm([{**bare, "params": [0, 0]}, {**bare, "params": [0]}])
    assert [layer.name for layer in whole.layers] == ["0", "1", "2"]


SIGN = {"params": [0], "param_names": ["w"], "norm": "sign", "layout": "out,in"}


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: block_norm([{"params": [0], "layout": "out,in"}]), "a parameter group lacks 'norm'; make groups with"),
        (lambda: block_norm([{**SIGN, "norm": "rows"}]), "unknown norm 'rows'; the norms are column, row"),
        (lambda: block_norm([SIGN, SIGN]), "the name 'w' occurs twice; every tensor is measured once"),
        (lambda: block_norm([{**SIGN, "fan": [[1, 2], [3, 4]]}]), "layer 'w' has 2 fans for 1 blocks; give one per"),
        (
            lambda: block_norm([{**SIGN, "params": [0, 0]}]),
            "a parameter group has 2 params and 1 param_names; give one",
        ),
        (
            lambda: block_norm([{**SIGN, "param_names": ["w", "b"]}]),
            "has 1 params and 2 param_names; give one name for",
        ),
        (lambda: block_norm([SIGN]).measure({}), "the tensors lack w; the layers are w"),
        (lambda: block_norm([SIGN]).dual({"w": draw(2, 2), "b": draw(2)}), "the tensors have b, which no layer is"),
        (lambda: block_norm([SIGN]).direction([]), "1 tensors are needed, one per layer, in order; got 0"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_coefficients_divide_steps_and_multiply_sizes():
    W = draw(3, 4)
    one, three = (NetworkNorm((Layer("w", norm("row"), coefficient=c),)) for c in (1.0, 3.0))
    torch.testing.assert_close(three.measure([W]), 3 * one.measure([W]))
    torch.testing.assert_close(three.dual([W]), one.dual([W]) / 3)
    torch.testing.assert_close(three.direction([W])["w"], one.direction([W])["w"] / 3)


STACKED = [
    ("out,in", (6, 4), (2, 2, 2), 2, 3),
    ("out,in", (8, 4), (4, 2, 2), 2, 3),
    ("stack,in,out", (3, 4, 6), (3, 3), 3, 6),
    ("stack,out,in", (3, 6, 4), (4, 2), 1, 6),
    ("2*in,out,k", (6, 4, 2), (), 1, 2),
]


@pytest.mark.parametrize("layout,shape,blocks,interleave,count", STACKED)
@pytest.mark.parametrize("word", ["column", "spectral"])
def test_every_matrix_of_a_stack_or_of_interleaved_blocks_is_measured(word, layout, shape, blocks, interleave, count):
    group = {"params": [0], "norm": word, "layout": layout, "blocks": blocks, "interleave": interleave}
    atom = Atom("0", norm(word), layout=layout, blocks=blocks, interleave=interleave)
    G = draw(*shape)
    for network in (block_norm([group]), modular_norm(atom)):
        D = network.direction([G])["0"]
        assert D.shape == G.shape and network.sizes([D])["0"].numel() == count
        torch.testing.assert_close(network.sizes([D])["0"], torch.ones_like(network.sizes([D])["0"]))
        torch.testing.assert_close((G * D).sum(), network.dual([G]))
