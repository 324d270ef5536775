"""What is run, as plain data: `Settings` (shared by a study), `Run` (one training run), `Plan` (a grid of runs)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from moga.rules.recipes import RECIPES
from moga.study.models import FAMILIES, heads_of
from moga.study.records import config_key

DECAYS = ("linear", "cosine", "constant")


@dataclass(frozen=True)
class Settings:
    """Everything of a run but recipe, width, learning rate and seed.

    layers, head_size, context: of the model. batch: windows a step. steps, warmup: optimizer steps.
    decay: of the learning rate after the warm-up ("linear" and "cosine" end at zero).
    weight_decay: per unit of learning rate. betas: of the adam updates. momentum: of all others (None: the recipe's).
    clip: largest gradient norm, None for no clipping. corpus: sha256 of the text.

    Raises:
        ValueError: a value that no run can have.
    """

    family: str = "gpt2"
    layers: int = 3
    head_size: int = 16
    context: int = 64
    batch: int = 16
    steps: int = 200
    warmup: int = 20
    decay: str = "linear"
    weight_decay: float = 0.1
    momentum: float | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float | None = None
    corpus: str = ""

    def __post_init__(self) -> None:
        # One spelling of every value: 0 and 0.0 must not be two configurations.
        for name in ("weight_decay", "momentum", "clip"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "betas", (float(self.betas[0]), float(self.betas[1])))
        _check_words(self)
        _check_numbers(self)


def _check_words(settings: Settings) -> None:
    if settings.family not in FAMILIES:
        raise ValueError(f"unknown model family {settings.family!r}; known: {', '.join(sorted(FAMILIES))}")
    if settings.decay not in DECAYS:
        raise ValueError(f"unknown decay {settings.decay!r}; known: {', '.join(DECAYS)}")


def _check_numbers(settings: Settings) -> None:
    for name in ("layers", "head_size", "context", "batch", "steps"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}")
    if not 0 <= settings.warmup < settings.steps:
        raise ValueError(
            f"warmup must be at least 0 and below the number of steps ({settings.steps}), got {settings.warmup}; "
            "use fewer warm-up steps or more steps"
        )
    for name, value in (("momentum", settings.momentum), ("betas", settings.betas[0]), ("betas", settings.betas[1])):
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
    if not (settings.weight_decay >= 0 and math.isfinite(settings.weight_decay)):
        raise ValueError(f"weight_decay must be finite and at least 0, got {settings.weight_decay}")
    if settings.clip is not None and not settings.clip > 0:
        raise ValueError(f"clip must be above 0, got {settings.clip}; leave it out (None) for no clipping")


@dataclass(frozen=True)
class Run:
    """One training run. Two runs with the same `key` are the same run.

    >>> run = Run("adamw", 32, 2**-9, 0, Settings())
    >>> run.key == Run("adamw", 32, 2**-9, 0, Settings(weight_decay=1e-1)).key
    True
    """

    recipe: str
    width: int
    lr: float
    seed: int
    settings: Settings

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", int(self.width))
        object.__setattr__(self, "lr", float(self.lr))
        object.__setattr__(self, "seed", int(self.seed))
        if self.recipe not in RECIPES:
            raise ValueError(f"unknown recipe {self.recipe!r}; known: {', '.join(sorted(RECIPES))}")
        heads_of(self.width, self.settings.head_size)
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"a learning rate must be finite and above 0, got {self.lr} for {self.recipe}")
        if self.seed < 0:
            raise ValueError(f"a seed must be at least 0, got {self.seed}")

    def config(self) -> dict[str, Any]:
        """The canonical configuration: recipe, width, lr, seed and the settings, in JSON's types."""
        own = {"recipe": self.recipe, "width": self.width, "lr": self.lr, "seed": self.seed}
        return own | settings_dict(self.settings)

    @property
    def key(self) -> str:
        """sha256 of the canonical configuration."""
        return config_key(self.config())

    @property
    def cost(self) -> float:
        """Time of the run in arbitrary units: `steps * tokens * layers * (width + width^2 / 160)`.

        Measured on one CPU core with 1,024 tokens a step: 14, 31, 76, 250 ms a step at widths 32, 64, 128, 256, of
        which the linear term is what grows with the activations and the quadratic one the matrix products.
        """
        shape = self.settings
        return shape.steps * shape.batch * shape.context * shape.layers * (self.width + self.width**2 / 160)

    def __str__(self) -> str:
        return f"{self.recipe}, width {self.width}, lr {self.lr:.4g}, seed {self.seed}"


def settings_dict(settings: Settings) -> dict[str, Any]:
    """The settings in JSON's types (lists, no tuples), as they come back from a file."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}


@dataclass(frozen=True)
class Plan:
    """A grid: every recipe at its own rates, times widths, times seeds.

    Raises:
        ValueError: an empty axis, or a run that cannot be (see `Run`).

    >>> len(Plan({"adamw": (0.001, 0.002)}, widths=(32, 64), seeds=(0, 1)).runs())
    8
    """

    rates: Mapping[str, tuple[float, ...]]
    widths: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        for what, values in (("recipe", self.rates), ("width", self.widths), ("seed", self.seeds)):
            if not values:
                raise ValueError(f"a study needs at least one {what}, got none")
        for recipe, rates in self.rates.items():
            if not rates:
                raise ValueError(f"a study needs at least one learning rate for {recipe}, got none")
        self.runs()

    def runs(self) -> list[Run]:
        """Every run once, the longest first: the short ones at the end keep all workers busy to the last."""
        runs = [
            Run(recipe, width, rate, seed, self.settings)
            for width in sorted(set(self.widths), reverse=True)
            for seed in sorted(set(self.seeds))
            for recipe in self.rates
            for rate in sorted(set(self.rates[recipe]))
        ]
        return runs
