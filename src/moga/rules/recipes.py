"""Named optimizers as rows of one table: which update each role gets.

An update is a dict (or the word of its norm alone) with the keys

- ``norm``: "sign", "row" (exponent ``p``), "column" (exponent ``q``), "spectral" (``polar``: how the polar factor is
  computed) or "adam" (first over root of second moment; ``betas``, ``eps``; scaled as "sign");
- ``shape``: the word for what a unit direction is multiplied by; "rms", the norm's own scale, unless given;
- ``momentum`` and ``lookahead`` (not for adam), ``weight_decay``: where absent, the optimizer's own value holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moga.geometry.norms import NORMS, OperatorNorm, norm
from moga.geometry.polar import POLAR
from moga.geometry.shapes import SHAPES
from moga.rules.transfer import ROLES

Update = dict[str, Any]
OPTIONS = ("p", "q", "shape", "polar", "momentum", "lookahead", "weight_decay", "betas", "eps")


@dataclass(frozen=True)
class Recipe:
    """A published optimizer: an update per role, the hyper-parameters that it fixes, and where it is from."""

    rows: Mapping[str, str | Update]
    source: str
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _rows(hidden: str | Update, input: str | Update, output: str | Update, vector: str | Update) -> dict[str, Any]:
    return {"hidden": hidden, "input": input, "output": output, "vector": vector}


ADAM_UNSCALED = {"norm": "adam", "shape": "none"}
SIGN_UNSCALED = {"norm": "sign", "shape": "none"}

RECIPES: dict[str, Recipe] = {
    "moga-row": Recipe(_rows("row", "sign", "row", "sign"), "arXiv 2603.09952, Algorithm 1"),
    "moga-column": Recipe(_rows("column", "column", "sign", "sign"), "arXiv 2603.09952, Algorithm 1"),
    "muon": Recipe(
        _rows({"norm": "spectral", "shape": "rms", "polar": "quintic"}, "adam", "adam", "adam"),
        "Keller Jordan et al., Muon, 2024; shape 'moonlight': arXiv 2502.16982",
        {"betas": (0.9, 0.95)},
    ),
    "mup-adamw": Recipe(_rows("adam", "adam", "adam", "adam"), "Tensor Programs V, arXiv 2203.03466"),
    "adamw": Recipe(
        _rows(ADAM_UNSCALED, ADAM_UNSCALED, ADAM_UNSCALED, ADAM_UNSCALED),
        "arXiv 1711.05101",
        {"betas": (0.9, 0.999), "eps": 1e-8},
    ),
    "lion": Recipe(
        _rows(SIGN_UNSCALED, SIGN_UNSCALED, SIGN_UNSCALED, SIGN_UNSCALED),
        "arXiv 2302.06675",
        {"momentum": 0.99, "lookahead": 0.9},
    ),
}


def resolve_recipe(
    recipe: str | Mapping[str, str | Update], options: Mapping[str, Any] | None = None
) -> dict[str, Update]:
    """The complete update of each role, for a recipe's name or a dict role -> update, with options filled in.

    An option reaches the rows that can use it: ``p`` the row updates, ``q`` the column updates, ``shape`` and
    ``polar`` the spectral ones, ``betas`` and ``eps`` the adam ones, ``momentum`` and ``lookahead`` all others,
    ``weight_decay`` all. A tied matrix takes the input's update unless the dict has one for it.

    Raises ValueError for an unknown recipe, role, norm, word, or option, an option that no row can use, and a value
    out of range; TypeError for a recipe that is neither a name nor a dict.

    >>> resolve_recipe("moga-row", {"p": 1.5})["hidden"]
    {'norm': 'row', 'p': 1.5, 'q': None, 'shape': 'rms', 'polar': 'exact'}
    """
    rows, defaults = _rows_of(recipe)
    updates = {role: _as_dict(update, f"the recipe's {role!r} update") for role, update in rows.items()}
    for update in updates.values():
        for key in set(defaults) & set(usable(update["norm"])):
            update.setdefault(key, defaults[key])
    allowed = [word for word in OPTIONS if any(_takes(update, word) for update in updates.values())]
    for option, value in (options or {}).items():
        if option not in allowed:
            known = "cannot be used by" if option in OPTIONS else "is unknown to"
            label = repr(recipe) if isinstance(recipe, str) else "this recipe"
            raise ValueError(f"the option {option!r} {known} {label}; its options are {', '.join(allowed)}")
        for update in updates.values():
            if _takes(update, option):
                update[option] = value
    complete = {role: complete_update(update) for role, update in updates.items()}
    return complete if "tied" in complete or "input" not in complete else complete | {"tied": complete["input"]}


def _rows_of(recipe: str | Mapping[str, str | Update]) -> tuple[Mapping[str, str | Update], Mapping[str, Any]]:
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"unknown recipe {recipe!r}; the recipes are {', '.join(RECIPES)}")
        return RECIPES[recipe].rows, RECIPES[recipe].defaults
    if not isinstance(recipe, Mapping):
        raise TypeError(f"a recipe is a name or a dict role -> update; got {type(recipe).__name__}")
    for role in recipe:
        if role not in ROLES:
            raise ValueError(f"unknown role {role!r} in the recipe; the roles are {', '.join(ROLES)}")
    if not recipe:
        raise ValueError(f"the recipe is empty; it needs an update for each role that occurs ({', '.join(ROLES)})")
    return recipe, {}


def usable(word: str) -> tuple[str, ...]:
    """The keys that an update of that norm may have besides ``norm``.

    Raises ValueError for an unknown norm.

    >>> usable("row")
    ('p', 'shape', 'momentum', 'lookahead', 'weight_decay')
    """
    if word == "adam":
        return ("shape", "betas", "eps", "weight_decay")
    if word not in NORMS:
        raise ValueError(f"unknown norm {word!r} in an update; the norms are {', '.join(sorted((*NORMS, 'adam')))}")
    own = ("polar",) if word == "spectral" else tuple(NORMS[word].free)
    return (*own, "shape", "momentum", "lookahead", "weight_decay")


def _takes(update: Update, option: str) -> bool:
    return option in usable(update["norm"]) and (option != "shape" or update["norm"] == "spectral")


def _as_dict(update: object, what: str) -> Update:
    if isinstance(update, str):
        update = {"norm": update}
    if not isinstance(update, Mapping) or "norm" not in update:
        raise ValueError(f"{what} is {update!r}; it must be a norm's word or a dict with it: {{'norm': 'row', 'p': 2}}")
    allowed = usable(update["norm"])
    for key in update:
        if key != "norm" and key not in allowed:
            raise ValueError(f"{what} has {key!r}; for norm {update['norm']!r} the keys are norm, {', '.join(allowed)}")
    return dict(update)


def complete_update(update: str | Update, what: str = "the update") -> Update:
    """An update with every word filled in: norm, p, q, shape, polar, and the hyper-parameters that it states.

    ``polar`` says nothing where the norm is not spectral; it is there so that all updates have the same keys.

    Raises ValueError as :func:`resolve_recipe` does.

    >>> complete_update("column")
    {'norm': 'column', 'p': None, 'q': 2.0, 'shape': 'rms', 'polar': 'exact'}
    """
    given = _as_dict(update, what)
    word = given["norm"]
    free = "" if word == "adam" else NORMS[word].free
    size = operator_norm(given)
    full: Update = {
        "norm": word,
        "p": size.p if free == "p" else None,
        "q": size.q if free == "q" else None,
        "shape": _word("shape", given.get("shape", "rms"), SHAPES),
        "polar": _word("polar", given.get("polar", "quintic" if word == "spectral" else "exact"), POLAR),
    }
    hyper = {key: checked(key, value) for key, value in given.items() if key in CHECKS}
    return full | hyper


def operator_norm(update: Mapping[str, Any]) -> OperatorNorm:
    """The norm in which an update has a size; adam's is that of "sign".

    >>> operator_norm({"norm": "adam"}).scale(8, 4)
    0.25
    """
    word = "sign" if update["norm"] == "adam" else update["norm"]
    return norm(word, update.get("p"), update.get("q"))


def _word(key: str, value: object, table: Mapping[str, object]) -> object:
    if value not in table:
        raise ValueError(f"unknown {key} {value!r}; the words are {', '.join(table)}")
    return value


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _fraction(value: Any) -> bool:
    return _number(value) and 0 <= value < 1


def _not_negative(value: Any) -> bool:
    return _number(value) and value >= 0


def _pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_fraction, value))


CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "momentum": (_fraction, "a number in [0, 1)"),
    "lookahead": (lambda value: value is None or _fraction(value), "a number in [0, 1), or None for momentum**2"),
    "betas": (_pair, "two numbers in [0, 1)"),
    "eps": (_not_negative, "a number of at least 0"),
    "weight_decay": (_not_negative, "a number of at least 0"),
    "lr_scale": (_not_negative, "a number of at least 0"),
    "decay_scale": (_not_negative, "a number of at least 0"),
}


def checked(key: str, value: Any) -> Any:
    """The value as plain data, if it is in the range of its key.

    Raises ValueError otherwise.

    >>> checked("betas", (0.9, 0.95)), checked("momentum", 0)
    ([0.9, 0.95], 0.0)
    """
    test, allowed = CHECKS[key]
    if not test(value):
        raise ValueError(f"{key} must be {allowed}; got {value!r}")
    if value is None:
        return None
    return [float(one) for one in value] if key == "betas" else float(value)
