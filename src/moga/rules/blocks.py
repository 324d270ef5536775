"""Which modules of a model are residual branches, and which are their last affine maps.

A branch is what is added to the residual stream: ``x + branch(x)``. A row of :data:`BLOCKS` is a class of blocks, with
the modules whose output is added, as its ``forward`` has it, and the affine maps that these end with, relative to them
("" is the module itself). Only dropout may come between a map and the sum. Where the module that makes the branch also
adds it (BLOOM, the feed-forward part of MPT), the row names the map inside of it; where a norm comes last, the norm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from moga.rules.families import kinds

Maps = Mapping[str, str]  # module whose output is added, relative to the block -> its last affine maps, with spaces


class Block(NamedTuple):
    """A class of blocks, with what its settings must be: attribute, the value that it must have, what it is if not."""

    branches: Maps
    needs: tuple[tuple[str, Any, str], ...] = ()


class Branch(NamedTuple):
    """A module whose output is added, and its last affine maps, by names that are relative to it."""

    name: str
    module: nn.Module
    maps: tuple[str, ...]


class Stack(NamedTuple):
    """Blocks that follow one another on one residual stream."""

    depth: int
    branches: list[Branch]


POST_NORM = (
    "normalises the residual stream after every sum (post-LN): what is added is measured against a stream of size 1, "
    "and no multiplier keeps the sum of all blocks constant"
)


def _rows(classes: str, branches: Maps, *needs: tuple[str, Any, str]) -> dict[str, Block]:
    return dict.fromkeys(classes.split(), Block(branches, needs))


# transformers' classes are family.Class, for transformers.models.family.modeling_family.Class
BLOCKS: dict[str, Block] = {
    **_rows(
        "llama.LlamaDecoderLayer mistral.MistralDecoderLayer qwen2.Qwen2DecoderLayer qwen3.Qwen3DecoderLayer "
        "gemma.GemmaDecoderLayer olmo.OlmoDecoderLayer smollm3.SmolLM3DecoderLayer phi3.Phi3DecoderLayer "
        "mixtral.MixtralDecoderLayer olmoe.OlmoeDecoderLayer qwen2_moe.Qwen2MoeDecoderLayer "
        "qwen3_moe.Qwen3MoeDecoderLayer gpt_oss.GptOssDecoderLayer deepseek_v2.DeepseekV2DecoderLayer "
        "deepseek_v3.DeepseekV3DecoderLayer",
        {"self_attn": "o_proj", "mlp": "down_proj"},
    ),
    **_rows("gpt2.GPT2Block", {"attn": "c_proj", "crossattention": "c_proj", "mlp": "c_proj"}),
    **_rows("gpt_neox.GPTNeoXLayer", {"attention": "dense", "mlp": "dense_4h_to_h"}),
    **_rows("falcon.FalconDecoderLayer", {"self_attention": "dense", "mlp": "dense_4h_to_h"}),
    **_rows("gemma2.Gemma2DecoderLayer", {"post_attention_layernorm": "", "post_feedforward_layernorm": ""}),
    **_rows("opt.OPTDecoderLayer", {"self_attn": "out_proj", "fc2": ""}, ("do_layer_norm_before", True, POST_NORM)),
    **_rows(
        "bloom.BloomBlock",
        {"self_attention.dense": "", "mlp.dense_4h_to_h": ""},
        ("apply_residual_connection_post_layernorm", False, "normalises its residual stream before every sum"),
        ("mlp.slow_but_exact", False, "multiplies by slices of its last maps (slow_but_exact), past any hook"),
    ),
    **_rows("mpt.MptBlock", {"attn": "out_proj", "ffn.down_proj": ""}),
    **_rows("mamba.MambaBlock mamba2.Mamba2Block", {"mixer": "out_proj"}),
    **_rows("vit.ViTLayer", {"attention": "o_proj", "mlp": "fc2"}),
    **_rows("clip.CLIPEncoderLayer", {"self_attn": "out_proj", "mlp": "fc2"}),
    **_rows("modernbert.ModernBertEncoderLayer", {"attn": "Wo", "mlp": "Wo"}),
    **_rows(
        "whisper.WhisperEncoderLayer whisper.WhisperDecoderLayer",
        {"self_attn": "out_proj", "encoder_attn": "out_proj", "fc2": ""},
    ),
    **_rows(
        "t5.T5Block",
        {
            "layer.0.SelfAttention": "o",
            "layer.1.EncDecAttention": "o",
            "layer.1.DenseReluDense": "wo",
            "layer.2.DenseReluDense": "wo",
        },
    ),
    **_rows(
        "torch.nn.modules.transformer.TransformerEncoderLayer torch.nn.modules.transformer.TransformerDecoderLayer",
        {"self_attn": "out_proj", "multihead_attn": "out_proj", "linear2": ""},
        ("norm_first", True, POST_NORM),
    ),
}

# Mixtures of experts that stand where a row says "mlp": the maps of all experts, and of those that every token takes.
MIXTURES = {
    "mixtral.MixtralSparseMoeBlock": "experts.down_proj",
    "olmoe.OlmoeSparseMoeBlock": "experts.down_proj",
    "qwen3_moe.Qwen3MoeSparseMoeBlock": "experts.down_proj",
    "gpt_oss.GptOssMLP": "experts.down_proj",
    "qwen2_moe.Qwen2MoeSparseMoeBlock": "experts.down_proj shared_expert.down_proj",
    "deepseek_v2.DeepseekV2Moe": "experts.down_proj shared_experts.down_proj",
    "deepseek_v3.DeepseekV3MoE": "experts.down_proj shared_experts.down_proj",
}

POST_NORM_BLOCKS = _rows(
    "bert.BertLayer roberta.RobertaLayer camembert.CamembertLayer xlm_roberta.XLMRobertaLayer electra.ElectraLayer "
    "distilbert.TransformerBlock deberta_v2.DebertaV2Layer albert.AlbertLayer openai.Block bart.BartEncoderLayer "
    "bart.BartDecoderLayer marian.MarianEncoderLayer marian.MarianDecoderLayer",
    {},
)
LAYER = "transformers.modeling_layers.GradientCheckpointingLayer"  # the base of transformers' layers


# What the tables leave out of the full path of a class of transformers' models: family, then class.
MODELING = re.compile(r"transformers\.models\.(\w+)\.modeling_\1\.")


def short_kinds(module: nn.Module) -> list[str]:
    """The names of a module's classes as the tables have them, its own first.

    >>> short_kinds(nn.Linear(3, 2))[:2]
    ['torch.nn.modules.linear.Linear', 'torch.nn.modules.module.Module']
    """
    return [MODELING.sub(r"\1.", kind) for kind in kinds(module)]


def known_stacks(model: nn.Module) -> list[Stack]:
    """The residual stacks of a model, by the classes of its blocks.

    Raises ValueError for blocks of a post-LN model, for settings of a block under which it is none of the kind that the
    table describes, for layers that are not in the table, and for a model without any.

    >>> layer = nn.TransformerEncoderLayer(4, 2, norm_first=True)
    >>> [(stack.depth, [branch.name for branch in stack.branches]) for stack in known_stacks(nn.Sequential(layer))]
    [(1, ['0.self_attn', '0.linear2'])]
    """
    stacks: dict[str, list[tuple[str, nn.Module, Block]]] = {}
    blocks: list[str] = []
    for name, module in model.named_modules():
        names = short_kinds(module)
        if hit := next((kind for kind in names if kind in POST_NORM_BLOCKS), None):
            raise ValueError(f"{name or 'the model'} ({hit}) {POST_NORM}")
        row = next((BLOCKS[kind] for kind in names if kind in BLOCKS), None)
        if row is not None:
            _check_settings(name, module, row)
            stacks.setdefault(name.rpartition(".")[0], []).append((name, module, row))
            blocks.append(name)
        elif LAYER in names and not any(name.startswith(f"{block}.") for block in blocks):
            raise ValueError(f"the residual branches of {name} ({names[0]}) are not known; {HOW}")
    if not stacks:
        raise ValueError(f"no residual block of this model is known; {HOW}")
    return [Stack(len(stack), [one for block in stack for one in _branches(*block)]) for stack in stacks.values()]


HOW = (
    "state the modules whose output is added to the residual stream, by patterns of module names: "
    "branches=['blocks.*.attention', 'blocks.*.mlp']"
)


def _check_settings(name: str, module: nn.Module, row: Block) -> None:
    for path, value, otherwise in row.needs:
        owner, _, attribute = path.rpartition(".")
        if bool(getattr(module.get_submodule(owner), attribute)) != value:
            raise ValueError(f"{name or 'the model'} ({short_kinds(module)[0]}) {otherwise}")


def _branches(name: str, block: nn.Module, row: Block) -> Iterator[Branch]:
    modules = dict(block.named_modules())
    for path, maps in row.branches.items():
        if path in modules:  # blocks without cross-attention lack that of the row
            mixture = next((MIXTURES[kind] for kind in short_kinds(modules[path]) if kind in MIXTURES), None)
            full = f"{name}.{path}" if name else path
            yield Branch(full, modules[path], tuple((mixture or maps).split()) or ("",))
