"""What the words of a command line mean: lists, rates by recipe, roles by pattern."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["parse_betas", "parse_lr", "parse_lrs", "parse_recipes", "parse_roles"]


def parse_recipes(words: Sequence[str]) -> tuple[str, ...]:
    """Names of recipes, from repeated options and comma lists alike, each once.

    >>> parse_recipes(["moga-row,adamw", "adamw"])
    ('moga-row', 'adamw')
    """
    names = (name.strip() for word in words for name in word.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


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


def parse_lrs(words: Sequence[str]) -> dict[str, str]:
    """The learning rates of each recipe, still as text: ``recipe=rates``; those for all under "".

    >>> parse_lrs(["2**-6:2**-1", "adamw=2**-9,2**-8"])
    {'': '2**-6:2**-1', 'adamw': '2**-9,2**-8'}
    """
    pairs = (word.rpartition("=") for word in words)
    return {recipe.strip(): text for recipe, _, text in pairs}


def parse_lr(words: Sequence[str], recipes: Sequence[str]) -> dict[str, float]:
    """The one learning rate of each recipe that has one: ``recipe=rate``, or a rate for all of them.

    Raises ValueError for several rates.

    >>> parse_lr(["2**-3", "scion=0.25"], ["muon", "scion"])
    {'muon': 0.125, 'scion': 0.25}
    """
    from moga.study.presets import parse_rates

    found: dict[str, float] = {}
    for recipe, text in sorted(parse_lrs(words).items()):
        rates = parse_rates(text)
        if len(rates) > 1:
            raise ValueError(f"--lr {text!r} has {len(rates)} rates; a check has one for each recipe")
        found.update(dict.fromkeys([recipe] if recipe else recipes, rates[0]))
    return found


def parse_roles(words: Sequence[str]) -> dict[str, str]:
    """Roles by pattern, from words such as ``head.weight=output``.

    Raises ValueError for a word without both.

    >>> parse_roles(["*=hidden", "head.weight=output"])
    {'*': 'hidden', 'head.weight': 'output'}
    """
    found = {}
    for word in words:
        pattern, equals, role = word.partition("=")
        if not (pattern and equals and role):
            raise ValueError(f'{word!r} states no role; write a pattern and a role, as in "head.weight=output"')
        found[pattern.strip()] = role.strip()
    return found
