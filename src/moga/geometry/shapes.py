"""The factors of shape that optimizers multiply a unit direction by: the one table of shape words."""

from __future__ import annotations

import math
from collections.abc import Callable

from moga.geometry.norms import OperatorNorm

SHAPES: dict[str, Callable[[OperatorNorm, int, int], float]] = {
    # the norm's own scale: the step has size 1 in the mean-normalised norm (for spectral: sqrt(out / in))
    "rms": lambda norm, out, in_: norm.scale(out, in_),
    # Jordan et al., "Muon", 2024: never shrinks a wide matrix
    "original": lambda norm, out, in_: math.sqrt(max(1.0, out / in_)),
    # arXiv 2502.16982: entries of about the size of AdamW's
    "moonlight": lambda norm, out, in_: 0.2 * math.sqrt(max(out, in_)),
    # the published rule has no factor
    "none": lambda norm, out, in_: 1.0,
}


def shape_factor(word: str, norm: OperatorNorm, out: int, in_: int) -> float:
    """What a direction without scale is multiplied by, for a matrix with fans ``out`` and ``in_``.

    Raises ValueError for an unknown word.

    >>> from moga.geometry.norms import norm
    >>> [round(shape_factor(word, norm("spectral"), 64, 256), 3) for word in SHAPES]
    [0.5, 1.0, 3.2, 1.0]
    """
    if word not in SHAPES:
        raise ValueError(f"unknown shape word {word!r}; the words are {', '.join(SHAPES)}")
    return SHAPES[word](norm, out, in_)
