"""Norm-aware optimizers whose learning rate keeps its meaning when a model grows."""

from moga.geometry.norms import NORMS, OperatorNorm, norm
from moga.optim.build import optimizer
from moga.optim.steepest_descent import SteepestDescent
from moga.rules.groups import describe, param_groups
from moga.rules.init import initialize_
from moga.rules.recipes import RECIPES
from moga.rules.roles import find_roles

__all__ = [
    "NORMS",
    "RECIPES",
    "OperatorNorm",
    "SteepestDescent",
    "describe",
    "find_roles",
    "initialize_",
    "norm",
    "optimizer",
    "param_groups",
]
__version__ = "0.1.0"
