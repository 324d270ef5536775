"""One writer at a time: a lock on the directory of a study, which the system takes back from a process that dies."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moga.study.records import LOCK_FILE, StudyError, check_place, close_study, open_study, writing


@contextmanager
def hold_study(
    directory: str | Path, settings: Mapping[str, Any], corpus: Mapping[str, Any], command: str = ""
) -> Iterator[None]:
    """`open_study`, with the directory to oneself until the block ends, and `close_study` if it ends well.

    Reading needs no lock.

    Raises:
        StudyError: another process holds the directory; what `open_study` raises.
    """
    folder = Path(directory)
    check_place(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    descriptor = _take(path)
    try:
        open_study(directory, settings, corpus, command)
        yield
        close_study(directory)
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _take(path: Path) -> int:
    """A descriptor of the lock file, locked; it says who holds it. Python's children do not inherit it."""
    while True:
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with writing(path):
                _lock(descriptor, path.parent)
            if _is(path, descriptor):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        raise StudyError(
            f"{folder} is in use: {holder} is writing to it; wait until that ends, or give another directory (--out)"
        ) from None


def _is(path: Path, descriptor: int) -> bool:
    """Whether the locked file still has its name: its holder may have removed it after it was opened here."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
