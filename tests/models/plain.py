"""Tiny models of torch's own modules. ``PLAIN[name](width)``; all but tokens, classes and kernels grow with ``width``.

Each begins in a table of tokens and ends in a linear map ``head``, which is stated: ``ROLES``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, CLASSES, HEAD = 61, 7, 8
ROLES = {"head.weight": "output"}


class Between(nn.Module):
    """Tokens, a module between, and a head of ``out`` features; only its parameters matter."""

    def __init__(self, width: int, inner: nn.Module, out: int, tokens: nn.Module | None = None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width) if tokens is None else tokens
        self.inner = inner
        self.head = nn.Linear(out, CLASSES)


class Products(nn.Module):
    """Two maps of the features, and a bilinear form of what they give."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(width, width // 4), nn.Linear(width, width // 2)
        self.form = nn.Bilinear(width // 4, width // 2, width)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.form(self.left(x), self.right(x))
        return made


def _transformer(width: int) -> nn.Module:
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 1, "dim_feedforward": 5 * width // 2, "batch_first": True}
    return Between(width, nn.Transformer(width, width // HEAD, **sizes), width)


def _attention(width: int) -> nn.Module:
    """Keys and values have other sizes than queries, and one of each is learned."""
    sizes = {"kdim": 3 * width // 4, "vdim": 5 * width // 4, "add_bias_kv": True}
    return Between(width, nn.MultiheadAttention(width, width // HEAD, **sizes), width)


def _lstm(width: int) -> nn.Module:
    """Two layers of 3/2 width, both directions, states projected to half of it."""
    lstm = nn.LSTM(width, 3 * width // 2, num_layers=2, bidirectional=True, proj_size=width // 2)
    return Between(width, lstm, width)


def _gru(width: int) -> nn.Module:
    return Between(width, nn.GRU(width, 3 * width // 2), 3 * width // 2)


def _rnn(width: int) -> nn.Module:
    return Between(width, nn.RNN(width, 3 * width // 2), 3 * width // 2)


def _cells(width: int) -> nn.Module:
    cells = [nn.LSTMCell(width, 2 * width), nn.GRUCell(2 * width, width), nn.RNNCell(width, 2 * width)]
    return Between(width, nn.ModuleList(cells), 2 * width)


def _convolutions(width: int) -> nn.Module:
    inner = nn.Sequential(
        nn.Conv1d(width, 2 * width, 3),
        nn.GroupNorm(4, 2 * width),
        nn.Conv2d(2 * width, width, (3, 5), groups=4),
        nn.BatchNorm2d(width),
        nn.Conv3d(width, 3 * width, 2, groups=width),
        nn.InstanceNorm3d(3 * width, affine=True),
        nn.ConvTranspose1d(3 * width, width, 5),
        nn.ConvTranspose2d(width, 2 * width, (2, 3), groups=4),
        nn.ConvTranspose3d(2 * width, 2 * width, 3, groups=2 * width),
    )
    return Between(width, inner, 2 * width)


def _bilinear(width: int) -> nn.Module:
    return Between(width, Products(width), width)


def _bag(width: int) -> nn.Module:
    bag = nn.EmbeddingBag(VOCABULARY, width, padding_idx=2)
    return Between(width, nn.Linear(width, 2 * width), 2 * width, tokens=bag)


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "transformer": _transformer,
    "attention": _attention,
    "lstm": _lstm,
    "gru": _gru,
    "rnn": _rnn,
    "cells": _cells,
    "convolutions": _convolutions,
    "bilinear": _bilinear,
    "bag": _bag,
}


def _builder(name: str) -> Callable[[int], Any]:
    def build(width: int) -> nn.Module:
        torch.manual_seed(0)
        return MODELS[name](width)

    return build


PLAIN: dict[str, Callable[[int], Any]] = {name: _builder(name) for name in MODELS}
