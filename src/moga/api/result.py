"""What the results of all kinds of studies have in common: records in a directory, a page, a picture."""

from __future__ import annotations

import html
import shutil
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from moga.study.functions import given, known, word_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Function = Callable[..., Any]


class Result(ABC):
    """A study on disk. The records of one without ``out=`` are deleted with the last reference to its result."""

    def __init__(self, directory: Path, kept: TemporaryDirectory[str] | None = None) -> None:
        self.directory = directory
        self._kept = kept

    @abstractmethod
    def __str__(self) -> str:
        """The verdicts in words, as the command prints them."""

    @abstractmethod
    def _title(self) -> str:
        """What was studied, in a line."""

    @abstractmethod
    def _write(self) -> Path:
        """Write page and pictures beside the records; return the page's path."""

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page, one HTML file that needs no network, and return its path; by default beside the records.

        Raises ValueError without a path where the records are in a temporary directory.
        """
        if path is None and self._kept is not None:
            raise ValueError("the records of this study are temporary; give the page a path, or the study out=")
        page = self._write()
        if path is None:
            return page
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copyfile(page, path))

    def __repr__(self) -> str:
        return f"{self._title()}\n{self}"

    def _repr_html_(self) -> str:
        """What a notebook shows for a cell that ends in the result."""
        return f"<p><b>{html.escape(self._title())}</b></p><pre>{html.escape(str(self))}</pre>"


def place_of(out: str | Path | None) -> tuple[Path, TemporaryDirectory[str] | None]:
    """Where records are written: a directory that the user named, or a temporary one, with what keeps it alive."""
    if out is not None:
        return Path(out), None
    kept = TemporaryDirectory(prefix="moga-")
    return Path(kept.name), kept


def listed(values: Any) -> list[Any]:
    """One name or function, or several.

    >>> listed("muon"), listed(("muon", "adamw"))
    (['muon'], ['muon', 'adamw'])
    """
    if values is not None and not isinstance(values, Iterable) and not callable(values):
        raise ValueError(f"names or functions are given, one or a list of them; got {values!r}")
    return [values] if isinstance(values, str) or callable(values) else [] if values is None else list(values)


def recipes_of(values: Any) -> list[Any]:
    """`listed`, of recipes: an optimizer or its class is neither a name nor a function.

    Raises ValueError that says which function is wanted.

    >>> recipes_of("muon")
    ['muon']
    """
    found = [values] if _makes_steps(type(values)) else listed(values)
    for one in found:
        kind = one if isinstance(one, type) else type(one)
        if _makes_steps(kind):
            got = f"the class {kind.__name__}" if kind is one else f"an optimizer, {kind.__name__}, of one model"
            raise ValueError(
                f"a recipe is a name or a function (model, lr) that makes an optimizer, got {got}; "
                f"write `def own(model, lr): return {kind.__name__}(model.parameters(), lr)`"
            )
    return found


def _makes_steps(kind: type) -> bool:
    """Whether it is a class of torch's optimizers."""
    return "torch.optim.optimizer" in {base.__module__ for base in kind.__mro__}


def text_path(data: Any, also: str = "") -> str | Path | None:
    """Where the text of a study is, None for that of Python's library.

    Raises ValueError for what is no path; it says what else is ``also`` taken.
    """
    if data is None or isinstance(data, (str, Path)):
        return data
    raise ValueError(f"data must be {also}the path of a text file or a directory of them, got {type(data).__name__}")


def worded(value: Any) -> str:
    """The word for a name, a path or a function."""
    return word_of(value) if callable(value) else str(value)


def worded_keys(rates: Any) -> Any:
    """A dict of learning rates with the words of recipes for keys; anything else as it is."""
    return {worded(recipe): own for recipe, own in rates.items()} if isinstance(rates, dict) else rates


def functions_known(values: Iterable[Any], out: str | Path | None) -> AbstractContextManager[None]:
    """The functions among the values are found under their words inside."""
    return known(given([one for one in values if callable(one)], compared=out is not None))


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A call as its page shows it, without what was not given.

    >>> call_text("transfer", {"model": call_text, "sizes": (32, 64), "seeds": None})
    'moga.study.transfer(model=moga.api.result:call_text, sizes=(32, 64))'
    """
    said = {key: value for key, value in arguments.items() if value is not None}
    return f"moga.study.{name}({', '.join(f'{key}={_shown(value)}' for key, value in said.items())})"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_shown(key)}: {_shown(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_shown, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)" if len(value) == 1 else f"({inside})"
    return word_of(value) if callable(value) else repr(str(value) if isinstance(value, Path) else value)


@contextmanager
def without_widgets() -> Iterator[None]:
    """For imports: tqdm, which accelerate brings, does not warn a notebook that it lacks widgets. None are used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        yield


def shown_in_notebook(figure: Figure) -> Figure:
    """The figure, which a notebook then draws as the value of a cell, also where pyplot was never imported."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"})
    return figure
