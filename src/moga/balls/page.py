"""One self-contained HTML page to drag gradients on. Its formulas, ``formulas.js``, are the twin of `moga.geometry`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["render_balls", "write_balls"]

MARK = '<meta name="generator" content="moga balls">'  # a file with it may be replaced: it holds nobody's work
PARTS = ("page.css", "formulas.js", "planes.js", "page.js")


def render_balls() -> str:
    """The page as one string of HTML. Its content security policy forbids the browser every connection.

    >>> MARK in render_balls(), "{{" in render_balls()
    (True, False)
    """
    page = _resource("page.html")
    for name in PARTS:
        page = page.replace("{{ " + name + " }}", _resource(name))
    return page


def write_balls(path: Path, *, force: bool = False) -> str:
    """Write the page to ``path`` and return what was done: ``written`` or ``replaced``.

    Raises FileExistsError for a file that is no page of this command, unless ``force``; IsADirectoryError for a
    directory.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; give a file, as in --out {path / 'balls.html'}")
    existed = path.exists()
    if existed and not force and MARK.encode() not in path.read_bytes():
        raise FileExistsError(
            f"{path} exists and was not made by moga balls; give another --out, or --force to replace it"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_balls(), encoding="utf-8")
    return "replaced" if existed else "written"


def _resource(name: str) -> str:
    return files("moga.balls").joinpath(name).read_text(encoding="utf-8")
