"""Shell globs over parameter names: how a user states something about some parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any


def match_patterns(
    what: str, patterns: Mapping[str, Any] | None, names: Sequence[tuple[str, ...]]
) -> Iterator[tuple[str, Any, list[int]]]:
    """Each pattern with its value and the indices of the parameters that it matches, in the order of the patterns.

    A parameter is matched when any of its names is, so a tied one may be stated under either name.
    ``what`` names the argument in errors.

    Raises TypeError if ``patterns`` is no mapping, ValueError for a pattern that matches nothing.

    >>> list(match_patterns("roles", {"*.weight": "hidden"}, [("up.weight",), ("up.bias",), ("x", "tied.weight")]))
    [('*.weight', 'hidden', [0, 2])]
    """
    if patterns is None:
        return
    if not isinstance(patterns, Mapping):
        raise TypeError(f"{what} must be a dict from patterns of parameter names; got {type(patterns).__name__}")
    for pattern, value in patterns.items():
        hits = [index for index, own in enumerate(names) if any(fnmatchcase(name, pattern) for name in own)]
        if not hits:
            known = ", ".join(name for own in names for name in own)
            raise ValueError(f"the pattern {pattern!r} in {what} matches no parameter; the names are: {known}")
        yield pattern, value, hits
