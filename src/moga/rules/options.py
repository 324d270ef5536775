"""The options that a caller may give to a whole recipe, and the updates that each of them reaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from moga.rules.torch_words import in_our_words
from moga.rules.updates import Update, as_dict, complete_update, usable


class Options(TypedDict, total=False):
    """What may be given to a whole recipe; what is not given stays as the recipe has it."""

    p: float
    q: float
    shape: str
    polar: str
    momentum: float
    lookahead: float | str | None
    betas: tuple[float, float]
    eps: float
    alpha: float
    damping: float
    trust_clip: tuple[float, float]
    weight_decay: float


OPTIONS = tuple(Options.__annotations__)


def filled(
    rows: Mapping[str, str | Update], defaults: Mapping[str, Any], options: Mapping[str, Any], label: str
) -> dict[str, Update]:
    """The complete update of each role: what a row states, then the defaults, then the options win over both.

    An option reaches the rows that can use it; ``label`` names the recipe in errors.

    Raises ValueError for an option that no row can use, and as :func:`complete_update`.

    >>> filled({"hidden": "row", "vector": "adam"}, {"momentum": 0.9}, {"eps": 1e-6}, "")["vector"]["eps"]
    1e-06
    """
    updates = {role: as_dict(update, f"the recipe's {role!r} update") for role, update in rows.items()}
    for update in updates.values():
        for key in set(defaults) & set(usable(update)):
            update.setdefault(key, defaults[key])
    allowed = [word for word in OPTIONS if any(_takes(update, word) for update in updates.values())]
    for option, value in options.items():
        if option not in allowed:
            known = "cannot be used by" if option in OPTIONS else "is unknown to"
            raise ValueError(
                f"the option {option!r} {known} {label}; its options are {', '.join(allowed)}"
                f"{in_our_words(option, allowed)}"
            )
        for update in updates.values():
            if _takes(update, option):
                update[option] = value
    return {role: complete_update(update) for role, update in updates.items()}


def _takes(update: Update, option: str) -> bool:
    return option in usable(update) and (option != "shape" or update["norm"] == "spectral")
