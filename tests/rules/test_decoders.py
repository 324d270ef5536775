"""Every parameter of every family of decoders; the expected rows are written from the ``forward`` of its modules.

Formulas are in the numbers of the config: ``n`` features, ``h`` heads of 8 features, ``m`` intermediate features.
"""

import pytest
from models.decoders import DECODERS, EXPERTS, HEAD, build
from models.rows import (
    VECTOR,
    affine,
    head,
    hidden,
    layers_of,
    lookup,
    packed,
    router,
    table,
    vectors,
    with_bias,
    without_bias,
)

from moga.rules.roles import find_roles


def gpt2(n):
    m = 5 * n // 2
    layer = affine("ln_1", "ln_2") | with_bias(
        {
            "attn.c_attn": packed((n, n, n), n, layout="in,out"),
            "attn.c_proj": hidden(n, n, layout="in,out"),
            "mlp.c_fc": hidden(m, n, layout="in,out"),
            "mlp.c_proj": hidden(n, m, layout="in,out"),
        }
    )
    return {
        "transformer.wte.weight": lookup(n),
        "transformer.wpe.weight": lookup(n),
        **layers_of("transformer.h", layer, layer),
        **affine("transformer.ln_f"),
        "lm_head.weight": head(n),
    }


def gpt_neox(n):
    h, m = n // HEAD, 5 * n // 2
    layer = affine("input_layernorm", "post_attention_layernorm") | with_bias(
        {
            "attention.query_key_value": packed((n, n, n), n, interleave=h),
            "attention.dense": hidden(n, n),
            "mlp.dense_h_to_4h": hidden(m, n),
            "mlp.dense_4h_to_h": hidden(n, m),
        }
    )
    return {
        "gpt_neox.embed_in.weight": lookup(n),
        **layers_of("gpt_neox.layers", layer, layer),
        **affine("gpt_neox.final_layer_norm"),
        "lm_head.weight": head(n),
    }


def opt(n):
    m = 5 * n // 2
    layer = affine("self_attn_layer_norm", "final_layer_norm") | with_bias(
        {
            **{f"self_attn.{name}_proj": hidden(n, n) for name in ("k", "v", "q", "out")},
            "fc1": hidden(m, n),
            "fc2": hidden(n, m),
        }
    )
    return {
        "model.decoder.embed_tokens.weight": lookup(n),
        "model.decoder.embed_positions.weight": lookup(n),
        **layers_of("model.decoder.layers", layer, layer),
        **affine("model.decoder.final_layer_norm"),
        "lm_head.weight": head(n),
    }


def attention(n):
    """h = n/4 heads of queries, k = n/16 of keys and values, 8 features each."""
    q, kv = n // 4 * 8, n // 16 * 8
    return {
        "self_attn.q_proj": hidden(q, n),
        "self_attn.k_proj": hidden(kv, n, "few heads"),
        "self_attn.v_proj": hidden(kv, n, "few heads"),
        "self_attn.o_proj": hidden(n, q),
    }


def mlp(n, m, prefix="mlp"):
    return {
        f"{prefix}.gate_proj": hidden(m, n),
        f"{prefix}.up_proj": hidden(m, n),
        f"{prefix}.down_proj": hidden(n, m),
    }


NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")


def llama_model(n, *layers):
    return {
        "model.embed_tokens.weight": lookup(n),
        **layers_of("model.layers", *layers),
        "model.norm.weight": VECTOR,
        "lm_head.weight": head(n),
    }


