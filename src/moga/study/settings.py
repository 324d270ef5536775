"""What is run, as plain data: `Settings` (shared by a study), `Run` (one training run), `Plan` (a grid of runs)."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from moga.rules.recipes import RECIPES
from moga.study.factories import is_path
from moga.study.models import FAMILIES, heads_of
from moga.study.records import config_key

DECAYS = ("linear", "cosine", "constant")
AXES = ("width", "depth")
STARTS = ("own", "moga")
BRANCHES = ("none", "1/K", "1/sqrt(2K)")
# Left out of a configuration where they have the value that older studies had without a word: keys stay what they were.
LATER = ("over", "branches", "start", "data", "code", "roles", "margin", "device")


@dataclass(frozen=True)
class Settings:
    """Everything of a run but recipe, size, learning rate and seed.

    family: of models, or ``package.module:function`` (see :mod:`moga.study.factories`). over: what grows, "width" or
    "depth". layers, head_size, width: of a family, where they do not grow. branches: the rule for depth of a family's
    residual branches. start: "own" weights of a function's model, or those of :func:`moga.initialize_` ("moga").
    roles: of a function's model, as in :func:`moga.find_roles`. data: ``package.module:function``, "" for text. code:
    sha256 of the modules of such functions. context, batch: of text; windows a step. steps, warmup: optimizer steps.
    margin: how far above the first loss is diverged, in units of the loss. decay: of the learning rate after the
    warm-up ("linear" and "cosine" end at zero). weight_decay: per unit of learning rate. betas: of the adam updates.
    momentum: of all others (None: the recipe's). clip: largest gradient norm, None for no clipping. corpus: sha256 of
    the text. device: the kind on which runs are made, "cpu", "cuda", "mps".

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
    over: str = "width"
    width: int = 64
    branches: str = "none"
    start: str = "own"
    data: str = ""
    code: str = ""
    roles: Mapping[str, str] = field(default_factory=dict)
    margin: float = 1.0
    device: str = "cpu"

    def __post_init__(self) -> None:
        # One spelling of every value: 0 and 0.0 must not be two configurations.
        for name in ("weight_decay", "momentum", "clip", "margin"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, number(name, getattr(self, name)))
        object.__setattr__(self, "betas", _pair(self.betas))
        _check_words(self)
        _check_numbers(self)


def number(name: str, value: Any) -> float:
    """A number of any kind as Python's own.

    Raises ValueError for what is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None


def whole(value: Any) -> int:
    """An integer of any kind as Python's own.

    Raises TypeError for anything else, also for True and 16.0.
    """
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def counted(name: str, value: Any) -> int:
    """A whole number of at least 1, such as that of workers or threads.

    Raises ValueError for anything else.

    >>> counted("threads", 2)
    2
    """
    try:
        if (found := whole(value)) >= 1:
            return found
    except TypeError:
        pass
    raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def _pair(betas: Any) -> tuple[float, float]:
    try:
        first, second = map(float, betas)
    except (TypeError, ValueError):
        raise ValueError(f"betas must be two numbers, as in (0.9, 0.95); got {betas!r}") from None
    return first, second


def _check_words(settings: Settings) -> None:
    if not is_path(settings.family) and settings.family not in FAMILIES:
        raise ValueError(
            f"unknown model family {settings.family!r}; known: {', '.join(sorted(FAMILIES))}; a model of your own is "
            "given as package.module:function"
        )
    for name, words in (("decay", DECAYS), ("over", AXES), ("start", STARTS), ("branches", BRANCHES)):
        if getattr(settings, name) not in words:
            raise ValueError(f"unknown {name} {getattr(settings, name)!r}; known: {', '.join(words)}")
    if settings.branches != "none" and is_path(settings.family):
        raise ValueError(
            f"branches ({settings.branches}) is a word for the families that moga makes; let {settings.family} call "
            "moga.scale_branches_ itself"
        )


def _check_numbers(settings: Settings) -> None:
    for name in ("layers", "head_size", "width", "context", "batch", "steps"):
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
    if not (settings.margin > 0 and math.isfinite(settings.margin)):
        raise ValueError(f"margin must be finite and above 0, got {settings.margin}")
    if settings.clip is not None and not (settings.clip > 0 and math.isfinite(settings.clip)):
        raise ValueError(f"clip must be finite and above 0, got {settings.clip}; leave it out (None) for no clipping")


@dataclass(frozen=True)
class Run:
    """One training run. Two runs with the same `key` are the same run.

    recipe: a name, or the path of ``function(model, lr)`` that makes an optimizer. size: the width, or the depth.

    >>> run = Run("adamw", 32, 2**-9, 0, Settings())
    >>> run.key == Run("adamw", 32, 2**-9, 0, Settings(weight_decay=1e-1)).key
    True
    """

    recipe: str
    size: int
    lr: float
    seed: int
    settings: Settings

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", int(self.size))
        object.__setattr__(self, "lr", float(self.lr))
        object.__setattr__(self, "seed", int(self.seed))
        if not is_path(self.recipe) and self.recipe not in RECIPES:
            raise ValueError(f"unknown recipe {self.recipe!r}; known: {', '.join(sorted(RECIPES))}")
        settings = self.settings
        if self.size < 1:
            raise ValueError(f"a {settings.over} must be at least 1, got {self.size}")
        if not is_path(settings.family):
            heads_of(self.size if settings.over == "width" else settings.width, settings.head_size)
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"a learning rate must be finite and above 0, got {self.lr} for {self.recipe}")
        if self.seed < 0:
            raise ValueError(f"a seed must be at least 0, got {self.seed}")

    def config(self) -> dict[str, Any]:
        """The canonical configuration: recipe, width or depth, lr, seed and the settings, in JSON's types."""
        own = {"recipe": self.recipe, self.settings.over: self.size, "lr": self.lr, "seed": self.seed}
        return own | settings_dict(self.settings)

    @property
    def key(self) -> str:
        """sha256 of the canonical configuration."""
        return config_key(self.config())

    @property
    def cost(self) -> float:
        """Time of a family's run in arbitrary units: `steps * tokens * layers * (width + width^2 / 160)`.

        Measured on one CPU core with 1,024 tokens a step: 14, 31, 76, 250 ms a step at widths 32, 64, 128, 256, of
        which the linear term is what grows with the activations and the quadratic one the matrix products.
        """
        shape = self.settings
        width, layers = (self.size, shape.layers) if shape.over == "width" else (shape.width, self.size)
        return shape.steps * shape.batch * shape.context * layers * (width + width**2 / 160)

    def __str__(self) -> str:
        return f"{self.recipe}, {self.settings.over} {self.size}, lr {self.lr:.4g}, seed {self.seed}"


def settings_dict(settings: Settings) -> dict[str, Any]:
    """The settings that a study has, in JSON's types (lists, no tuples), as they come back from a file.

    >>> [sorted({"layers", "width"} & set(settings_dict(Settings(over=word)))) for word in AXES]
    [['layers'], ['width']]
    """
    usual, own = Settings.__dataclass_fields__, is_path(settings.family)
    out = {name for name in LATER if getattr(settings, name) == (usual[name].default if name != "roles" else {})}
    out |= {"layers", "head_size", "width"} if own else {"width" if settings.over == "width" else "layers"}
    out |= {"context", "batch"} if settings.data else set()
    values = {name: value for name, value in asdict(settings).items() if name not in out}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass(frozen=True)
class Plan:
    """A grid: every recipe at its own rates, times widths or depths, times seeds.

    Raises:
        ValueError: an empty axis, or a run that cannot be (see `Run`).

    >>> len(Plan({"adamw": (0.001, 0.002)}, sizes=(32, 64), seeds=(0, 1)).runs())
    8
    """

    rates: Mapping[str, tuple[float, ...]]
    sizes: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        for what, values in (("recipe", self.rates), (self.settings.over, self.sizes), ("seed", self.seeds)):
            if not values:
                raise ValueError(f"a study needs at least one {what}, got none")
        for recipe, rates in self.rates.items():
            if not rates:
                raise ValueError(f"a study needs at least one learning rate for {recipe}, got none")
        self.runs()

    def runs(self) -> list[Run]:
        """Every run once, the longest first: the short ones at the end keep all workers busy to the last."""
        runs = [
            Run(recipe, size, rate, seed, self.settings)
            for size in sorted(set(self.sizes), reverse=True)
            for seed in sorted(set(self.seeds))
            for recipe in self.rates
            for rate in sorted(set(self.rates[recipe]))
        ]
        return runs
