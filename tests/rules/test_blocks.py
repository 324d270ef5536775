"""Which modules are branches: each is multiplied, once, in every family; and which models are refused."""

import copy
import re
from pathlib import Path

import pytest
import torch
import transformers
from models.deep import DEPTH, FAMILIES, SMALL, WORDS, build, first, hf, last_maps, logits, randomised
from torch import nn

import moga
from moga.rules.blocks import BLOCKS, MIXTURES, POST_NORM_BLOCKS, known_stacks
from moga.rules.branches import branch_scales


def added(model, path):
    """What all blocks together add to the residual stream."""
    blocks, seen = model.get_submodule(path), {}
    hooks = [
        blocks[0].register_forward_pre_hook(
            lambda module, args, kwargs: seen.update(before=first(args) if args else kwargs["hidden_states"]),
            with_kwargs=True,
        ),
        blocks[-1].register_forward_hook(lambda module, args, output: seen.update(after=first(output))),
    ]
    logits(model)
    for hook in hooks:
        hook.remove()
    return seen["after"] - seen["before"]


def silence(model, family, keep):
    """A copy in which all branches but one add nothing: their last maps are zero, or their gain is."""
    model = copy.deepcopy(model)
    _, branches = last_maps(family)
    with torch.no_grad():
        for index, names in enumerate(branches):
            for name in names if index != keep else ():
                model.get_parameter(name).fill_(-1.0 if "gemma" in family and "norm" in name else 0.0)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_each_branch_is_multiplied_once(family):
    """With all other branches silent, what is added is that of the plain model times the multiplier."""
    model = build(family)
    path, branches = last_maps(family)
    for keep in range(len(branches)):
        plain = silence(model, family, keep)
        expected = added(plain, path)
        assert expected.abs().max() > 1e-3
        found = added(moga.scale_branches_(plain, base_depth=1), path)
        torch.testing.assert_close(found, expected / DEPTH, rtol=1e-4, atol=1e-6)
    assert len(branch_scales(plain)) == len(branches)


def test_parallel_and_sequential_attention():
    """Falcon and GPT-NeoX have both forms."""
    for family, changes in (("falcon", {"parallel_attn": False}), ("gpt_neox", {"use_parallel_residual": False})):
        model = build(family, **changes)
        path, branches = last_maps(family)
        for keep in range(len(branches)):
            plain = silence(model, family, keep)
            expected = added(plain, path)
            found = added(moga.scale_branches_(plain, base_depth=1), path)
            torch.testing.assert_close(found, expected / DEPTH, rtol=1e-4, atol=1e-6)


WHISPER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "num_mel_bins": 8,
    "max_source_positions": 10,
    "max_target_positions": 12,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "vocab_size": 31,
}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 4, "num_heads": 4, "vocab_size": 31}
IMAGE = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)
ENCODERS = {  # class, settings, inputs, multipliers and how many branches have each
    "vit": ("ViTModel", {**SMALL, "image_size": 16, "patch_size": 8}, {"pixel_values": IMAGE}, {1 / 3: 6}),
    "clip": ("CLIPVisionModel", {**SMALL, "image_size": 16, "patch_size": 8}, {"pixel_values": IMAGE}, {1 / 3: 6}),
    "modernbert": (
        "ModernBertModel",
        {**SMALL, "vocab_size": 31, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "cls_token_id": 0},
        {"input_ids": WORDS},
        {1 / 3: 6},
    ),
    "whisper": (
        "WhisperModel",
        WHISPER,
        {"input_features": torch.linspace(-1, 1, 2 * 8 * 20).reshape(2, 8, 20), "decoder_input_ids": WORDS},
        {1 / 2: 4, 1 / 4: 12},
    ),
    "t5": ("T5Model", T5, {"input_ids": WORDS, "decoder_input_ids": WORDS}, {1 / 2: 4, 1 / 4: 12}),
}


