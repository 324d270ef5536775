"""Pages of one file: a template in the frame that all pages share, with style, figures and plotly.js inside."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs


def render(template: str, *, figures: Any, unit: str = "runs", **values: Any) -> str:
    """The page as one string of HTML. Its content security policy forbids the browser every connection.

    ``figures`` is what the page's script draws; ``unit`` are what its records are, in the plural.
    """
    environment = Environment(
        loader=PackageLoader("moga.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        figures=_json(figures), unit=unit, style=resource("style.css"), plotly=Markup(get_plotlyjs()), **values
    )


def resource(name: str) -> Markup:
    """A file beside this one, to stand in a page as it is."""
    return Markup(files("moga.report").joinpath(name).read_text(encoding="utf-8"))


def settings_of(study: dict[str, Any]) -> dict[str, Any]:
    """What a study was made with, its text last."""
    return {**study["settings"], **{f"corpus {name}": value for name, value in study["corpus"].items()}}


def _json(value: Any) -> Markup:
    """JSON that may stand inside a script element: no text in it can end the element."""
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))
