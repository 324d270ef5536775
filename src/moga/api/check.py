"""`moga.study.check`: does anything in a model grow with its width?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, final

from moga.api.progress import watch_records
from moga.api.result import (
    Function,
    Result,
    call_text,
    functions_known,
    listed,
    place_of,
    recipes_of,
    shown_in_notebook,
    text_path,
    without_widgets,
    worded,
    worded_keys,
)
from moga.study.coordinates_plan import CheckSettings
from moga.study.plans import CHECK_SEEDS, check_names, check_plan, whole_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check(
    model: str | Function,
    *,
    recipes: str | Function | Sequence[str | Function] = "moga-row",
    lrs: float | Mapping[Any, float] | None = None,
    over: str = "width",
    sizes: Iterable[int] | None = None,
    seeds: int | str | Iterable[int] = CHECK_SEEDS,
    plants: str | Sequence[str] = "none",
    data: str | Path | Function | None = None,
    out: str | Path | None = None,
    device: str = "cpu",
    threads: int = 1,
    progress: str = "auto",
    command: str | None = None,
    **settings: Any,
) -> Check:
    """Check that activations, and what a few steps change in them, do not grow with the size of a model.

    The same as ``moga check``, with functions where the command takes import paths. It runs in this process.

    Args:
        model: a family ("gpt2", "llama"), or a function (or class) of ``width=`` (over depth: ``depth=``) that returns
            a model, (model, batch) or (model, batch, loss), or an import path to one.
        recipes: names, or functions ``optimizer(model, lr)``. lrs: one rate of all, or by recipe; a small one each
            where none is given.
        over: what grows. sizes: at least two, by default four. seeds: how many, or which; at least two.
        plants: faults to plant, "none", "scale", "fan", "init": a check with one of them must fail.
        data: a function ``batches(split, seed)``, the first of whose "train" batches is trained on; or a text file or
            directory, for models without a batch of their own; None is the source of Python's library.
        out: a directory for the records, which replace those of an earlier check. None: as :func:`transfer`.
        device: a word of torch. threads: of the computation. progress, command: as :func:`transfer`.
        settings: those of :class:`moga.study.coordinates_plan.CheckSettings`: steps, mark, start, roles, batch, ...

    Raises:
        ValueError: what no check can have; a loss that is not finite.

    >>> import torch
    >>> def net(width):
    ...     inside = (torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU())
    ...     x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    ...     squares = lambda output, batch: (output - batch[:, :3]).square().mean()
    ...     return torch.nn.Sequential(*inside, torch.nn.Linear(width, 3)), x, squares
    >>> found = check(net, sizes=(64, 256), steps=2, start="moga", progress="none")
    >>> found.verdicts, found.passes
    ({'moga-row': 'passes'}, True)
    """
    check_names(settings, CheckSettings, check)
    said = {
        "model": model,
        "recipes": recipes,
        "lrs": lrs,
        "over": None if over == "width" else over,
        "sizes": None if sizes is None else whole_numbers("sizes", sizes),
        "seeds": None if isinstance(seeds, int) and seeds == CHECK_SEEDS else seeds,
        "plants": None if plants == "none" else plants,
        "data": data,
        "out": out,
        "device": None if str(device) == "cpu" else str(device),
        **settings,
    }
    chosen = recipes_of(recipes)
    source = worded(data) if callable(data) else text_path(data, "a function batches(split, seed), or ")
    plan = check_plan(
        worded(model),
        recipes=[worded(one) for one in chosen],
        lrs=worded_keys(lrs),
        over=over,
        sizes=said["sizes"],
        seeds=seeds,
        plants=listed(plants),
        data=str(source or ""),
        device=str(device),
        settings=settings,
    )
    with without_widgets():
        from moga.study.coordinates import run_check

    directory, kept = place_of(out)
    with functions_known([model, data, *chosen], None):  # a check is made anew each time: no code is compared
        run_check(
            plan,
            directory,
            data=source,
            threads=threads,
            command=call_text("check", said) if command is None else command,
            progress=watch_records(progress, _line),
        )
    return Check(directory, kept)


def _line(record: Mapping[str, Any]) -> str:
    config, result = record["config"], record["result"]
    plant = "" if config["plant"] == "none" else f", planted fault {config['plant']}"
    where = f"{config['recipe']}{plant}, {config['over']} {config['size']}, seed {config['seed']}"
    return f"{where} ({result['seconds']:.1f} s)"


@final
class Check(Result):
    """What a coordinate check found, case by case: a recipe, with a planted fault if there is one."""

    def __init__(self, directory: Path, kept: TemporaryDirectory[str] | None = None) -> None:
        from moga.report.coordinates import load_check

        super().__init__(directory, kept)
        self._checks = load_check(directory)

    @property
    def verdicts(self) -> dict[str, str]:
        """By case: "passes", "fails" or "undecided"."""
        return {one.title: one.word for one in self._checks}

    @property
    def passes(self) -> bool:
        """Whether every case does."""
        return set(self.verdicts.values()) == {"passes"}

    @cached_property
    def frame(self) -> Any:
        """One row per run and module, a pandas frame.

        recipe; plant; width or depth; lr; seed; module; type; start (root mean square of its output); change (root
        mean square of the output's change after the last step; NaN where the shape changed); own (of the part of the
        change that comes from its own matrices); loss_before, loss_after (of the run).
        """
        import pandas

        rows = []
        for check in self._checks:
            for record in check.records:
                config, losses = record["config"], record["result"]["loss"]
                run = {name: config[name] for name in ("recipe", "plant", "lr", "seed")}
                run |= {config["over"]: config["size"], "loss_before": losses[0], "loss_after": losses[-1]}
                for name, module in record["result"]["modules"].items():
                    sizes = {"start": module["start"], "change": module["change"][-1], "own": module["own"]}
                    rows.append(
                        run | {"module": name, "type": module["type"]} | {key: _rms(one) for key, one in sizes.items()}
                    )
        return pandas.DataFrame(rows)

    @cached_property
    def slopes(self) -> Any:
        """One row per case and module, those that do not pass first.

        case; module; verdict; start, change, own (slopes of log2(size) per doubling; NaN where there is none) with
        start_error, ... (standard errors over seeds); cause (likely, in words).
        """
        import pandas

        from moga.report.causes import causes

        rows = []
        for check in self._checks:
            texts = causes(check)
            for module in sorted(check.modules, key=lambda one: one.word == "passes"):
                row: dict[str, Any] = {"case": check.title, "module": module.name, "verdict": module.word}
                for name in ("start", "change", "own"):
                    slope = getattr(module, name).slope
                    row |= {name: slope and slope.value, f"{name}_error": slope and slope.stderr}
                rows.append(row | {"cause": texts.get(module.name, "")})
        numbers = [name + error for name in ("start", "change", "own") for error in ("", "_error")]
        return pandas.DataFrame(rows).astype(dict.fromkeys(numbers, float))

    def figure(self) -> Figure:
        """A matplotlib figure: sizes at the start, and of the last change, against width; flat is right."""
        from moga.report.coordinates_page import check_png

        return shown_in_notebook(check_png(self._checks))

    def _write(self) -> Path:
        from moga.report.coordinates_page import write_check_report

        return write_check_report(self.directory)[0]

    def _title(self) -> str:
        study = self._checks[0].settings
        sizes = ", ".join(map(str, self._checks[0].sizes))
        return f"Coordinate check of {study['model']}, {study['over']}s {sizes}"

    def __str__(self) -> str:
        from moga.report.coordinates_page import text

        return text(self._checks)


def _rms(norms: Sequence[float] | None) -> float | None:
    from moga.report.coordinates import RMS

    return None if norms is None else norms[RMS]
