"""Every parameter of torch's own modules, and what they compute from the matrices that the rows cut out."""

import pytest
import torch
from models.checks import check_starts, check_step_size
from models.plain import PLAIN, ROLES
from models.rows import VECTOR, affine, head, hidden, layers_of, lookup, packed, table, vectors, with_bias
from torch import nn

import moga
from moga.geometry.layout import logical_matrices
from moga.rules.init import initialize_
from moga.rules.roles import find_roles
from moga.rules.torch_modules import RULES
from moga.rules.transfer import initial_std
from moga.rules.widths import roles_from_widths


def between(n, rows, out):
    inner = {f"inner.{name}": row for name, row in rows.items()}
    return {"tokens.weight": lookup(n), **inner, **with_bias({"head": head(out)})}


def attention(n, name):
    return {
        f"{name}.in_proj_weight": packed((n, n, n), n),
        f"{name}.in_proj_bias": VECTOR,
        **with_bias({f"{name}.out_proj": hidden(n, n)}),
    }


def transformer(n):
    m = 5 * n // 2
    both = with_bias({"linear1": hidden(m, n), "linear2": hidden(n, m)}) | affine("norm1", "norm2")
    encoder = attention(n, "self_attn") | both
    decoder = encoder | attention(n, "multihead_attn") | affine("norm3")
    rows = {
        **layers_of("encoder.layers", encoder, encoder),
        **affine("encoder.norm", "decoder.norm"),
        **layers_of("decoder.layers", decoder),
    }
    return between(n, rows, n)


