"""Tiny Hugging Face encoders, encoder-decoders and vision models from configs, as :mod:`models.decoders`.

``ENCODERS[name](width)``: features, heads and intermediate features grow with ``width``, a multiple of 32; vocabulary,
positions, patches, classes, frequencies and head size stay. In and output are not tied, where the family lets them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from models.decoders import HEAD, POSITIONS, TOKENS, VOCABULARY

LABELS, IMAGE, PATCH, FREQUENCIES, FRAMES = 7, 16, 4, 10, 13
PATCHES = (IMAGE // PATCH) ** 2


def _bert(width: int) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": width // HEAD,
        "intermediate_size": 5 * width // 2,
        "max_position_embeddings": POSITIONS,
        **TOKENS,
    }


def _t5(width: int) -> dict[str, Any]:
    """Heads have 6 features together 3/2 of the width."""
    return {
        "vocab_size": VOCABULARY,
        "d_model": width,
        "d_kv": 6,
        "d_ff": 5 * width // 2,
        "num_layers": 2,
        "num_heads": width // 4,
        "decoder_start_token_id": 0,
    }


def _bart(width: int) -> dict[str, Any]:
    return {
        "d_model": width,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_attention_heads": width // HEAD,
        "decoder_attention_heads": width // HEAD,
        "encoder_ffn_dim": 5 * width // 2,
        "decoder_ffn_dim": 3 * width // 2,
        "vocab_size": VOCABULARY,
        "decoder_start_token_id": 2,
        "tie_word_embeddings": False,
        **TOKENS,
    }


def _vit(width: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": width // HEAD,
        "intermediate_size": 5 * width // 2,
        "image_size": IMAGE,
        "patch_size": PATCH,
        "num_labels": LABELS,
    }


def _clip(width: int) -> dict[str, Any]:
    """The two towers differ in width; the features that they end in grow too."""
    features = {"projection_dim": 3 * width // 4}
    vision = {key: value for key, value in _vit(3 * width // 2).items() if key != "num_labels"}
    return {"text_config": {**_bert(width), **features}, "vision_config": {**vision, **features}, **features}


def _whisper(width: int) -> dict[str, Any]:
    return {
        **_bart(width),
        "num_mel_bins": FREQUENCIES,
        "max_source_positions": FRAMES,
        "max_target_positions": POSITIONS,
    }


# family: (model class, config class, sizes as a function of width, what does not depend on width)
FAMILIES: dict[str, tuple[str, str, Callable[[int], dict[str, Any]], dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", _bert, {"tie_word_embeddings": False}),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", _bert, {"tie_word_embeddings": False}),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        _bert,
        {"tie_word_embeddings": False, "cls_token_id": 0, "sep_token_id": 1},
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", _t5, {}),
    "bart": ("BartForConditionalGeneration", "BartConfig", _bart, {"max_position_embeddings": POSITIONS}),
    "vit": ("ViTForImageClassification", "ViTConfig", _vit, {}),
    "clip": ("CLIPModel", "CLIPConfig", _clip, {}),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", _whisper, {}),
}


def build(family: str, width: int, model: str = "", **changes: Any) -> nn.Module:
    """The model of a family, or another ``model`` of it; ``changes`` are settings that replace those of the table.

    >>> build("bert", 32, "BertForTokenClassification", num_labels=3).classifier
    Linear(in_features=32, out_features=3, bias=True)
    """
    usual, config, sizes, fixed = FAMILIES[family]
    torch.manual_seed(0)
    settings = {**sizes(width), **fixed, **changes}
    built: nn.Module = getattr(transformers, model or usual)(getattr(transformers, config)(**settings))
    return built


def _builder(family: str) -> Callable[..., nn.Module]:
    return lambda width, **changes: build(family, width, **changes)


ENCODERS: dict[str, Callable[..., nn.Module]] = {family: _builder(family) for family in FAMILIES}
