"""What a coordinate check runs, as plain data: cases x sizes x seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from moga.rules.recipes import resolve_recipe
from moga.study.devices import check_device
from moga.study.factories import is_path
from moga.study.models import FAMILIES, heads_of
from moga.study.plants import check_plant
from moga.study.presets import DEFAULT_RATES
from moga.study.settings import AXES, STARTS

MEASURE = "check"  # what a directory holds: a word in its settings
LEAST = {"layers": 1, "width": 1, "head_size": 1, "context": 1, "batch": 1, "steps": 2}
# A small part of the smallest rate that a sweep tries: changes then add up, and nothing saturates that would hide one.
SMALL = 1 / 16
# Half of a half. A scale that is wrong by a power of the width is wrong by a half or one (for rows with p = 3 by a
# third); a right one leaves slopes of up to 0.1 at widths of 32 to 256.
MARK = 0.25


@dataclass(frozen=True)
class CheckSettings:
    """What all runs of a check share.

    model: a family, or ``package.module:function`` (see :mod:`moga.study.factories`). over: what grows. layers, width:
    of a family, where they do not grow; head_size likewise. context, batch: of the text, where the function gives no
    batch. steps: of training, at least 2, as an output that starts at zero lets nothing else move at the first. start:
    "own" weights of a function's model, or those of :func:`moga.initialize_` ("moga"). roles: as in
    :func:`moga.find_roles`. device: a word of torch. corpus: sha256, or the function of one's own data. mark: the
    largest slope that passes, in octaves per doubling.

    Raises:
        ValueError: a value that no check can have.
    """

    model: str = "gpt2"
    over: str = "width"
    layers: int = 2
    width: int = 64
    head_size: int = 16
    context: int = 16
    batch: int = 2
    steps: int = 4
    start: str = "own"
    roles: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    corpus: str = ""
    mark: float = MARK

    def __post_init__(self) -> None:
        if not is_path(self.model) and self.model not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise ValueError(
                f"unknown model {self.model!r}; give a family ({known}) or a function, as package.module:function"
            )
        for name, words in (("over", AXES), ("start", STARTS)):
            if getattr(self, name) not in words:
                raise ValueError(f"unknown word {getattr(self, name)!r} for {name}; the words are {', '.join(words)}")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not (self.mark > 0 and math.isfinite(self.mark)):
            raise ValueError(f"mark must be finite and above 0, got {self.mark}")
        check_device(self.device)


@dataclass(frozen=True)
class Case:
    """An optimizer and a planted fault. recipe: a name, or the path of ``function(model, lr)`` that makes one.

    Raises:
        ValueError: an unknown recipe or fault; an optimizer of one's own with a fault in its scales; a bad rate.
    """

    recipe: str
    lr: float
    plant: str = "none"

    def __post_init__(self) -> None:
        check_plant(self.plant)
        if not is_path(self.recipe):
            resolve_recipe(self.recipe)
        elif self.plant in ("scale", "fan"):
            raise ValueError(
                f"the fault {self.plant!r} is planted in the scales of a recipe, and {self.recipe} makes its own; "
                "plant 'init', or check a recipe"
            )
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"a learning rate must be finite and above 0, got {self.lr}")


def small_rate(recipe: str) -> float:
    """A learning rate at which a model moves a little: a sixteenth of the smallest one that a sweep would try.

    Raises ValueError for a recipe without one.

    >>> small_rate("moga-row") == 2**-10
    True
    """
    if recipe not in DEFAULT_RATES:
        raise ValueError(
            f"no learning rate is known for {recipe!r}, only for {', '.join(DEFAULT_RATES)}; give a small one (--lr)"
        )
    return min(DEFAULT_RATES[recipe]) * SMALL


@dataclass(frozen=True)
class CheckPlan:
    """Cases x sizes x seeds.

    Raises:
        ValueError: no case, fewer than two sizes or seeds, or one that cannot be.

    >>> CheckPlan((Case("muon", 0.01),), sizes=(64, 32, 32), seeds=(0, 1)).sizes
    (32, 64)
    """

    cases: tuple[Case, ...]
    sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    settings: CheckSettings = field(default_factory=CheckSettings)

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError("a check needs at least one recipe, got none")
        reasons = {"sizes": "a slope needs two", "seeds": "a standard error needs two"}
        for name, reason in reasons.items():
            values = tuple(sorted(set(getattr(self, name))))
            what = self.settings.over if name == "sizes" else "seed"
            if len(values) < 2:
                raise ValueError(f"a check needs at least two {what}s, got {list(values)}: {reason}")
            if values[0] < (name == "sizes"):
                raise ValueError(f"a {what} must be at least {int(name == 'sizes')}, got {values[0]}")
            object.__setattr__(self, name, values)
        if not is_path(self.settings.model) and self.settings.over == "width":
            for width in self.sizes:
                heads_of(width, self.settings.head_size)

    def config(self, case: Case, size: int, seed: int) -> dict[str, Any]:
        """The whole configuration of one run, in JSON's types."""
        own = {"measure": MEASURE, **asdict(case), "size": size, "seed": seed}
        return own | asdict(self.settings)
