"""Colours and number formats, once for the page and for the PNGs.

Widths are ordered, so they get a sequential palette, a part of viridis: on white the larger is darker, on a dark page
it is lighter, and the order survives colour blindness and a grey print. Recipes are names, so they get hues near those
of Okabe and Ito, which stay distinct under every common colour blindness. Every colour stands out from its ground by
3:1 at least, and none stands alone: widths differ in their dashes too, recipes in their markers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "BAND",
    "DASHES",
    "GRID",
    "INK",
    "LINE",
    "PAPER",
    "RECIPE_STYLES",
    "SOFT",
    "STRONG",
    "VERDICTS",
    "Style",
    "dark_colours",
    "dashes",
    "describe_rate",
    "format_loss",
    "format_number",
    "power_of_two",
    "recipe_style",
    "sequential",
    "short_names",
    "typographic",
    "verbatim",
]

PAPER, INK, SOFT, GRID, BAND, LINE, STRONG = (
    "#ffffff", "#1f2430", "#5b6270", "#e8eaef", "#f3f4f7", "#aab0bd", "#8a91a0",
)  # fmt: skip
_DARK = {PAPER: "#14171d", INK: "#e8eaee", SOFT: "#a5adbb", GRID: "#2c323d", BAND: "#1f242d", LINE: "#6d7584"}

DASHES = {  # plotly's word -> matplotlib's
    "solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 3)), "longdashdot": (0, (8, 3, 1, 3)),
}  # fmt: skip

# What is said of a module -> colour, dash and width of its line, and its colour on a dark page.
VERDICTS = {
    "fails": ("#c2410c", "solid", 2.0, "#ff7a45"),
    "undecided": ("#4a3800", "dash", 1.6, "#f5e08a"),
    "passes": ("#5b6f8f", "dot", 1.0, "#7f97bd"),
}

_VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
LONGEST = 40  # characters of a name in a legend or above a panel
_LIGHT_ENDS, _DARK_ENDS = (2.35, 0.0), (1.4, 4.0)  # places in viridis of the smallest and of the largest


class Style(NamedTuple):
    """How a name is drawn: colour, plotly's symbol, matplotlib's marker, and dash."""

    colour: str
    symbol: str
    marker: str
    dash: str


# colour, plotly symbol, matplotlib marker
RECIPE_STYLES: tuple[tuple[str, str, str], ...] = (
    ("#0072B2", "circle", "o"),
    ("#D55E00", "square", "s"),
    ("#00916A", "diamond", "D"),
    ("#C05C9A", "triangle-up", "^"),
    ("#6B5200", "triangle-down", "v"),
    ("#2A2A2A", "cross", "P"),
)
_RECIPES_DARK = ("#4A9FE8", "#E8702A", "#2CC89A", "#EBA3CF", "#F0E442", "#FFFFFF")


def recipe_style(index: int) -> Style:
    """The style of the recipe at a place in the records; beyond six, colours and symbols come again with other dashes.

    >>> recipe_style(0), recipe_style(6).dash
    (Style(colour='#0072B2', symbol='circle', marker='o', dash='solid'), 'dash')
    """
    turn, place = divmod(index, len(RECIPE_STYLES))
    return Style(*RECIPE_STYLES[place], list(DASHES)[turn % len(DASHES)])


def sequential(count: int) -> list[str]:
    """``count`` colours from light to dark; each is darker than the one before.

    >>> sequential(2)
    ['#36a57d', '#440154']
    >>> sequential(1)
    ['#365d8b']
    """
    return _between(*_LIGHT_ENDS, count)


def dashes(count: int) -> list[str]:
    """As many dashes, to tell lines apart without colour; the largest of a few is solid.

    >>> dashes(3)
    ['dot', 'dash', 'solid']
    """
    words = list(DASHES)
    return [words[(count - 1 - index) % len(words)] for index in range(count)]


def dark_colours(counts: Iterable[int]) -> dict[str, str]:
    """What each colour of a page becomes on a dark one; ``counts``: of the sequential palettes in use.

    >>> dark_colours([2])["#440154"]
    '#fde725'
    """
    found = _DARK | {light: dark for (light, *_), dark in zip(RECIPE_STYLES, _RECIPES_DARK, strict=True)}
    found |= {light: dark for light, *_, dark in VERDICTS.values()}
    for count in counts:
        found |= dict(zip(sequential(count), _between(*_DARK_ENDS, count), strict=True))
    return found


def _between(first: float, last: float, count: int) -> list[str]:
    """Colours at equal distances in viridis; a single one lies in the middle."""
    if count == 1:
        return [_at((first + last) / 2)]
    return [_at(first + (last - first) * index / (count - 1)) for index in range(count)]


def _at(position: float) -> str:
    """The colour of viridis at ``position`` in [0, 4], linear between the stops."""
    left = min(int(position), len(_VIRIDIS) - 2)
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
    rounded = round(value, digits) + 0.0  # not -0.0
    return f"{rounded:{'+' if signed else ''}.{digits}f}".replace("-", "−")


def format_loss(value: float, digits: int = 4) -> str:
    """``value`` with as many significant digits, whatever its unit; every digit before the point up to nine.

    >>> format_loss(1.9654), format_loss(0.0004), format_loss(63302872.4), format_loss(float("inf"))
    ('1.965', '0.0004000', '63302872', 'diverged')
    """
    if not math.isfinite(value):
        return "diverged"
    if 1 <= abs(value) < 1e9:
        return f"{value:.{max(0, digits - len(str(int(abs(value)))))}f}".replace("-", "−")
    return f"{value + 0.0:#.{digits}g}".replace("-", "−")


def typographic(text: str) -> str:
    """Real minus signs before numbers, and errors that stay on the line of their sign; powers as in a^-1 are kept.

    >>> typographic("moves by -0.05 ± 0.01 in gpt-2, width^-0.5")
    'moves by −0.05 ±\\xa00.01 in gpt-2, width^-0.5'
    """
    return re.sub(r"(?<![\w^.-])-(?=\d)", "−", text).replace("± ", "±\u00a0")


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Name -> what legends and panels say: of a long import path the function, numbered where two would be the same.

    >>> package = "a.package.with.a.name.that.is.long"
    >>> list(short_names(["adamw", f"{package}.first:descent", f"{package}.second:descent"]).values())
    ['adamw', '…:descent', '…:descent (2)']
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        short = "…:" + name.rpartition(":")[2] if len(name) > LONGEST and ":" in name else name
        short = short if len(short) <= LONGEST else short[: LONGEST - 1] + "…"
        same = sum(one.partition(" (")[0] == short for one in found.values())
        found[name] = f"{short} ({same + 1})" if same else short
    return found


def verbatim(text: str) -> str:
    """``text`` for matplotlib, which takes what stands between two dollars for mathematics.

    >>> verbatim("a$b$")
    'a\\\\$b\\\\$'
    """
    return text.replace("$", r"\$")


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
