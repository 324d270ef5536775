"""LoRA: only the adapters train. A maps to the rank, B from it, and the rank stays while the width grows."""

import math

import peft
import pytest
import torch
from models.checks import check_step_size
from models.decoders import build
from models.encoders import build as build_encoder
from models.rows import VECTOR, head, packed, table

import moga
from moga.rules.init import initialize_
from moga.rules.roles import find_roles
from moga.rules.widths import roles_from_widths

RANK = 4
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapted(model, seed=0, **settings):
    torch.manual_seed(seed)
    return peft.get_peft_model(model, peft.LoraConfig(**{"r": RANK, "lora_alpha": 2 * RANK, **settings}))


def lora(width, **settings):
    return adapted(build("llama", width), **{"target_modules": LINEAR, **settings})


def down(in_):
    return ("output", "out,in", (), 1, ((1, in_),), "adapter down")


def up(out, in_=RANK):
    return ("input", "out,in", (), 1, ((out, in_),), "adapter up")


def expected(n):
    q, kv, m = n // 4 * 8, n // 16 * 8, 5 * n // 2
    sizes = {
        "self_attn.q_proj": (q, n),
        "self_attn.k_proj": (kv, n),
        "self_attn.v_proj": (kv, n),
        "self_attn.o_proj": (n, q),
        "mlp.gate_proj": (m, n),
        "mlp.up_proj": (m, n),
        "mlp.down_proj": (n, m),
    }
    return {
        f"base_model.model.model.layers.{layer}.{name}.lora_{letter}.default.weight": row
        for layer in range(2)
        for name, (out, in_) in sizes.items()
        for letter, row in (("A", down(in_)), ("B", up(out)))
    }


@pytest.mark.parametrize("width", [32, 96])
def test_every_parameter(width):
    assert table(lora(width)) == expected(width)


def test_modules_and_widths_give_the_same_roles():
    small, large = lora(32), lora(64)
    assert roles_from_widths(large, small) == {one.name: one.role for one in find_roles(large)}
    for group in moga.param_groups(large, "mup-adamw", base=small):
        assert group["scale"] == {"output": 0.5, "input": 1.0}[group["role"]]


def test_a_rank_that_grows_is_a_width():
    small, large = lora(32), lora(64, r=2 * RANK)
    groups = moga.param_groups(large, "mup-adamw", base=small)
    assert {(group["role"], group["scale"]) for group in groups} == {("hidden", 0.5)}


@pytest.mark.parametrize(("recipe", "options"), [("moga-row", {}), ("moga-column", {})])
def test_one_step_moves_every_matrix_by_lr(recipe, options):
    assert check_step_size(lora(32), recipe, **options) == {"output", "input"}


# The step of the product


def moved(width, recipe, B, seeds=8):
    """By how much one step moves what the adapters of the first layer make of their inputs of size 1, per lr.

    ``B``: the standard deviation of B before. Zeros are the start; later A's steps count as well. Root-mean-square over
    the tokens, mean over adapters and seeds: with a rank of 4 and 4 tokens one draw of A is luck.
    """
    model = adapted(
        build("llama", width, num_hidden_layers=1), target_modules=["q_proj", "v_proj", "gate_proj", "down_proj"]
    )
    layers = [model.get_submodule(f"base_model.model.model.layers.0.{name}") for name in PLACES]
    inputs = {}
    for layer in layers:
        layer.register_forward_pre_hook(lambda module, args: inputs.update({module: args[0].detach()}))
    return sum(moved_once(model, layers, inputs, recipe, B, seed) for seed in range(seeds)) / seeds


def moved_once(model, layers, inputs, recipe, B, seed):
    torch.manual_seed(seed)
    for layer in layers:
        layer.reset_lora_parameters("default", True)
        torch.nn.init.normal_(layer.lora_B["default"].weight, 0, B)
    before = [layer.get_delta_weight("default").detach() for layer in layers]
    optimizer, lr = moga.optimizer(model, recipe, lr=0.02, weight_decay=0.0), 0.02
    tokens = torch.randint(3, 61, (1, 4))
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    sizes = []
    for layer, product in zip(layers, before, strict=True):
        x = inputs[layer] / inputs[layer].square().mean().sqrt()
        sizes.append((x @ (layer.get_delta_weight("default").detach() - product).mT).square().mean().sqrt() / lr)
    return float(torch.stack(sizes).mean())


PLACES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.down_proj")
WIDTHS = [64, 128, 256, 512]


