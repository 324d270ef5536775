"""Folding: a plain model with the same outputs, or an error that says why not."""

import re

import pytest
import torch
from models.deep import FAMILIES, Residual, build, logits
from torch import nn

import moga
from moga.rules.blocks import MIXTURES
from moga.rules.branches import branch_scales, check_branches


@pytest.mark.parametrize("family", FAMILIES)
def test_folding_gives_a_plain_model_with_the_same_outputs(family, tmp_path):
    model = build(family)
    keys, settings = list(model.state_dict()), model.config.to_dict()
    plain = logits(model)
    expected = logits(moga.scale_branches_(model))
    assert (expected - plain).abs().max() > 0.05
    assert moga.fold_branches_(model) is model
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-5)
    assert list(model.state_dict()) == keys
    assert model.config.to_dict() == settings
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(logits(loaded), logits(model))
    check_branches(loaded)


def test_a_forgotten_map_is_found(monkeypatch):
    """What the test above is for: shared experts left out."""
    monkeypatch.setitem(MIXTURES, "deepseek_v3.DeepseekV3MoE", "experts.down_proj")
    model = moga.scale_branches_(build("deepseek_v3"))
    expected = logits(model)
    assert (logits(moga.fold_branches_(model)) - expected).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("family", "dropout"),
    [("gpt2", "resid_pdrop"), ("bloom", "hidden_dropout"), ("phi3", "resid_pdrop"), ("opt", "dropout")],
)
def test_dropout_before_the_sum_commutes(family, dropout):
    model = moga.scale_branches_(build(family, **{dropout: 0.5})).train()
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append(logits(model))
        if len(outputs) == 1:
            assert not torch.equal(logits(model), outputs[0])  # dropout is on
            moga.fold_branches_(model)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)


def test_a_gain_stored_minus_one():
    model = moga.scale_branches_(build("gemma2"))
    norm = model.model.layers[1].post_attention_layernorm
    before = norm.weight.detach().clone()
    moga.fold_branches_(model)
    torch.testing.assert_close(norm.weight.detach(), (1 + before) / 3 - 1)


def test_a_gain_stored_minus_one_in_half_precision():
    model = moga.scale_branches_(build("gemma2").bfloat16())
    text = (
        "model.layers.0.post_attention_layernorm stores its gain minus 1 in torch.bfloat16, which leaves a small gain "
        "no digits; fold in float32: model.float()"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        moga.fold_branches_(model)
    moga.fold_branches_(model.float())


def test_two_models_of_one_config():
    model = build("llama")
    other = type(model)(model.config)
    for one in (model, other):
        moga.scale_branches_(one)
    for one in (model, other):
        moga.fold_branches_(one)
        assert branch_scales(one) == {}


def test_a_batch_norm_in_training():
    """Its gain and bias are multiplied, and its running averages stay."""
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    nn.init.ones_(model[1].bias)
    moga.scale_branches_(nn.Sequential(model), depth=4, branches=["0"])
    x = torch.randn(2, 3, 4, 4)
    expected, averages = model(x), model[1].running_mean.clone()
    moga.fold_branches_(model)
    assert torch.equal(model[1].running_mean, averages)
    assert model[1].bias.tolist() == [0.25] * 3
    torch.testing.assert_close(model(x), expected)


def test_other_weights_are_folded_in_half_precision():
    model = moga.scale_branches_(build("llama").bfloat16())
    expected = logits(model)
    assert model.model.layers[0].mlp.down_proj.weight.dtype == torch.bfloat16
    torch.testing.assert_close(logits(moga.fold_branches_(model)), expected, rtol=0.05, atol=0.05)


def test_gradients_before_folding_are_those_of_the_multiplied_model():
    """The last map gets the gradient of a map whose output is multiplied, all others what comes through it."""
    model = nn.Sequential(Residual(4), nn.Linear(4, 1)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    moga.scale_branches_(model, base_depth=1, depth=8, branches=["0.branch"])
    model(x).sum().backward()
    inner = model[0].branch[2].weight
    hidden = torch.relu(x @ model[0].branch[0].weight.T + model[0].branch[0].bias)
    expected = torch.outer(model[1].weight[0], hidden.sum(0)) / 8
    torch.testing.assert_close(inner.grad, expected)


def test_adapters_are_merged_before_folding():
    import peft

    model = moga.scale_branches_(build("llama"))
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["o_proj"], init_lora_weights=False)
    ).eval()
    expected = logits(adapted)
    text = (
        "model.layers.0.self_attn.o_proj has no weight of its own, or more than that and a bias, to write the "
        "multiplier into; adapters and parametrizations have to be merged first"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        moga.fold_branches_(adapted)
    assert len(branch_scales(adapted)) == 6
    merged = moga.fold_branches_(adapted.merge_and_unload())
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-5)


def test_a_map_that_something_else_uses():
    model = nn.Sequential(Residual(6), nn.Linear(6, 6))
    model[1].weight = model[0].branch[2].weight
    moga.scale_branches_(model, depth=2, branches=["0.branch"])
    with pytest.raises(ValueError, match="1.weight is also the last map of a branch, which folding would multiply"):
        moga.fold_branches_(model)


def test_a_map_that_two_branches_share_is_folded_once():
    model = nn.Sequential(Residual(6), Residual(6))
    model[1].branch[2].weight = model[0].branch[2].weight
    x = torch.randn(5, 6)
    expected = moga.scale_branches_(model, branches=["*.branch"])(x)
    torch.testing.assert_close(moga.fold_branches_(model)(x), expected)


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)


class Bent(nn.Module):
    """Its output is no multiple of its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x**self.weight


class Shy(Bent):
    def forward(self, x, y):
        return x * y


NO_MAPS = [
    (Quantised, "0.3 is stored as torch.int8; fold before quantising"),
    (Bent, "0.3 (Bent) returns no multiple of its weight: there is nothing to fold into"),
    (Shy, "0.3 (Shy) returns no multiple of its weight: there is nothing to fold into"),
]


@pytest.mark.parametrize(("last", "text"), NO_MAPS)
def test_maps_that_cannot_be_folded(last, text):
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4), last()))
    moga.scale_branches_(model, branches={"0": "3"})
    with pytest.raises(ValueError, match=re.escape(text)):
        moga.fold_branches_(model)
    assert branch_scales(model) == {"0": 1.0}


def test_folding_writes_nothing_before_all_is_checked():
    model = nn.Sequential(Residual(4), nn.Sequential(nn.Linear(4, 4), Bent()))
    before = model[0].branch[2].weight.detach().clone()
    moga.scale_branches_(model, depth=2, branches={"0.branch": "2", "1": "1"})
    with pytest.raises(ValueError, match="returns no multiple of its weight"):
        moga.fold_branches_(model)
    assert torch.equal(model[0].branch[2].weight, before)


@pytest.mark.parametrize("fold", [moga.fold_branches_, moga.fold_logits_])
def test_only_a_model_is_folded(fold):
    with pytest.raises(TypeError, match=f"{fold.__name__} needs a model, an nn.Module; got NoneType"):
        fold(None)
