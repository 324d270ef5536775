"""One base for a whole model: the width in the multiplier of its logits is that of ``base=``."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import nn

from moga.rules.logits import own_roots
from moga.rules.transfer import logit_multiplier
from moga.rules.widths import Relative


def check_one_base(model: nn.Module, relative: Iterable[Relative]) -> None:
    """Raises ValueError for a tied matrix whose logits are multiplied as from another width than that of the base.

    From a base of width B on, logits are multiplied by what they are multiplied by there, times
    ``logit_multiplier(B, width)``. Of an output of its own any multiplier will do: its step is divided by it.

    >>> check_one_base(nn.Linear(3, 2), [])
    """
    for one in relative:
        there = one.base_logit_scale
        if one.assignment.role != "tied" or not one.base_fan or (one.logit_scale is None and there == 1.0):
            continue
        width, base_width, given = one.assignment.fan[0][0], one.base_fan[0][0], one.logit_scale or 1.0
        needed = there * logit_multiplier(base_width, width, own_roots(model, one.assignment))
        if math.isclose(given, needed, rel_tol=1e-6):
            continue
        done = "not multiplied" if one.logit_scale is None else f"multiplied by {given:g} (moga.scale_logits_)"
        itself = "" if there == 1.0 else f" and itself multiplied by {there:g}"
        how = f"base_width={base_width}" if there == 1.0 else "the base_width that it had for the base"
        raise ValueError(
            f"two bases in one model: the logits of {one.assignment.name}, of width {width}, are {done}, and base=, of "
            f"width {base_width}{itself}, asks for {needed:g}. Call scale_logits_ on a new model with {how}, or give "
            "the base= that goes with it"
        )
