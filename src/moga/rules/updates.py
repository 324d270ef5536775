"""The words of an update: its norm, its step, its constraint, and the numbers that each combination takes.

An update is a dict (or the word of its norm alone) with the keys

- ``norm``, the direction: "sign", "row" (exponent ``p``), "column" (exponent ``q``), "spectral" (``polar``: how the
  polar factor is computed), "euclidean"; or an adaptive one, "adam", "rmsprop" or "shampoo", which has state instead;
- ``step``: "fixed", a step of unit size (the default); "dual", times the dual norm of the gradient; "trust_ratio",
  times the size of the weight over that of the step;
- ``constraint``: "decay", none but decoupled weight decay (the default); "sphere", the Frobenius norm of each matrix
  stays as it is; "stiefel", rows or columns stay orthonormal; "row_magnitude", the length of each row is a parameter
  of its own, updated by Adam;
- ``shape``: the word for what a unit direction is multiplied by; "rms", the norm's own scale, unless given; and
  ``radius``, a number that multiplies it too;
- ``average``: "mean" ``M = b1 M + (1 - b1) G`` (the default), "sum" ``M = b1 M + G``, or "none" (no state);
- ``momentum`` b1 and ``lookahead`` b2 (a number, None for b1^2, or "momentum" for b1 itself), ``weight_decay``, and
  the published numbers of the combination in :data:`NUMBERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from moga.geometry.norms import NORMS, OperatorNorm, norm
from moga.geometry.polar import POLAR
from moga.geometry.shapes import SHAPES, shape_factor

Update = dict[str, Any]

ADAPTIVE = ("adam", "rmsprop", "shampoo")
UPDATES = (*NORMS, "euclidean", *ADAPTIVE)
STEPS = ("fixed", "dual", "trust_ratio")
CONSTRAINTS = ("decay", "sphere", "stiefel", "row_magnitude")
AVERAGES = ("mean", "sum", "none")
CALIBRATIONS = ("none", "first_step")
HELD = ("sphere", "stiefel")  # constraints that fix the size of a weight: a decay would be undone by them

# (norm, step, constraint) -> where it is published. There are no others.
COMBINATIONS: dict[tuple[str, str, str], str] = {
    **{(word, "fixed", "decay"): "every optimizer with a step of fixed size" for word in UPDATES},
    ("euclidean", "dual", "decay"): "gradient descent: the direction times its dual norm is the gradient",
    ("sign", "dual", "decay"): "arXiv 2409.20325, Section 2: sign descent without Adam's normalisation",
    ("spectral", "dual", "decay"): "stochastic spectral descent (Carlson et al., AISTATS 2015; arXiv 2409.20325)",
    ("spectral", "trust_ratio", "decay"): "arXiv 2605.07815 (OrScale)",
    ("spectral", "fixed", "sphere"): "arXiv 2603.28743 (HyperP)",
    ("row", "fixed", "sphere"): "new here: the row-normalised step on HyperP's sphere",
    ("spectral", "fixed", "stiefel"): "arXiv 2601.21487 (SPEL)",
    ("spectral", "fixed", "row_magnitude"): "arXiv 2605.10797 (Muown)",
}

# The numbers and words that some combinations have besides: key -> (who has it, value where none is given).
NUMBERS: dict[str, tuple[Callable[[Mapping[str, Any]], bool], Any]] = {
    "alpha": (lambda update: update["norm"] == "rmsprop", 0.99),
    "damping": (lambda update: update["norm"] == "shampoo", 1e-4),
    "trust_clip": (lambda update: update.get("step") == "trust_ratio", [0.5, 1.5]),
    "calibration": (lambda update: update.get("step") == "trust_ratio", "none"),
}


def usable(update: str | Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that an update (or the plain update of that norm) may have besides ``norm``.

    Raises ValueError for an unknown norm.

    >>> usable("row")
    ('p', 'shape', 'radius', 'average', 'momentum', 'lookahead', 'weight_decay', 'step', 'constraint')
    >>> usable({"norm": "spectral", "constraint": "sphere"})
    ('polar', 'average', 'momentum', 'lookahead', 'step', 'constraint')
    """
    update = {"norm": update} if isinstance(update, str) else update
    word = _word("norm", update["norm"], UPDATES)
    constraint = update.get("constraint", "decay")
    has = {
        "p": word == "row",
        "q": word == "column",
        "polar": word == "spectral",
        "shape": word != "euclidean" and constraint != "sphere",
        "radius": constraint == "decay",
        "average": word not in ADAPTIVE,
        "momentum": word not in ADAPTIVE and update.get("average") != "none",
        "lookahead": word not in ADAPTIVE and update.get("average") != "none",
        "betas": word == "adam" or constraint == "row_magnitude",
        "eps": word in ("adam", "rmsprop") or constraint == "row_magnitude",
        **{key: belongs(update) for key, (belongs, _) in NUMBERS.items()},
        "weight_decay": constraint not in HELD,
        "step": True,
        "constraint": True,
    }
    return tuple(key for key, there in has.items() if there)


def as_dict(update: object, what: str) -> Update:
    """The update as a dict of its own. Raises ValueError for what is none, and for a key that it cannot use.

    >>> as_dict("row", "the update")
    {'norm': 'row'}
    """
    if isinstance(update, str):
        update = {"norm": update}
    if not isinstance(update, Mapping) or "norm" not in update:
        raise ValueError(f"{what} is {update!r}; it must be a norm's word or a dict with it: {{'norm': 'row', 'p': 2}}")
    allowed = usable(update)
    check_combination(update)
    for key in update:
        if key != "norm" and key not in allowed:
            raise ValueError(f"{what} has {key!r}; for {_label(update)} the keys are norm, {', '.join(allowed)}")
    return dict(update)


