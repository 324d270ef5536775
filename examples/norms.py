"""Optimizers of one's own for the studies: rows and columns under other norms than the default.

    cd examples
    moga transfer --recipe norms:row_1_5,norms:row_2,norms:row_3,norms:column_2,norms:column_4 --lrs "2**-5:2**-2" \\
        --out runs/norms
"""

from torch import nn
from torch.optim import Optimizer

import moga

DECAY = 0.1


def row_1_5(model: nn.Module, lr: float) -> Optimizer:
    """Rows, p = 1.5."""
    return moga.optimizer(model, "moga-row", lr=lr, p=1.5, weight_decay=DECAY)


def row_2(model: nn.Module, lr: float) -> Optimizer:
    """Rows, p = 2."""
    return moga.optimizer(model, "moga-row", lr=lr, p=2.0, weight_decay=DECAY)


def row_3(model: nn.Module, lr: float) -> Optimizer:
    """Rows, p = 3."""
    return moga.optimizer(model, "moga-row", lr=lr, p=3.0, weight_decay=DECAY)


def column_2(model: nn.Module, lr: float) -> Optimizer:
    """Columns, q = 2."""
    return moga.optimizer(model, "moga-column", lr=lr, q=2.0, weight_decay=DECAY)


def column_4(model: nn.Module, lr: float) -> Optimizer:
    """Columns, q = 4."""
    return moga.optimizer(model, "moga-column", lr=lr, q=4.0, weight_decay=DECAY)
