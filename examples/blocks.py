"""Three kinds of networks that move everywhere from the first step on, for coordinate checks of their blocks.

    cd examples
    moga check blocks:gpt2 --sizes 64,128,256,512 --steps 20 --out runs/blocks

An output that starts at zero lets nothing before it move at the first step. Here its entries start at standard
deviation 0.1 / width instead: small enough that changes of the logits are those of the output's own step, and not those
of features seen through random weights, which shrink as 1 / sqrt(width).
"""

from typing import Any

import torch
from digits import Network, batches
from torch import Tensor, nn
from torch.nn import functional

import moga
from moga.study.models import build_model

LAYERS, CONTEXT = 2, 8
IMAGES = 4  # each 4 x 4 pixels: few, as every place of an image is what a token is to a language model
SMALL = 0.1
ROLES = {"*": "hidden", "stem.weight": "input", "head.weight": "output"}


def gpt2(width: int) -> nn.Module:
    """GPT-2 on bytes."""
    return _language_model("gpt2", width)


def llama(width: int) -> nn.Module:
    """LLaMA on bytes."""
    return _language_model("llama", width)


def residual(width: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """The pre-activation convolution network of `digits`, with a few images."""
    model = moga.initialize_(Network(width, LAYERS), "moga-row", roles=ROLES)
    batch: dict[str, Any] = next(batches("train", seed=torch.initial_seed()))
    images = functional.avg_pool2d(batch["images"][:IMAGES], 2)
    return _small(model, "head"), {"images": images, "labels": batch["labels"][:IMAGES]}


def _language_model(family: str, width: int) -> nn.Module:
    seed = int(torch.randint(2**31, ()))  # another one: the output's numbers are not to be those of the input
    return _small(build_model(family, width, layers=LAYERS, head_size=16, context=CONTEXT, seed=seed), "lm_head")


def _small(model: nn.Module, output: str) -> nn.Module:
    weight = model.get_submodule(output).weight
    nn.init.normal_(weight, std=SMALL / weight.shape[1])
    return model
