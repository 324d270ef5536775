"""Published rules for how hyper-parameters follow width, depth, batch and tokens, each under its own name.

Where sources disagree, both are here. ``checked`` says what was read to write a row down. The library's own rule is
that of ``completep``: blocks of transformers have several maps in a row, for which CompleteP (arXiv 2505.01618) and the
spectral condition (arXiv 2603.00541) both find 1/K, and lr keeps its meaning at every depth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

QUANTITIES = {
    "branch": "multiplier of each residual branch",
    "hidden_lr": "learning rate of hidden matrices, as the size of their entries' step",
    "block_vector_lr": "learning rate of the gains and biases of blocks",
    "hidden_decay": "weight_decay of hidden matrices, if a step removes weight_decay times their own learning rate",
    "hidden_eps": "eps of Adam for hidden matrices, and for the gains and biases of blocks",
    "embedding_eps": "eps of Adam for embeddings",
}


class Law(NamedTuple):
    """For each quantity, the powers of the ratios width / base_width and depth / base_depth; what is left out, open."""

    optimizer: str
    powers: Mapping[str, tuple[float, float]]
    source: str
    checked: str


def _completep(alpha: float) -> dict[str, tuple[float, float]]:
    return {
        "branch": (0, -alpha),
        "hidden_lr": (-1, alpha - 1),
        "block_vector_lr": (0, alpha - 1),
        "hidden_decay": (1, 0),
        "hidden_eps": (-1, -alpha),
        "embedding_eps": (-1, 0),
    }


RELEASED = "the released code"
LAWS: dict[str, Law] = {
    "mup": Law("Adam", {"hidden_lr": (-1, 0)}, "Tensor Programs V, arXiv 2203.03466", "a public implementation"),
    "completep": Law("AdamW", _completep(1), "arXiv 2505.01618, alpha = 1", RELEASED),
    "completep-half": Law("AdamW", _completep(0.5), "arXiv 2505.01618, alpha = 1/2", RELEASED),
    "depth-mup": Law(
        "Adam",
        {"branch": (0, -0.5), "hidden_lr": (-1, -0.5)},
        "Tensor Programs VI, arXiv 2310.02244, for blocks of one layer",
        "summaries that agree",
    ),
    "spectral": Law(
        "Muon",
        {"branch": (0, -1), "hidden_lr": (0, 0)},
        "arXiv 2603.00541, for blocks of two layers or more",
        "the abstract, and summaries that agree",
    ),
    "hyperp": Law("Muon on a sphere", {"branch": (0, -0.5), "hidden_lr": (0, -0.5)}, "arXiv 2603.28743", RELEASED),
    "sublayer-gain": Law("AdamW", {"hidden_lr": (-1, 0), "hidden_decay": (0.5, 0)}, "arXiv 2510.15262", "the abstract"),
}


def law_factors(name: str, width_ratio: float = 1.0, depth_ratio: float = 1.0) -> dict[str, float]:
    """What each quantity of a law is multiplied by at ``width_ratio`` times the width and ``depth_ratio`` the depth.

    ``library_decay`` is what ``weight_decay`` of this library is multiplied by: a step removes ``lr * weight_decay``,
    and lr is not divided by the width, so it takes on the width's part of ``hidden_lr``.

    Raises ValueError for an unknown law and for a ratio that is no positive number.

    >>> law_factors("hyperp", depth_ratio=4)
    {'branch': 0.5, 'hidden_lr': 0.5}
    >>> law_factors("sublayer-gain", width_ratio=4)
    {'hidden_lr': 0.25, 'hidden_decay': 2.0, 'library_decay': 0.5}
    """
    if name not in LAWS:
        raise ValueError(f"unknown law {name!r}; the laws are {', '.join(LAWS)}")
    _check_ratios(width_ratio=width_ratio, depth_ratio=depth_ratio)
    powers = dict(LAWS[name].powers)
    if "hidden_decay" in powers:
        width, depth = powers["hidden_decay"]
        powers["library_decay"] = (width + powers["hidden_lr"][0], depth)
    return {key: width_ratio**width * depth_ratio**depth for key, (width, depth) in powers.items()}


def hyperp_rate(lr: float, *, batch_ratio: float = 1.0, depth_ratio: float = 1.0, token_ratio: float = 1.0) -> float:
    """HyperP's learning rate: ``lr sqrt(batch_ratio / depth_ratio) token_ratio^-0.32``, ratios being new over base.

    ``batch`` counts tokens per step and ``depth`` blocks, whose branches are multiplied by "1/sqrt(2K)"; width changes
    nothing, because a step turns a matrix on its sphere by the angle lr. The power of the tokens is a fit, and the same
    as that for AdamW in arXiv 2409.19913. Source: arXiv 2603.28743; as its released code has it, for all parameters.

    Raises ValueError for a ratio that is no positive number.

    >>> hyperp_rate(0.01, batch_ratio=4), hyperp_rate(0.01, depth_ratio=4), round(hyperp_rate(0.01, token_ratio=10), 5)
    (0.02, 0.005, 0.00479)
    """
    _check_ratios(batch_ratio=batch_ratio, depth_ratio=depth_ratio, token_ratio=token_ratio)
    return lr * math.sqrt(batch_ratio / depth_ratio) * math.pow(token_ratio, -0.32)


def _check_ratios(**ratios: float) -> None:
    for word, value in ratios.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{word} must be a positive number, new over base; got {value!r}")
