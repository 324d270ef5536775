import math
import warnings

import pytest
import torch
from models.decoders import DECODERS, build
from torch import nn

from moga import norm
from moga.geometry.layout import logical_matrices, to_matrices
from moga.rules.groups import param_groups
from moga.rules.init import initialize_
from moga.rules.recipes import RECIPES
from moga.rules.roles import find_roles


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_every_hidden_block_has_a_spectral_size_of_one_to_two(family, width, request):
    model = request.getfixturevalue(family)(width).double()
    initialize_(model, "moga-row", generator=torch.Generator().manual_seed(0))
    hidden = [one for one in find_roles(model) if one.role == "hidden"]
    sizes = [
        float(size)
        for one in hidden
        for stack in to_matrices(one.parameter.detach(), one.layout, one.blocks)
        for size in norm("spectral").measure(stack).flatten()
    ]
    assert len(sizes) == {"gpt2": 12, "llama": 14}[family]
    assert min(sizes) >= 1
    assert max(sizes) <= 2.2


STATED = {"gpt_oss": {"*.sinks": "vector"}, "mamba2": {"*.dt_bias": "vector", "*.A_log": "vector", "*.D": "vector"}}


@pytest.mark.parametrize("name", DECODERS)
def test_every_matrix_of_every_decoder_starts_at_its_own_size(name):
    """Hidden ones, routers and convolutions too: entries are as large as their own (out, in) says, block by block."""
    model = build(name, 64).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    initialize_(model, "moga-row", roles=STATED.get(name), generator=torch.Generator().manual_seed(0))
    for one in find_roles(model):
        if one.role == "vector":
            kept = any(word in one.name for word in ("sinks", "dt_bias", "A_log", ".D"))
            assert bool(((one.parameter == 7) if kept else one.parameter.abs() <= 1).all()), one.name
        elif one.role == "hidden" or one.part:
            for block in logical_matrices(one.parameter.detach(), one.layout, one.blocks, one.interleave):
                out, in_ = block.shape[-2:]
                expected = min(1, (out / in_) ** 0.5) / in_**0.5
                error = 6 / (2 * block.numel()) ** 0.5  # six standard deviations of a standard deviation
                assert float(block.square().mean().sqrt()) == pytest.approx(expected, rel=error), one.name
        else:
            assert one.role == "input" or not one.parameter.any()


def test_interleaved_blocks_start_at_the_size_of_each():
    """Four units, of 32 rows of the one and 2 of the other: rows are sliced here by hand."""
    model = nn.Module()
    model.packed = nn.Parameter(torch.full((136, 512), 7.0))
    how = {"role": "hidden", "layout": "out,in", "blocks": (128, 8), "interleave": 4}
    initialize_(model, "muon", roles={"packed": how}, generator=torch.Generator().manual_seed(0))
    unit = model.packed.detach().reshape(4, 34, 512)
    assert float(unit[:, :32].std()) == pytest.approx((128 / 512) ** 0.5 / 512**0.5, rel=0.02)
    assert float(unit[:, 32:].std()) == pytest.approx((8 / 512) ** 0.5 / 512**0.5, rel=0.05)


def test_interleaved_blocks_start_on_the_stiefel_manifold():
    model = nn.Module()
    model.packed = nn.Parameter(torch.zeros(16, 12, dtype=torch.float64))
    how = {"role": "hidden", "layout": "out,in", "blocks": (8, 4, 4), "interleave": 2}
    initialize_(model, "spel", roles={"packed": how})
    unit = model.packed.detach().reshape(2, 8, 12)
    for rows in (slice(0, 4), slice(4, 6), slice(6, 8)):
        W = unit[:, rows].reshape(-1, 12)
        torch.testing.assert_close(W @ W.mT, torch.eye(len(W), dtype=W.dtype))


def test_inner_maps_with_the_role_of_an_output_do_not_start_at_zero():
    """Routers, and projections to a rank; the logits do."""
    model = build("deepseek_v3", 64)
    initialize_(model, "moga-row", roles={"*.q_a_proj.weight": "output"})
    found = {one.part: one for one in find_roles(model, {"*.q_a_proj.weight": "output"}) if one.role == "output"}
    assert {part: bool(one.parameter.any()) for part, one in found.items()} == {
        "": False,
        "router": True,
        "rank down": True,
    }


