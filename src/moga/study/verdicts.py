"""When a learning rate is said to transfer, when not, and when neither can be said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moga.study.fit import WidthFit

TRANSFERS_DRIFT = 0.15  # octaves of learning rate per doubling of the width
TRANSFERS_REGRET = 0.02  # nats per token
WIDEST = 2.01  # octaves between the best rate and its neighbours, from where on no optimum is read between them
SURE = 2.0  # standard errors of a drift
# Standard errors of a cost, by the number of seeds that gave it: 95 % of Student's t lie below. From 6 on 2.
SURE_COST = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13}


def why_unknown(
    fits: Sequence[WidthFit],
    drift: float | None,
    drift_stderr: float | None,
    regret: float | None,
    regret_stderr: float | None,
    over: str,
) -> str:
    """The first reason why nothing can be said, in words; "" if there is none."""
    if regret == math.inf:
        return ""
    if len(fits) < 2:
        return f"one {over} only ({fits[0].width}): add {'wider' if over == 'width' else 'deeper'} models"
    for fit in fits:
        if fit.optimum is None:
            return f"every run at {fit.name} diverged: add smaller rates"
        if fit.optimum.edge:
            if len(fit.lrs) < 3:
                return f"{fit.name} has only {len(fit.lrs)} of the 3 rates that a minimum takes: add rates"
            end, more = ("smallest", "smaller") if fit.optimum.lr == fit.lrs[0] else ("largest", "larger")
            return f"the best rate at {fit.name} is the {end} of its grid ({fit.optimum.lr:.4g}): add {more} rates"
        low, high = fit.gap
        if (apart := math.log2(high / low)) > WIDEST:
            pair = f"the best rate and one beside it ({low:.4g}, {high:.4g})"
            return f"at {fit.name} {pair} are {apart:.1f} octaves apart: add rates between"
    if regret is None or drift is None:
        return f"the run at {fits[-1].name} with the rate tuned at {fits[0].name} is missing: run the study again"
    if regret <= TRANSFERS_REGRET and abs(drift) > TRANSFERS_DRIFT:
        return f"the best rate moves, but over these {over}s that costs nothing: add {over}s or seeds"
    moves = abs(drift) > max(TRANSFERS_DRIFT, SURE * (drift_stderr or 0))
    sure = SURE_COST.get(fits[-1].seeds, 2.0)
    costs = regret_stderr is not None and regret > TRANSFERS_REGRET + sure * regret_stderr
    if regret > TRANSFERS_REGRET and not (moves or costs):
        return "the cost may be noise, as the best rate does not surely move: add seeds"
    return ""


def sentence(
    fits: Sequence[WidthFit],
    drift: float | None,
    regret: float | None,
    transfers: bool | None,
    unknown: str,
    over: str,
    unit: str,
) -> str:
    """The numbers, and what follows from them."""
    parts = []
    if drift is not None:
        known = [fit.width for fit in fits if fit.known]
        parts.append(f"the best rate moved by {drift:+.2f} octave per doubling of {over} ({known[0]} to {known[-1]})")
    smallest, largest = fits[0].width, fits[-1].width
    if regret == math.inf:
        parts.append(f"the rate tuned at {over} {smallest} diverges at {over} {largest}")
    elif regret is not None:
        rate = f"the rate tuned at {over} {smallest}"
        if round(regret, 3) < 0:
            parts.append(f"{rate} beats the best of the grid at {over} {largest} by {-regret:.3f} {unit}")
        else:
            parts.append(f"{rate} costs {abs(regret):.3f} {unit} at {over} {largest}")
    if over == "depth" and math.isfinite(fits[-1].best_loss):  # where branches add up to too much, every loss rises
        parts.append(f"the lowest loss went from {fits[0].best_loss:.3f} to {fits[-1].best_loss:.3f}")
    outcome = {True: "it transfers.", False: "it does not transfer.", None: f"unknown whether it transfers: {unknown}."}
    said = "; ".join(parts)
    return f"{said}: {outcome[transfers]}" if transfers is not None else "; ".join([*parts, outcome[None]])