def _label(update: Mapping[str, Any]) -> str:
    words = [f"{key} {update[key]!r}" for key in ("norm", "step", "constraint", "average") if key in update]
    return ", ".join(words)


def check_combination(update: Mapping[str, Any]) -> None:
    """Raises ValueError if no such norm, step or constraint exists, or not together.

    >>> check_combination({"norm": "row", "constraint": "sphere"})
    """
    step = _word("step", update.get("step", "fixed"), STEPS)
    constraint = _word("constraint", update.get("constraint", "decay"), CONSTRAINTS)
    if (update["norm"], step, constraint) not in COMBINATIONS:
        there = [" ".join(words) for words in COMBINATIONS if words[1:] != ("fixed", "decay")]
        raise ValueError(
            f"norm {update['norm']!r}, step {step!r} and constraint {constraint!r} do not exist together; 'fixed' with "
            f"'decay' goes with every norm, and besides (norm step constraint): {', '.join(there)}"
        )


def complete_update(update: str | Update, what: str = "the update") -> Update:
    """An update with every word filled in, and the hyper-parameters that it states.

    ``polar`` and ``average`` say nothing where the norm has none; they are there so that all updates have those keys.

    Raises ValueError for unknown words, combinations and keys, and for a value out of range.

    >>> complete_update({"norm": "column", "momentum": 0.9})  # doctest: +NORMALIZE_WHITESPACE
    {'norm': 'column', 'p': None, 'q': 2.0, 'shape': 'rms', 'polar': 'exact', 'step': 'fixed', 'constraint': 'decay',
     'average': 'mean', 'momentum': 0.9}
    """
    given = as_dict(update, what)
    word, allowed = given["norm"], usable(given)
    size = operator_norm(given)
    full: Update = {
        "norm": word,
        "p": size.p if "p" in allowed else None,
        "q": size.q if "q" in allowed else None,
        "shape": _word("shape", given.get("shape", "rms" if "shape" in allowed else "none"), SHAPES),
        "polar": _word("polar", given.get("polar", "quintic" if word == "spectral" else "exact"), POLAR),
        "step": given.get("step", "fixed"),
        "constraint": given.get("constraint", "decay"),
        "average": _word("average", given.get("average", "mean"), AVERAGES),
    }
    given = {**{key: default for key, (_, default) in NUMBERS.items() if key in allowed}, **given}
    return full | {key: checked(key, value) for key, value in given.items() if key in CHECKS}


def operator_norm(update: Mapping[str, Any]) -> OperatorNorm:
    """The norm whose scale an update takes: that of "sign" for an adaptive one but Shampoo, which is "spectral".

    >>> operator_norm({"norm": "adam"}).scale(8, 4)
    0.25
    """
    as_norm = {"adam": "sign", "rmsprop": "sign", "euclidean": "spectral", "shampoo": "spectral"}
    word = as_norm.get(update["norm"], update["norm"])
    return norm(word, update.get("p"), update.get("q"))


def update_scale(update: Mapping[str, Any], out: int, in_: int) -> float:
    """What a complete update multiplies its unit direction by, for a matrix with fans ``out`` and ``in_``.

    >>> update_scale(complete_update({"norm": "row", "radius": 3.0}), 8, 4)
    1.5
    """
    if 0 in (out, in_):
        return 1.0  # an empty tensor takes no step
    return shape_factor(update["shape"], operator_norm(update), out, in_) * float(update.get("radius", 1.0))


def _word(key: str, value: Any, table: Any) -> Any:
    if not isinstance(value, str) or value not in table:
        words = sorted(table) if key == "norm" else table
        where = f"{key} {value!r} in an update; the {key}s are" if key == "norm" else f"{key} {value!r}; the words are"
        raise ValueError(f"unknown {where} {', '.join(words)}")
    return value


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _fraction(value: Any) -> bool:
    return _number(value) and 0 <= value < 1


def _not_negative(value: Any) -> bool:
    return _number(value) and value >= 0


def _two(value: Any, test: Callable[[Any], bool]) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(test, value))


CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "momentum": (_fraction, "a number in [0, 1)"),
    "lookahead": (
        lambda value: value in (None, "momentum") or _fraction(value),
        'a number in [0, 1), None for momentum**2, or "momentum"',
    ),
    "betas": (lambda value: _two(value, _fraction), "two numbers in [0, 1)"),
    "eps": (_not_negative, "a number of at least 0"),
    "alpha": (_fraction, "a number in [0, 1)"),
    "damping": (lambda value: _number(value) and value > 0, "a number above 0"),
    "trust_clip": (
        lambda value: _two(value, _not_negative) and value[0] <= value[1],
        "two numbers, 0 <= least <= most",
    ),
    "calibration": (lambda value: value in CALIBRATIONS, f"one of the words {', '.join(CALIBRATIONS)}"),
    "radius": (lambda value: _number(value) and value > 0, "a number above 0"),
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
    if value is None or isinstance(value, str):
        return value
    return [float(one) for one in value] if isinstance(value, (list, tuple)) else float(value)
