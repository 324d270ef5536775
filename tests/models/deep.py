"""Models of three blocks, with the last affine maps of their branches, written down from the models' code."""

from __future__ import annotations

import torch
import transformers
from torch import nn

from models.decoders import DECODERS, HEAD, POSITIONS, TOKENS, VOCABULARY

IDS = torch.arange(24).reshape(2, 12)
DEPTH = 3  # a multiplier of 1/3 is rounded

DENSE = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
EXPERTS = ("self_attn.o_proj.weight", "mlp.experts.down_proj")
# Where the blocks are, and the last affine map of each branch: all its parameters, as the model's code has them.
LAST: dict[str, tuple[str, tuple[str, ...]]] = {
    "gpt2": ("transformer.h", ("attn.c_proj.weight attn.c_proj.bias", "mlp.c_proj.weight mlp.c_proj.bias")),
    "gpt_neox": (
        "gpt_neox.layers",
        ("attention.dense.weight attention.dense.bias", "mlp.dense_4h_to_h.weight mlp.dense_4h_to_h.bias"),
    ),
    "opt": ("model.decoder.layers", ("self_attn.out_proj.weight self_attn.out_proj.bias", "fc2.weight fc2.bias")),
    "gemma2": ("model.layers", ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")),
    "falcon": ("transformer.h", ("self_attention.dense.weight", "mlp.dense_4h_to_h.weight")),
    "falcon_grouped": ("transformer.h", ("self_attention.dense.weight", "mlp.dense_4h_to_h.weight")),
    "falcon_heads": (
        "transformer.h",
        ("self_attention.dense.weight self_attention.dense.bias", "mlp.dense_4h_to_h.weight mlp.dense_4h_to_h.bias"),
    ),
    "bloom": (
        "transformer.h",
        ("self_attention.dense.weight self_attention.dense.bias", "mlp.dense_4h_to_h.weight mlp.dense_4h_to_h.bias"),
    ),
    "mpt": ("transformer.blocks", ("attn.out_proj.weight", "ffn.down_proj.weight")),
    "gpt_oss": (
        "model.layers",
        (
            "self_attn.o_proj.weight self_attn.o_proj.bias",
            "mlp.experts.down_proj mlp.experts.down_proj_bias",
        ),
    ),
    "mamba2": ("backbone.layers", ("mixer.out_proj.weight",)),
    **dict.fromkeys(["mixtral", "olmoe"], ("model.layers", EXPERTS)),
}
# In these, the first layer has no experts.
FIRST_DENSE = {
    "qwen3_moe": EXPERTS,
    "deepseek_v3": (DENSE[0], "mlp.experts.down_proj mlp.shared_experts.down_proj.weight"),
    "deepseek_v2": (DENSE[0], "mlp.experts.down_proj mlp.shared_experts.down_proj.weight"),
    "qwen2_moe": (DENSE[0], "mlp.experts.down_proj mlp.shared_expert.down_proj.weight"),
}

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
WORDS = torch.arange(10).reshape(2, 5)


def last_maps(family):
    """The names of the last maps' parameters, branch by branch."""
    path, maps = LAST.get(family, ("model.layers", DENSE))
    rows = [maps] * DEPTH
    if family in FIRST_DENSE:
        rows = [DENSE, *[FIRST_DENSE[family]] * (DEPTH - 1)]
    return path, [[f"{path}.{i}.{name}" for name in names.split()] for i, row in enumerate(rows) for names in row]


SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 28,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    **TOKENS,
}
SAME_KIND = {  # families beside those of the common table: model class, settings of its own
    "gemma": ("GemmaForCausalLM", {}),
    "olmo": ("OlmoForCausalLM", {}),
    "smollm3": ("SmolLM3ForCausalLM", {}),
    "olmoe": ("OlmoeForCausalLM", {}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {"mlp_only_layers": [0]}),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        {
            "head_dim": None,
            "num_key_value_heads": 4,
            "q_lora_rank": 12,
            "kv_lora_rank": 10,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 6,
            "n_routed_experts": 4,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
        },
    ),
}
FAMILIES = [*DECODERS, *SAME_KIND]


def randomised(model):
    """Every parameter is moved, so that biases and gains count too."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.1, generator=generator))
    return model.eval()


def build(family, width=32, **changes):
    torch.manual_seed(0)
    if family in SAME_KIND:
        name, own = SAME_KIND[family]
        kind = getattr(transformers, name)
        settings = {key: value for key, value in {**SIZES, **own, **changes}.items() if value is not None}
        return randomised(kind(kind.config_class(**settings)))
    depth = {"gpt2": "n_layer", "bloom": "n_layer", "mpt": "n_layers"}.get(family, "num_hidden_layers")
    return randomised(DECODERS[family](width, **{depth: DEPTH, **changes}))


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def hf(name, **settings):
    return lambda: getattr(transformers, name)(getattr(transformers, name).config_class(**settings))


def first(value):
    return value[0] if isinstance(value, tuple) else value


class Residual(nn.Module):
    """``x + branch(x)``, with what ``last`` makes at the end of the branch."""

    def __init__(self, width, *last):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, width), *last)

    def forward(self, x):
        return x + self.branch(x)
