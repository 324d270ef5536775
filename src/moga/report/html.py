"""Pages of one file: a template in the frame that all pages share, with style, script, figures and plotly.js inside."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from moga.report.charts import Figure
from moga.report.theme import dark_colours, typographic

__all__ = ["Card", "Chart", "environments", "plain", "render", "resource", "settings_of"]

SIGNS = {"yes": "✓", "no": "✗", "maybe": "?"}  # what a verdict is beside its colour


@dataclass(frozen=True)
class Card:
    """The verdict on one thing: its numbers as (label, number, unit), then the sentence.

    ``kind``: "yes", "no" or "maybe", or "" where there is only a number and no ``word``.
    """

    name: str
    numbers: Sequence[tuple[str, str, str]]
    text: str
    kind: str = ""
    word: str = ""

    @property
    def sign(self) -> str:
        """It carries the meaning where colour cannot."""
        return SIGNS.get(self.kind, "")


@dataclass(frozen=True)
class Chart:
    """A place of the page with a figure, or with several views to choose from, all of one group.

    ``alt`` says what is seen. Charts of one ``group`` share a legend where the page has one of that name.
    """

    title: str
    alt: str
    figures: Sequence[Figure]
    group: str = ""
    kind: str = ""
    word: str = ""

    @property
    def sign(self) -> str:
        """Of the verdict beside the title, if there is one."""
        return SIGNS.get(self.kind, "")

    @property
    def file(self) -> str:
        """The name of what is saved, without its ending; the page's script numbers names that come again."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.group} {self.title}".lower()).strip("-")

    @cached_property
    def sources(self) -> list[Markup]:
        """The figures as JSON."""
        return [_json(figure) for figure in self.figures]


def render(
    template: str, *, study: Mapping[str, Any], records: Sequence[Any], palettes: Iterable[int] = (), **values: Any
) -> str:
    """The page as one string of HTML. Its content security policy forbids the browser every connection.

    ``palettes``: the sizes of the sequential palettes in use.
    """
    environment = Environment(
        loader=PackageLoader("moga.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["typographic"] = typographic
    return environment.get_template(template).render(
        commands=study["commands"],
        unfinished=study.get("unfinished"),
        runs=len(records),
        environments=environments(records),
        dark=_json(dark_colours(palettes)),
        style=resource("style.css"),
        script=resource("page.js"),
        plotly=resource("vendor/plotly-basic.min.js"),
        **{"settings": settings_of(study), "left_out": ()} | values,
    )


def resource(name: str) -> Markup:
    """A file beside this one, to stand in a page as it is."""
    return Markup(files("moga.report").joinpath(name).read_text(encoding="utf-8"))


def settings_of(study: Mapping[str, Any]) -> dict[str, str]:
    """What a study was made with, its text last."""
    text = {f"corpus {name}": value for name, value in study["corpus"].items()}
    shown = {name: value for name, value in study["settings"].items() if name != "corpus"}
    return {name.replace("_", " "): plain(value) for name, value in (shown | text).items()}


def environments(records: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The machines and versions that runs were made with, each once."""
    found: list[dict[str, str]] = []
    for record in records:
        words = {name: plain(value) for name, value in record.get("environment", {}).items()}
        if words and words not in found:
            found.append(words)
    return found


def plain(value: Any) -> str:
    """A setting as text.

    >>> plain([0.9, None, 123456]), plain({})
    ('0.9, none, 123,456', 'none')
    """
    if value is None or value in ({}, ""):
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return str(value)


def _json(value: Any) -> Markup:
    """JSON that may stand inside a script element: no text in it can end the element."""
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))