def llama(n, *more):
    layer = without_bias(attention(n) | mlp(n, 5 * n // 2)) | vectors(*NORMS, *more)
    return llama_model(n, layer, layer)


def qwen2(n):
    return llama(n, *(f"self_attn.{name}_proj.bias" for name in "qkv"))


def qwen3(n):
    return llama(n, "self_attn.q_norm.weight", "self_attn.k_norm.weight")


def gemma2(n):
    return llama(n, "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight")


def phi3(n):
    q, kv, m = n // 4 * 8, n // 16 * 8, 5 * n // 2
    layer = vectors(*NORMS) | without_bias(
        {
            "self_attn.qkv_proj": packed((q, kv, kv), n, part="few heads"),
            "self_attn.o_proj": hidden(n, q),
            "mlp.gate_up_proj": packed((m, m), n),
            "mlp.down_proj": hidden(n, m),
        }
    )
    return llama_model(n, layer, layer)


def falcon_model(n, fused, norms, rows=without_bias):
    m = 5 * n // 2
    layer = affine(*norms) | rows(
        {
            "self_attention.query_key_value": fused,
            "self_attention.dense": hidden(n, n),
            "mlp.dense_h_to_4h": hidden(m, n),
            "mlp.dense_4h_to_h": hidden(n, m),
        }
    )
    return {
        "transformer.word_embeddings.weight": lookup(n),
        **layers_of("transformer.h", layer, layer),
        **affine("transformer.ln_f"),
        "lm_head.weight": head(n),
    }


def falcon(n):
    return falcon_model(n, packed((n, HEAD, HEAD), n, part="few heads"), ["input_layernorm"])


def falcon_grouped(n):
    k = n // 16
    fused = packed((n, k * HEAD, k * HEAD), n, interleave=k, part="few heads")
    return falcon_model(n, fused, ["ln_attn", "ln_mlp"])


def falcon_heads(n):
    return falcon_model(n, packed((n, n, n), n, interleave=n // HEAD), ["input_layernorm"], with_bias)


def bloom(n):
    layer = affine("input_layernorm", "post_attention_layernorm") | with_bias(
        {
            "self_attention.query_key_value": packed((n, n, n), n, interleave=n // HEAD),
            "self_attention.dense": hidden(n, n),
            "mlp.dense_h_to_4h": hidden(4 * n, n),
            "mlp.dense_4h_to_h": hidden(n, 4 * n),
        }
    )
    return {
        "transformer.word_embeddings.weight": lookup(n),
        **affine("transformer.word_embeddings_layernorm"),
        **layers_of("transformer.h", layer, layer),
        **affine("transformer.ln_f"),
        "lm_head.weight": head(n),
    }


def mpt(n):
    layer = vectors("norm_1.weight", "norm_2.weight") | without_bias(
        {
            "attn.Wqkv": packed((n, n, n), n),
            "attn.out_proj": hidden(n, n),
            "ffn.up_proj": hidden(4 * n, n),
            "ffn.down_proj": hidden(n, 4 * n),
        }
    )
    return {
        "transformer.wte.weight": lookup(n),
        **layers_of("transformer.blocks", layer, layer),
        "transformer.norm_f.weight": VECTOR,
        "lm_head.weight": head(n),
    }


def experts(n):
    m = 3 * n // 4
    return {
        "mlp.experts.gate_up_proj": packed((m, m), n, layout="stack,out,in"),
        "mlp.experts.down_proj": hidden(n, m, layout="stack,out,in"),
        "mlp.gate.weight": router(n),
    }


def mixtral(n):
    layer = without_bias(attention(n)) | experts(n) | vectors(*NORMS)
    return llama_model(n, layer, layer)


def qwen3_moe(n):
    shared = without_bias(attention(n)) | vectors(*NORMS, "self_attn.q_norm.weight", "self_attn.k_norm.weight")
    return llama_model(n, shared | without_bias(mlp(n, 5 * n // 2)), shared | experts(n))


def gpt_oss(n):
    m = 3 * n // 4
    layer = with_bias(attention(n)) | {
        **vectors(*NORMS, "self_attn.sinks", "mlp.router.bias"),
        **vectors("mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"),
        "mlp.router.weight": router(n),
        "mlp.experts.gate_up_proj": packed((m, m), n, interleave=m, layout="stack,in,out"),
        "mlp.experts.down_proj": hidden(n, m, layout="stack,in,out"),
    }
    return llama_model(n, layer, layer)


def deepseek_v3(n):
    h, q_rank, kv_rank = n // 4, 5 * n // 8, 3 * n // 8
    without_position, position, value = 8, 4, 6
    shared = vectors(*NORMS, "self_attn.q_a_layernorm.weight", "self_attn.kv_a_layernorm.weight") | without_bias(
        {
            "self_attn.q_a_proj": hidden(q_rank, n, "rank down"),
            "self_attn.q_b_proj": hidden(h * (without_position + position), q_rank, "rank up"),
            "self_attn.kv_a_proj_with_mqa": packed((kv_rank, position), n, part="rank down"),
            "self_attn.kv_b_proj": packed((h * without_position, h * value), kv_rank, h, "rank up"),
            "self_attn.o_proj": hidden(n, h * value),
        }
    )
    both = experts(n) | without_bias(mlp(n, 2 * (3 * n // 4), "mlp.shared_experts"))
    return llama_model(n, shared | without_bias(mlp(n, 5 * n // 2)), shared | both)


def mamba2(n):
    inner, state, heads = 2 * n, 2 * 3, n // 4
    layer = {
        **vectors("norm.weight", "mixer.norm.weight", "mixer.dt_bias", "mixer.A_log", "mixer.D", "mixer.conv1d.bias"),
        "mixer.conv1d.weight": hidden(1, 5, "depthwise", f"{inner + 2 * state}*out,in,k"),
        "mixer.in_proj.weight": packed((inner, inner, state, state, heads), n),
        "mixer.out_proj.weight": hidden(n, inner),
    }
    return {
        "backbone.embeddings.weight": lookup(n),
        **layers_of("backbone.layers", layer, layer),
        "backbone.norm_f.weight": VECTOR,
        "lm_head.weight": head(n),
    }


EXPECTED = {
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "opt": opt,
    "llama": llama,
    "mistral": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma2": gemma2,
    "phi3": phi3,
    "falcon": falcon,
    "falcon_grouped": falcon_grouped,
    "falcon_heads": falcon_heads,
    "bloom": bloom,
    "mpt": mpt,
    "mixtral": mixtral,
    "qwen3_moe": qwen3_moe,
    "gpt_oss": gpt_oss,
    "deepseek_v3": deepseek_v3,
    "mamba2": mamba2,
}


def test_every_family_is_expected():
    assert list(EXPECTED) == list(DECODERS)


@pytest.mark.parametrize("width", [32, 96])
@pytest.mark.parametrize("family", EXPECTED)
def test_every_parameter_of_a_family(family, width):
    model = DECODERS[family](width)
    expected = EXPECTED[family](width)
    assert list(dict(model.named_parameters())) == [one.name for one in find_roles(model)]
    assert table(model) == expected


def test_opt_with_a_smaller_embedding():
    """OPT-350m: tokens have fewer features, with a map to the width and one back."""
    model = build("opt", 32, word_embed_proj_dim=24)
    found = table(model)
    assert found["model.decoder.embed_tokens.weight"] == lookup(24)
    assert found["model.decoder.embed_positions.weight"] == lookup(32)
    assert found["model.decoder.project_in.weight"] == hidden(32, 24, "rank up")
    assert found["model.decoder.project_out.weight"] == hidden(24, 32, "rank down")
    assert found["lm_head.weight"] == head(24)


def test_all_heads_are_no_few_heads():
    parts = {row[-1] for row in table(build("llama", 32, num_key_value_heads=8)).values()}
    assert parts == {""}
    assert table(build("phi3", 32, num_key_value_heads=8))["model.layers.0.self_attn.qkv_proj.weight"] == packed(
        (64, 64, 64), 32
    )


def test_deepseek_without_a_low_rank_of_queries():
    found = table(build("deepseek_v3", 32, q_lora_rank=None))
    assert found["model.layers.0.self_attn.q_proj.weight"] == hidden(8 * 12, 32)


def test_the_experts_are_counted_nowhere():
    few, many = table(build("gpt_oss", 32)), table(build("gpt_oss", 32, num_local_experts=2 * EXPERTS))
    assert few == many


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt", "falcon", "bloom", "mpt", "llama", "gemma2", "mixtral"])
def test_tied(family):
    model = build(family, 32, tie_word_embeddings=True)
    found = find_roles(model)
    expected = EXPECTED[family](32)
    first = next(iter(expected))
    del expected["lm_head.weight"]
    assert table(model) == expected | {first: ("tied", *lookup(32)[1:])}
    assert [one.aliases for one in found if one.role == "tied"] == [(first, "lm_head.weight")]
