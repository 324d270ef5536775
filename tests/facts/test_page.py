"""docs/steepest-descent.md and its figures come from the build: ``python docs/make_steepest_descent.py``."""

from __future__ import annotations

import doctest
import math
import re
from pathlib import Path

import make_steepest_descent as maker
import pytest
from figures import draw
from matplotlib.figure import Figure

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
BUILD = "run: python docs/make_steepest_descent.py"


def last_digit(number: str) -> float:
    """The unit of the last digit that a number shows.

    >>> last_digit("0.25"), last_digit("6e-29")
    (0.01, 1e-29)
    """
    mantissa, _, exponent = number.partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def difference(written: str, made: str) -> str:
    """Where two pages differ: in a word, or in a number by more than one in its last digit. Empty where nowhere."""
    if NUMBER.sub("#", written) != NUMBER.sub("#", made):
        return "the words differ"
    for old, new in zip(NUMBER.findall(written), NUMBER.findall(made), strict=True):
        if abs(float(old) - float(new)) > 1.01 * max(last_digit(old), last_digit(new)):
            return f"{old} is written, {new} is made"
    return ""


def test_the_page_is_made_from_the_facts():
    assert difference(maker.PAGE.read_text(encoding="utf-8"), maker.page()) == "", BUILD


def test_a_changed_word_or_number_is_found():
    text = "phi(1) is 0.701 after 5 steps"
    assert difference(text, text.replace("0.701", "0.702")) == ""  # rounding on another machine
    assert difference(text, text.replace("0.701", "0.711")) == "0.701 is written, 0.711 is made"
    assert difference(text, text.replace("steps", "rounds")) == "the words differ"


def mismatch(written: draw.Drawn, made: draw.Drawn) -> str:
    """The first line of a figure that differs by more than 3 %, or by 0.3 % of the largest value."""
    if [line["label"] for line in written] != [line["label"] for line in made]:
        return "the lines are others"
    for old, new in zip(written, made, strict=True):
        for axis in ("x", "y"):
            floor = 3e-3 * max(map(abs, new[axis]), default=0.0)
            close = [
                math.isclose(a, b, rel_tol=0.03, abs_tol=floor) for a, b in zip(old[axis], new[axis], strict=False)
            ]
            if len(old[axis]) != len(new[axis]) or not all(close):
                return f"{new['label']}: {axis} differs"
    return ""


@pytest.mark.parametrize("name", draw.FIGURES)
def test_a_figure_shows_the_numbers_of_the_facts(name: str):
    path = maker.FIGURES / f"{name}.png"
    assert mismatch(draw.read(path), draw.drawn(draw.FIGURES[name]())) == "", BUILD
    assert path.stat().st_size < 80_000


def outside(figure: Figure) -> list[str]:
    """The notes of a figure that cross the lines of its axes."""
    figure.draw_without_rendering()
    found = []
    for axis in figure.axes:
        frame = axis.get_window_extent()
        for text in axis.texts:
            box = text.get_window_extent()
            if not (frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1)):
                found.append(text.get_text())
    return found


@pytest.mark.parametrize("name", draw.FIGURES)
def test_notes_stay_within_the_axes(name: str):
    assert outside(draw.FIGURES[name]()) == []


def test_a_note_across_an_axis_is_found():
    figure, (axis,) = draw.panels()
    draw.note(axis, 0.0, 0.5, "across", ha="center")
    assert outside(figure) == ["across"]


def test_a_changed_figure_is_found():
    made = draw.drawn(draw.FIGURES["quintic"]())
    moved = [{**line, "y": [1.1 * y for y in line["y"]]} for line in made]
    assert "differs" in mismatch(moved, made)
    assert mismatch(made[1:], made) == "the lines are others"
    assert "differs" in mismatch([{**line, "y": line["y"][1:], "x": line["x"][1:]} for line in made], made)


def test_the_examples_of_the_build_are_true():
    assert doctest.testmod(maker) == (0, 1)


def test_every_figure_is_on_the_page_and_the_other_way_round():
    shown = re.findall(r"!\[[^\]]+\]\(figures/([a-z-]+)\.png\)", maker.PAGE.read_text(encoding="utf-8"))
    assert shown == list(draw.FIGURES)
    assert sorted(path.stem for path in Path(maker.FIGURES).glob("*.png")) == sorted(draw.FIGURES)
