"""Experiments: does the learning rate that was tuned on a narrow model still hold on a wide one?

``moga.study.transfer``, ``check`` and ``smoothness`` are the commands of the same names as functions, and ``load``
reads what they wrote. They stand on top of everything else, and are loaded when they are asked for, so that the
torch-free parts (`records`, `fit`) stay importable without the parts that train.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moga.api.check import check
    from moga.api.load import load
    from moga.api.smoothness import smoothness
    from moga.api.transfer import transfer

__all__ = ["check", "load", "smoothness", "transfer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"moga.api.{name}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
