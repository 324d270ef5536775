"""Tiny models of timm, which is not among the packages of the tests: it needs torchvision, and that does not load.

torchvision's own operators are built for one build of torch, so timm's metadata would bring a package that fails at
import beside a CPU build, and that transformers then takes for present. The models need nothing of it. So timm is put
into a folder of its own, which only a child process looks into (``make setup-dev`` does this):

    .venv/bin/pip install --no-deps --target .venv/timm timm==1.0.31

and in that process a module that is empty stands for torchvision. ``VISION[name](width)`` is a model with random
weights; channels, heads and the features between patches grow with ``width``, a multiple of 32.
"""

from __future__ import annotations

import enum
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

TIMM = Path(sys.prefix) / "timm"
HOW = f"timm is not there; pip install --no-deps --target {TIMM} timm==1.0.31"
CLASSES, IMAGE, PATCH = 7, 16, 4


def need_timm() -> None:
    """Leave the test out where timm is not there, and say so; MOGA_REQUIRE_TIMM=1 makes that a failure."""
    if not TIMM.is_dir():
        if os.environ.get("MOGA_REQUIRE_TIMM") == "1":
            pytest.fail(f"{HOW}, or unset MOGA_REQUIRE_TIMM")
        pytest.skip(HOW)


class Interpolation(enum.Enum):
    """The one thing of torchvision that timm reads when it is imported."""

    NEAREST = 0
    BILINEAR = 1
    BICUBIC = 2
    BOX = 3
    HAMMING = 4
    LANCZOS = 5


class Empty(types.ModuleType):
    """A module in which every name is a class without anything in it."""

    InterpolationMode = Interpolation

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder:
    """Finds an empty module for torchvision and everything in it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        torchvision = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if torchvision else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def load_timm() -> Any:
    """timm, in a process of its own."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
        sys.path.append(str(TIMM))
    import timm

    return timm


def _resnet18(width: int) -> nn.Module:
    channels = tuple(width * 2**stage for stage in range(4))
    made: nn.Module = load_timm().create_model(
        "resnet18", channels=channels, stem_width=width, layers=(1, 1, 1, 1), num_classes=CLASSES
    )
    return made


def _convnext_tiny(width: int) -> nn.Module:
    sizes = {"dims": (width, 3 * width // 2, 2 * width, 3 * width), "depths": (1, 1, 1, 1)}
    made: nn.Module = load_timm().create_model("convnext_tiny", num_classes=CLASSES, **sizes)
    return made


def _vit_tiny(width: int) -> nn.Module:
    sizes = {"embed_dim": width, "num_heads": width // 8, "depth": 2, "img_size": IMAGE, "patch_size": PATCH}
    made: nn.Module = load_timm().create_model("vit_tiny_patch16_224", num_classes=CLASSES, **sizes)
    return made


def _efficientnet_b0(width: int) -> nn.Module:
    load_timm()
    from timm.models.efficientnet import _gen_efficientnet

    made: nn.Module = _gen_efficientnet(
        "efficientnet_b0", channel_multiplier=width / 64, depth_multiplier=0.25, num_classes=CLASSES
    )
    return made


def _mlp_mixer(width: int) -> nn.Module:
    load_timm()
    from timm.models.mlp_mixer import _create_mixer

    made: nn.Module = _create_mixer(
        "mixer_s16_224", embed_dim=width, num_blocks=2, img_size=IMAGE, patch_size=PATCH, num_classes=CLASSES
    )
    return made


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "resnet18": _resnet18,
    "convnext_tiny": _convnext_tiny,
    "vit_tiny": _vit_tiny,
    "efficientnet_b0": _efficientnet_b0,
    "mlp_mixer": _mlp_mixer,
}


def _builder(name: str) -> Callable[[int], nn.Module]:
    def build(width: int) -> nn.Module:
        torch.manual_seed(0)
        return MODELS[name](width)

    return build


VISION: dict[str, Callable[[int], nn.Module]] = {name: _builder(name) for name in MODELS}