def slope(sizes):
    """Of log2(size) per doubling of the width."""
    centred = [i - (len(sizes) - 1) / 2 for i in range(len(sizes))]
    return sum(c * math.log2(size) for c, size in zip(centred, sizes, strict=True)) / sum(c * c for c in centred)


@pytest.mark.parametrize("B", [0.0, RANK**-0.5])
@pytest.mark.parametrize("recipe", ["moga-row", "moga-column"])
def test_the_step_of_the_product_is_of_order_lr_at_every_width(recipe, B):
    sizes = [moved(width, recipe, B) for width in WIDTHS]
    assert abs(slope(sizes)) < 0.1 and 0.2 < min(sizes) and max(sizes) < 2, sizes


def test_a_step_that_knows_no_width_is_seen():
    """AdamW with one lr: A's step grows as the width."""
    assert slope([moved(width, "adamw", RANK**-0.5) for width in WIDTHS]) > 0.7


# Other places


def test_adapters_of_a_fused_map_are_cut_as_it_is():
    model = adapted(build("gpt2", 32), target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    rows = {name.partition(".h.0.")[2]: row for name, row in table(model).items() if ".h.0." in name}
    assert rows["attn.c_attn.lora_A.default.weight"] == down(32)
    assert rows["attn.c_attn.lora_B.default.weight"] == (
        "input",
        "out,in",
        (32, 32, 32),
        1,
        ((32, RANK),) * 3,
        "adapter up",
    )
    falcon = table(adapted(build("falcon_grouped", 32), target_modules=["query_key_value"]))
    [row] = {row for name, row in falcon.items() if "lora_B" in name}
    assert (row[2], row[3], row[5]) == ((32, 16, 16), 2, "adapter up")


def test_the_map_under_an_adapter_is_cut_as_without_it():
    model = adapted(build("gpt2", 32), target_modules=["c_attn"], fan_in_fan_out=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    found = table(model)
    name = "base_model.model.transformer.h.0.attn.c_attn.base_layer.weight"
    assert found[name] == packed((32, 32, 32), 32, layout="in,out")
    assert found["base_model.model.lm_head.weight"] == head(32)


def test_adapters_of_convolutions():
    model = adapted(build_encoder("whisper", 32), target_modules=["conv2"])
    found = {name.rpartition("conv2.")[2]: row for name, row in table(model).items()}
    assert found == {
        "lora_A.default.weight": ("output", "out,in,k", (), 1, ((1, 3 * 32),), "adapter down"),
        "lora_B.default.weight": ("input", "out,in,k", (), 1, ((32, RANK),), "adapter up"),
    }


def test_the_magnitudes_of_a_convolution_are_a_vector_of_three_dimensions():
    model = adapted(build_encoder("whisper", 32), target_modules=["conv2"], use_dora=True)
    [magnitude] = [one for one in find_roles(model) if "magnitude" in one.name]
    assert (magnitude.role, magnitude.layout, tuple(magnitude.parameter.shape)) == ("vector", "vector", (1, 32, 1))
    initialize_(model, "moga-row")
    assert magnitude.parameter.any()


def test_the_copy_of_a_head_that_trains_is_an_output():
    model = build_encoder("bert", 32, "BertForSequenceClassification", num_labels=7)
    model = adapted(model, task_type="SEQ_CLS", target_modules=["query"])
    outputs = {name: row for name, row in table(model).items() if "adapter" not in row[5] and row != VECTOR}
    assert outputs == {"base_model.model.classifier.modules_to_save.default.weight": head(32)}


def test_magnitudes_of_dora_are_vectors_and_stay():
    model = lora(32, use_dora=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    magnitudes = {name: row for name, row in table(model).items() if "magnitude" in name}
    assert len(magnitudes) == 14 and set(magnitudes.values()) == {VECTOR}
    initialize_(model, "moga-row")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_adapters_keep_their_start():
    """A is random, so that it passes something on, and B zero, so that the model is what it was."""
    model = lora(32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    initialize_(model, "moga-row")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    for name, parameter in model.named_parameters():
        assert "lora" not in name or bool(parameter.any()) == ("lora_A" in name)


def test_other_adapters_are_unknown_and_not_guessed():
    torch.manual_seed(0)
    model = peft.get_peft_model(build("llama", 32), peft.LoHaConfig(r=RANK, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match=r"(?s)without a role.*hada_w1_a.default \(ParameterDict, shape \(64, 4\)\)"):
        find_roles(model)
