"""`moga inspect`: parse, load, print."""

from __future__ import annotations

import json
from typing import Annotated

import typer

__all__ = ["inspect"]


def inspect(
    model: Annotated[
        str,
        typer.Argument(help="Family (gpt2, llama), directory with a config.json, or package.module:function."),
    ],
    recipe: Annotated[str, typer.Option(help="Recipe whose rules to show.")] = "moga-row",
    base: Annotated[
        str | None,
        typer.Option(help="Where the learning rate was tuned: a width, a config, or what moga.save_base wrote."),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of a family (128), or width= of a function.")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks of a family; as in the study by default.")] = None,
    head_size: Annotated[int | None, typer.Option(help="Width of one attention head of a family.")] = None,
    start: Annotated[
        str | None, typer.Option(help="Weights to measure: own, or moga (initialize_), the default of a family.")
    ] = None,
    role: Annotated[list[str] | None, typer.Option(help='Role by pattern, as in "head.weight=output".')] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show which parameter gets which role, norm, scale and decay, and whether its start suits every width."""
    from moga.cli.plan import parse_roles
    from moga.rules.recipes import resolve_recipe

    resolve_recipe(recipe)  # an unknown name is said before a model is made

    from moga.report.inspection import text
    from moga.study.inspection import inspect_named
    from moga.study.named import Wanted

    for name, value in (("--width", width), ("--layers", layers), ("--head-size", head_size)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    wanted = Wanted(width, layers, head_size, start, recipe, parse_roles(role or ()) or None)
    found = inspect_named(model, wanted, base)
    typer.echo(json.dumps(found, indent=1) if as_json else text(found))
