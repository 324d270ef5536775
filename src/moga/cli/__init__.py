"""The ``moga`` command: runs the command line and turns what goes wrong into one line and an exit code.

Exit codes: 0 done; 1 a check that does not pass; 2 bad input (one line on stderr) or a function of the user's own that
fails (with the places in its code); 130 stopped with Ctrl-C. A bug keeps its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
        return _run(arguments)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        return _fail(f'the module {error.name} is missing; the command line needs: pip install "moga[study]"')
    except Exception as error:
        if isinstance(error, (ValueError, OSError)) and _raised_by_moga(error):
            return _fail(str(error))
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
        text = error.format_message()
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


def _fail(text: str, code: int = 2) -> int:
    said, place, lines = text.partition("\n  File ")  # lines of a traceback stay lines
    print("moga: " + " ".join(said.split()) + place + lines, file=sys.stderr)
    return code
