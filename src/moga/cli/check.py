"""`moga check`: parse, run, print, and an exit code for continuous integration."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from moga.study.coordinates_plan import CheckPlan, CheckSettings

__all__ = ["check", "show_check"]


def check(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Model family (gpt2, llama), or package.module:function called with width= or depth=.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for records and report; an earlier check there is replaced.")],
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="Recipe to check, or package.module:function(model, lr); repeat it or give a comma list."),
    ] = None,
    lr: Annotated[
        list[str] | None,
        typer.Option(help='Learning rate, as in 2**-10 or "scion=2**-18"; a small one of each recipe by default.'),
    ] = None,
    over: Annotated[str, typer.Option(help="What grows: width or depth.")] = "width",
    sizes: Annotated[str | None, typer.Option(help="Widths or depths, as in 32,64,128,256.")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds (6), or which (0,1).")] = "6",
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, at least 2.")] = None,
    mark: Annotated[float | None, typer.Option(help="Largest slope that passes, in octaves per doubling.")] = None,
    start: Annotated[
        str | None, typer.Option(help="Weights of a function's model: own, or moga (initialize_).")
    ] = None,
    role: Annotated[list[str] | None, typer.Option(help='Role by pattern, as in "head.weight=output".')] = None,
    plant: Annotated[str, typer.Option(help="Fault to plant: none, scale, fan, init, or a comma list.")] = "none",
    layers: Annotated[int | None, typer.Option(help="Blocks of a family, over width.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of a family, over depth.")] = None,
    head_size: Annotated[int | None, typer.Option(help="Width of one attention head of a family.")] = None,
    length: Annotated[int | None, typer.Option("--context", help="Tokens of context.")] = None,
    batch: Annotated[int | None, typer.Option(help="Windows of text in the batch.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Text file or directory; by default the source of Python's library.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Device, as in cpu or cuda.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of the computation.")] = 1,
) -> None:
    """Check that activations, and what a few steps change in them, do not grow with width; exit code 1 if they do."""
    from moga.cli.commands import Stopped
    from moga.cli.plan import parse_recipes
    from moga.report.coordinates import load_check
    from moga.study.coordinates import run_check
    from moga.study.coordinates_plan import CheckSettings

    given: dict[str, Any] = {
        "layers": layers,
        "width": width,
        "head_size": head_size,
        "context": length,
        "batch": batch,
        "steps": steps,
        "mark": mark,
        "start": start,
        "device": device,
        "roles": parse_roles(role or ()),
    }
    settings = CheckSettings(model, over, **{name: value for name, value in given.items() if value is not None})
    plan = _plan(settings, parse_recipes(recipe or ()) or ("moga-row",), lr or (), plant, sizes, seeds)
    command = shlex.join(["moga", *context.obj])
    try:
        run_check(plan, out, data=data, threads=threads, command=command, progress=_say)
    except KeyboardInterrupt:
        raise Stopped(f"stopped; a check is made anew each time. To run it again: {command}") from None
    show_check(out)
    if any(one.word != "passes" for one in load_check(out)):
        raise typer.Exit(1)


def _plan(
    settings: CheckSettings, recipes: Sequence[str], rates: Sequence[str], plants: str, sizes: str | None, seeds: str
) -> CheckPlan:
    from moga.cli.plan import parse_seeds
    from moga.study.coordinates_plan import Case, CheckPlan, small_rate
    from moga.study.presets import parse_integers

    own = parse_lrs(rates, recipes)
    words = [word.strip() for word in plants.split(",") if word.strip()]
    cases = [Case(name, own[name] if name in own else small_rate(name), word) for name in recipes for word in words]
    usual = "32,64,128,256" if settings.over == "width" else "2,4,8,16"
    return CheckPlan(tuple(cases), parse_integers(sizes or usual), parse_seeds(seeds), settings)


def parse_lrs(words: Sequence[str], recipes: Sequence[str]) -> dict[str, float]:
    """The learning rate of each recipe that has one: ``recipe=rate``, or a rate for all.

    Raises ValueError for a recipe that is not checked, and for several rates.

    >>> parse_lrs(["2**-3", "scion=0.25"], ["muon", "scion"])
    {'muon': 0.125, 'scion': 0.25}
    """
    from moga.study.presets import parse_rates

    found: dict[str, float] = {}
    for word in sorted(words, key=lambda one: "=" in one):
        recipe, equals, text = word.rpartition("=")
        rates = parse_rates(text)
        if len(rates) > 1:
            raise ValueError(f"--lr {word!r} has {len(rates)} rates; a check has one for each recipe")
        if equals and recipe.strip() not in recipes:
            raise ValueError(f"--lr {word!r} is for a recipe that is not checked; those are: {', '.join(recipes)}")
        found.update(dict.fromkeys([recipe.strip()] if equals else recipes, rates[0]))
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


def show_check(directory: Path) -> None:
    """Write the report of a directory that `moga check` wrote, and print its verdicts."""
    from moga.report.coordinates_page import text, write_check_report

    path, checks = write_check_report(directory)
    typer.echo(text(checks))
    typer.echo(f"\nreport: {path}")


def _say(record: dict[str, Any], done: int, total: int) -> None:
    config, result = record["config"], record["result"]
    plant = "" if config["plant"] == "none" else f", planted fault {config['plant']}"
    where = f"{config['recipe']}{plant}, {config['over']} {config['size']}, seed {config['seed']}"
    typer.echo(f"[{done}/{total}] {where} ({result['seconds']:.1f} s)", err=True)
