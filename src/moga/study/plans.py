"""From what a user says to a plan: a preset, changed where something is given; the usual sizes and rates elsewhere."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from inspect import signature
from typing import Any

from moga.rules.keywords import near
from moga.rules.recipes import resolve_recipe
from moga.study.coordinates_plan import Case, CheckPlan, CheckSettings, small_rate
from moga.study.factories import is_path
from moga.study.presets import default_rates, parse_integers, parse_rates, preset
from moga.study.settings import Plan, Settings, number, whole
from moga.study.smoothness_plan import SmoothnessPlan, SmoothnessSettings

Rates = str | float | Sequence[float]  # text as `parse_rates` reads it, a rate, or rates
FOUND = ("corpus", "code", "data", "device")  # settings that a study finds out, or that have a word of their own
USUAL = {"width": (32, 64, 128, 256), "depth": (2, 4, 8, 16)}  # sizes of a check
CHECK_SEEDS = 6
COMMAND = {"widths": "sizes", "depths": "sizes"}  # words of a command that are spelled otherwise in a call


def transfer_plan(
    name: str,
    *,
    recipes: Sequence[str] = (),
    lrs: Rates | Mapping[str, Rates] | None = None,
    sizes: Iterable[int] | None = None,
    seeds: int | str | Iterable[int] | None = None,
    data: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Plan:
    """The preset ``name`` with all that is given in its place; ``settings`` that are None stay as the preset has them.

    lrs: for all recipes, or by recipe; the entry "" of a dict is for those that it does not name. seeds: how many, or
    which. data: tells whether they are a function's; the plan does not hold them yet.

    Raises ValueError for what no plan can have, or what would be without effect.

    >>> plan = transfer_plan("quick", recipes=["lion"], lrs="2**-12:2**-10", sizes=(32, 64), seeds=2)
    >>> dict(plan.rates), plan.sizes, plan.seeds
    ({'lion': (0.000244140625, 0.00048828125, 0.0009765625)}, (32, 64), (0, 1))
    """
    plan = preset(name)
    chosen = _known(recipes) or tuple(plan.rates)
    given = _given(settings or {}, Settings)
    sizes = None if sizes is None else whole_numbers("sizes", sizes)
    _check_used(given, data, sizes, chosen)
    return replace(
        plan,
        rates=_rates(chosen, lrs, plan.rates),
        sizes=plan.sizes if sizes is None else sizes,
        seeds=plan.seeds if seeds is None else seeds_of(seeds),
        settings=_with_warmup(plan.settings, given),
    )


def check_plan(
    model: str,
    *,
    recipes: Sequence[str] = (),
    lrs: float | Mapping[str, float] | None = None,
    over: str = "width",
    sizes: Iterable[int] | None = None,
    seeds: int | str | Iterable[int] = CHECK_SEEDS,
    plants: Sequence[str] = ("none",),
    data: str = "",
    device: str = "cpu",
    settings: Mapping[str, Any] | None = None,
) -> CheckPlan:
    """Every recipe with every planted fault, each at its rate; a small one where none is given.

    Raises ValueError for what no check can have or what has no effect, and a rate of a recipe that is not checked.

    >>> plan = check_plan("gpt2", recipes=["muon", "scion"], lrs={"muon": 0.125, "scion": 0.25}, sizes=(32, 64))
    >>> [case.lr for case in plan.cases]
    [0.125, 0.25]
    """
    given = _given(settings or {}, CheckSettings)
    _refuse(given, _of_text(data))
    shared = CheckSettings(model, over, **{**given, "device": device})
    chosen = _known(recipes) or ("moga-row",)
    named = lrs if isinstance(lrs, Mapping) else {} if lrs is None else dict.fromkeys(chosen, lrs)
    own = {recipe: number("the learning rate of a check", rate) for recipe, rate in named.items()}
    _check_named(own, chosen, "checked")
    planted = plants or ("none",)
    cases = [Case(name, own[name] if name in own else small_rate(name), word) for name in chosen for word in planted]
    return CheckPlan(
        tuple(cases), USUAL[over] if sizes is None else whole_numbers("sizes", sizes), seeds_of(seeds), shared
    )


def smoothness_plan(settings: Mapping[str, Any], seeds: int | str | Iterable[int] = 1, **axes: Any) -> SmoothnessPlan:
    """A plan of the axes that are given (norms, widths, layers, trained).

    >>> smoothness_plan({"random": 0}, norms=("row",), widths=(32, 64)).settings.random
    0
    """
    own = {name: tuple(values) for name, values in axes.items()}
    return SmoothnessPlan(
        **own, seeds=seeds_of(seeds), settings=SmoothnessSettings(**_given(settings, SmoothnessSettings))
    )


def _known(recipes: Iterable[str]) -> tuple[str, ...]:
    """Each once; an unknown name is said before anything else about it."""
    chosen = tuple(dict.fromkeys(recipes))
    for recipe in chosen:
        if not is_path(recipe):
            resolve_recipe(recipe)
    return chosen


def seeds_of(seeds: int | str | Iterable[int]) -> tuple[int, ...]:
    """How many seeds, from 0, or which.

    Raises ValueError for fewer than one.

    >>> seeds_of(3), seeds_of([4, 0]), seeds_of("2")
    ((0, 1, 2), (4, 0), (0, 1))
    """
    if isinstance(seeds, str):
        return seeds_of(parse_integers(seeds, least=0)) if "," in seeds else tuple(range(parse_integers(seeds)[0]))
    if not isinstance(seeds, numbers.Number):
        found = whole_numbers("seeds", seeds)
        if found and max(found) >= 2**64:
            raise ValueError(f"a seed must be below 2**64, got {max(found)}")
        return found
    if (count := whole_numbers("seeds", seeds)[0]) < 1:
        raise ValueError(f"a study needs at least one seed, got {count}")
    return tuple(range(count))


def whole_numbers(name: str, given: Any) -> tuple[int, ...]:
    """Whole numbers from one, several, or text as on the command line.

    Raises ValueError for anything else, also for 16.0.

    >>> whole_numbers("sizes", "16,32"), whole_numbers("sizes", 16)
    ((16, 32), (16,))
    """
    if isinstance(given, str):
        return parse_integers(given, least=0)
    values = tuple(given) if isinstance(given, Iterable) else (given,)
    try:
        return tuple(whole(one) for one in values)
    except TypeError:
        raise ValueError(f"{name} must be whole numbers, got {given!r}; write them as in (32, 64)") from None


def check_names(given: Iterable[str], kind: type, call: Callable[..., Any] | None = None) -> None:
    """Refuse a keyword that is neither a setting of this kind nor, where a call is given, one of the call's own.

    Raises ValueError that names them.

    >>> check_names(["batch", "steps"], Settings)
    """
    own = [one.name for one in signature(call).parameters.values() if one.kind is one.KEYWORD_ONLY] if call else []
    known = [one.name for one in fields(kind) if one.name not in FOUND]
    for name in given:
        if name not in known:
            meant = COMMAND[name] if COMMAND.get(name) in own else name
            text = f"unknown setting {name!r}; the settings are {', '.join(known)}"
            text += f"; other keywords are {', '.join(own)}" if own else ""
            raise ValueError(text + near(meant, (*own, *known)))


def _given(settings: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The settings that are not None; a name that the kind of settings has not raises."""
    check_names(settings, kind)
    usual = {one.name: one.default for one in fields(kind)}
    return {name: _setting(name, value, usual[name]) for name, value in settings.items() if value is not None}


