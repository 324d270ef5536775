"""How the modules of transformers and timm cut what they store: blocks, interleaving, expert stacks, parts.

A row is a class, by its full path, with a rule for each child whose outputs it cuts, written down from its ``forward``.
A subclass is what its base class is. Nothing is imported: classes are recognised by the path that they carry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from torch import nn


class Packed(NamedTuple):
    """How the outputs of a linear map are cut, and which part it is; see :data:`moga.rules.parts.PARTS`."""

    blocks: tuple[int, ...] = ()
    interleave: int = 1
    part: str = ""


Rule = Callable[[Any, int], Packed]  # from the module that holds the linear map, and the number of its outputs
Row = TypeVar("Row")


def _equal(number: int) -> Rule:
    return lambda module, out: Packed((out // number,) * number)


def _by_head(heads: Callable[[Any], int]) -> Rule:
    """Query, key and value of one head, then of the next."""
    return lambda module, out: Packed((out // 3,) * 3, heads(module))


def _split_size(module: Any, out: int) -> Packed:
    """Query, key and value; cross-attention packs key and value alone."""
    return Packed((module.split_size,) * (out // module.split_size))


def _grouped(heads: int, few: int, size: int, interleave: int = 1) -> Packed:
    """Queries of ``heads`` heads, keys and values of ``few``, of ``size`` features each."""
    blocks = (heads * size, few * size, few * size)
    return Packed(blocks, interleave, "few heads" if few < heads else "")


def _falcon(module: Any, out: int) -> Packed:
    heads, size = module.num_heads, module.head_dim
    if module.new_decoder_architecture:  # group by group: its queries, its key, its value
        return _grouped(heads, module.num_kv_heads, size, interleave=module.num_kv_heads)
    return _grouped(heads, 1, size) if module.multi_query else Packed((heads * size,) * 3, heads)


def _bigcode(module: Any, out: int) -> Packed:
    if module.is_cross_attention:
        return Packed((module.embed_dim,) * 2)
    heads, size = module.num_heads, module.head_dim
    return _grouped(heads, 1, size) if module.multi_query else Packed((heads * size,) * 3, heads)


def _phi3(module: Any, out: int) -> Packed:
    return _grouped(module.config.num_attention_heads, module.num_key_value_heads, module.head_dim)


def _dbrx(module: Any, out: int) -> Packed:
    return _grouped(module.num_heads, module.num_key_value_heads, module.head_dim)


def _query_and_gate(module: Any, out: int) -> Packed:
    """Query and gate of one head, then of the next."""
    return Packed((out // 2,) * 2, module.config.num_attention_heads)


def _latent_down(module: Any, out: int) -> Packed:
    """The latent of keys and values, and the one rotary key that all heads share, which layers may lack."""
    sizes = (module.kv_lora_rank, module.qk_rope_head_dim)
    return Packed(sizes if module.qk_rope_head_dim else (), part="rank down")


def _latent_up(module: Any, out: int) -> Packed:
    """Per head the part of the key without position, then the value."""
    heads = module.num_heads
    return Packed((heads * module.qk_nope_head_dim, heads * module.v_head_dim), heads, "rank up")


def _latent_query_and_gate(module: Any, out: int) -> Packed:
    """Per head the query, then the gate of its values."""
    heads = module.num_heads
    return Packed((heads * module.qk_head_dim, heads * module.v_head_dim), heads, "rank up")


def _mamba2(module: Any, out: int) -> Packed:
    """Gate, x, B, C and dt. B and C have the size of the state, which need not grow with width."""
    state = module.n_groups * module.ssm_state_size
    return Packed((module.intermediate_size, module.intermediate_size, state, state, module.num_heads))


def _mamba_selective(module: Any, out: int) -> Packed:
    """dt, by a low rank, then B and C."""
    return Packed((module.time_step_rank, module.ssm_state_size, module.ssm_state_size), part="rank down")


def _delta(*sizes: str) -> Rule:
    """Parts of a gated delta rule, key head by key head; values have their own number of heads."""
    return lambda module, out: Packed(tuple(getattr(module, size) for size in sizes), module.num_k_heads)


def _part(part: str) -> Rule:
    return lambda module, out: Packed(part=part)


def paths(classes: str, value: Row) -> dict[str, Row]:
    """``family.Class`` stands for ``transformers.models.family.modeling_family.Class``."""
    names = [name.split(".") for name in classes.split()]
    return {f"transformers.models.{family}.modeling_{family}.{name}": value for family, name in names}


LATENT: dict[str, Rule] = {"kv_a_proj_with_mqa": _latent_down, "kv_b_proj": _latent_up}

PACKED: dict[str, Mapping[str, Rule]] = {
    **paths(
        "gpt2.GPT2Attention imagegpt.ImageGPTAttention openai.Attention "
        "decision_transformer.DecisionTransformerGPT2Attention",
        {"c_attn": _split_size},
    ),
    **paths("gpt_neox.GPTNeoXAttention", {"query_key_value": _by_head(lambda m: m.config.num_attention_heads)}),
    **paths(
        "gpt_neox_japanese.GPTNeoXJapaneseAttention", {"query_key_value": _by_head(lambda m: m.num_attention_heads)}
    ),
    **paths("bloom.BloomAttention persimmon.PersimmonAttention", {"query_key_value": _by_head(lambda m: m.num_heads)}),
    **paths("minimax.MiniMaxLightningAttention", {"qkv_proj": _by_head(lambda m: m.num_attention_heads)}),
    **paths("falcon.FalconAttention", {"query_key_value": _falcon}),
    **paths("gpt_bigcode.GPTBigCodeAttention", {"c_attn": _bigcode}),
    **paths("mpt.MptAttention", {"Wqkv": _equal(3)}),
    **paths("dbrx.DbrxAttention", {"Wqkv": _dbrx}),
    **paths("bark.BarkSelfAttention", {"att_proj": _equal(3)}),
    **paths("phi3.Phi3Attention phi4_multimodal.Phi4MultimodalAttention", {"qkv_proj": _phi3}),
    **paths(
        "phi3.Phi3MLP phi4_multimodal.Phi4MultimodalMLP phi4_multimodal.Phi4MultimodalAudioMLP glm.GlmMLP glm4.Glm4MLP "
        "glm4v.Glm4vTextMLP glm_image.GlmImageTextMLP glm_ocr.GlmOcrTextMLP dia.DiaMLP zamba2.Zamba2MLP "
        "esmfold2.EsmFold2SwiGLU minimax_m3_vl.MiniMaxM3VLDenseMLP dots3_note.Dots3NoteAudioMLP",
        {"gate_up_proj": _equal(2)},
    ),
    **paths(
        "granitemoeshared.GraniteMoeSharedMLP granitemoehybrid.GraniteMoeHybridMLP granitemoe_swa.GraniteMoeSWAMLP",
        {"input_linear": _equal(2)},
    ),
    **paths(
        "exaone4_5.Exaone4_5_VisionAttention",
        {"qkv": lambda m, out: Packed((m.q_dim, m.kv_dim, m.kv_dim), part="few heads" if m.kv_dim < m.q_dim else "")},
    ),
    **paths(
        "evolla.EvollaSequenceCompressorAttention granite_speech.GraniteSpeechConformerAttention "
        "granite_speech_plus.GraniteSpeechPlusConformerAttention",
        {"to_kv": _equal(2)},
    ),
    **paths("deberta.DisentangledSelfAttention", {"in_proj": _by_head(lambda m: m.num_attention_heads)}),
    **paths("zamba.ZambaMambaMixer", {"in_proj": lambda m, out: Packed((out // 2,) * 2, out // 2)}),  # every other row
    **paths("moonshine.MoonshineDecoderMLP", {"fc1": _equal(2)}),
    **paths("modernbert_decoder.ModernBertDecoderMLP modernbert.ModernBertMLP", {"Wi": _equal(2)}),
    **paths("modernbert.ModernBertAttention", {"Wqkv": _equal(3)}),
    **paths("opt.OPTDecoder", {"project_in": _part("rank up"), "project_out": _part("rank down")}),
    **paths("zaya.ZayaRouter", {"down_proj": _part("rank down")}),
    **paths(
        "deepseek_v2.DeepseekV2Attention deepseek_v3.DeepseekV3Attention glm4_moe_lite.Glm4MoeLiteAttention "
        "longcat_flash.LongcatFlashMLA minicpm3.MiniCPM3Attention youtu.YoutuAttention axk1.AXK1Attention "
        "bailing_hybrid.BailingHybridAttention deepseek_v32.DeepseekV32Attention dots3_note.Dots3NoteTextAttention "
        "glm5_next.Glm5NextTextAttention glm_moe_dsa.GlmMoeDsaAttention hy_v4.HYV4Attention hy_v4_vl.HYV4VLAttention "
        "kimi_linear.KimiLinearAttention mistral4.Mistral4Attention",
        {"q_a_proj": _part("rank down"), "q_b_proj": _part("rank up"), **LATENT},
    ),
    **paths("mistral_large4.MistralLarge4TextAttention", LATENT),
    **paths("axk2.AXK2Attention", {"q_a_proj": _part("rank down"), "q_gate_proj": _latent_query_and_gate, **LATENT}),
    **paths(
        "mamba2.Mamba2Mixer bamba.BambaMixer falcon_h1.FalconH1Mixer granitemoehybrid.GraniteMoeHybridMambaLayer "
        "nemotron_h.NemotronHMamba2Mixer zamba2.Zamba2MambaMixer",
        {"in_proj": _mamba2},
    ),
    **paths(
        "mamba.MambaMixer falcon_mamba.FalconMambaMixer jamba.JambaMambaMixer",
        {"in_proj": _equal(2), "x_proj": _mamba_selective, "dt_proj": _part("rank up")},
    ),
    **paths(
        "qwen3_next.Qwen3NextAttention qwen3_5.Qwen3_5Attention qwen3_5_moe.Qwen3_5MoeAttention "
        "qwen4_exp.Qwen4ExpTextAttention",
        {"q_proj": _query_and_gate},
    ),
    **paths(
        "qwen3_next.Qwen3NextGatedDeltaNet",
        {
            "in_proj_qkvz": _delta("key_dim", "key_dim", "value_dim", "value_dim"),
            "in_proj_ba": _delta("num_v_heads", "num_v_heads"),
        },
    ),
    **paths(
        "qwen3_5.Qwen3_5GatedDeltaNet qwen3_5_moe.Qwen3_5MoeGatedDeltaNet lara_mini.LaraMiniGatedDeltaNet "
        "qwen4_exp.Qwen4ExpTextGatedDeltaNet",
        {"in_proj_qkv": lambda m, out: Packed((m.key_dim, m.key_dim, m.value_dim))},
    ),
    **paths("codegen.CodeGenAttention", {"qkv_proj": _by_head(lambda m: m.mp_num)}),
    **paths(
        "lfm2.Lfm2ShortConv lfm2_moe.Lfm2MoeShortConv lfm3.Lfm3ShortConv lfm3_vl.Lfm3VlVisionShortConv",
        {"in_proj": _equal(3)},
    ),
    **paths(
        "blip.BlipAttention blip_2.Blip2Attention cohere_compass.CohereCompassVisionAttention "
        "deepseek_ocr2.DeepseekOcr2SamVisionAttention dots3_note.Dots3NoteVisionAttention "
        "ernie4_5_vl_moe.Ernie4_5_VLMoeVisionAttention florence2.Florence2VisionChannelAttention "
        "florence2.Florence2VisionWindowAttention glm4v.Glm4vVisionAttention glm4v_moe.Glm4vMoeVisionAttention "
        "glm5_next.Glm5NextVisionAttention glm_image.GlmImageVisionAttention glm_ocr.GlmOcrVisionAttention "
        "got_ocr2.GotOcr2VisionAttention hiera.HieraMaskUnitAttention instructblip.InstructBlipAttention "
        "instructblipvideo.InstructBlipVideoAttention mgp_str.MgpstrAttention "
        "pp_formulanet.PPFormulaNetVisionAttention pp_ocrv5_mobile_rec.PPOCRV5MobileRecAttention "
        "pp_ocrv5_server_rec.PPOCRV5ServerRecAttention pp_ocrv6_small_rec.PPOCRV6SmallRecAttention "
        "qwen2_5_vl.Qwen2_5_VLVisionAttention qwen2_vl.VisionAttention qwen3_5.Qwen3_5VisionAttention "
        "qwen3_5_moe.Qwen3_5MoeVisionAttention qwen3_omni_moe.Qwen3OmniMoeVisionAttention "
        "qwen3_vl.Qwen3VLVisionAttention qwen3_vl_moe.Qwen3VLMoeVisionAttention qwen4_exp.Qwen4ExpVisionAttention "
        "sam.SamVisionAttention sam2.Sam2MultiScaleAttention sam_hq.SamHQVisionAttention seggpt.SegGptAttention "
        "slanext.SLANeXtVisionAttention timesformer.TimesformerSelfAttention "
        "unlimited_ocr.UnlimitedOcrSamVisionAttention vitdet.VitDetAttention",
        {"qkv": _equal(3)},
    ),
    "timm.layers.attention.Attention": {"qkv": _equal(3)},
    "timm.layers.attention.AttentionRope": {"qkv": _equal(3)},
}

# Tensors of two or more dimensions in which every entry is a number of its own (per channel and state, per bucket of
# distances and head): class -> names of its parameters, or of its children's weights.
NUMBERS: dict[str, tuple[str, ...]] = {
    **paths("mamba.MambaMixer falcon_mamba.FalconMambaMixer jamba.JambaMambaMixer", ("A_log",)),
    **paths(
        "t5.T5Attention mt5.MT5Attention umt5.UMT5Attention switch_transformers.SwitchTransformersAttention "
        "pop2piano.Pop2PianoAttention longt5.LongT5Attention longt5.LongT5LocalAttention",
        ("relative_attention_bias",),
    ),
    **paths("longt5.LongT5TransientGlobalAttention", ("relative_attention_bias", "global_relative_attention_bias")),
    "peft.tuners.lora.dora.DoraLinearLayer": ("weight",),
}

# What transformers' experts say of themselves, and its own batched kernels read; and classes that do not say it.
EXPERT_WORDS = ("has_gate", "has_bias", "is_transposed", "is_concatenated")
SILENT_EXPERTS = paths("llama4.Llama4TextExperts", dict(zip(EXPERT_WORDS, (True, False, True, True), strict=True)))


def packed(holder: nn.Module | None, child: str, linear: nn.Module) -> Packed:
    """How the linear map that ``holder`` has under the name ``child`` is cut.

    Keys and values of an attention module that says that several heads of queries share each of their heads
    (``num_key_value_groups``, which transformers' attention functions read) are "few heads".

    >>> packed(None, "0", nn.Linear(4, 12))
    Packed(blocks=(), interleave=1, part='')
    """
    for kind in kinds(holder):
        if child in PACKED.get(kind, {}):
            return PACKED[kind][child](holder, int(getattr(linear, "out_features", 0) or getattr(linear, "nf", 0)))
    groups = getattr(holder, "num_key_value_groups", 1)
    return Packed(part="few heads" if child in ("k_proj", "v_proj") and isinstance(groups, int) and groups > 1 else "")


def holds_numbers(holder: nn.Module | None, name: str) -> bool:
    """Whether ``name`` is a parameter, or a child whose weight is a tensor, of :data:`NUMBERS`."""
    return any(name in NUMBERS.get(kind, ()) for kind in kinds(holder))


def expert_layout(module: nn.Module, attribute: str) -> tuple[str, Packed] | None:
    """The layout of a stack of experts, "vector" for their biases; None if the module is none.

    Gate and up share one tensor: halves, or with ``is_concatenated`` False every other row.
    """
    silent = (SILENT_EXPERTS[kind] for kind in kinds(module) if kind in SILENT_EXPERTS)
    words = next(silent, {word: getattr(module, word, None) for word in EXPERT_WORDS})
    if not all(isinstance(value, bool) for value in words.values()):
        return None
    up = "gate_up_proj" if words["has_gate"] else "up_proj"
    if words["has_bias"] and attribute in (f"{up}_bias", "down_proj_bias"):
        return "vector", Packed()
    if attribute not in (up, "down_proj"):
        return None
    layout = "stack,in,out" if words["is_transposed"] else "stack,out,in"
    if attribute != "gate_up_proj":
        return layout, Packed()
    half = getattr(module, attribute).shape[2 if words["is_transposed"] else 1] // 2
    return layout, Packed((half, half), 1 if words["is_concatenated"] else half)


def kinds(module: nn.Module | None) -> list[str]:
    """The full paths of the module's classes, its own first."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__]
