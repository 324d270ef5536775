"""What is known of the modules of libraries by the place of a tensor in them: rows, parts, outputs, starts.

A table has a row for each class, by its full path, with dotted names inside of such a module, written down from its
``__init__`` and ``forward``. A subclass is what its base class is. How matrices are cut is in
:mod:`moga.rules.families`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from torch import Tensor, nn

from moga.rules.families import kinds, paths

Row = TypeVar("Row")

TIMM = "timm.models."

# Tensors (1, rows, features) or (rows, features) whose rows stand beside the tokens ("token": a class token, a mask, a
# register) or are added to them ("": positions).
ROWS: dict[str, Mapping[str, str]] = {
    **paths("vit.ViTEmbeddings", {"cls_token": "token", "mask_token": "token", "position_embeddings": ""}),
    **paths(
        "deit.DeiTEmbeddings",
        {"cls_token": "token", "mask_token": "token", "distillation_token": "token", "position_embeddings": ""},
    ),
    **paths("dinov2.Dinov2Embeddings", {"cls_token": "token", "mask_token": "token", "position_embeddings": ""}),
    f"{TIMM}vision_transformer.VisionTransformer": {"cls_token": "token", "reg_token": "token", "pos_embed": ""},
}

# Linear maps that are a part of moga.rules.parts.PARTS.
PART_PLACES: dict[str, Mapping[str, str]] = {
    **paths("clip.CLIPModel", {"text_projection": "features", "visual_projection": "features"}),
    **paths("clip.CLIPTextModelWithProjection", {"text_projection": "features"}),
    **paths("clip.CLIPVisionModelWithProjection", {"visual_projection": "features"}),
    f"{TIMM}mlp_mixer.MixerBlock": {"mlp_tokens.fc1": "across", "mlp_tokens.fc2": "across"},
}

# Outputs that no getter names: two sentences in a row or not, the pixels of a masked patch.
OUTPUTS: dict[str, tuple[str, ...]] = {
    **paths("bert.BertPreTrainingHeads bert.BertOnlyNSPHead", ("seq_relationship",)),
    **paths("vit.ViTForMaskedImageModeling", ("decoder.0",)),
}

# How a tensor starts that is no matrix, gain or bias: "keep" the model's own value (numbers per head, channel or layer,
# whose start its authors chose), "zero" for the relative positions of an attention, and "token", of unit size.
STARTS: dict[str, Mapping[str, str]] = {
    **paths(
        "mamba2.Mamba2Mixer bamba.BambaMixer falcon_h1.FalconH1Mixer granitemoehybrid.GraniteMoeHybridMambaLayer "
        "nemotron_h.NemotronHMamba2Mixer zamba2.Zamba2MambaMixer",
        dict.fromkeys(("A_log", "D", "dt_bias"), "keep"),
    ),
    **paths(
        "mamba.MambaMixer falcon_mamba.FalconMambaMixer jamba.JambaMambaMixer",
        dict.fromkeys(("A_log", "D", "dt_proj.bias"), "keep"),
    ),
    **paths(
        "qwen3_next.Qwen3NextGatedDeltaNet qwen3_5.Qwen3_5GatedDeltaNet qwen3_5_moe.Qwen3_5MoeGatedDeltaNet",
        dict.fromkeys(("A_log", "dt_bias"), "keep"),
    ),
    **paths("gpt_oss.GptOssAttention", {"sinks": "keep"}),
    **paths(
        "t5.T5Attention mt5.MT5Attention umt5.UMT5Attention switch_transformers.SwitchTransformersAttention "
        "pop2piano.Pop2PianoAttention longt5.LongT5Attention longt5.LongT5LocalAttention",
        {"relative_attention_bias.weight": "zero"},
    ),
    **paths(
        "longt5.LongT5TransientGlobalAttention",
        dict.fromkeys(("relative_attention_bias.weight", "global_relative_attention_bias.weight"), "zero"),
    ),
    **paths("clip.CLIPModel", {"logit_scale": "keep"}),
    **paths("clip.CLIPVisionEmbeddings", {"class_embedding": "token"}),
    **paths("dinov2.Dinov2LayerScale", {"lambda1": "keep"}),
    f"{TIMM}convnext.ConvNeXtBlock": {"gamma": "keep"},
    "timm.layers.layer_scale.LayerScale": {"gamma": "keep"},
    "peft.tuners.lora.dora.DoraLinearLayer": {"weight": "keep"},
}

# Models that divide the features of their output by the square root of the width: class -> setting that says so.
DIVIDED_LOGITS = {
    **paths(
        "t5.T5ForConditionalGeneration umt5.UMT5ForConditionalGeneration longt5.LongT5ForConditionalGeneration "
        "pop2piano.Pop2PianoForConditionalGeneration",
        "scale_decoder_outputs",
    ),
    **paths(
        "switch_transformers.SwitchTransformersForConditionalGeneration udop.UdopForConditionalGeneration",
        "tie_word_embeddings",
    ),
}


def of_class(table: Mapping[str, Row], module: nn.Module) -> Iterator[Row]:
    """The rows of a module's class and of those it is a subclass of, its own first."""
    yield from (table[kind] for kind in kinds(module) if kind in table)


def row_part(module: nn.Module, name: str) -> str | None:
    """The part of a table of rows, a word of :data:`ROWS`; None if the parameter is none."""
    return next((row[name] for row in of_class(ROWS, module) if name in row), None)


def placed_parts(model: nn.Module) -> dict[int, str]:
    """The part of each weight that :data:`PART_PLACES` names, by identity."""
    return {
        id(weight): part
        for module in model.modules()
        for row in of_class(PART_PLACES, module)
        for name, part in row.items()
        if (weight := tensor_at(module, f"{name}.weight")) is not None
    }


def placed_outputs(model: nn.Module) -> set[int]:
    """Identities of the weights that :data:`OUTPUTS` names."""
    return {
        id(weight)
        for module in model.modules()
        for row in of_class(OUTPUTS, module)
        for name in row
        if (weight := tensor_at(module, f"{name}.weight")) is not None
    }


def placed_starts(module: nn.Module) -> Iterator[tuple[Tensor, str]]:
    """The tensors of a module that :data:`STARTS` names, with the word."""
    for row in of_class(STARTS, module):
        for name, word in row.items():
            if (tensor := tensor_at(module, name)) is not None:
                yield tensor, word


def divides_logits(model: nn.Module) -> bool:
    """Whether a model, or one inside it, is of :data:`DIVIDED_LOGITS` and its config says that it does."""
    return any(
        bool(getattr(getattr(module, "config", None), setting, False))
        for module in model.modules()
        for setting in of_class(DIVIDED_LOGITS, module)
    )


def tensor_at(module: nn.Module, name: str) -> Tensor | None:
    """The parameter with that dotted name inside a module, or None if there is none (an option that is off)."""
    try:
        return module.get_parameter(name)
    except AttributeError:
        return None
