"""`moga check`: parse, run, print, and an exit code for continuous integration."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from moga.cli.plan import parse_lr, parse_recipes, parse_roles
from moga.cli.show import Stopped, show

__all__ = ["check"]


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
        Path | None,
        typer.Option(
            help="Text file or directory, or package.module:function(split, seed); by default Python's library."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Device, as in cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads of the computation.")] = 1,
) -> None:
    """Check that activations, and what a few steps change in them, do not grow with width; exit code 1 if they do."""
    from moga.api.check import check as study
    from moga.study.presets import parse_integers

    recipes = parse_recipes(recipe or ()) or ("moga-row",)
    command = shlex.join(["moga", *context.obj])
    try:
        found = study(
            model,
            recipes=recipes,
            lrs=parse_lr(lr or (), recipes),
            over=over,
            sizes=None if sizes is None else parse_integers(sizes),
            seeds=seeds,
            plants=[word.strip() for word in plant.split(",") if word.strip()],
            data=data,
            out=out,
            device=device,
            threads=threads,
            command=command,
            layers=layers,
            width=width,
            head_size=head_size,
            context=length,
            batch=batch,
            steps=steps,
            mark=mark,
            start=start,
            roles=parse_roles(role) if role else None,
        )
    except KeyboardInterrupt:
        raise Stopped(f"stopped; a check is made anew each time. To run it again: {command}") from None
    show(found)
    if not found.passes:
        raise typer.Exit(1)
