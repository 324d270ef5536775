"""`moga.study.transfer`: does the learning rate of a small model hold on a large one?"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, final

from moga.api.progress import watch_sweep
from moga.api.result import (
    Function,
    Result,
    call_text,
    functions_known,
    place_of,
    recipes_of,
    shown_in_notebook,
    without_widgets,
    worded,
    worded_keys,
)
from moga.study.fit import Summary
from moga.study.plans import Rates, check_names, transfer_plan, whole_numbers
from moga.study.presets import parse_seconds
from moga.study.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moga.study.sweep import Outcome


def transfer(
    model: str | Function = "gpt2",
    *,
    recipes: str | Function | Sequence[str | Function] = (),
    lrs: Rates | Mapping[Any, Rates] | None = None,
    over: str = "width",
    sizes: Iterable[int] | None = None,
    seeds: int | str | Iterable[int] | None = None,
    data: str | Path | Function | None = None,
    preset: str = "quick",
    out: str | Path | None = None,
    device: str = "cpu",
    workers: int | None = None,
    threads: int = 1,
    budget: str | None = None,
    refine: float | None = None,
    progress: str = "auto",
    command: str | None = None,
    **settings: Any,
) -> Transfer:
    """Train a model at several sizes and learning rates, and say whether the rate that is best moves with the size.

    The same as ``moga transfer``, with functions where the command takes import paths. Functions that no other process
    can import (of a notebook, a script, or made by a function) are sent to the workers with all that they use.

    Args:
        model: a family ("gpt2", "llama"), or a function (or class) of ``width=`` (over depth: ``depth=``) that returns
            a model, (model, None, loss) or, see :mod:`moga.study.factories`, an import path to one.
        recipes: names, or functions ``optimizer(model, lr)``. By default those of the preset.
        lrs: rates of all recipes, or by recipe: numbers, or text such as "2**-6:2**-1" (factors of 2).
        over: what grows, "width" or "depth". sizes: at least two. seeds: how many, or which.
        data: a text file or directory, or a function ``batches(split, seed)``; None is the source of Python's library.
        out: a directory for the records. The same call goes on where an earlier one ended, or refuses if a setting or
            the code of a function changed. None: they are in ``result.directory``, and deleted with the result.
        device: "cpu", "cuda" (every GPU), "cuda:1", "mps". workers: processes; by default one per CPU, or one per
            accelerator; with 1 runs are made in this process. threads: of each worker.
        budget: a time with its unit (s, m, h), as in "30m"; what does not fit is left out. refine: octaves, see `moga
            transfer`.
        progress: "auto", a bar in a terminal or a notebook and lines elsewhere, or "none".
        command: shown on the page as the way to the study; by default this call.
        settings: those of :class:`moga.study.settings.Settings`: steps, warmup, decay, weight_decay, batch, roles, ...

    Raises:
        ValueError: what no study can have; StudyError (a ValueError) for a directory or a run that fails.

    >>> import torch
    >>> def net(width):
    ...     return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    >>> def squares(width):
    ...     return net(width), None, lambda output, batch: (output - batch.sum(1, keepdim=True)).square().mean()
    >>> def batches(split, seed):
    ...     generator = torch.Generator().manual_seed(seed if split == "train" else 1000)
    ...     yield from torch.randn(4, 8, 4, generator=generator)
    >>> found = transfer(squares, data=batches, recipes="moga-row", lrs=[0.1, 0.2], sizes=(8, 16), steps=4,
    ...                  start="moga", workers=1, progress="none")
    >>> list(found.frame["width"]), found.frame["loss"].notna().all()
    ([16, 16, 8, 8], np.True_)
    >>> print(found.verdicts["moga-row"].transfers)  # two rates are too few to tell
    None
    """
    check_names(settings, Settings, transfer)
    said = {
        "model": model,
        "recipes": recipes or None,
        "lrs": lrs,
        "over": None if over == "width" else over,
        "sizes": None if sizes is None else whole_numbers("sizes", sizes),
        "seeds": seeds,
        "data": data,
        "preset": None if preset == "quick" else preset,
        "out": out,
        "refine": refine,
        **settings,
    }
    if data is not None and not isinstance(data, (str, Path)) and not callable(data):
        raise ValueError(
            f"data must be a path or a function, got {type(data).__name__}; write `def batches(split, seed)` that "
            "yields the batches"
        )
    chosen, source = recipes_of(recipes), None if data is None else worded(data)
    plan = transfer_plan(
        preset,
        recipes=[worded(one) for one in chosen],
        lrs=worded_keys(lrs),
        sizes=said["sizes"],
        seeds=seeds,
        data=source or "",
        settings={"family": worded(model), "over": over, **settings},
    )
    with without_widgets():
        from moga.study.sweep import run_sweep

    directory, kept = place_of(out)
    with functions_known([model, data, *chosen], out), watch_sweep(progress) as (watch, announce):
        outcome = run_sweep(
            plan,
            directory,
            data=source,
            workers=workers,
            threads=threads,
            device=str(device),
            command=call_text("transfer", said) if command is None else command,
            progress=watch,
            budget=None if budget is None else parse_seconds(str(budget)),
            refine=refine,
            announce=announce,
        )
    return Transfer(directory, kept, outcome)


@final
class Transfer(Result):
    """What a transfer study found. ``directory``: its records; ``outcome``: what this call did, None if only read.

    As the value of a notebook's cell it is a table of optima and the verdicts.
    """

    def __init__(
        self, directory: Path, kept: TemporaryDirectory[str] | None = None, outcome: Outcome | None = None
    ) -> None:
        from moga.report.results import load_results

        super().__init__(directory, kept)
        self.outcome = outcome
        self._results = load_results(directory)

    @property
    def over(self) -> str:
        """What grows, "width" or "depth"; a column of every frame."""
        return self._results.over

    @property
    def verdicts(self) -> dict[str, Summary]:
        """By recipe: drift (octaves per doubling) and its error, regret (units of the loss), and the fit of each size.

        A recipe of one's own is called as its function is: ``module:name``.
        """
        return {one.recipe: one for one in self._results.summaries}

    @cached_property
    def frame(self) -> Any:
        """One row per run, a pandas frame.

        recipe; width or depth; lr; seed; loss (held-out, nats per token or in units of one's own loss; NaN where the
        run diverged); diverged; tokens (trained on; rows of data that hold no integers); parameters; seconds (of
        training); tokens_per_second.
        """
        names = ("loss", "diverged", "tokens", "parameters", "seconds", "tokens_per_second")
        rows = [
            self._run(record) | {name: record["result"][name] for name in names} for record in self._results.records
        ]
        import pandas

        return pandas.DataFrame(rows).astype({"loss": float})

    @cached_property
    def curves(self) -> Any:
        """One row per point of a training curve: recipe, width or depth, lr, seed, step, loss (mean since the last)."""
        import pandas

        rows = [
            self._run(record) | {"step": int(step), "loss": loss}
            for record in self._results.records
            for step, loss in record["result"]["curve"]
        ]
        return pandas.DataFrame(rows)

    @cached_property
    def optima(self) -> Any:
        """One row per recipe and size.

        recipe; width or depth; lr (the fitted optimum; NaN where every run diverged); error (standard error over
        seeds, octaves; NaN below two seeds); known (it is inside the grid); best_loss (lowest mean of a rate); seeds.
        """
        import pandas

        rows = []
        for recipe, summary in self.verdicts.items():
            for fit in summary.widths:
                lr, error = (math.nan, None) if fit.optimum is None else (fit.optimum.lr, fit.optimum.stderr_log2)
                row = {"recipe": recipe, self.over: fit.width, "lr": lr, "error": math.nan if error is None else error}
                rows.append(row | {"known": fit.known, "best_loss": fit.best_loss, "seeds": fit.seeds})
        return pandas.DataFrame(rows)

    def figure(self, what: str = "transfer") -> Figure:
        """A matplotlib figure: "transfer", loss against learning rate; or "drift", optimum against size.

        Raises ValueError for another word.
        """
        from moga.report import figures

        drawn: dict[str, Callable[[Any], Figure]] = {"transfer": figures.transfer_png, "drift": figures.drift_png}
        if what not in drawn:
            raise ValueError(f"no figure is called {what!r}; there are {', '.join(drawn)}")
        return shown_in_notebook(drawn[what](self._results))

    def _write(self) -> Path:
        from moga.report.page import write_report

        return write_report(self.directory)

    def _run(self, record: Mapping[str, Any]) -> dict[str, Any]:
        config = record["config"]
        return {name: config[name] for name in ("recipe", self.over, "lr", "seed")}

    def _title(self) -> str:
        family, sizes = self._results.study["settings"]["family"], self._results.widths
        span = f"{self.over} {sizes[0]}" if len(sizes) == 1 else f"{self.over}s {sizes[0]} to {sizes[-1]}"
        return f"Transfer of {family}, {span}, {len(self._results.records)} runs"

    def __str__(self) -> str:
        return "\n".join(one.verdict for one in self._results.summaries)

    def _repr_html_(self) -> str:
        table = self.optima.to_html(index=False, na_rep="", border=0, float_format="{:.4g}".format)
        lines = "".join(f"<li>{html.escape(one.verdict)}</li>" for one in self._results.summaries)
        return f"<p><b>{html.escape(self._title())}</b></p><ul>{lines}</ul>{table}"
