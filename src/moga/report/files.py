"""Files that are there whole or not at all."""

from __future__ import annotations

import io
import os
from pathlib import Path

from matplotlib.figure import Figure

from moga.study.records import replace_file

__all__ = ["write_picture", "write_whole"]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there: who reads at any moment gets the old one or the new one.

    Raises StudyError where it cannot be written; then the old file is as it was.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # of its own, should two processes write one report
    replace_file(path, content, part)


def write_picture(path: Path, figure: Figure, dots_per_inch: int) -> None:
    """Write a figure as PNG on white, as :func:`write_whole`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch, facecolor="white")
    write_whole(path, buffer.getvalue())
