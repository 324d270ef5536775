"""What is known of the modules of libraries by the place of a tensor in them: rows, parts, outputs, starts.

A table has a row for each class, by its full path, with dotted names inside of such a module, written down from its
``__init__`` and ``forward``. A subclass is what its base class is. How matrices are cut is in
:mod:`moga.rules.families`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from moga.rules.families import kinds, paths
from moga.rules.transfer import table_factor

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
    **paths(  # the score of the expert that every token has
        "qwen2_moe.Qwen2MoeSparseMoeBlock qwen3_next.Qwen3NextSparseMoeBlock qwen3_5_moe.Qwen3_5MoeSparseMoeBlock "
        "qwen3_omni_moe.Qwen3OmniMoeTalkerTextSparseMoeBlock qwen4_exp.Qwen4ExpTextSparseMoeBlock",
        {"shared_expert_gate": "router"},
    ),
}

# Outputs that no getter names: two sentences in a row or not, the pixels of a masked patch.
OUTPUTS: dict[str, tuple[str, ...]] = {
    **paths("bert.BertPreTrainingHeads bert.BertOnlyNSPHead", ("seq_relationship",)),
    **paths("vit.ViTForMaskedImageModeling", ("decoder.0",)),
}

# Routers inside of a module that holds other matrices too, and records the scores of its experts as a whole.
ROUTERS: dict[str, tuple[str, ...]] = {
    **paths("zaya.ZayaRouter", ("router_mlp.out_proj",)),
    **paths("doge.DogeCDMoE", ("router_gate",)),
    **paths("ernie4_5_vl_moe.Ernie4_5_VLMoeMoeBlock", ("text_moe.gate", "vision_moe.gate")),
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
        "qwen3_next.Qwen3NextGatedDeltaNet qwen3_5.Qwen3_5GatedDeltaNet qwen3_5_moe.Qwen3_5MoeGatedDeltaNet "
        "qwen4_exp.Qwen4ExpTextGatedDeltaNet lara_mini.LaraMiniGatedDeltaNet",
        dict.fromkeys(("A_log", "dt_bias"), "keep"),
    ),
    **paths("gpt_oss.GptOssAttention hy_v4.HYV4Attention hy_v4_vl.HYV4VLAttention", {"sinks": "keep"}),
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

# Modules that multiply the rows that a lookup in them gives: by a number that they hold, or by sqrt(width) if a setting
# says so. (Lookups that do it themselves have the number under a name of OWN_FACTORS.)
OWN_FACTORS = ("scalar_embed_scale", "embed_scale")


def _holds(module: Any, width: int) -> float:
    return float(module.embed_scale)


def _root(module: Any, width: int) -> float:
    return table_factor(width)


def _root_if(setting: str) -> Callable[[Any, int], float]:
    return lambda module, width: table_factor(width) if getattr(module.config, setting) else 1.0


FACTORS: dict[str, Mapping[str, Callable[[Any, int], float]]] = {
    **paths(
        "pegasus.PegasusEncoder pegasus.PegasusDecoder marian.MarianEncoder marian.MarianDecoder mvp.MvpEncoder "
        "mvp.MvpDecoder fsmt.FSMTEncoder fsmt.FSMTDecoder blenderbot_small.BlenderbotSmallEncoder "
        "speech_to_text.Speech2TextDecoder speecht5.SpeechT5TextDecoderPrenet kosmos2.Kosmos2TextTransformer "
        "kosmos2_5.Kosmos2_5TextTransformer",
        {"embed_tokens": _holds},
    ),
    **paths("tipsv2.Tipsv2TextEmbeddings", {"token_embedding": _holds}),
    **paths("afmoe.AfmoeModel", {"embed_tokens": _root_if("mup_enabled")}),
    **paths(
        "recurrent_gemma.RecurrentGemmaModel t5gemma.T5GemmaEncoder t5gemma.T5GemmaDecoder vits.VitsTextEncoder",
        {"embed_tokens": _root},
    ),
    **paths("ctrl.CTRLModel", {"w": _root}),
    **paths(
        "big_bird.BigBirdEmbeddings",
        {"word_embeddings": lambda module, width: table_factor(width) if module.rescale_embeddings else 1.0},
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
    return {found for module in model.modules() for found in _named(OUTPUTS, module)}


def placed_routers(module: nn.Module) -> set[int]:
    """Identities of the weights of this module that :data:`ROUTERS` names."""
    return set(_named(ROUTERS, module))


def _named(table: Mapping[str, tuple[str, ...]], module: nn.Module) -> Iterator[int]:
    for row in of_class(table, module):
        yield from (id(one) for name in row if (one := tensor_at(module, f"{name}.weight")) is not None)


def placed_starts(module: nn.Module) -> Iterator[tuple[Tensor, str]]:
    """The tensors of a module that :data:`STARTS` names, with the word."""
    for row in of_class(STARTS, module):
        for name, word in row.items():
            if (tensor := tensor_at(module, name)) is not None:
                yield tensor, word


def table_multipliers(model: nn.Module) -> dict[int, float]:
    """By what the model multiplies the rows of each table before it adds anything to them, by identity.

    Of a table with several uses it is the largest, so that a step is too long in none of them. (A table may also be
    held by a module that never looks anything up in it.)

    >>> table_multipliers(nn.Embedding(9, 4))
    {}
    """
    found: dict[int, float] = {}
    for module in model.modules():
        for weight, factor in _factors(module):
            found[id(weight)] = max(factor, found.get(id(weight), 0.0))
    return found


def _factors(module: nn.Module) -> Iterator[tuple[Tensor, float]]:
    library = any(kind.startswith("transformers.") for kind in kinds(module))
    if isinstance(module, nn.Embedding) and library:
        own = [name for name in OWN_FACTORS if getattr(module, name, None) is not None]
        yield from ((module.weight, float(getattr(module, name))) for name in own[:1])
    for row in of_class(FACTORS, module):
        for name, factor in row.items():
            if (weight := tensor_at(module, f"{name}.weight")) is not None:
                yield weight, factor(module, weight.shape[1])


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