def test_biases_of_stacked_experts_start_at_zero():
    model = build("gpt_oss", 64)
    experts = model.model.layers[0].mlp.experts
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.fill_(7.0)
    initialize_(model, "moga-row", roles={"*.sinks": "vector"})
    assert not experts.gate_up_proj_bias.any() and not experts.down_proj_bias.any()
    assert bool((experts.gate_up_proj != 7).all())


def test_the_error_for_vectors_names_each_kind_once_and_what_it_says_to_state_works():
    model = build("mamba2", 64)
    with pytest.raises(
        ValueError, match=r"no known start for backbone\.layers\.\*\.mixer\.dt_bias \(Mamba2Mixer"
    ) as caught:
        initialize_(model, "moga-row")
    kinds = [f"backbone.layers.*.mixer.{word}" for word in ("dt_bias", "A_log", "D")]
    assert str(caught.value).endswith(f"state roles={dict.fromkeys(kinds, 'vector')} to keep the value that it has")
    initialize_(model, "moga-row", roles=dict.fromkeys(kinds, "vector"))
    plain = nn.Sequential(nn.PReLU(4), nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"state roles=\{'0.weight': 'vector'\} to keep"):  # not '*.weight'
        initialize_(plain, "moga-row", roles={"1.weight": "hidden"})


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_starts_of_all_other_roles(family, request):
    model = request.getfixturevalue(family)().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    assert initialize_(model, "muon", generator=torch.Generator().manual_seed(0)) is model
    for one in find_roles(model):
        W = one.parameter.detach()
        if one.role == "input":
            assert float(W.square().mean()) == pytest.approx(0.0 if one.added else 1.0, rel=0.1)
            assert one.added == (one.name == "transformer.wpe.weight")
        elif one.role == "output":
            assert not W.any()
        elif one.role == "vector":
            assert torch.equal(W, torch.full_like(W, 0.0 if one.name.endswith("bias") else 1.0))


def test_a_tied_model_starts_with_logits_of_order_one(gpt2):
    model = gpt2(256, tie_word_embeddings=True)
    initialize_(model, "moga-row", generator=torch.Generator().manual_seed(0))
    assert float(model.transformer.wte.weight.detach().std()) == pytest.approx(1 / 16, rel=0.05)
    assert not model.transformer.wpe.weight.any()
    assert model.lm_head.weight is model.transformer.wte.weight
    logits = model(torch.arange(64).unsqueeze(0)).logits.detach()
    assert 0.5 < float(logits.square().mean().sqrt()) < 2


def test_the_first_loss_of_an_untied_model_is_that_of_a_uniform_guess(llama):
    model = initialize_(llama(), "muon")
    tokens = torch.arange(64).unsqueeze(0)
    assert model(tokens, labels=tokens).loss.item() == pytest.approx(math.log(256), rel=1e-6)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "spel"])  # spel: on the manifold, see below
def test_the_rule_is_the_same_for_every_recipe(gpt2, recipe):
    one, other = gpt2(), gpt2()
    initialize_(one, "moga-row", generator=torch.Generator().manual_seed(1))
    initialize_(other, recipe, generator=torch.Generator().manual_seed(1))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_generator_decides(gpt2):
    def drawn(seed):
        torch.manual_seed(torch.randint(1000, ()).item())
        return initialize_(gpt2(), "muon", generator=torch.Generator().manual_seed(seed)).transformer.wte.weight

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_dtype_gradients_and_identity_are_kept(llama):
    model = llama().bfloat16()
    before = list(model.parameters())
    initialize_(model, "muon")
    after = list(model.parameters())
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert {p.dtype for p in after} == {torch.bfloat16}
    assert all(p.requires_grad and p.grad_fn is None for p in after)


def test_frozen_parameters_are_left_alone(llama):
    model = llama()
    model.model.embed_tokens.weight.requires_grad_(False).fill_(3.0)
    initialize_(model, "muon")
    assert bool((model.model.embed_tokens.weight == 3).all())


def test_a_dense_input_starts_as_a_hidden_matrix():
    model = nn.Sequential(nn.Linear(400, 900), nn.Linear(900, 5))
    initialize_(model, "moga-row", roles={"0.weight": "input", "1.weight": "output"})
    assert float(model[0].weight.detach().std()) == pytest.approx(1 / 20, rel=0.02)