def _setting(name: str, value: Any, usual: Any) -> Any:
    """A number of the kind that the setting has; its text would be compared as text."""
    if name == "roles" and not isinstance(value, Mapping):
        raise ValueError(f'roles must be a dict of roles by pattern, as in {{"head.weight": "output"}}; got {value!r}')
    if type(usual) not in (int, float):
        return value
    try:
        return whole(value) if isinstance(usual, int) else float(value + 0.0)
    except TypeError:
        kind = "a whole number" if isinstance(usual, int) else "a number"
        raise ValueError(f"{name} must be {kind}, as in {usual}; got {value!r}") from None


def _rates(
    recipes: Sequence[str], given: Rates | Mapping[str, Rates] | None, known: Mapping[str, tuple[float, ...]]
) -> dict[str, tuple[float, ...]]:
    """Each recipe's learning rates: its own, else those for all, else the preset's or the default ones."""
    named = given if isinstance(given, Mapping) else {"": given}
    own = {recipe: _numbers(rates) for recipe, rates in named.items() if rates is not None}
    for_all = own.pop("", None)
    _check_named(own, recipes, "run")
    found = {}
    for recipe in recipes:
        said = own.get(recipe, for_all)
        found[recipe] = said if said is not None else known.get(recipe) or default_rates(recipe)
    return found


def _numbers(rates: Rates) -> tuple[float, ...]:
    if isinstance(rates, str):
        return parse_rates(rates)
    try:
        return tuple(map(float, rates)) if isinstance(rates, Iterable) else (float(rates),)
    except (TypeError, ValueError):
        raise ValueError(f'lrs must be numbers or text, as in [0.1, 0.2] or "2**-6:2**-1"; got {rates!r}') from None


def _check_named(own: Mapping[str, Any], recipes: Sequence[str], done: str) -> None:
    for recipe in own:
        if recipe not in recipes:
            raise ValueError(
                f"learning rates are given for {recipe!r}, which is not {done}; those that are: {', '.join(recipes)}"
            )


def _check_used(given: Mapping[str, Any], data: str, sizes: Sequence[int] | None, recipes: Sequence[str]) -> None:
    """Refuse what has no effect: a family's shape for one's own model, that of text for data, words for optimizers.

    Raises ValueError that names it; also for depths that are not given.
    """
    over, own = given.get("over", "width"), given.get("family", "")
    grows = {"width": "width", "depth": "layers"}.get(over, "")
    unused = dict.fromkeys(("layers", "width", "head_size") if is_path(own) else (), f"{own} makes its own model")
    unused |= {} if is_path(own) else {grows: f"it is what grows over {over}; give sizes"}
    unused |= _of_text(data)
    makers = f"{', '.join(recipes)} makes its own optimizer"
    unused |= dict.fromkeys(("weight_decay", "momentum", "betas") if all(map(is_path, recipes)) else (), makers)
    _refuse(given, unused)
    if over == "depth" and sizes is None:
        raise ValueError("over depth the study needs depths: give sizes, as in 2,4,8,16")


def _of_text(data: str) -> dict[str, str]:
    """What has no effect, and why, where batches are a function's."""
    return dict.fromkeys(("batch", "context") if is_path(data) else (), f"{data} makes its own batches")


def _refuse(given: Mapping[str, Any], unused: Mapping[str, str]) -> None:
    for name, reason in unused.items():
        if name in given:
            raise ValueError(f"{name} has no effect here: {reason}")


def _with_warmup(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """With other steps and no word about the warm-up, the warm-up is a tenth of the steps, as in the presets."""
    warmup = {"warmup": given["steps"] // 10} if "steps" in given and "warmup" not in given else {}
    return replace(settings, **warmup, **given)
