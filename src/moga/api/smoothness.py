"""`moga.study.smoothness`: how curved is the loss, in each norm, as a model grows?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, final

from moga.api.progress import watch_records
from moga.api.result import (
    Result,
    call_text,
    functions_known,
    listed,
    place_of,
    shown_in_notebook,
    text_path,
    without_widgets,
)
from moga.study.plans import check_names, smoothness_plan, whole_numbers
from moga.study.smoothness_plan import SmoothnessSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def smoothness(
    model: str = "gpt2",
    *,
    norms: str | Iterable[str] = ("row", "column", "sign", "spectral"),
    widths: Iterable[int] = (32, 64, 128),
    layers: Iterable[int] = (2,),
    trained: Iterable[int] = (0, 40),
    seeds: int | str | Iterable[int] = 1,
    data: str | Path | None = None,
    out: str | Path | None = None,
    threads: int = 1,
    progress: str = "auto",
    command: str | None = None,
    **settings: Any,
) -> Smoothness:
    """Measure Lipschitz and smoothness constants of a family's loss against width and depth, for each norm, from below.

    The same as ``moga smoothness``; for a loss of your own see :func:`moga.study.constants.smoothness`. It runs in this
    process.

    Args:
        model: a family, "gpt2" or "llama". norms: of hidden matrices, as in "row", "column:4", "spectral".
        widths, layers: sizes of the model. trained: steps of training after which to measure, 0 for a fresh model.
        seeds: how many, or which. data: a text file or directory; None is the source of Python's library.
        out: a directory for the records; the same call goes on where an earlier one ended. None: as :func:`transfer`.
        threads: of the computation. progress, command: as :func:`transfer`.
        settings: those of :class:`moga.study.smoothness_plan.SmoothnessSettings`: recipe, lr, batch, windows, ...

    Raises:
        ValueError: what no such study can have; training that diverges.

    >>> found = smoothness(norms="sign", widths=(8, 16), layers=[1], trained=[0], head_size=8, context=8, windows=1,
    ...                    random=0, steps=1, progress="none")
    >>> found.frame[["norm", "width", "trained"]].values.tolist()
    [['sign', 8, 0], ['sign', 16, 0]]
    """
    check_names(settings, SmoothnessSettings, smoothness)
    sizes = {"widths": widths, "layers": layers, "trained": trained}
    axes = {"norms": listed(norms)} | {name: whole_numbers(name, given) for name, given in sizes.items()}
    usual = isinstance(seeds, int) and seeds == 1
    said = {"model": model, **axes, "seeds": None if usual else seeds, "data": data, "out": out, **settings}
    plan = smoothness_plan({"family": model, **settings}, seeds, **axes)
    with without_widgets():
        from moga.study.smoothness_sweep import run_smoothness

    directory, kept = place_of(out)
    with functions_known((), None):
        measured = run_smoothness(
            plan,
            directory,
            data=text_path(data),
            threads=threads,
            command=call_text("smoothness", said) if command is None else command,
            progress=watch_records(progress, _line),
        )
    return Smoothness(directory, kept, measured)


def _line(record: Mapping[str, Any]) -> str:
    config, result = record["config"], record["result"]
    where = f"{config['norm']}, width {config['width']}, {config['layers']} layers, {config['trained']} steps"
    found = f"smoothness {result['smoothness']:.4g}, Lipschitz {result['lipschitz']:.4g}"
    return f"{where}: {found} ({result['seconds']:.1f} s)"


@final
class Smoothness(Result):
    """Constants that a study of smoothness measured. ``measured``: how many of them in this call."""

    def __init__(self, directory: Path, kept: TemporaryDirectory[str] | None = None, measured: int = 0) -> None:
        from moga.report.constants import load_constants

        super().__init__(directory, kept)
        self.measured = measured
        self._found = load_constants(directory)

    @cached_property
    def frame(self) -> Any:
        """One row per measurement, a pandas frame.

        norm; width; layers; trained (steps); seed; loss (nats per token); lipschitz (loss per unit of the norm);
        smoothness (loss per unit of the norm squared, from below); settled (its search had stopped growing); exponent
        (the theory's power of the width); parameters; seconds.
        """
        import pandas

        named = ("norm", "width", "layers", "trained", "seed")
        found = ("loss", "lipschitz", "smoothness", "settled", "exponent", "parameters", "seconds")
        return pandas.DataFrame(
            {name: one["config"][name] for name in named} | {name: one["result"][name] for name in found}
            for one in self._found.records
        )

    @cached_property
    def exponents(self) -> Any:
        """One row per constant, norm and what grows.

        constant; norm; over ("width" or "layers"); held (what the other one is); trained; exponent (slope of
        log2(constant) against log2(size)); error (standard error from the residuals; NaN below three numbers).
        """
        import pandas

        from moga.report.constants import AXES, CONSTANTS, power

        rows = []
        for axis, held in AXES.items():
            for case in self._found.panels(axis):
                for constant in CONSTANTS:
                    for norm in self._found.norms:
                        slope = power(self._found.series(constant, axis, norm=norm, **case))
                        if slope is not None:
                            row = {"constant": constant, "norm": norm, "over": axis, "held": case[held]}
                            row |= {"trained": case["trained"], "exponent": slope.value, "error": slope.stderr}
                            rows.append(row)
        columns = ["constant", "norm", "over", "held", "trained", "exponent", "error"]
        return pandas.DataFrame(rows, columns=columns).astype({"exponent": float, "error": float})

    def figure(self, over: str = "width") -> Figure:
        """A matplotlib figure: both constants against "width" or "layers".

        Raises ValueError where only one size of that was measured.
        """
        from moga.report.constants import AXES
        from moga.report.smoothness_page import constants_png

        if over not in AXES or not self._found.panels(over):
            raise ValueError(f"no figure over {over!r}: give {' or '.join(AXES)}, and measure at two sizes of it")
        return shown_in_notebook(constants_png(self._found, over))

    def _write(self) -> Path:
        from moga.report.smoothness_page import write_smoothness_report

        return write_smoothness_report(self.directory)

    def _title(self) -> str:
        return f"Smoothness of {self._found.study['settings']['family']}, {len(self._found.records)} measurements"

    def __str__(self) -> str:
        from moga.report.smoothness import text

        return text(self._found)