def attention_of_other_sizes(n):
    rows = {
        "q_proj_weight": hidden(n, n),
        "k_proj_weight": hidden(n, 3 * n // 4),
        "v_proj_weight": hidden(n, 5 * n // 4),
        **vectors("in_proj_bias", "bias_k", "bias_v"),
        **with_bias({"out_proj": hidden(n, n)}),
    }
    return between(n, rows, n)


def gates(suffix, number, h, in_, state):
    cut = (lambda columns: packed((h,) * number, columns)) if number > 1 else (lambda columns: hidden(h, columns))
    biases = vectors(f"bias_ih{suffix}", f"bias_hh{suffix}")
    return {f"weight_ih{suffix}": cut(in_), f"weight_hh{suffix}": cut(state), **biases}


def lstm(n):
    """The state is projected to n/2; the second layer reads both directions of the first."""
    rows = {}
    for layer, in_ in ((0, n), (1, n)):
        for direction in ("", "_reverse"):
            rows |= gates(f"_l{layer}{direction}", 4, 3 * n // 2, in_, n // 2)
            rows[f"weight_hr_l{layer}{direction}"] = hidden(n // 2, 3 * n // 2)
    return between(n, rows, n)


def gru(n):
    return between(n, gates("_l0", 3, 3 * n // 2, n, 3 * n // 2), 3 * n // 2)


def rnn(n):
    return between(n, gates("_l0", 1, 3 * n // 2, n, 3 * n // 2), 3 * n // 2)


def cells(n):
    """Out, in: (2n, n), (n, 2n), (2n, n)."""
    each = (gates("", 4, 2 * n, n, 2 * n), gates("", 3, n, 2 * n, n), gates("", 1, 2 * n, n, 2 * n))
    return between(n, {f"{i}.{name}": row for i, rows in enumerate(each) for name, row in rows.items()}, 2 * n)


def convolutions(n):
    """in counts channels per group times positions; a depthwise one has a matrix per channel."""
    rows = {
        "0": hidden(2 * n, n * 3, layout="out,in,k"),
        "2": hidden(n // 4, (2 * n // 4) * 15, layout="4*out,in,k"),
        "4": hidden(3, 8, "depthwise", f"{n}*out,in,k"),
        "6": hidden(n, 3 * n * 5, layout="in,out,k"),
        "7": hidden(2 * n // 4, (n // 4) * 6, layout="4*in,out,k"),
        "8": hidden(1, 27, "depthwise", f"{2 * n}*in,out,k"),
    }
    return between(n, with_bias(rows) | affine("1", "3", "5"), 2 * n)


def bilinear(n):
    """A linear map of the n/4 * n/2 products."""
    rows = {
        "left": hidden(n // 4, n),
        "right": hidden(n // 2, n),
        "form": hidden(n, (n // 4) * (n // 2), layout="out,in,k"),
    }
    return between(n, with_bias(rows), n)


def bag(n):
    return between(n, {"weight": hidden(2 * n, n), "bias": VECTOR}, 2 * n)


EXPECTED = {
    "transformer": transformer,
    "attention": attention_of_other_sizes,
    "lstm": lstm,
    "gru": gru,
    "rnn": rnn,
    "cells": cells,
    "convolutions": convolutions,
    "bilinear": bilinear,
    "bag": bag,
}


def test_every_model_is_expected_and_every_rule_is_used():
    assert list(EXPECTED) == list(PLAIN)
    modules = [module for build in PLAIN.values() for module in build(32).modules()]
    assert [kind for kind in RULES if not any(isinstance(module, kind) for module in modules)] == []


@pytest.mark.parametrize("width", [32, 96])
@pytest.mark.parametrize("name", EXPECTED)
def test_every_parameter(name, width):
    model = PLAIN[name](width)
    assert list(dict(model.named_parameters())) == [one.name for one in find_roles(model, ROLES)]
    assert table(model, ROLES) == EXPECTED[name](width)


@pytest.mark.parametrize("name", PLAIN)
def test_modules_and_widths_give_the_same_roles(name):
    small, large = PLAIN[name](32), PLAIN[name](64)
    assert roles_from_widths(large, small) == {one.name: one.role for one in find_roles(large, ROLES)}
    settled = moga.param_groups(large, "mup-adamw", base=small)  # nothing is stated: the widths settle the head
    assert {name: group["role"] for group in settled for name in group["param_names"]} == {
        one.name: one.role for one in find_roles(large, ROLES)
    }


@pytest.mark.parametrize(("recipe", "options"), [("moga-row", {}), ("moga-column", {}), ("muon", {"polar": "exact"})])
@pytest.mark.parametrize("name", PLAIN)
def test_one_step_moves_every_logical_matrix_by_lr(name, recipe, options):
    measured = check_step_size(PLAIN[name](32), recipe, ROLES, **options)
    assert measured == ({"hidden"} if recipe == "muon" else {"input", "hidden", "output", "vector"})


# Hidden blocks that are not tiny. Convolutions: 2 ordinary ones, 4 groups twice, 2n kernels of 27; those of 8 are tiny.
BLOCKS = {
    "transformer": lambda n: 2 * 6 + 10,
    "attention": lambda n: 4,
    "lstm": lambda n: 4 * 9,
    "gru": lambda n: 6,
    "rnn": lambda n: 2,
    "cells": lambda n: 8 + 6 + 2,
    "convolutions": lambda n: 2 + 4 + 4 + 2 * n,
    "bilinear": lambda n: 3,
    "bag": lambda n: 1,
}


@pytest.mark.parametrize("width", [32, 128])
@pytest.mark.parametrize("name", PLAIN)
def test_every_hidden_block_starts_with_a_spectral_size_of_one_to_two(name, width):
    assert check_starts(PLAIN[name](width), ROLES) == BLOCKS[name](width)


@pytest.mark.parametrize("std", [lambda out, in_: 0.02, lambda out, in_: in_**-0.5])
def test_starts_that_are_wrong_are_seen(std, monkeypatch):
    """Constant 0.02; and 1 / sqrt(in), also for a matrix that is wider than tall."""

    def wrong(role, out, in_, *rest):
        return std(out, in_) if role == "hidden" else initial_std(role, out, in_, *rest)

    check_starts(PLAIN["transformer"](128), ROLES)
    monkeypatch.setattr("moga.rules.init.initial_std", wrong)
    with pytest.raises(AssertionError, match="inner.encoder.layers.0"):
        check_starts(PLAIN["transformer"](128), ROLES)


@pytest.mark.parametrize("name", PLAIN)
def test_all_biases_start_at_zero(name):
    """Of every gate, the forget gate's too, and the learned key and value; gains at one."""
    model = PLAIN[name](32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    initialize_(model, "moga-row", roles=ROLES)
    for one in find_roles(model, ROLES):
        if one.role == "vector":
            assert set(one.parameter.flatten().tolist()) == {0.0 if "bias" in one.name else 1.0}, one.name


def test_padding_of_a_bag_starts_at_zero():
    model = initialize_(PLAIN["bag"](32), "moga-row", roles=ROLES)
    assert [index for index, row in enumerate(model.tokens.weight) if not row.any()] == [2]


# What the modules compute


def restarted(module):
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return module


def matrices_of(module, name):
    [one] = [one for one in find_roles(module, {"*": "hidden"}) if one.name == name]
    return logical_matrices(one.parameter.detach(), one.layout, one.blocks, one.interleave)


def test_queries_keys_and_values_of_torchs_attention(monkeypatch):
    module = restarted(nn.MultiheadAttention(12, 3, bias=False, batch_first=True)).train()
    inputs = torch.randn(3, 2, 5, 12, generator=torch.Generator().manual_seed(2)).unbind()
    attend, seen = nn.functional.scaled_dot_product_attention, []
    monkeypatch.setattr(
        "torch.nn.functional.scaled_dot_product_attention",
        lambda *args, **kwargs: seen.extend(args[:3]) or attend(*args, **kwargs),
    )
    module(*inputs, need_weights=False)
    rows = matrices_of(module, "in_proj_weight")
    handed = [per_head.transpose(1, 2).flatten(2) for per_head in seen]
    for x, matrix, found in zip(inputs, rows, handed, strict=True):
        torch.testing.assert_close(found, x @ matrix.T, atol=1e-5, rtol=1e-5)
    for order in ((1, 0, 2), (2, 1, 0), (0, 2, 1)):
        assert not all(
            torch.allclose(found, x @ rows[i].T, atol=1e-2) for x, i, found in zip(inputs, order, handed, strict=True)
        )
    by_head = logical_matrices(module.in_proj_weight.detach(), "out,in", (12, 12, 12), 3)
    assert not torch.allclose(handed[0], inputs[0] @ by_head[0].T, atol=1e-2)


def states(module, x, step):
    """The states that ``step`` makes of the inputs one after another."""
    h = torch.zeros(x.shape[1], module.hidden_size)
    c, found = h, []
    for one in x:
        h, c = step(one, h, c)
        found.append(h)
    return torch.stack(found)


def lstm_states(module, x, order):
    into, back = (matrices_of(module, f"weight_{one}_l0") for one in ("ih", "hh"))

    def step(one, h, c):
        i, f, g, o = (one @ into[k].T + h @ back[k].T for k in order)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    return states(module, x, step)


def gru_states(module, x, order):
    into, back = (matrices_of(module, f"weight_{one}_l0") for one in ("ih", "hh"))

    def step(one, h, c):
        (r, rh), (z, zh), (n, nh) = ((one @ into[k].T, h @ back[k].T) for k in order)
        new, update = (n + (r + rh).sigmoid() * nh).tanh(), (z + zh).sigmoid()
        return (1 - update) * new + update * h, c

    return states(module, x, step)


@pytest.mark.parametrize(
    ("module", "reference", "order", "wrong"),
    [
        (nn.LSTM(5, 6, bias=False), lstm_states, (0, 1, 2, 3), (1, 0, 2, 3)),
        (nn.GRU(5, 6, bias=False), gru_states, (0, 1, 2), (1, 0, 2)),
    ],
    ids=["lstm", "gru"],
)
def test_the_gates_of_recurrent_layers(module, reference, order, wrong):
    restarted(module)
    x = torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = module(x)[0]
    torch.testing.assert_close(found, reference(module, x, order), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, reference(module, x, wrong), atol=1e-2)


def test_a_bilinear_form_is_a_linear_map_of_all_products():
    form = restarted(nn.Bilinear(3, 4, 5, bias=False))
    a, b = (torch.randn(6, size, generator=torch.Generator().manual_seed(size)) for size in (3, 4))
    [matrix] = matrices_of(form, "weight")
    products = (a[:, :, None] * b[:, None, :]).flatten(1)
    torch.testing.assert_close(form(a, b).detach(), products @ matrix.T)
    other = (b[:, :, None] * a[:, None, :]).flatten(1)
    assert not torch.allclose(form(a, b), other @ matrix.T, atol=1e-2)


# What is not known


def test_a_list_of_parameters_says_nothing_of_them():
    model = nn.ModuleDict({"tokens": nn.Embedding(9, 8), "head": nn.Linear(8, 9)})
    model["maps"] = nn.ParameterList([torch.ones(8, 8), torch.ones(8)])
    with pytest.raises(ValueError, match=r"(?s)maps.0 \(ParameterList, shape \(8, 8\)\).*module of unknown type"):
        find_roles(model, ROLES)
    found = table(model, ROLES | {"maps.0": "hidden"})
    assert (found["maps.0"], found["maps.1"]) == (hidden(8, 8), VECTOR)
    with pytest.raises(ValueError, match=r"no known start for maps.1 \(ParameterList, shape \(8,\)\)"):
        initialize_(model, "moga-row", roles=ROLES | {"maps.0": "hidden"})


def test_a_recurrent_module_of_ones_own_is_unknown():
    class Own(nn.RNNBase):
        def __init__(self):
            super().__init__("GRU", 4, 6)

    with pytest.raises(ValueError, match=r"weight_ih_l0 \(Own, shape \(18, 4\)\)"):
        find_roles(Own())


def test_dense_inputs_of_a_recurrent_layer_are_stated():
    model = nn.ModuleDict({"lstm": nn.LSTM(5, 8), "head": nn.Linear(8, 3)})
    found = table(model, {"*": "hidden", "lstm.weight_ih_l0": "input", "head.weight": "output"})
    assert found["lstm.weight_ih_l0"] == ("input", "out,in", (8,) * 4, 1, ((8, 5),) * 4, "")
