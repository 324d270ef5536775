"""Norm-aware optimizers whose learning rate keeps its meaning when a model grows."""

from __future__ import annotations

import importlib
from typing import Any

from moga.geometry.modular import modular_norm
from moga.geometry.names import norm
from moga.geometry.network import block_norm
from moga.geometry.norms import NORMS, OperatorNorm
from moga.optim.build import optimizer
from moga.optim.importing import import_state
from moga.optim.steepest_descent import SteepestDescent
from moga.rules.base import save_base
from moga.rules.branches import fold_branches_, scale_branches_
from moga.rules.groups import describe, param_groups
from moga.rules.init import initialize_
from moga.rules.logits import fold_logits_, scale_logits_
from moga.rules.recipes import RECIPES
from moga.rules.roles import find_roles

__all__ = [
    "NORMS",
    "RECIPES",
    "OperatorNorm",
    "SteepestDescent",
    "block_norm",
    "describe",
    "find_roles",
    "fold_branches_",
    "fold_logits_",
    "import_state",
    "initialize_",
    "modular_norm",
    "norm",
    "optimizer",
    "param_groups",
    "save_base",
    "scale_branches_",
    "scale_logits_",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "study":  # loaded when asked for: it needs more than torch
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("moga.study")