GAINS = [nn.LayerNorm(8), nn.RMSNorm(8), nn.GroupNorm(2, 8), nn.BatchNorm1d(8), nn.LayerNorm(8, bias=False)]


@pytest.mark.parametrize("layer", GAINS, ids=lambda layer: type(layer).__name__)
def test_torch_gains(layer):
    for parameter in layer.parameters():
        parameter.data.fill_(7.0)
    initialize_(layer, "moga-row")
    assert bool((layer.weight == 1).all())
    assert getattr(layer, "bias", None) is None or not layer.bias.any()


def test_a_gain_that_is_stored_minus_one_starts_at_zero():
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    layer = GemmaRMSNorm(8)
    layer.weight.data.fill_(7.0)
    initialize_(layer, "moga-row")
    assert not layer.weight.any()


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(3.0))
        self.linear = nn.Linear(4, 4)


class Scale(nn.Module):
    """A gain without a norm: its 1-D weight is not one that does nothing at 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 1e-4))

    def forward(self, x):
        return self.weight * x


class Odd(Scale):
    def forward(self, x, y):
        return x + y


VECTORS = [
    (Temperature, "temperature", r"temperature \(Temperature, shape \(\)\)"),
    (Scale, "weight", r"weight \(Scale, shape \(4,\)\)"),
    (Odd, "weight", r"weight \(Odd, shape \(4,\)\)"),
    (lambda: nn.PReLU(4), "weight", r"weight \(PReLU, shape \(4,\)\)"),
]


@pytest.mark.parametrize(("build", "name", "text"), VECTORS)
def test_a_vector_without_a_known_start_raises_before_anything_is_written(build, name, text):
    model = build()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    roles = {"*.weight": "hidden"} if isinstance(model, Temperature) else {}
    with pytest.raises(ValueError, match=f"no known start for {text}; state .* to keep the value that it has"):
        initialize_(model, "moga-row", roles=roles)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(("build", "name", "text"), VECTORS)
def test_a_stated_vector_keeps_its_value(build, name, text):
    model = build()
    before = getattr(model, name).detach().clone()
    roles = {"*.weight": "hidden"} if isinstance(model, Temperature) else {}
    initialize_(model, "moga-row", roles=roles | {name: "vector"})
    assert torch.equal(getattr(model, name).detach(), before)


def test_padding_tokens_start_at_zero():
    model = nn.ModuleDict({"one": nn.Embedding(5, 4, padding_idx=2), "frozen": nn.Embedding(5, 4, padding_idx=2)})
    model["frozen"].weight.requires_grad_(False).fill_(3.0)
    initialize_(model, "moga-row")
    assert [bool(row.any()) for row in model["one"].weight] == [True, True, False, True, True]
    assert bool((model["frozen"].weight == 3).all())


def test_stating_a_bias_as_a_vector_still_zeroes_it():
    model = nn.Sequential(nn.Linear(4, 4))
    initialize_(model, "moga-row", roles={"*.weight": "hidden", "*.bias": "vector"})
    assert not model[0].bias.any()


def test_the_recipe_is_checked(gpt2):
    with pytest.raises(ValueError, match="unknown recipe 'sgdm'; the recipes are moga-row"):
        initialize_(gpt2(), "sgdm")


def test_only_models_can_be_initialised():
    with pytest.raises(TypeError, match="initialize_ needs a model, an nn.Module; got list"):
        initialize_([("w", torch.zeros(2, 2))], "moga-row")


def test_a_recipe_on_the_stiefel_manifold_starts_on_it(gpt2):
    model = initialize_(gpt2(64).double(), "spel", generator=torch.Generator().manual_seed(0))
    hidden = [one for one in find_roles(model) if one.role == "hidden"]
    for one in hidden:
        for stack in to_matrices(one.parameter.detach(), one.layout, one.blocks):
            for W in stack.reshape(-1, *stack.shape[-2:]):
                W = W if W.shape[0] <= W.shape[1] else W.mT
                torch.testing.assert_close(W @ W.mT, torch.eye(len(W), dtype=W.dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        param_groups(model, "spel")
    assert len(hidden) == 8
