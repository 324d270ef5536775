"""From the words of the command line to a `Plan`: a preset, changed where the user said so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moga.rules.recipes import resolve_recipe
from moga.study.factories import is_path
from moga.study.presets import default_rates, parse_integers, parse_rates, preset
from moga.study.settings import Plan, Settings

__all__ = ["make_plan", "parse_betas", "parse_recipes", "parse_seeds"]

Rates = tuple[float, ...]


def make_plan(
    name: str,
    *,
    recipes: Sequence[str] = (),
    rates: Sequence[str] = (),
    sizes: str | None = None,
    seeds: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Plan:
    """The preset ``name`` with every given word in its place; ``settings`` that are None stay as the preset has them.

    ``data`` among the settings tells whether the data are a function's; it is not part of the plan yet.

    Raises ValueError for words that no plan can have.

    >>> plan = make_plan("quick", recipes=["lion"], rates=["2**-12:2**-10"], sizes="32,64", seeds="2")
    >>> dict(plan.rates), plan.sizes, plan.seeds
    ({'lion': (0.000244140625, 0.00048828125, 0.0009765625)}, (32, 64), (0, 1))
    """
    plan = preset(name)
    chosen = parse_recipes(recipes) or tuple(plan.rates)
    for recipe in chosen:
        if not is_path(recipe):
            resolve_recipe(recipe)  # an unknown name is said before anything else about it
    given = {name: value for name, value in (settings or {}).items() if value is not None}
    _check_used(given, sizes)
    return replace(
        plan,
        rates=_rates(chosen, rates, plan.rates),
        sizes=parse_integers(sizes) if sizes is not None else plan.sizes,
        seeds=parse_seeds(seeds) if seeds is not None else plan.seeds,
        settings=_settings(plan.settings, given),
    )


def parse_recipes(words: Sequence[str]) -> tuple[str, ...]:
    """Names of recipes, from repeated options and comma lists alike, each once.

    >>> parse_recipes(["moga-row,adamw", "adamw"])
    ('moga-row', 'adamw')
    """
    names = (name.strip() for word in words for name in word.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds: one number is how many (from 0), a comma list is which.

    >>> parse_seeds("3"), parse_seeds("0,4")
    ((0, 1, 2), (0, 4))
    """
    if "," in text:
        return parse_integers(text, least=0)
    return tuple(range(parse_integers(text)[0]))


def parse_betas(text: str) -> tuple[float, float]:
    """Adam's two averages, with a comma.

    Raises ValueError for anything but two numbers (their range is checked where they are used).

    >>> parse_betas("0.9, 0.95")
    (0.9, 0.95)
    """
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no pair of betas; write two numbers with a comma, as in 0.9,0.95") from None
    return first, second


def _rates(recipes: Sequence[str], words: Sequence[str], known: Mapping[str, Rates]) -> dict[str, Rates]:
    """Each recipe's learning rates: its own ``recipe=rates``, else those for all, else the preset's or default ones."""
    own: dict[str, Rates] = {}
    for_all: Rates | None = None
    for word in words:
        recipe, equals, text = word.rpartition("=")
        if not equals:
            for_all = parse_rates(text)
        elif recipe.strip() in recipes:
            own[recipe.strip()] = parse_rates(text)
        else:
            raise ValueError(f"--lrs {word!r} is for a recipe that is not run; those that are: {', '.join(recipes)}")
    found: dict[str, Rates] = {}
    for recipe in recipes:
        found[recipe] = own.get(recipe) or for_all or known.get(recipe) or default_rates(recipe)
    return found


def _check_used(given: dict[str, Any], sizes: str | None) -> None:
    """Refuse what would be without effect: the shape of a family for one's own model, that of text for one's own data.

    Raises ValueError that names the option; also for depths that are not given.
    """
    data, over = str(given.pop("data", "")), given.get("over", "width")
    own, grows = given.get("family", ""), {"width": "width", "depth": "layers"}.get(over, "")
    unused = dict.fromkeys(("layers", "width", "head_size") if is_path(own) else (), f"{own} makes its own model")
    unused |= {} if is_path(own) else {grows: f"it is what grows over {over}; give --sizes"}
    unused |= dict.fromkeys(("batch", "context") if is_path(data) else (), f"{data} makes its own batches")
    for name, reason in unused.items():
        if name in given:
            raise ValueError(f"--{name.replace('_', '-')} has no effect here: {reason}")
    if over == "depth" and sizes is None:
        raise ValueError("over depth the study needs depths: give --sizes, as in 2,4,8,16")


def _settings(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """With other steps and no word about the warm-up, the warm-up is a tenth of the steps, as in the presets."""
    given = dict(changes)
    if "steps" in given and "warmup" not in given:
        given["warmup"] = given["steps"] // 10
    return replace(settings, **given)
