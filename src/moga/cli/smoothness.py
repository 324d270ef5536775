"""`moga smoothness`: parse, measure, print."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from moga.cli.show import Stopped, show

__all__ = ["smoothness"]


def smoothness(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Directory for records and report; an interrupted one goes on.")],
    model: Annotated[str, typer.Option(help="Model family: gpt2 or llama.")] = "gpt2",
    norms: Annotated[
        str, typer.Option(help="Norms of hidden matrices, as in row,column:4,spectral.")
    ] = "row,column,sign,spectral",
    widths: Annotated[str, typer.Option(help="Widths, as in 32,64,128.")] = "32,64,128",
    layers: Annotated[str, typer.Option(help="Blocks of the model, as in 2 or 2,4,8.")] = "2",
    trained: Annotated[str, typer.Option(help="Steps of training after which to measure; 0: a fresh model.")] = "0,40",
    seeds: Annotated[str | None, typer.Option(help="How many seeds (2), or which (0,1).")] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe that trains the model.", metavar="NAME")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the training.")] = None,
    batch: Annotated[int | None, typer.Option(help="Windows of text per training step.")] = None,
    windows: Annotated[int | None, typer.Option(help="Windows of held-out text in the measured loss.")] = None,
    head_size: Annotated[int | None, typer.Option(help="Width of one attention head; widths are multiples.")] = None,
    length: Annotated[int | None, typer.Option("--context", help="Tokens of context.")] = None,
    random: Annotated[int | None, typer.Option(help="Random starts of each search.")] = None,
    steps: Annotated[int | None, typer.Option(help="Most products with the Hessian from one start.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Text file or directory; by default the source of Python's library.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of the computation.")] = 1,
) -> None:
    """Measure Lipschitz and smoothness constants against width and depth, for each norm, from below."""
    from moga.api.smoothness import smoothness as study
    from moga.study.presets import parse_integers

    command = shlex.join(["moga", *context.obj])
    try:
        found = study(
            model,
            norms=[word for word in norms.split(",") if word.strip()],
            widths=parse_integers(widths),
            layers=parse_integers(layers),
            trained=parse_integers(trained, least=0),
            seeds=1 if seeds is None else seeds,
            data=data,
            out=out,
            threads=threads,
            command=command,
            recipe=recipe,
            lr=lr,
            batch=batch,
            windows=windows,
            head_size=head_size,
            context=length,
            random=random,
            steps=steps,
        )
    except KeyboardInterrupt:
        raise Stopped(f"stopped; the finished measurements are kept in {out}. To go on: {command}") from None
    typer.echo(f"{found.measured} measurement{'s' * (found.measured != 1)}\n")
    show(found)
