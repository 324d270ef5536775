"""The ``moga`` command: runs the command line and turns what goes wrong into one line and an exit code.

Exit codes: 0 done; 1 a check that does not pass; 2 bad input (one line on stderr, or a table of parameters) or a
function of the user's own that fails (with the places in its code); 130 stopped with Ctrl-C. A bug keeps its traceback.
Warnings are lines on stderr, each once.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["main"]

EXTRAS = (
    "accelerate", "cloudpickle", "jinja2", "matplotlib", "numpy", "pandas", "rich", "transformers", "typer",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``arguments`` are those of the process where not given.

    >>> main(["--version"])
    moga 0.1.0
    0
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _warnings_in_words():
            return _run(arguments)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        return _fail(f'the module {error.name} is missing; the command line needs: pip install "moga[study]"')
    except Exception as error:
        if isinstance(error, (ValueError, OSError)) and _raised_by_moga(error):
            return _fail(_in_options(str(error)))
        if isinstance(error, OSError) and error.filename is not None:  # the system's word on a file that the user named
            return _fail(f"{error.strerror}: {error.filename}")
        from moga.study.failures import failure_of

        if (text := failure_of(error)) is not None:
            return _fail(f"your code failed: {text}")
        raise


def _run(arguments: list[str]) -> int:
    """Parse and run; what typer itself finds wrong (an unknown option, a missing value) is one line as well."""
    import typer

    from moga.cli.commands import app
    from moga.cli.show import Stopped

    # typer may bring its own copy of click, so its errors are reached through the one name that it makes public.
    usage_error: Any = typer.BadParameter.__mro__[1]

    try:
        code = app(arguments, prog_name="moga", standalone_mode=False, obj=arguments)
    except Stopped as stopped:
        return _fail(str(stopped), 130)
    except typer.Abort:  # Ctrl-C outside a sweep: typer raises this or, in newer releases, returns 130
        code = 130
    except usage_error as error:
        text = " ".join(error.format_message().split())
        return _fail(text) if text else 2  # no command: help was shown, and there is nothing to add
    return _fail("stopped", 130) if code == 130 else int(code or 0)


def _raised_by_moga(error: BaseException) -> bool:
    """Whether the innermost frame is moga's own: then the text was written for the user, else it is a bug."""
    trace = error.__traceback__
    name = ""
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        trace = trace.tb_next
    return name.partition(".")[0] == "moga"


@contextmanager
def _warnings_in_words() -> Iterator[None]:
    """Warnings name no line of code: the user of a command wrote none."""
    said = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if (text := str(message)) not in said:
            said.add(text)
            print(f"warning: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _in_options(text: str) -> str:
    """With ``roles={...}`` as the options of a command, where a command can say it."""

    def options(found: re.Match[str]) -> str:
        try:
            roles = dict(ast.literal_eval(found[1]))
        except (ValueError, TypeError, SyntaxError):  # in the words of someone else
            return found[0]
        if not all(isinstance(role, str) for role in roles.values()):
            return found[0]
        return " ".join(f"--role {shlex.quote(f'{name}={role}')}" for name, role in roles.items())

    return re.sub(r"roles=({.+})", options, text)


def _fail(text: str, code: int = 2) -> int:
    print(f"moga: {text}", file=sys.stderr)
    return code
