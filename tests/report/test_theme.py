"""The colours, checked by computation: contrast with their ground, and difference for people who see fewer of them."""

import itertools
import math

import pytest

from moga.report import theme
from moga.report.theme import RECIPE_STYLES, VERDICTS, dark_colours, dashes, recipe_style, sequential

# Linear RGB as it is seen in full protanopia, deuteranopia and tritanopia: Machado, Oliveira and Fernandes, 2009.
SEEN = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
NEAR = 9  # CIE 1976 colour difference; about 2.3 is just noticeable
PAPER = {"light": "#ffffff", "dark": "#14171d"}


def linear(colour):
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def luminance(colour):
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(colour, seen):
    """CIELAB, D65."""
    red, green, blue = (min(1, max(0, sum(map(float.__mul__, map(float, row), linear(colour))))) for row in SEEN[seen])
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def nearest(colours, seen):
    return min(math.dist(lab(one, seen), lab(other, seen)) for one, other in itertools.combinations(colours, 2))


def palettes(ground):
    """Every set of colours that may stand in one figure, as it is on that ground."""
    counts = range(2, 7)
    light = [[colour for colour, *_ in RECIPE_STYLES], [colour for colour, *_ in VERDICTS.values()]]
    light += [sequential(count) for count in counts]
    change = dark_colours(counts)
    return light if ground == "light" else [[change[colour] for colour in colours] for colours in light]


def test_the_measures_on_known_colours():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert lab("#ff0000", "normal") == pytest.approx((53.24, 80.09, 67.2), abs=0.1)
    assert nearest(["#d62728", "#2ca02c"], "normal") > 100  # red and green,
    assert nearest(["#d62728", "#2ca02c"], "deuteranopia") < 45  # which come close to each other,
    assert nearest(["#c2410c", "#7a5c00"], "protanopia") < NEAR  # and a pair that does not pass


@pytest.mark.parametrize("ground", PAPER)
def test_colours_stand_out_from_their_ground(ground):
    for colours in palettes(ground):
        assert min(contrast(colour, PAPER[ground]) for colour in colours) >= 3


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("ground", PAPER)
def test_colours_of_one_figure_differ_for_everybody(ground, seen):
    for colours in palettes(ground):
        assert nearest(colours, seen) >= NEAR, colours


@pytest.mark.parametrize("count", [2, 4, 6, 9])
def test_sizes_are_ordered_by_lightness(count):
    light = sequential(count)
    dark = [dark_colours([count])[colour] for colour in light]
    assert sorted(light, key=luminance, reverse=True) == light
    assert sorted(dark, key=luminance) == dark


def test_no_colour_stands_alone():
    assert len({word for *_, word in map(recipe_style, range(12))}) == 2
    assert len({style[1:] for style in map(recipe_style, range(36))}) == 36
    assert len(set(dashes(6))) == 6
    assert len({dash for _, dash, *_ in VERDICTS.values()}) == 3


def test_text_is_read_on_both_grounds():
    change = dark_colours([])
    for colour in (theme.INK, theme.SOFT):
        assert contrast(colour, theme.PAPER) >= 4.5
        assert contrast(change[colour], change[theme.PAPER]) >= 4.5
        assert contrast(change[colour], change[theme.BAND]) >= 4.5
