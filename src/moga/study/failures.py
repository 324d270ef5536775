"""Where a function of the user's own failed, in the lines that its author knows."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from types import FrameType

SHOWN = 3  # innermost places of one's own code
INSTALLED = (*{sysconfig.get_path(word) for word in ("stdlib", "platstdlib", "purelib", "platlib")}, "<frozen")
# What calls the user's functions.
CALLS = {"called", "call_factory", "loss_of", "make_optimizer", "_stream", "_held_out", "_batches"}


def failure_of(error: BaseException) -> str | None:
    """The error and the last places in the user's code that led to it; None where none did.

    >>> failure_of(ValueError("no traceback")) is None
    True
    """
    places = _places(error) or (_places(error.__cause__) if error.__cause__ else [])
    return "\n".join([_head(error), *places]) if places else None


def reason_of(error: BaseException) -> str:
    """`failure_of`, or the text of what was refused in words, or else the whole traceback.

    >>> reason_of(ValueError("too wide"))
    'ValueError: too wide'
    """
    if (found := failure_of(error)) is not None:
        return found
    if isinstance(error, ValueError):
        return _head(error)
    return "\n".join([_head(error), *_lines(list(traceback.walk_tb(error.__traceback__)))])


def _head(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _places(error: BaseException) -> list[str]:
    inside = list(_inside(error))
    own = [one for one in inside if not _is_moga(one[0]) and not one[0].f_code.co_filename.startswith(INSTALLED)]
    asked = any(_is_moga(frame) and frame.f_code.co_name in CALLS for frame, _ in inside)
    if own or not asked or _is_moga(inside[-1][0]):
        return _lines(own[-SHOWN:])
    return _lines(inside[-SHOWN:])  # a model of ready-made modules has no line of its own


def _inside(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames from the first one of moga's on."""
    begun = False
    for frame, line in traceback.walk_tb(error.__traceback__):
        begun = begun or _is_moga(frame)
        if begun:
            yield frame, line


def _is_moga(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "moga"


def _lines(frames: list[tuple[FrameType, int]]) -> list[str]:
    return [line.rstrip("\n") for line in traceback.StackSummary.extract(iter(frames)).format()]
