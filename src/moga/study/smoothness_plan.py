"""Which constants are measured, as plain data: norms x widths x depths x seeds x steps of training.

A point is measured in the block norm of the theory: with the hidden matrices in p -> q, inputs (tokens) are measured
in 1 -> q, the output in p -> inf, and biases and gains by their largest entry.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from moga.geometry import names
from moga.geometry.norms import NORMS, OperatorNorm
from moga.geometry.vectors import INF
from moga.rules.keywords import near
from moga.rules.recipes import RECIPES
from moga.rules.updates import Update
from moga.study.models import FAMILIES, heads_of

MEASURE = "smoothness"  # what a directory holds: a word in its settings
LEAST = {"head_size": 1, "context": 1, "windows": 1, "batch": 1, "random": 0, "steps": 1}  # of the settings
AXES = {"widths": ("width", 1), "layers": ("depth", 1), "trained": ("step of training", 0), "seeds": ("seed", 0)}


def parse_norm(word: str) -> OperatorNorm:
    """The norm of hidden matrices: a name, and after a colon the exponent that ``row`` and ``column`` let one choose.

    Raises ValueError for a word that is none of these.

    >>> parse_norm("row"), parse_norm("column:4")
    (OperatorNorm(name='row', p=2.0, q=inf), OperatorNorm(name='column', p=1.0, q=4.0))
    """
    name, colon, text = word.strip().partition(":")
    free = NORMS[name].free if name in NORMS else ""
    try:
        exponents = {free: float(text)} if colon else {}
    except ValueError:
        exponents = {"": 0.0}
    if name not in NORMS or "" in exponents:
        raise ValueError(f"{word!r} is no norm; give {', '.join(NORMS)}, with an exponent as in row:3 or column:4")
    found = names.norm(name, exponents.get("p"), exponents.get("q"))
    assert isinstance(found, OperatorNorm)
    return found


def norm_word(rule: OperatorNorm) -> str:
    """The one word that :func:`parse_norm` reads as this norm.

    >>> norm_word(parse_norm("row:2")), norm_word(parse_norm("row:1.5"))
    ('row', 'row:1.5')
    """
    row = NORMS[rule.name]
    return rule.name if (rule.p, rule.q) == row.default else f"{rule.name}:{getattr(rule, row.free):g}"


def block_recipe(hidden: OperatorNorm) -> dict[str, Update]:
    """The norm of each role in the block norm of p -> q: inputs 1 -> q, hidden p -> q, output p -> inf, vectors inf.

    >>> {role: update["norm"] for role, update in block_recipe(parse_norm("spectral")).items()}
    {'input': 'column', 'hidden': 'spectral', 'output': 'row', 'vector': 'sign'}
    """
    pairs = {"input": (1.0, hidden.q), "hidden": (hidden.p, hidden.q), "output": (hidden.p, INF), "vector": (1.0, INF)}
    rules = {role: names.norm(p=p, q=q) for role, (p, q) in pairs.items()}
    return {role: _update(rule) for role, rule in rules.items() if isinstance(rule, OperatorNorm)}


def _update(rule: OperatorNorm) -> Update:
    free = NORMS[rule.name].free
    return {"norm": rule.name} | ({free: getattr(rule, free)} if free else {})


@dataclass(frozen=True)
class SmoothnessSettings:
    """What all points of a study share.

    family, head_size, context: of the model. windows: of held-out text, over which the measured loss is the mean.
    recipe, lr, batch: how a model is trained to a point: a constant rate, the defaults of the recipe, windows a step.
    random: random starts of every climb. steps: the most products with the Hessian of a climb. corpus: sha256.

    Raises:
        ValueError: a value that no study can have.
    """

    family: str = "gpt2"
    head_size: int = 16
    context: int = 32
    windows: int = 4
    recipe: str = "moga-row"
    lr: float = 0.1
    batch: int = 16
    random: int = 2
    steps: int = 40
    corpus: str = ""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"unknown model family {self.family!r}; known: {', '.join(sorted(FAMILIES))}")
        if self.recipe not in RECIPES:
            raise ValueError(
                f"unknown recipe {self.recipe!r}; known: {', '.join(sorted(RECIPES))}{near(self.recipe, RECIPES)}"
            )
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"a learning rate must be finite and above 0, got {self.lr}")
        object.__setattr__(self, "lr", float(self.lr))


@dataclass(frozen=True)
class Point:
    """One model: its size and its seed, at every moment of its training."""

    width: int
    layers: int
    seed: int


@dataclass(frozen=True)
class SmoothnessPlan:
    """A grid. norms: of hidden matrices, as :func:`parse_norm` reads them. trained: steps of training before a measure.

    Raises:
        ValueError: an empty axis, or a value on one that cannot be.

    >>> plan = SmoothnessPlan(("row", "row:2", "sign"), widths=(64, 32), trained=(40, 0))
    >>> plan.norms, plan.widths, plan.trained
    (('row', 'sign'), (32, 64), (0, 40))
    """

    norms: tuple[str, ...]
    widths: tuple[int, ...]
    layers: tuple[int, ...] = (2,)
    trained: tuple[int, ...] = (0,)
    seeds: tuple[int, ...] = (0,)
    settings: SmoothnessSettings = field(default_factory=SmoothnessSettings)

    def __post_init__(self) -> None:
        for name, (what, least) in AXES.items():
            values = tuple(sorted(set(getattr(self, name))))
            if not values:
                raise ValueError(f"a study of smoothness needs at least one {what}, got none")
            if values[0] < least:
                raise ValueError(f"a {what} must be at least {least}, got {values[0]}")
            object.__setattr__(self, name, values)
        for width in self.widths:
            heads_of(width, self.settings.head_size)
        if not self.norms:
            raise ValueError("a study of smoothness needs at least one norm, got none")
        object.__setattr__(self, "norms", tuple(dict.fromkeys(norm_word(parse_norm(word)) for word in self.norms)))

    def points(self) -> list[Point]:
        """Every model once, the cheapest first."""
        return [Point(width, layers, seed) for width in self.widths for layers in self.layers for seed in self.seeds]

    def config(self, point: Point, trained: int, norm: str) -> dict[str, Any]:
        """The whole configuration of one measurement, in JSON's types."""
        own = {"measure": MEASURE, "norm": norm, "trained": trained}
        return own | asdict(point) | asdict(self.settings)
