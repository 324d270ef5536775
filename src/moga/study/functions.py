"""Functions given as objects: the word under which a study knows each, and how they reach worker processes.

A function that another process finds again is known by its import path. Any other (of a notebook, a script, or made
inside a function) is known while the study runs: its word is ``module:name`` too, workers get a copy of it, and the
records keep the fingerprint of its code.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torch import nn

from moga.study.fingerprints import Unclear, fingerprint
from moga.study.records import StudyError


@dataclass(frozen=True)
class Given:
    """A function by value. code: its fingerprint, "" where nobody will compare it."""

    function: Callable[..., Any]
    code: str


_GIVEN: dict[str, Given] = {}  # of the study that runs now, in this process
_RUNNING = threading.Lock()  # held by that study


def word_of(function: Callable[..., Any]) -> str:
    """``module:name`` of a function or a class.

    Raises:
        ValueError: any other callable, which has no name.

    >>> from fractions import Fraction
    >>> word_of(Fraction)
    'fractions:Fraction'
    """
    if isinstance(function, nn.Module):
        raise ValueError(
            f"a study makes a model at every size, and got one that is made ({type(function).__name__}); give a "
            "function of the size that returns it, as in `def net(width): ...`"
        )
    if not isinstance(function, (FunctionType, type)):
        raise ValueError(
            f"a study takes functions and classes, which have a name for its records; got {type(function).__name__} "
            f"({function!r}); write `def name(...): ...` around it"
        )
    return f"{function.__module__}:{function.__qualname__}"


def importable(function: Callable[..., Any]) -> bool:
    """Whether another process finds the same function under its word.

    >>> importable(importable), importable(lambda width: None)
    (True, False)
    """
    module, _, name = word_of(function).partition(":")
    return module != "__main__" and getattr(sys.modules.get(module), name, None) is function


def given(functions: Iterable[Callable[..., Any]], *, compared: bool) -> dict[str, Given]:
    """Those of the functions that no import path finds, by word. compared: records of another day may meet them.

    Raises:
        ValueError: two functions of one name; with ``compared`` a function whose code has no fingerprint.
    """
    found: dict[str, Given] = {}
    for function in functions:
        word = word_of(function)
        if importable(function):
            continue
        if word in found and found[word].function is not function:
            raise ValueError(f"two functions of this study are called {word}; give one of them another name")
        found[word] = Given(function, _code(function, word) if compared else "")
    return found


def _code(function: Callable[..., Any], word: str) -> str:
    try:
        return fingerprint(function)
    except Unclear as error:
        raise ValueError(
            f"{word} uses {error}, and nothing tells whether that is the same when the study in out= goes on; make it "
            "inside the function or in a module of its own, or leave out= away"
        ) from None


@contextmanager
def known(functions: Mapping[str, Given]) -> Iterator[None]:
    """Inside, this process and its workers find the functions under their words.

    Raises:
        StudyError: a study runs already; two would share these words, torch's random numbers and its threads.
    """
    if not _RUNNING.acquire(blocking=False):
        raise StudyError(
            "a study runs in this process already, and random numbers and threads are those of a process; wait until "
            "it has ended, give all recipes to one study, or run this one in a process of its own"
        )
    try:
        _GIVEN.update(functions)
        yield
    finally:
        _GIVEN.clear()
        _RUNNING.release()


def find_given(word: str) -> Given | None:
    """The function of that word that the running study was given, if it was."""
    return _GIVEN.get(word)


def pack() -> bytes:
    """The known functions with all that they use of their own module, for `unpack` in another process.

    Raises:
        StudyError: one of them holds something that cannot be sent.
    """
    if not _GIVEN:
        return b""
    import cloudpickle

    try:
        packed: bytes = cloudpickle.dumps(_GIVEN)
    except Exception as error:
        raise StudyError(
            f"{', '.join(_GIVEN)} cannot be sent to worker processes ({type(error).__name__}: {error}); put what they "
            "hold into a module of its own, or give workers=1"
        ) from error
    return packed


def unpack(packed: bytes) -> None:
    """Know the functions that another process packed, as long as this one lives."""
    if packed:
        _GIVEN.update(pickle.loads(packed))
