"""Records of `moga check` into slopes and verdicts, module by module and parameter by parameter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from moga.report.slopes import WORDS, Finding, Values, judge
from moga.study.records import StudyError, read_runs

__all__ = ["Check", "Module", "Parameter", "load_check"]

Record = dict[str, Any]

JUDGED = ("start", "change", "own")
RMS = 1  # where a record's mean norms (p = 1, 2, inf) have p = 2


@dataclass(frozen=True)
class Parameter:
    """A parameter over all sizes: slopes of its entries (p = 2), of its scale and of what the rule of its role says."""

    name: str
    role: str | None
    norm: str | None
    fans: Mapping[int, Sequence[int] | None]
    entries: int  # at the largest size
    weight: Finding
    update: Finding
    scale: float | None
    rule: float | None


@dataclass(frozen=True)
class Module:
    """A module over all sizes. ``changes``: after each step. ``gain``: its output over its input at the start.

    ``own`` of a matrix is over the input too: a right update of a wrong input is right.
    """

    name: str
    type: str
    start: Finding
    changes: tuple[Finding, ...]
    own: Finding
    gain: Finding
    others: Mapping[str, Finding]  # the last change in the mean norms of p = 1 and inf
    parameters: tuple[Parameter, ...]

    @property
    def change(self) -> Finding:
        """After the last step."""
        return self.changes[-1]

    @property
    def word(self) -> str:
        """The worst of what is judged."""
        words = [getattr(self, name).word for name in JUDGED]
        return next((word for word in WORDS if word in words), "passes")

    @property
    def weight(self) -> Parameter | None:
        """Its largest matrix, or else its largest vector, or None."""
        matrices = [one for one in self.parameters if one.role != "vector"]
        return max(matrices or self.parameters, key=lambda one: one.entries, default=None)


@dataclass(frozen=True)
class Check:
    """One case of a directory: an optimizer and a planted fault, at all sizes and seeds."""

    study: dict[str, Any]
    records: list[Record]
    left_out: tuple[str, ...] = ()  # other cases of the directory, which are not finished

    @property
    def settings(self) -> dict[str, Any]:
        """What all runs share."""
        found: dict[str, Any] = self.study["settings"]
        return found

    @property
    def title(self) -> str:
        """The recipe, and the fault if one is planted."""
        config = self.records[0]["config"]
        return _title(config["recipe"], config["plant"])

    @cached_property
    def sizes(self) -> list[int]:
        """Widths or depths, ascending."""
        return sorted({record["config"]["size"] for record in self.records})

    @cached_property
    def modules(self) -> list[Module]:
        """Every module of the smallest size, in the order in which they finish."""
        first = self._grouped(min(self.records, key=lambda one: int(one["config"]["size"])), "modules")
        return [self._module(name) for name in first]

    @property
    def moved(self) -> bool:
        """Whether any module changed at all."""
        return any(one.change.slope for one in self.modules)

    @property
    def word(self) -> str:
        """The worst of all modules; undecided if nothing moved."""
        words = {one.word for one in self.modules} | (set() if self.moved else {"undecided"})
        return next((word for word in WORDS if word in words), "passes")

    def values(self, part: str, name: str, pick: Callable[[Record], float | None]) -> Values:
        """A number of a module or parameter by size and seed; the largest of several layers with one starred name."""
        found: dict[int, dict[int, float | None]] = {size: {} for size in self.sizes}
        for record in self.records:
            rows = self._grouped(record, part).get(name, [])
            picked = [pick(row) for row in rows]
            known = [value for value in picked if value is not None]
            config = record["config"]
            found[config["size"]][config["seed"]] = max(known) if known and len(known) == len(picked) else None
        return found

    def _grouped(self, record: Record, part: str) -> dict[str, list[Record]]:
        """Rows by name; over depth, where names are not the same, as :func:`_starred`."""
        over_depth = self.settings["over"] == "depth"
        found: dict[str, list[Record]] = {}
        for name, row in record["result"][part].items():
            found.setdefault(_starred(name) if over_depth else name, []).append(row)
        return found

    def _module(self, name: str) -> Module:
        row = self._grouped(self.records[0], "modules")[name][0]
        known = self._grouped(self.records[0], "parameters")
        names = [_starred(one) if self.settings["over"] == "depth" else one for one in row["parameters"]]
        parameters = tuple(self.parameter(one) for one in names if one in known)
        output = any(one.role == "output" for one in parameters)
        matrix = any(one.role != "vector" for one in parameters)
        mark = self.settings["mark"]

        def found(pick: Callable[[Record], float | None], allowed: str = "neither") -> Finding:
            return judge(self.values("modules", name, pick), mark, allowed=allowed)

        return Module(
            name=name,
            type=row["type"],
            start=found(lambda one: one["start"][RMS], "shrink" if output else "neither"),
            changes=tuple(found(_change(step, RMS)) for step in range(len(row["change"]))),
            own=found(lambda one: _over(_of(one["own"], RMS), one["input"][1:] if matrix else [])),
            gain=found(lambda one: _over(one["start"][RMS], one["input"][:1]) if one["input"] else None),
            others={word: found(_change(-1, at)) for word, at in (("1", 0), ("inf", 2))},
            parameters=parameters,
        )

    def parameter(self, name: str) -> Parameter:
        """A parameter by its name, starred over depth."""
        row = self._grouped(self.records[0], "parameters")[name][0]
        large = self._grouped(max(self.records, key=lambda one: int(one["config"]["size"])), "parameters")
        largest = large.get(name, [row])[0]
        weight, update, scale, rule = (
            self.values("parameters", name, pick)
            for pick in (
                lambda one: one["weight"][RMS],
                lambda one: one["update"][RMS],
                lambda one: one["scale"],
                lambda one: one["rule"],
            )
        )
        mark = self.settings["mark"]
        fans = {
            record["config"]["size"]: self._grouped(record, "parameters").get(name, [row])[0]["fan"]
            for record in self.records
        }
        return Parameter(
            name, row["role"], row["norm"], fans, math.prod(largest["shape"]), judge(weight, mark),
            judge(update, mark), _exact(scale), _exact(rule),
        )  # fmt: skip


def _title(recipe: str, plant: str) -> str:
    return recipe if plant == "none" else f"{recipe} with the planted fault {plant!r}"


def _starred(name: str) -> str:
    """The name with a star for its first number, so that the layers of a deep model have one name.

    >>> _starred("h.11.mlp.0")
    'h.*.mlp.0'
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name, count=1)


