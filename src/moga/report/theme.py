"""Colours and number formats, once for the page and for the PNGs.

Widths are ordered, so they get a sequential palette (viridis without its yellow end, which vanishes on white): larger
is darker, and the order survives colour blindness and a grey print. Recipes are names, so they get the Okabe-Ito
palette, which stays distinct under every common colour blindness; each also has its own marker.
"""

from __future__ import annotations

import math

__all__ = ["RECIPE_STYLES", "describe_rate", "format_number", "power_of_two", "sequential"]

_VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98))  # at 0, 1/4, 1/2 and 3/4 of the full map

# colour, plotly symbol, matplotlib marker
RECIPE_STYLES: tuple[tuple[str, str, str], ...] = (
    ("#0072B2", "circle", "o"),
    ("#D55E00", "square", "s"),
    ("#009E73", "diamond", "D"),
    ("#CC79A7", "triangle-up", "^"),
    ("#7A5C00", "triangle-down", "v"),
    ("#2A2A2A", "cross", "P"),
)


def sequential(count: int) -> list[str]:
    """``count`` colours from light to dark; each is darker than the one before.

    >>> sequential(2)
    ['#5ec962', '#440154']
    >>> sequential(1)
    ['#33658b']
    """
    if count == 1:
        return [_at(1.3)]
    return [_at(3.0 * (count - 1 - index) / (count - 1)) for index in range(count)]


def _at(position: float) -> str:
    """The colour at ``position`` in [0, 3], linear between the stops."""
    left = min(int(position), 2)
    part = position - left
    channels = (round(a + part * (b - a)) for a, b in zip(_VIRIDIS[left], _VIRIDIS[left + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def format_number(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """``value`` with ``digits`` decimals and a real minus sign; None is an en dash, infinity says ``diverged``.

    >>> format_number(-0.12345), format_number(0.2, 2, signed=True), format_number(None), format_number(float("inf"))
    ('−0.123', '+0.20', '–', 'diverged')
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "diverged"
    return f"{value:{'+' if signed else ''}.{digits}f}".replace("-", "−")


def power_of_two(rate: float) -> str:
    """``rate`` as a power of two, in the HTML that pages and plotly's labels share.

    >>> power_of_two(0.125), power_of_two(0.1)
    ('2<sup>−3</sup>', '2<sup>−3.32</sup>')
    """
    exponent = f"{math.log2(rate):.2f}".rstrip("0").rstrip(".").replace("-", "−")
    return f"2<sup>{exponent}</sup>"


def describe_rate(rate: float) -> str:
    """A learning rate as a number to type and as a power of two to compare.

    >>> describe_rate(0.0625)
    '0.0625 (2<sup>−4</sup>)'
    """
    return f"{rate:.3g} ({power_of_two(rate)})"
