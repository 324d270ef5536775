"""What the commands of a study print when they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from moga.api.result import Result

__all__ = ["Stopped", "show"]


class Stopped(Exception):
    """A study was stopped by the user; the text says how to go on."""


def show(found: Result) -> None:
    """Write the page beside the records; print the verdicts and where the page is."""
    page = found.report()
    typer.echo(str(found))
    typer.echo(f"\nreport: {page}")
