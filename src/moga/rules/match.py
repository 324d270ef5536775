"""Finding a parameter's counterpart in a base: by name, under wrappers, in other layers, inside a holding module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moga.rules.base import Matrix, Record, any_layer, plain_name
from moga.rules.roles import Assignment

SAME = (
    "A base is the same architecture at another width, with the same matrices tied; only the number of layers differs"
)


class Index:
    """The matrices of a base by name, and by name without numbers.

    ``names`` are all names of the model that is compared with it.
    """

    def __init__(self, record: Record, names: Iterable[str]) -> None:
        self.record = record
        self.exact = {name: one for one in record.matrices for name in one.names}
        self.prefix = _prefix([plain_name(name) for name in names], self.exact)
        self.layers: dict[str, list[Matrix]] = {}
        for name, one in self.exact.items():
            self.layers.setdefault(any_layer(name), []).append(one)

    def find(self, one: Assignment) -> Matrix:
        """The base's counterpart of a matrix.

        Raises ValueError where the base has none, or several that are not alike.
        """
        names = [self.local(name) for name in one.aliases]
        found = [self.exact[name] for name in names if name in self.exact]
        found = found or [matrix for name in names for matrix in self.layers.get(any_layer(name), ())]
        kinds = {(matrix.shape, matrix.layout, matrix.blocks, matrix.role): matrix for matrix in found}
        if len(kinds) == 1:
            return found[0]
        if kinds:
            several = "; ".join(f"{', '.join(matrix.names)} {matrix.shape}" for matrix in kinds.values())
            raise ValueError(f"the base has several matrices that {label(one)} may stand for: {several}. {SAME}")
        raise ValueError(f"the base has no matrix {label(one)}, and none of another layer. {SAME}")

    def head(self, module: str) -> tuple[int, float] | None:
        """The heads of a module of the model at the base, or None where the base has no such module."""
        heads, name = self.record.heads, self.local(f"{module}.").removesuffix(".")
        others = (head for other, head in heads.items() if any_layer(other) == any_layer(name))
        return heads.get(name) or next(others, None)

    def local(self, name: str) -> str:
        """The name that a parameter of the model has at the base."""
        return plain_name(name).removeprefix(self.prefix)


def label(one: Assignment) -> str:
    """The parameter as errors name it."""
    return f"{one.name} ({one.module_type}, shape {tuple(one.parameter.shape)})"


def _prefix(names: list[str], known: Mapping[str, Any]) -> str:
    """What all names begin with and the base's do not: the path of the model in a module that holds it, or ""."""
    for prefix in _prefixes(names):
        if any(name.removeprefix(prefix) in known for name in names):
            return prefix
    return ""


def _prefixes(names: list[str]) -> Iterator[str]:
    yield ""
    prefix = ""
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            return
        prefix += f"{parts[0]}."
        yield prefix
