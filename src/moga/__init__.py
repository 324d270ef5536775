"""Norm-aware optimizers whose learning rate keeps its meaning when a model grows."""

from moga.geometry.norms import NORMS, OperatorNorm, norm

__all__ = ["NORMS", "OperatorNorm", "norm"]
__version__ = "0.1.0"