@pytest.mark.parametrize("family", ENCODERS)
def test_encoders(family, tmp_path):
    """Each stack has its own depth."""
    name, settings, inputs, multipliers = ENCODERS[family]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = randomised(kind(kind.config_class(**settings)))

    def output(one):
        with torch.no_grad():
            return one(**inputs).last_hidden_state

    plain, keys = output(model), list(model.state_dict())
    expected = output(moga.scale_branches_(model))
    assert (expected - plain).abs().max() > 0.01
    found = list(branch_scales(model).values())
    assert {value: found.count(value) for value in found} == multipliers
    moga.fold_branches_(model)
    torch.testing.assert_close(output(model), expected, rtol=1e-4, atol=1e-5)
    assert list(model.state_dict()) == keys
    model.save_pretrained(tmp_path)
    assert torch.equal(output(kind.from_pretrained(tmp_path).eval()), output(model))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_torch_transformers(mode):
    """In eval mode torch has a fast path that would not call the parts of a layer."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=True, batch_first=True)
    decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, norm_first=True, batch_first=True)
    x = torch.randn(2, 5, 8)
    for layer, inputs in ((encoder, (x,)), (decoder, (x, x))):
        stack = nn.ModuleList([layer])
        getattr(stack, mode)()
        with torch.no_grad():
            a, b = layer.linear2.weight, layer.linear2.bias
            kept = a.clone(), b.clone()
            a.zero_(), b.zero_()
            only_attention = layer(*inputs) - x
            moga.scale_branches_(stack, base_depth=1, depth=4)
            if layer is encoder:
                torch.testing.assert_close(layer(*inputs) - x, only_attention / 4, rtol=1e-4, atol=1e-6)
            a.copy_(kept[0]), b.copy_(kept[1])
            expected = layer(*inputs)
            moga.fold_branches_(stack)
            torch.testing.assert_close(layer(*inputs), expected)


OPENAI = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 31, "n_positions": 8}
REFUSED = [  # model, error
    (
        hf("BertModel", **SMALL),
        "encoder.layer.0 (bert.BertLayer) normalises the residual stream after every sum (post-LN)",
    ),
    (hf("OpenAIGPTModel", **OPENAI), "h.0 (openai.Block) normalises the residual stream after every sum (post-LN)"),
    (
        lambda: build("opt", do_layer_norm_before=False),
        "model.decoder.layers.0 (opt.OPTDecoderLayer) normalises the residual stream after every sum (post-LN)",
    ),
    (
        lambda: nn.TransformerEncoderLayer(4, 2),
        "the model (torch.nn.modules.transformer.TransformerEncoderLayer) normalises the residual stream after",
    ),
    (
        lambda: build("bloom", apply_residual_connection_post_layernorm=True),
        "transformer.h.0 (bloom.BloomBlock) normalises its residual stream before every sum",
    ),
    (
        lambda: build("bloom", slow_but_exact=True),
        "transformer.h.0 (bloom.BloomBlock) multiplies by slices of its last maps (slow_but_exact), past any hook",
    ),
    (
        hf("GPTJModel", n_embd=16, n_layer=2, n_head=2, rotary_dim=4, vocab_size=31),
        "the residual branches of h.0 (gptj.GPTJBlock) are not known; state the modules whose output is added to the "
        "residual stream, by patterns of module names: branches=['blocks.*.attention', 'blocks.*.mlp']",
    ),
    (
        lambda: nn.Sequential(nn.Linear(2, 2)),
        "no residual block of this model is known; state the modules whose output",
    ),
]


@pytest.mark.parametrize(("make", "text"), REFUSED)
def test_models_that_are_refused(make, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        moga.scale_branches_(make())


@pytest.mark.parametrize("name", [*BLOCKS, *MIXTURES, *POST_NORM_BLOCKS])
def test_the_classes_of_the_table_exist(name):
    """In the installed version, by the text of its files."""
    if name.startswith("torch."):
        assert hasattr(nn, name.rpartition(".")[2])
        return
    family, _, kind = name.partition(".")
    text = Path(transformers.__file__).parent.joinpath("models", family, f"modeling_{family}.py").read_text("utf-8")
    assert f"class {kind}(" in text


def test_a_stack_is_one_list_of_blocks():
    [stack] = known_stacks(build("llama"))
    assert (stack.depth, len(stack.branches)) == (DEPTH, 2 * DEPTH)
