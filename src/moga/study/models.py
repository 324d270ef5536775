"""Causal language models of one shape at every width, made from configs (nothing is downloaded).

Width grows by adding heads: `width = heads * head_size`, with head size, depth, context and vocabulary fixed, and the
feed-forward part a fixed multiple of the width. So every matrix axis is either fixed or proportional to the width.
Input and output matrices are two tensors (untied), and there is no dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256  # bytes
# The attention that torch fuses: with context 64 on one CPU core a step takes 0.7 to 0.97 of the time of the plain one.
ATTENTION = "sdpa"


def _gpt2(width: int, layers: int, heads: int, context: int) -> nn.Module:
    """GPT-2: learned positions, LayerNorm, feed-forward part of 4 widths."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_inner=4 * width,
        # The same function as "gelu_new", in one kernel: a step of width 64 takes 27 ms instead of 46.
        activation_function="gelu_pytorch_tanh",
        **_common(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def _llama(width: int, layers: int, heads: int, context: int) -> nn.Module:
    """LLaMA: rotary positions, RMSNorm, gated feed-forward part of 3 widths (8/3 is no whole number of entries)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=context,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=3 * width,
        pad_token_id=None,
        **_common(attention_dropout=0.0),
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


def _common(**dropout: float) -> dict[str, Any]:
    """What both families share: untied, no cache, no special tokens among the 256 bytes."""
    return {
        "tie_word_embeddings": False,
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": ATTENTION,
        **dropout,
    }


FAMILIES: dict[str, Callable[[int, int, int, int], nn.Module]] = {"gpt2": _gpt2, "llama": _llama}


def heads_of(width: int, head_size: int) -> int:
    """The number of attention heads: `width / head_size`.

    Raises:
        ValueError: the width is not a positive multiple of the head size.

    >>> heads_of(64, 16)
    4
    """
    if width < head_size or width % head_size:
        raise ValueError(
            f"width {width} is not a multiple of the head size {head_size}: heads of fixed size are added as the model "
            f"grows, so use widths such as {head_size}, {2 * head_size}, {4 * head_size}, or another head size"
        )
    return width // head_size


def build_model(
    family: str, width: int, *, layers: int, head_size: int, context: int, seed: int, recipe: str = "moga-row"
) -> nn.Module:
    """A model whose initial weights depend on the arguments alone (not on the global random state, which it keeps).

    They are the same for every recipe but one that holds matrices on the Stiefel manifold, where they start then.

    Raises:
        ValueError: unknown family, or a width that is not a multiple of the head size.

    >>> model = build_model("gpt2", 32, layers=1, head_size=16, context=8, seed=0)
    >>> next_token_logits(model, torch.zeros(2, 8, dtype=torch.long)).shape
    torch.Size([2, 8, 256])
    """
    from moga.rules.init import initialize_

    if family not in FAMILIES:
        raise ValueError(f"unknown model family {family!r}; known: {', '.join(sorted(FAMILIES))}")
    heads = heads_of(width, head_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = FAMILIES[family](width, layers, heads, context)
    initialize_(model, recipe, generator=torch.Generator().manual_seed(seed))
    return model


def next_token_logits(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits (batch, context, 256) for tokens (batch, context)."""
    logits: Tensor = model(input_ids=tokens).logits
    return logits


def next_token_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Mean cross entropy in nats per token of windows (batch, context + 1): entry t + 1 is predicted from 0..t.

    Computed from the logits: given labels, transformers prints a warning about a missing loss type.
    """
    logits = next_token_logits(model, windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
