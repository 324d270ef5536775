"""Small models whose roles are known from their code."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TOKENS = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}


@pytest.fixture
def gpt2() -> Callable[..., nn.Module]:
    def build(width: int = 64, **changes: Any) -> nn.Module:
        torch.manual_seed(0)
        settings = {
            "n_embd": width,
            "n_head": 4,
            "n_layer": 2,
            "n_positions": 64,
            "tie_word_embeddings": False,
            **TOKENS,
        }
        return GPT2LMHeadModel(GPT2Config(**{**settings, **changes}))

    return build


@pytest.fixture
def llama() -> Callable[..., nn.Module]:
    def build(width: int = 64, **changes: Any) -> nn.Module:
        torch.manual_seed(0)
        settings = {
            "hidden_size": width,
            "intermediate_size": 5 * width // 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 2,
            "tie_word_embeddings": False,
            **TOKENS,
        }
        return LlamaForCausalLM(LlamaConfig(**{**settings, **changes}))

    return build


@pytest.fixture
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
