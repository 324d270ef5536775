import ast
import math
import re
import warnings

import pytest
import torch
from models.checks import check_starts
from models.decoders import DECODERS, build
from torch import nn
from transformers import (
    AutoConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MambaConfig,
    MambaForCausalLM,
)

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


@pytest.mark.parametrize("name", DECODERS)
def test_every_matrix_of_every_decoder_starts_at_its_own_size(name):
    """Hidden ones, routers and convolutions too: entries are as large as their own (out, in) says, block by block."""
    model = build(name, 64).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    initialize_(model, "moga-row", generator=torch.Generator().manual_seed(0))
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
    initialize_(model, "moga-row")
    assert not experts.gate_up_proj_bias.any() and not experts.down_proj_bias.any()
    assert bool((experts.gate_up_proj != 7).all())


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(()))


def test_the_error_for_vectors_names_each_kind_once_and_what_it_says_to_state_works():
    model = nn.ModuleDict({"layers": nn.ModuleList([Layer(), Layer()])})
    with pytest.raises(ValueError, match=r"no known start for layers\.\*\.alpha \(Layer, shape \(3,\)\), ") as caught:
        initialize_(model, "moga-row")
    kinds = [f"layers.*.{word}" for word in ("alpha", "beta")]
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


# The start of every family, measured. Blocks per model: a layer has 6 matrices, 7 with a gate; 6 experts have 2 or 3
# each, and a router. Those of Mamba-2 are five and one.
BLOCKS = {
    **dict.fromkeys(("gpt2", "gpt_neox", "opt", "falcon", "falcon_grouped", "falcon_heads", "bloom", "mpt"), 2 * 6),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3"), 2 * 7),
    "mixtral": 2 * (4 + 6 * 3 + 1),
    "qwen3_moe": 2 * 4 + 3 + 6 * 3 + 1,
    "gpt_oss": 2 * (4 + 6 * 3 + 1),
    "deepseek_v3": 2 * (2 + 2 + 2 + 1) + 3 + 6 * 3 + 3 + 1,
    "mamba2": 2 * 6,
}


@pytest.mark.parametrize("width", [32, 128])
@pytest.mark.parametrize("name", DECODERS)
def test_every_hidden_block_of_a_decoder_starts_with_a_spectral_size_of_one_to_two(name, width):
    assert check_starts(build(name, width)) == BLOCKS[name]


def test_numbers_per_head_keep_the_values_of_their_authors():
    mamba = build("mamba2", 64)
    before = {name: one.clone() for name, one in mamba.named_parameters() if name.endswith(("A_log", "D", "dt_bias"))}
    initialize_(mamba, "moga-row")
    assert len(before) == 6 and all(torch.equal(mamba.get_parameter(name), one) for name, one in before.items())
    sinks = build("gpt_oss", 64)
    kept = [layer.self_attn.sinks.detach().clone() for layer in sinks.model.layers]
    initialize_(sinks, "moga-row")
    assert all(torch.equal(layer.self_attn.sinks, one) for layer, one in zip(sinks.model.layers, kept, strict=True))


def test_the_first_mamba_keeps_the_bias_from_which_its_time_steps_come():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 61, "tie_word_embeddings": False}
    model = MambaForCausalLM(MambaConfig(**sizes))
    mixer = model.backbone.layers[0].mixer
    before = mixer.dt_proj.bias.detach().clone()
    initialize_(model, "moga-row")
    assert torch.equal(mixer.dt_proj.bias, before) and bool(before.any()) and not mixer.conv1d.bias.any()


# What is left alone


def test_what_is_excluded_is_not_touched():
    model = build("opt", 32)
    model.model.decoder.embed_tokens.weight.data.fill_(3.0)  # the row of padding too
    before = {name: one.clone() for name, one in model.named_parameters()}
    initialize_(model, "moga-row", exclude=["*.embed_tokens.weight", "*.layers.0.*"])
    for name, one in model.named_parameters():
        left = "embed_tokens" in name or ".layers.0." in name
        assert not left or torch.equal(one, before[name]), name
        assert left or one.ndim < 2 or not torch.equal(one, before[name]), name