def _change(step: int, at: int) -> Callable[[Record], float | None]:
    return lambda one: _of(one["change"][step], at)


def _of(norms: Sequence[float] | None, at: int) -> float | None:
    return None if norms is None else norms[at]


def _over(size: float | None, given: Sequence[float]) -> float | None:
    """The size of an output over that of its input, where there is one."""
    return size / given[0] if size and given and given[0] else size


def _exact(values: Values) -> float | None:
    """The slope of numbers that no seed changes, or None."""
    found = judge(values, math.inf).slope
    return found.value if found else None


def load_check(directory: str | Path) -> list[Check]:
    """The finished cases of a directory that `moga check` wrote, in the order of their records.

    A finished case has at least two sizes, and the same seeds, at least two, at each. Raises StudyError where there is
    no check, or none with such a case.
    """
    directory = Path(directory)
    study, runs = read_runs(directory)
    if study["settings"].get("measure") != "check":
        raise StudyError(f"{directory} holds no check; `moga report {directory}` draws what it holds")
    cases: dict[tuple[str, float, str], list[Record]] = {}
    for record in runs:
        config = record["config"]
        cases.setdefault((config["recipe"], config["lr"], config["plant"]), []).append(record)
    if not cases:
        raise StudyError(f"no finished run in {directory}: run `moga check` first")
    finished = {case: records for case, records in cases.items() if _finished(records)}
    left_out = tuple(_title(recipe, plant) for recipe, lr, plant in cases if (recipe, lr, plant) not in finished)
    if not finished:
        recipe, _, plant = next(iter(cases))
        again = f": {study['commands'][-1]}" if study["commands"] else ""
        raise StudyError(
            f"the check of {recipe} (planted fault: {plant}) in {directory} is not finished: it needs at least two "
            f"sizes, and the same seeds, at least two, at each; run it again{again}"
        )
    return [Check(study, records, left_out) for records in finished.values()]


def _finished(records: Sequence[Record]) -> bool:
    """Whether there are two sizes at least, and at each the same seeds, two at least."""
    seeds: dict[int, set[int]] = {}
    for record in records:
        seeds.setdefault(record["config"]["size"], set()).add(record["config"]["seed"])
    first, *others = seeds.values()
    return bool(others) and len(first) > 1 and all(one == first for one in others)
