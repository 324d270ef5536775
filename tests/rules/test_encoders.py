"""Every parameter of every family of encoders and of vision and speech models of transformers, as for the decoders.

Formulas are in the numbers of the config: ``n`` features, ``m`` intermediate features.
"""

import ast

import pytest
import torch
from models.checks import check_starts, check_step_size
from models.encoders import ENCODERS, FREQUENCIES, LABELS, PATCH, build
from models.rows import (
    VECTOR,
    affine,
    beside,
    head,
    hidden,
    inputs,
    layers_of,
    lookup,
    packed,
    table,
    vectors,
    with_bias,
    without_bias,
)
from torch import nn

import moga
from moga.rules.init import initialize_
from moga.rules.roles import find_roles
from moga.rules.widths import roles_from_widths


def under(prefix, rows):
    return {f"{prefix}.{name}": row for name, row in rows.items()}


def bert_model(n):
    layer = affine("attention.output.LayerNorm", "output.LayerNorm") | with_bias(
        {
            **{f"attention.self.{name}": hidden(n, n) for name in ("query", "key", "value")},
            "attention.output.dense": hidden(n, n),
            "intermediate.dense": hidden(5 * n // 2, n),
            "output.dense": hidden(n, 5 * n // 2),
        }
    )
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    return {
        **{f"embeddings.{name}.weight": lookup(n) for name in tables},
        **affine("embeddings.LayerNorm"),
        **layers_of("encoder.layer", layer, layer),
    }


def bert(n):
    return {
        **under("bert", bert_model(n)),
        **vectors("cls.predictions.bias"),
        **with_bias({"cls.predictions.transform.dense": hidden(n, n), "cls.predictions.decoder": head(n)}),
        **affine("cls.predictions.transform.LayerNorm"),
    }


def roberta(n):
    return {
        **under("roberta", bert_model(n)),
        **vectors("lm_head.bias"),
        **with_bias({"lm_head.dense": hidden(n, n), "lm_head.decoder": head(n)}),
        **affine("lm_head.layer_norm"),
    }


def modernbert(n):
    """Without biases but for the logits; the first layer has no norm before its attention."""
    m = 5 * n // 2
    first = vectors("mlp_norm.weight") | without_bias(
        {
            "attn.Wqkv": packed((n, n, n), n),
            "attn.Wo": hidden(n, n),
            "mlp.Wi": packed((m, m), n),
            "mlp.Wo": hidden(n, m),
        }
    )
    return {
        "model.embeddings.tok_embeddings.weight": lookup(n),
        **layers_of("model.layers", first, first | vectors("attn_norm.weight")),
        **vectors("model.embeddings.norm.weight", "model.final_norm.weight", "head.norm.weight"),
        "head.dense.weight": hidden(n, n),
        **with_bias({"decoder": head(n)}),
    }


def t5(n):
    """One tensor for both tables of tokens and the logits; only the first layers have relative positions."""
    m, inner = 5 * n // 2, n // 4 * 6

    def attention(place, name):
        rows = {f"{name}.{one}": hidden(inner, n) for one in "qkv"} | {f"{name}.o": hidden(n, inner)}
        return under(f"layer.{place}", without_bias(rows) | vectors("layer_norm.weight"))

    def feed_forward(place):
        rows = {"DenseReluDense.wi": hidden(m, n), "DenseReluDense.wo": hidden(n, m)}
        return under(f"layer.{place}", without_bias(rows) | vectors("layer_norm.weight"))

    positions = vectors("layer.0.SelfAttention.relative_attention_bias.weight")
    encoder = attention(0, "SelfAttention") | feed_forward(1)
    decoder = attention(0, "SelfAttention") | attention(1, "EncDecAttention") | feed_forward(2)
    return {
        "shared.weight": ("tied", *lookup(n)[1:]),
        **layers_of("encoder.block", encoder | positions, encoder),
        **layers_of("decoder.block", decoder | positions, decoder),
        **vectors("encoder.final_layer_norm.weight", "decoder.final_layer_norm.weight"),
    }


def attention(n, name, out="out_proj"):
    return {f"{name}.{one}": hidden(n, n) for one in ("q_proj", "k_proj", "v_proj", out)}


def bart_layer(n, m, *attentions):
    rows = {key: row for name in attentions for key, row in attention(n, name).items()}
    norms = affine(*(f"{name}_layer_norm" for name in attentions), "final_layer_norm")
    return norms | with_bias({**rows, "fc1": hidden(m, n), "fc2": hidden(n, m)})


def bart(n):
    """Untied: the table that encoder and decoder could share is there, and three more."""
    encoder = bart_layer(n, 5 * n // 2, "self_attn")
    decoder = bart_layer(n, 3 * n // 2, "self_attn", "encoder_attn")
    sides = ("model.encoder", "model.decoder")
    return {
        "model.shared.weight": lookup(n),
        **{f"{side}.{name}.weight": lookup(n) for side in sides for name in ("embed_tokens", "embed_positions")},
        **layers_of("model.encoder.layers", encoder, encoder),
        **layers_of("model.decoder.layers", decoder),
        **affine(*(f"{side}.layernorm_embedding" for side in sides)),
        "lm_head.weight": head(n),
    }


def vit(n):
    m = 5 * n // 2
    layer = affine("layernorm_before", "layernorm_after") | with_bias(
        {**attention(n, "attention", "o_proj"), "mlp.fc1": hidden(m, n), "mlp.fc2": hidden(n, m)}
    )
    return {
        "vit.embeddings.cls_token": beside(n, "token"),
        "vit.embeddings.position_embeddings": beside(n),
        **with_bias({"vit.embeddings.patch_embeddings.projection": inputs(n, 3 * PATCH**2)}),
        **layers_of("vit.layers", layer, layer),
        **affine("vit.layernorm"),
        **with_bias({"classifier": head(n)}),
    }


def clip(n):
    """Text of width n, images of width 3/2 n, both projected to 3/4 n features."""
    text, image, features = n, 3 * n // 2, 3 * n // 4

    def layer(n):
        rows = {"mlp.fc1": hidden(5 * n // 2, n), "mlp.fc2": hidden(n, 5 * n // 2)}
        return affine("layer_norm1", "layer_norm2") | with_bias(attention(n, "self_attn") | rows)

    return {
        "text_model.embeddings.token_embedding.weight": lookup(text),
        "text_model.embeddings.position_embedding.weight": lookup(text),
        **layers_of("text_model.encoder.layers", layer(text), layer(text)),
        **affine("text_model.final_layer_norm"),
        "vision_model.embeddings.class_embedding": VECTOR,
        "vision_model.embeddings.patch_embedding.weight": inputs(image, 3 * PATCH**2),
        "vision_model.embeddings.position_embedding.weight": lookup(image),
        **layers_of("vision_model.encoder.layers", layer(image), layer(image)),
        **affine("vision_model.pre_layrnorm", "vision_model.post_layernorm"),
        "text_projection.weight": hidden(features, text, "features"),
        "visual_projection.weight": hidden(features, image, "features"),
        "logit_scale": VECTOR,
    }


def whisper(n):
    """Keys have no bias; the encoder's positions are a fixed table, which does not train."""
    encoder = bart_layer(n, 5 * n // 2, "self_attn")
    decoder = bart_layer(n, 3 * n // 2, "self_attn", "encoder_attn")
    for layer in (encoder, decoder):
        for name in [name for name in layer if name.endswith("k_proj.bias")]:
            del layer[name]
    return {
        **with_bias({"model.encoder.conv1": inputs(n, 3 * FREQUENCIES)}),
        **with_bias({"model.encoder.conv2": hidden(n, 3 * n, layout="out,in,k")}),
        **layers_of("model.encoder.layers", encoder, encoder),
        "model.decoder.embed_tokens.weight": lookup(n),
        "model.decoder.embed_positions.weight": lookup(n),
        **layers_of("model.decoder.layers", decoder),
        **affine("model.encoder.layer_norm", "model.decoder.layer_norm"),
        "proj_out.weight": head(n),
    }


EXPECTED = {
    "bert": bert,
    "roberta": roberta,
    "modernbert": modernbert,
    "t5": t5,
    "bart": bart,
    "vit": vit,
    "clip": clip,
    "whisper": whisper,
}


def test_every_family_is_expected():
    assert list(EXPECTED) == list(ENCODERS)


@pytest.mark.parametrize("width", [32, 96])
@pytest.mark.parametrize("family", EXPECTED)
def test_every_parameter_of_a_family(family, width):
    model = ENCODERS[family](width)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == [one.name for one in find_roles(model)]
    assert table(model) == EXPECTED[family](width)


@pytest.mark.parametrize("family", ENCODERS)
def test_modules_and_widths_give_the_same_roles(family):
    small, large = ENCODERS[family](32), ENCODERS[family](64)
    assert roles_from_widths(large, small) == {one.name: one.role for one in find_roles(large)}


@pytest.mark.filterwarnings("ignore:.*is input and output in one")
@pytest.mark.parametrize("family", ENCODERS)
def test_the_scale_of_each_block_is_that_of_the_widths(family):
    """Every side doubles, so Adam's 1 / in is half of the base's, and inputs and vectors stay."""
    for group in moga.param_groups(ENCODERS[family](64), "mup-adamw", base=ENCODERS[family](32)):
        assert group["scale"] == {"hidden": 0.5, "output": 0.5}.get(group["role"], 1.0), group["param_names"]


RECIPES = [("moga-row", {}), ("moga-column", {}), ("muon", {"polar": "exact"})]


@pytest.mark.filterwarnings("ignore:.*is input and output in one")
@pytest.mark.parametrize(("recipe", "options"), RECIPES)
@pytest.mark.parametrize("family", ENCODERS)
def test_one_step_moves_every_logical_matrix_by_lr(family, recipe, options):
    measured = check_step_size(ENCODERS[family](32), recipe, **options)
    expected = {"clip": {"input", "hidden", "vector"}, "t5": {"tied", "hidden", "vector"}}
    assert measured == (
        {"hidden"} if recipe == "muon" else expected.get(family, {"input", "hidden", "output", "vector"})
    )


# Blocks per layer: 6 matrices of a transformer's layer, 10 of one that attends twice, 8 where a row cuts 3 and 2.
BLOCKS = {
    "bert": 2 * 6 + 1,
    "roberta": 2 * 6 + 1,
    "modernbert": 2 * 7 + 1,
    "t5": 2 * 6 + 2 * 10,
    "bart": 2 * 6 + 10,
    "vit": 2 * 6,
    "clip": 4 * 6 + 2,
    "whisper": 2 * 6 + 10 + 1,
}


@pytest.mark.parametrize("width", [32, 128])
@pytest.mark.parametrize("family", ENCODERS)
def test_every_hidden_block_starts_with_a_spectral_size_of_one_to_two(family, width):
    assert check_starts(ENCODERS[family](width)) == BLOCKS[family]


# Starts of what is no matrix


def started(family, width=64, **changes):
    model = build(family, width, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    return initialize_(model, "moga-row", generator=torch.Generator().manual_seed(0))


def test_the_tokens_of_t5_start_at_unit_size_because_it_divides_its_logits():
    """d features of size 1 times entries of size 1, divided by sqrt(d), are logits of order 1: at every width."""
    for width in (64, 256):
        assert float(started("t5", width).shared.weight.detach().std()) == pytest.approx(1, rel=0.05)
    plain = started("t5", 256, tie_word_embeddings=False)  # what this option of T5 means: not divided
    assert float(plain.shared.weight.detach().std()) == pytest.approx(1 / 16, rel=0.05)


def test_relative_positions_start_at_zero_and_temperatures_stay():
    positions = started("t5").encoder.block[0].layer[0].SelfAttention.relative_attention_bias
    assert not positions.weight.any()
    assert started("clip").logit_scale.item() == 7


def test_class_tokens_start_as_tokens_and_positions_at_zero():
    model = started("vit", 512).vit.embeddings
    assert float(model.cls_token.detach().square().mean()) == pytest.approx(1, rel=0.2)
    assert not model.position_embeddings.any()
    embedding = started("clip", 512).vision_model.embeddings.class_embedding.detach()
    assert float(embedding.square().mean()) == pytest.approx(1, rel=0.2) and float(embedding.mean()) != 7


# Heads


@pytest.mark.parametrize(
    ("family", "model", "name"),
    [
        ("bert", "BertForSequenceClassification", "classifier"),
        ("bert", "BertForQuestionAnswering", "qa_outputs"),
        ("roberta", "RobertaForSequenceClassification", "classifier.out_proj"),
        ("modernbert", "ModernBertForSequenceClassification", "classifier"),
        ("bart", "BartForSequenceClassification", "classification_head.out_proj"),
        ("t5", "T5ForSequenceClassification", "classification_head.out_proj"),
        ("clip", "CLIPForImageClassification", "classifier"),
        ("whisper", "WhisperForAudioClassification", "classifier"),
    ],
)
def test_the_head_of_a_classifier_is_the_output_wherever_it_is(family, model, name):
    found = table(build(family, 32, model, num_labels=LABELS))
    assert [key for key, row in found.items() if row[0] == "output"] == [f"{name}.weight"]
    assert found[f"{name}.weight"][4] == ((1, 48 if family == "clip" else 256 if family == "whisper" else 32),)


def test_outputs_beside_the_declared_one():
    found = table(build("bert", 32, "BertForPreTraining"))
    outputs = [name for name, row in found.items() if row == head(32)]
    assert outputs == ["cls.predictions.decoder.weight", "cls.seq_relationship.weight"]
    pixels = table(build("vit", 32, "ViTForMaskedImageModeling", encoder_stride=PATCH))
    assert pixels["decoder.0.weight"] == ("output", "out,in,k", (), 1, ((1, 32),), "")
    assert pixels["vit.embeddings.mask_token"] == beside(32, "token")


def test_a_head_that_cannot_be_told_from_another_map_is_no_guess():
    with pytest.raises(ValueError, match=r"(?s)parameters without a role.*classifier.out_proj.weight \(Linear"):
        find_roles(build("roberta", 32, "RobertaForSequenceClassification", num_labels=32))


def test_a_vision_model_without_a_head_is_a_base_model():
    with pytest.raises(ValueError, match=r"(?s)parameters without a role.*This is a base model"):
        find_roles(build("vit", 32, "ViTModel"))
    alone = table(build("vit", 32, "ViTModel"), {"layers.*": "hidden", "pooler.*": "hidden"})
    assert alone["embeddings.cls_token"] == beside(32, "token")
    assert alone["embeddings.patch_embeddings.projection.weight"] == inputs(32, 3 * PATCH**2)


def test_features_of_a_number_that_stays_are_outputs_that_do_not_start_at_zero():
    small, large = (build("clip", width, projection_dim=20, **towers(width, 20)) for width in (32, 64))
    groups = {
        name: group for group in moga.param_groups(large, "moga-row", base=small) for name in group["param_names"]
    }
    found = [groups[f"{name}_projection.weight"] for name in ("text", "visual")]
    assert [(one["role"], one["fan"]) for one in found] == [("output", [[1, 64]]), ("output", [[1, 96]])]
    initialize_(large, "moga-row", roles={"*_projection.weight": "output"})
    assert large.text_projection.weight.any() and large.visual_projection.weight.any()


def towers(width, features):
    from models.encoders import _clip

    sizes = _clip(width)
    return {key: {**sizes[key], "projection_dim": features} for key in ("text_config", "vision_config")}


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "bart", "whisper"])
def test_tied(family):
    model = build(family, 32, tie_word_embeddings=True)
    tied = [one for one in find_roles(model) if one.role == "tied"]
    assert [(one.layout, one.fan) for one in tied] == [("in,out", ((32, 1),))]
    assert not [one for one in find_roles(model) if one.role == "output"]
    assert tied[0].parameter is model.get_output_embeddings().weight


def test_class_tokens_and_positions_do_not_say_where_the_inputs_are():
    model = nn.ModuleDict({"embeddings": build("vit", 32).vit.embeddings, "head": nn.Linear(32, LABELS)})
    text = r"without a role \(1\):\n  embeddings.patch_embeddings.projection.weight \(Conv2d, .*'embeddings.patch_embed"
    with pytest.raises(ValueError, match=f"(?s){text}"):
        find_roles(model, {"head.weight": "output"})
    initialize_(model, "moga-row", roles={"head.weight": "output", "*.projection.weight": "input"})
    assert not model["embeddings"].position_embeddings.any() and model["embeddings"].cls_token.any()


def test_rows_can_be_stated_as_what_they_are():
    model = build("vit", 32)
    assert table(model, {"*.cls_token": "input"}) == vit(32)
    text = r"vit.embeddings.cls_token \(ViTEmbeddings, shape \(1, 1, 32\)\) cannot be 'hidden'; it can be 'input'"
    with pytest.raises(ValueError, match=text):
        find_roles(model, {"*.cls_token": "hidden"})
    with pytest.raises(ValueError, match=r"is a rows tensor; how it is stored is known, so state its role alone"):
        find_roles(model, {"*.cls_token": {"role": "input", "layout": "out,in,k"}})


@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("bert", "BertModel"),
        ("modernbert", "ModernBertModel"),
        ("t5", "T5EncoderModel"),
        ("bart", "BartModel"),
        ("vit", "ViTModel"),
        ("whisper", "WhisperModel"),
    ],
)
def test_what_the_error_for_a_base_model_says_settles_it(family, model):
    built = build(family, 32, model)
    with pytest.raises(ValueError, match="This is a base model") as caught:
        find_roles(built)
    roles = ast.literal_eval(str(caught.value).partition("roles=")[2])
    found = {one.name: one.role for one in find_roles(built, roles)}
    whole = {one.name: one.role for one in find_roles(build(family, 32))}
    shared = {name: role for name, role in whole.items() if name.partition(".")[2] in found or name in found}
    assert set(found.values()) == {"input", "hidden", "vector"} and len(shared) > 10
    for name, role in shared.items():
        here = found.get(name, found.get(name.partition(".")[2]))
        assert here == ("input" if role == "tied" else role), name
