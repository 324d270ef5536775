"""Tied matrices that :func:`moga.initialize_` has started: a multiplier of the logits comes before it, not after.

The start of such a matrix depends on the multiplier. What was written is remembered on the tensor, as its version,
which every write but one to ``.data`` changes: weights that were loaded or trained since are left alone.
"""

from __future__ import annotations

from torch import Tensor

from moga.rules.roles import Assignment
from moga.rules.transfer import initial_std

MARK = "_moga_started"


def remember_start(weight: Tensor) -> None:
    """Remember that the tensor holds the start of a tied matrix."""
    if not weight.is_inference():
        setattr(weight, MARK, weight._version)


def check_not_started(one: Assignment, factor: float) -> None:
    """Raises ValueError if the matrix holds a start that is another one with logits multiplied by ``factor``."""
    weight, (width, _) = one.parameter, one.fan[0]
    if one.role != "tied" or weight.is_inference() or getattr(weight, MARK, None) != weight._version:
        return
    before, after = (initial_std("tied", width, 1, one.lookup, scale, one.multiplier) for scale in (1.0, factor))
    if before != after:
        raise ValueError(
            f"initialize_ has started {one.name}, which is input and output in one, with entries of size {before:.3g}; "
            f"with logits multiplied by {factor:g} they start as at the base, at {after:.3g}. Call scale_logits_ on "
            "the new model first, and initialize_ after it"
        )
