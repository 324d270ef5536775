"""The commands: parse, call, print. Each imports what it runs when it runs, so that help comes at once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moga.cli.balls import balls
from moga.cli.check import check
from moga.cli.inspect import inspect
from moga.cli.plan import parse_betas, parse_lrs, parse_recipes, parse_roles
from moga.cli.show import Stopped, show
from moga.cli.smoothness import smoothness

if TYPE_CHECKING:
    from moga.study.sweep import Outcome

__all__ = ["Stopped", "app"]

app = typer.Typer(
    help="Tune the learning rate on a small model, use it on a large one: the study, its report, and the rules.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from moga import __version__

        typer.echo(f"moga {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


@app.command()
def transfer(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Directory for records and report; an interrupted one goes on.")],
    preset: Annotated[str, typer.Option(help="What to run where nothing else is said: quick or full.")] = "quick",
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="Recipe to run, or package.module:function(model, lr); repeat it or give a comma list."),
    ] = None,
    over: Annotated[str, typer.Option(help="What grows: width or depth.")] = "width",
    sizes: Annotated[
        str | None, typer.Option("--sizes", "--widths", help="Widths (or depths), as in 64,128,256.")
    ] = None,
    lrs: Annotated[
        list[str] | None,
        typer.Option(help='Learning rates, as in "2**-6:2**-1" or "moga-row=2**-6:2**-1"; may be repeated.'),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds (2), or which (0,1).")] = None,
    model: Annotated[
        str,
        typer.Option(help="Model family (gpt2, llama), or package.module:function called with width= or depth=."),
    ] = "gpt2",
    start: Annotated[
        str | None, typer.Option(help="Weights of a function's model: own, or moga (initialize_).")
    ] = None,
    role: Annotated[list[str] | None, typer.Option(help='Role by pattern, as in "head.weight=output".')] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks of a family, over width.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of a family, over depth.")] = None,
    branches: Annotated[
        str | None, typer.Option(help="Multiplier of a family's branches: none, 1/K or 1/sqrt(2K).")
    ] = None,
    head_size: Annotated[int | None, typer.Option(help="Width of one attention head; widths are multiples.")] = None,
    length: Annotated[int | None, typer.Option("--context", help="Tokens of context.")] = None,
    batch: Annotated[int | None, typer.Option(help="Windows of text per step.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of a run.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps of linear warm-up; a tenth of --steps by default.")] = None,
    decay: Annotated[str | None, typer.Option(help="Decay of the rate: linear, cosine or constant.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Decoupled weight decay, per unit of lr.")] = None,
    momentum: Annotated[
        float | None, typer.Option(help="b1 of the gradient's average; by default the recipe's.")
    ] = None,
    betas: Annotated[str | None, typer.Option(help="The two averages of adam, as in 0.9,0.95.")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm; none by default.")] = None,
    margin: Annotated[
        float | None, typer.Option(help="A loss this far above the first, for 10 steps, has diverged; 1 by default.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Text file or directory, or package.module:function(split, seed); by default Python's library."
        ),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time for all runs, as in 30m; says what it leaves out.")] = None,
    refine: Annotated[
        float | None, typer.Option(help="Add rates until no optimum is at an edge and its error (octaves) is below.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device, as in cpu, cuda (every GPU), cuda:1 or mps.")] = "cpu",
    workers: Annotated[
        int | None, typer.Option(help="Runs at a time; by default one per CPU, or per accelerator of --device.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of each run.")] = 1,
) -> None:
    """Train widths (or depths) x learning rates x recipes, and say whether the learning rate transfers."""
    from moga.api.progress import duration
    from moga.api.transfer import transfer as study
    from moga.study.presets import parse_integers

    command = shlex.join(["moga", *context.obj])
    try:
        found = study(
            model,
            recipes=parse_recipes(recipe or ()),
            lrs=parse_lrs(lrs) if lrs else None,
            over=over,
            sizes=None if sizes is None else parse_integers(sizes),
            seeds=seeds,
            data=data,
            preset=preset,
            out=out,
            device=device,
            workers=workers,
            threads=threads,
            budget=budget,
            refine=refine,
            command=command,
            layers=layers,
            width=width,
            branches=branches,
            start=start,
            roles=parse_roles(role) if role else None,
            margin=margin,
            head_size=head_size,
            context=length,
            batch=batch,
            steps=steps,
            warmup=warmup,
            decay=decay,
            weight_decay=weight_decay,
            momentum=momentum,
            betas=None if betas is None else parse_betas(betas),
            clip=clip,
        )
    except KeyboardInterrupt:
        raise Stopped(f"stopped; the finished runs are kept in {out}. To go on: {command}") from None
    if found.outcome is not None:
        typer.echo(f"{_counts(found.outcome)} in {duration(found.outcome.seconds)}")
        for note in found.outcome.left_out:
            typer.echo(note)
    show(found)


def _counts(outcome: Outcome) -> str:
    text = f"{outcome.ran} run{'s' * (outcome.ran != 1)}"
    text += f" ({outcome.reused} more from before)" if outcome.reused else ""
    return text + (f", {outcome.diverged} diverged" if outcome.diverged else "")


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="Directory that a study wrote: transfer, smoothness or check.")],
) -> None:
    """Write report.html and the figures again, from the records of a directory."""
    from moga.api.load import load

    show(load(directory))


app.command()(inspect)
app.command()(balls)
app.command()(smoothness)
app.command()(check)
