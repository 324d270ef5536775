"""A parameter group in which every number counts: none is 0, 1 or a default."""

from moga.optim.checks import PLAIN

GROUP = {
    **PLAIN,
    "lr": 0.1,
    "lr_scale": 0.5,
    "momentum": 0.9,
    "lookahead": None,
    "weight_decay": 0.2,
    "betas": [0.9, 0.99],
    "eps": 1e-8,
    "layout": "out,in",
    "scale": 0.7,
}