def test_a_tied_matrix_is_excluded_by_either_name(gpt2):
    model = gpt2(tie_word_embeddings=True)
    before = model.lm_head.weight.detach().clone()
    initialize_(model, "moga-row", exclude=["lm_head.weight"])
    assert torch.equal(model.transformer.wte.weight, before)


def test_an_excluded_vector_needs_no_known_start():
    model = Temperature()
    initialize_(model, "moga-row", roles={"*.weight": "hidden"}, exclude=["temperature"])
    assert model.temperature.item() == 3


def test_patterns_to_exclude_are_checked(gpt2):
    with pytest.raises(ValueError, match=r"the pattern 'wte' in exclude matches no parameter; a pattern covers whole"):
        initialize_(gpt2(), "moga-row", exclude=["wte"])
    for wrong in ("*.wte.weight", {"*": "hidden"}, 3):
        with pytest.raises(TypeError, match="exclude must be a list of patterns of parameter names; got"):
            initialize_(gpt2(), "moga-row", exclude=wrong)


@pytest.fixture
def saved(llama, tmp_path):
    llama().save_pretrained(tmp_path)
    return tmp_path


def test_weights_that_were_loaded_are_not_overwritten_unless_told_to(saved):
    model = LlamaForCausalLM.from_pretrained(saved)
    before = {name: one.clone() for name, one in model.named_parameters()}
    text = (
        "from_pretrained has loaded 21 of these 21 parameters. To train from new weights make the model from its "
        'config, or say loaded="overwrite"; to start the others only, say exclude='
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        initialize_(model, "moga-row")
    assert all(torch.equal(one, before[name]) for name, one in model.named_parameters())
    initialize_(model, "moga-row", loaded="overwrite")
    assert not model.lm_head.weight.any()


def test_a_new_head_on_loaded_weights_is_started_and_they_are_kept(saved):
    model = LlamaForSequenceClassification.from_pretrained(saved, num_labels=3)
    with pytest.raises(ValueError, match=r"has loaded 20 of these 21 parameters") as caught:
        initialize_(model, "moga-row")
    patterns = ast.literal_eval(str(caught.value).partition("exclude=")[2])
    assert "model.layers.*.mlp.up_proj.weight" in patterns and len(patterns) == 11
    before = model.model.embed_tokens.weight.clone()
    assert model.score.weight.any()
    initialize_(model, "moga-row", exclude=patterns)
    assert not model.score.weight.any() and torch.equal(model.model.embed_tokens.weight, before)


def test_frozen_weights_that_were_loaded_are_no_matter(saved):
    model = LlamaForSequenceClassification.from_pretrained(saved, num_labels=3)
    model.model.requires_grad_(False)
    initialize_(model, "moga-row")
    assert not model.score.weight.any()


def test_a_loaded_model_in_a_wrapper_is_seen(saved):
    with pytest.raises(ValueError, match=r"has loaded 21 of these 21 parameters"):
        initialize_(torch.compile(LlamaForCausalLM.from_pretrained(saved)), "moga-row")


def test_a_model_of_a_loaded_config_is_new(saved):
    """Its config has the name of the checkpoint as that of a loaded model has."""
    config = AutoConfig.from_pretrained(saved)
    model = LlamaForCausalLM(config)
    assert model.config.name_or_path == str(saved)
    initialize_(model, "moga-row")
    assert not model.lm_head.weight.any()


def test_the_word_for_loaded_weights_is_checked(gpt2):
    with pytest.raises(ValueError, match="unknown word loaded='keep'; the words are refuse, overwrite"):
        initialize_(gpt2(), "moga-row", loaded="keep")
