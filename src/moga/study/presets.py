"""Plans that are known to work, default rates, and how rates, sizes and times are written on a command line."""

from __future__ import annotations

import math
import re

from moga.study.settings import Plan


def _powers(first: int, last: int) -> tuple[float, ...]:
    return tuple(2.0**exponent for exponent in range(first, last + 1))


# Factors of 2 around the optimum of each recipe at widths 32 to 256 and 200 to 400 steps, in its own unit: the norm of
# one update, and for the two that do not scale (adamw, lion) the size of one entry's update.
DEFAULT_RATES: dict[str, tuple[float, ...]] = {
    "moga-row": _powers(-6, -1),
    "moga-column": _powers(-6, -1),
    "mup-adamw": _powers(-4, 1),
    "muon": _powers(-7, -2),
    "adamw": _powers(-12, -6),
    "lion": _powers(-12, -6),
}

PRESETS: dict[str, Plan] = {
    "quick": Plan(
        rates={"moga-row": DEFAULT_RATES["moga-row"], "adamw": _powers(-10, -5)},
        sizes=(32, 64, 128),
    ),
    "full": Plan(
        rates={
            "moga-row": _powers(-5, -2),
            "moga-column": _powers(-5, -2),
            "muon": _powers(-5, -2),
            "mup-adamw": _powers(-4, 0),
            "adamw": _powers(-11, -6),
        },
        sizes=(64, 128, 256),
        seeds=(0, 1),
    ),
}


def preset(name: str) -> Plan:
    """A plan by name.

    Raises:
        ValueError: an unknown name; the known ones are listed.

    >>> preset("quick").sizes
    (32, 64, 128)
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]


def default_rates(recipe: str) -> tuple[float, ...]:
    """The rates to try for a recipe when none are given.

    Raises:
        ValueError: there are none for this recipe.

    >>> default_rates("moga-row")[0] == 2**-6
    True
    """
    if recipe not in DEFAULT_RATES:
        raise ValueError(
            f"no default learning rates for {recipe!r}, only for {', '.join(DEFAULT_RATES)}; "
            "give them, as in 2**-6:2**-1"
        )
    return DEFAULT_RATES[recipe]


def parse_rates(text: str) -> tuple[float, ...]:
    """Learning rates, ascending: numbers and powers with commas, or `first:last` for all factors of 2 between them.

    Raises:
        ValueError: something else, a rate that is not positive, or a range that is not whole factors of 2.

    >>> parse_rates("2**-3:2**-1"), parse_rates("0.2,0.1"), parse_rates("0.3:1.2")
    ((0.125, 0.25, 0.5), (0.1, 0.2), (0.3, 0.6, 1.2))
    """
    rates: set[float] = set()
    for part in text.split(","):
        rates.update(_range(part) if ":" in part else (_rate(part),))
    return tuple(sorted(rates))


def _range(text: str) -> tuple[float, ...]:
    first, last = (_rate(end) for end in text.split(":", 1))
    octaves = math.log2(last / first)
    if octaves < 0 or abs(octaves - round(octaves)) > 1e-6:
        raise ValueError(
            f"{text.strip()!r} is no range of learning rates: from the smaller to the larger in whole factors of 2, "
            "as in 2**-6:2**-1"
        )
    return tuple(first * 2.0**octave for octave in range(round(octaves) + 1))


def _rate(text: str) -> float:
    number = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    match = re.fullmatch(rf"({number})(?:\s*(?:\*\*|\^)\s*({number}))?", text.strip())
    if match is None:
        raise ValueError(
            f"{text.strip()!r} is no learning rate; write numbers or powers with commas (0.1,0.2 or 2**-3,2**-2) or a "
            "range in factors of 2 (2**-6:2**-1)"
        )
    try:
        value = float(match[1]) ** float(match[2] or 1)
    except (OverflowError, ZeroDivisionError):
        value = math.inf
    if isinstance(value, complex) or not 0 < value < math.inf:
        raise ValueError(f"a learning rate must be finite and above 0, got {text.strip()!r}")
    return float(value)


def parse_integers(text: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers with commas, ascending, each once (for sizes; for seeds with least=0).

    Raises:
        ValueError: something else, or a number below `least`.

    >>> parse_integers("64, 32")
    (32, 64)
    """
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"{text!r} is no list of whole numbers; write them with commas, as in 32,64,128") from None
    if numbers[0] < least:
        raise ValueError(f"numbers must be at least {least}, got {numbers[0]} in {text!r}")
    return tuple(numbers)


SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_seconds(text: str) -> float:
    """A time in seconds: a number and s, m or h, or several of these.

    Raises:
        ValueError: something else, or no time at all.

    >>> parse_seconds("30m"), parse_seconds("1h 30m"), parse_seconds("1.5h")
    (1800.0, 5400.0, 5400.0)
    """
    parts = re.findall(r"(\d+\.?\d*)([smh])", text)
    total = sum(float(number) * SECONDS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text.replace(" ", "") or not total > 0:
        raise ValueError(f"{text!r} is no time; write a number above 0 and s, m or h, as in 30m or 1h30m")
    return total
