"""``moga balls``: the page of unit balls, written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["balls"]


def balls(
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("balls.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that moga balls has not made.")] = False,
) -> None:
    """Write a page to drag gradients on: unit balls, and the steps of steepest descent under each norm."""
    from moga.balls.page import write_balls

    done = write_balls(out, force=force)
    typer.echo(f"{done}: {out}")
    typer.echo(f"open it in a browser: {out.resolve().as_uri()}")
