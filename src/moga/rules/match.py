"""Finding a parameter's counterpart in a base: by name, under wrappers, in other layers, inside a holding module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from moga.rules.base import Matrix, Record, any_layer, plain_name, plain_names
from moga.rules.roles import Assignment

SAME = (
    "A base is the same architecture at another width, with the same matrices tied; only the number of layers differs"
)


class Index:
    """The matrices of a base by name, and by name without numbers.

    ``found`` are the parameters of the model that is compared with it.
    """

    def __init__(self, record: Record, found: Iterable[Assignment]) -> None:
        known = {name: one for one in record.matrices for name in one.names}
        self.prefix, holder = _holders([name for one in found for name in plain_names(one.aliases)], list(known))
        self.exact = {name.removeprefix(holder): one for name, one in known.items()}
        holder = plain_name(holder)
        self.heads = {f"{name}.".removeprefix(holder).rstrip("."): head for name, head in record.heads.items()}
        self.layers: dict[str, list[Matrix]] = {}
        for name, one in self.exact.items():
            self.layers.setdefault(any_layer(name), []).append(one)

    def find(self, one: Assignment) -> Matrix:
        """The base's counterpart of a matrix.

        Raises ValueError where the base has none, several that are tied here, or several that are not alike.
        """
        names = plain_names(one.aliases)
        found = self.at(names)
        if len({matrix.names for matrix in found}) > 1:
            raise ValueError(
                f"{label(one)} is one matrix under {len(names)} names, tied, and the base has {len(found)}, untied: "
                f"{', '.join(matrix.names[0] for matrix in found)}. {SAME}"
            )
        found = found or self._layers_of(one)
        kinds = _kinds(found)
        if len(kinds) == 1:
            return found[0]
        if kinds:
            several = "; ".join(f"{', '.join(matrix.names)} {matrix.shape}" for matrix in kinds.values())
            raise ValueError(f"the base has several matrices that {label(one)} may stand for: {several}. {SAME}")
        raise ValueError(f"the base has no matrix {label(one)}, and none of another layer. {SAME}")

    def at(self, names: Iterable[str]) -> list[Matrix]:
        """The matrices of the base that have one of these names of the model."""
        local = (name.removeprefix(self.prefix) for name in names)
        return [self.exact[name] for name in local if name in self.exact]

    def refuse_longer(self, unsettled: Iterable[Assignment], here: Iterable[Matrix]) -> None:
        """Raises ValueError where the base has more layers than the model, of kinds that only their numbers tell.

        The last layer of a longer ``nn.Sequential`` has another number than that of a shorter one. ``unsettled`` are
        the matrices whose modules leave the role open, ``here`` all of the model, frozen ones too.
        """
        used = {matrix.names for own in here for matrix in self.at(own.names)}
        for one in unsettled:
            layers = self._layers_of(one)
            left = [matrix.names[0] for matrix in layers if matrix.names not in used]
            if left and len(_kinds(layers)) > 1:
                raise ValueError(
                    f"the base has {', '.join(left)}, which this model lacks, and layers of several kinds under such "
                    f"names: which of them {label(one)} is cannot be told. "
                    "State roles= or take a base of as many layers"
                )

    def _layers_of(self, one: Assignment) -> list[Matrix]:
        """The matrices of the base whose names differ from one of this parameter in nothing but numbers."""
        names = (any_layer(name.removeprefix(self.prefix)) for name in plain_names(one.aliases))
        return [matrix for name in names for matrix in self.layers.get(name, ())]

    def head(self, module: str) -> tuple[int, float] | None:
        """The heads of a module of the model at the base, or None where the base has no such module."""
        name = f"{plain_name(module)}.".removeprefix(plain_name(self.prefix)).rstrip(".")
        others = (head for other, head in self.heads.items() if any_layer(other) == any_layer(name))
        return self.heads.get(name) or next(others, None)


def _kinds(matrices: Iterable[Matrix]) -> dict[tuple[object, ...], Matrix]:
    return {(one.shape, one.layout, one.blocks, one.role): one for one in matrices}


def label(one: Assignment) -> str:
    """The parameter as errors name it."""
    return f"{one.name} ({one.module_type}, shape {tuple(one.parameter.shape)})"


def _holders(names: list[str], known: list[str]) -> tuple[str, str]:
    """What all names of the model begin with, and all of the base's, that the others do not: the path of the one in a
    module that holds it; "" where there is none."""
    for there in _prefixes(known):
        bare = {name.removeprefix(there) for name in known}
        for here in _prefixes(names):
            if any(name.removeprefix(here) in bare for name in names):
                return here, there
    return "", ""


def _prefixes(names: list[str]) -> Iterator[str]:
    yield ""
    prefix = ""
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            return
        prefix += f"{parts[0]}."
        yield prefix
