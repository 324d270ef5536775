"""Whether a module runs what its file says: an imported module keeps its old code when the file is edited."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from moga.study.fingerprints import inner_functions
from moga.study.records import StudyError


def source_bytes(module: ModuleType) -> bytes:
    """The text of a module's file, b"" where it has none.

    Raises:
        StudyError: the file is not the one that was imported. Told from the code of the module's functions, and from
            the compiled file that Python keeps beside it; where none is kept, an edited constant is not noticed.

    >>> source_bytes(os)[:3]
    b'r\"\"'
    """
    spec = module.__spec__
    if spec is None or type(spec.loader) is not SourceFileLoader or spec.origin is None:
        path = Path(getattr(module, "__file__", None) or "")
        return path.read_bytes() if path.suffix == ".py" and path.exists() else b""
    path = Path(spec.origin)
    text = path.read_bytes()
    if _compiled_is_old(path) or not _same_code(module, text, str(path)):
        raise StudyError(
            f"{path} changed since it was imported, so this process runs the code of before; restart it, or reload "
            f"{module.__name__} (importlib.reload) and take the functions from there"
        )
    return text


def _compiled_is_old(path: Path) -> bool:
    """Whether Python wrote a compiled file at the import, and the source is newer or of another size."""
    kept = Path(importlib.util.cache_from_source(str(path)))
    if sys.dont_write_bytecode or not kept.exists() or not os.access(kept.parent, os.W_OK):
        return False
    words = [int.from_bytes(kept.read_bytes()[at : at + 4], "little") for at in (4, 8, 12)]  # flags, time, size
    now = path.stat()
    return words[0] == 0 and words[1:] != [int(now.st_mtime) & 0xFFFFFFFF, now.st_size & 0xFFFFFFFF]


def _same_code(module: ModuleType, text: bytes, path: str) -> bool:
    """Whether every function that the module's file made is still in the file."""
    try:
        now = set(_codes(compile(text, path, "exec", dont_inherit=True)))
    except SyntaxError:
        return False
    return all(code in now for code in _live(module) if code.co_filename == path)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _live(holder: Any) -> Iterator[CodeType]:
    """The code of the functions in a module or a class, also in wrappers and in classes inside."""
    for value in list(vars(holder).values()):
        if isinstance(value, type) and value.__module__ == getattr(holder, "__module__", holder.__name__):
            yield from _live(value)
        for one in (value, *inner_functions(value)):
            if isinstance(one, FunctionType):
                yield one.__code__
