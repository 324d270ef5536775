"""Tiny Hugging Face decoders, one per family and kind of storage, from configs: nothing is downloaded.

``DECODERS[name](width)`` is a model with random weights on the CPU in float32. Everything that is a width grows with
``width``, a multiple of 32: features, heads, key and value heads, ranks, the experts' intermediate features. All else
stays: vocabulary, positions, experts, head size, state size, two layers. In and output are not tied. Sizes that could
be mistaken for one another differ wherever the family lets them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY, POSITIONS, LAYERS, HEAD, EXPERTS = 61, 17, 2, 8, 6
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
PLAIN_ROTARY = {"rope_type": "default", "rope_theta": 10000.0}


def _llama(width: int) -> dict[str, Any]:
    """Sizes under the names of LLaMA's config, which most families took over. Queries have 2 * width features."""
    return {
        "hidden_size": width,
        "intermediate_size": 5 * width // 2,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": width // 4,
        "num_key_value_heads": width // 16,
        "head_dim": HEAD,
        "max_position_embeddings": POSITIONS,
    }


def _gpt2(width: int) -> dict[str, Any]:
    return {
        "n_embd": width,
        "n_head": width // HEAD,
        "n_layer": LAYERS,
        "n_positions": POSITIONS,
        "n_inner": 5 * width // 2,
    }


def _neox(width: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": 5 * width // 2,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": width // HEAD,
        "max_position_embeddings": POSITIONS,
    }


def _opt(width: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "word_embed_proj_dim": width,
        "ffn_dim": 5 * width // 2,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": width // HEAD,
        "max_position_embeddings": POSITIONS,
    }


def _falcon(width: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "ffn_hidden_size": 5 * width // 2,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": width // HEAD,
        "max_position_embeddings": POSITIONS,
    }


def _moe(width: int) -> dict[str, Any]:
    return {
        **_llama(width),
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "intermediate_size": 3 * width // 4,
    }


def _qwen3_moe(width: int) -> dict[str, Any]:
    """The first layer has no experts."""
    return {
        **_llama(width),
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 3 * width // 4,
        "mlp_only_layers": [0],
    }


def _deepseek(width: int) -> dict[str, Any]:
    """The first layer has no experts. Per head, keys have 8 + 4 features (without and with position), values 6."""
    sizes = {key: value for key, value in _llama(width).items() if key != "head_dim"}
    return {
        **sizes,
        "num_key_value_heads": width // 4,
        "q_lora_rank": 5 * width // 8,
        "kv_lora_rank": 3 * width // 8,
        "qk_nope_head_dim": HEAD,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 3 * width // 4,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
    }


def _mamba2(width: int) -> dict[str, Any]:
    """B and C have 2 groups of 3 states at every width; each head has one dt."""
    return {
        "hidden_size": width,
        "num_heads": width // 4,
        "head_dim": HEAD,
        "expand": 2,
        "state_size": 3,
        "n_groups": 2,
        "conv_kernel": 5,
        "num_hidden_layers": LAYERS,
        "chunk_size": 8,
    }


# family: (model class, config class, sizes as a function of width, what does not depend on width)
FAMILIES: dict[str, tuple[str, str, Callable[[int], dict[str, Any]], dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _gpt2, {}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _neox, {}),
    "opt": ("OPTForCausalLM", "OPTConfig", _opt, {}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _llama, {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", _llama, {}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _llama, {}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _llama, {}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", _llama, {}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", _llama, {}),
    "falcon": ("FalconForCausalLM", "FalconConfig", _falcon, {"multi_query": True}),
    "falcon_grouped": (
        "FalconForCausalLM",
        "FalconConfig",
        lambda width: {**_falcon(width), "num_kv_heads": width // 16},
        {"new_decoder_architecture": True},
    ),
    "falcon_heads": ("FalconForCausalLM", "FalconConfig", _falcon, {"multi_query": False, "bias": True}),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        lambda width: {"hidden_size": width, "n_head": width // HEAD, "n_layer": LAYERS},
        {},
    ),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        lambda width: {"d_model": width, "n_heads": width // HEAD, "n_layers": LAYERS, "max_seq_len": POSITIONS},
        {},
    ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", _moe, {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", _qwen3_moe, {}),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", _moe, {"rope_parameters": PLAIN_ROTARY}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", _deepseek, {}),
    "mamba2": ("Mamba2ForCausalLM", "Mamba2Config", _mamba2, {}),
}


def build(family: str, width: int, **changes: Any) -> nn.Module:
    """The model of a family; ``changes`` are settings of its config that replace those of the table.

    >>> sum(parameter.numel() for parameter in build("llama", 32).parameters())
    29664
    """
    model, config, sizes, fixed = FAMILIES[family]
    settings = {"vocab_size": VOCABULARY, "tie_word_embeddings": False, **TOKENS, **sizes(width), **fixed, **changes}
    torch.manual_seed(0)
    built: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
    return built


def _builder(family: str) -> Callable[..., nn.Module]:
    return lambda width, **changes: build(family, width, **changes)


DECODERS: dict[str, Callable[..., nn.Module]] = {family: _builder(family) for family in FAMILIES}
