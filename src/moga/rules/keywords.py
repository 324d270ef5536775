"""Keywords that a function passes on, shown one by one: help() and notebooks read ``__signature__``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class _Recipes:
    """The default of what is left to the recipe, in a signature."""

    def __repr__(self) -> str:
        return "<the recipe's>"


def near(word: str, words: Iterable[str]) -> str:
    """The end of an error: the word that was perhaps meant, "" where none is near.

    >>> near("AdamW", ["lion", "adamw"]), near("steps", ["lion"])
    ('; did you mean adamw?', '')
    """
    found = difflib.get_close_matches(word.lower(), words, 1)
    return f"; did you mean {found[0]}?" if found else ""


def keywords_of(what: Any) -> list[inspect.Parameter]:
    """The parameters that can be given by keyword alone: of a function, a class, or a TypedDict of options.

    >>> [str(one) for one in keywords_of(sorted)]
    ['key=None', 'reverse=False']
    """
    if hasattr(what, "__total__"):
        hints = {key: getattr(hint, "__forward_arg__", hint) for key, hint in what.__annotations__.items()}
        kind, default = inspect.Parameter.KEYWORD_ONLY, _Recipes()
        return [inspect.Parameter(key, kind, default=default, annotation=hint) for key, hint in hints.items()]
    return [one for one in inspect.signature(what).parameters.values() if one.kind is one.KEYWORD_ONLY]


def spelled_out(*keywords: Iterable[inspect.Parameter]) -> Callable[[F], F]:
    """Show these keywords of a function in the place of its ``**options``.

    >>> @spelled_out(keywords_of(sorted))
    ... def backwards(items, **options):
    ...     return sorted(items, **options)[::-1]
    >>> print(inspect.signature(backwards))
    (items, *, key=None, reverse=False)
    """

    def decorate(function: F) -> F:
        shown: Any = function
        own = inspect.signature(function)
        before = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        passed = [one for some in keywords for one in some]
        shown.__signature__ = own.replace(parameters=[*before, *passed])
        return function

    return decorate
