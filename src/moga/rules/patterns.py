"""Shell globs over parameter names: how a user states something about some parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

SHOWN = 40  # names in an error


def match_patterns(
    what: str, patterns: Mapping[str, Any] | None, names: Sequence[tuple[str, ...]]
) -> Iterator[tuple[str, Any, list[int]]]:
    """Each pattern with its value and the indices of the parameters that it matches, in the order of the patterns.

    A parameter is matched when any of its names is, so a tied one may be stated under either name.
    ``what`` names the argument in errors.

    Raises TypeError if ``patterns`` is no mapping from strings, ValueError for a pattern that matches nothing.

    >>> list(match_patterns("roles", {"*.weight": "hidden"}, [("up.weight",), ("up.bias",), ("x", "tied.weight")]))
    [('*.weight', 'hidden', [0, 2])]
    """
    for pattern, value in checked_patterns(what, patterns).items():
        hits = [index for index, own in enumerate(names) if any(fnmatchcase(name, pattern) for name in own)]
        if not hits:
            raise ValueError(f"the pattern {pattern!r} in {what} matches no parameter; {_instead(pattern, names)}")
        yield pattern, value, hits


def checked_patterns(what: str, patterns: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The patterns, none for None. Raises TypeError if they are no mapping from strings.

    >>> checked_patterns("roles", None)
    {}
    """
    if patterns is None:
        return {}
    if not isinstance(patterns, Mapping):
        raise TypeError(f"{what} must be a dict from patterns of parameter names; got {type(patterns).__name__}")
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"{what} has the key {pattern!r}; a key is a pattern of parameter names, a string")
    return patterns


def _instead(pattern: str, names: Sequence[tuple[str, ...]]) -> str:
    """What would match: a pattern covers whole names, and people write pieces of them."""
    known = [name for own in names for name in own]
    wider = f"*{pattern.strip('*')}*"
    hits = [name for name in known if fnmatchcase(name, wider)]
    if hits:
        return f"a pattern covers whole names: {wider!r} matches {len(hits)} of them, such as {hits[0]}"
    more = f", and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"the names are: {', '.join(known[:SHOWN])}{more}"
