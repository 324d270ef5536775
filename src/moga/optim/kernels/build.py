"""Makes ``step.c`` a shared library for this processor, once, and loads it.

Threads come from the OpenMP runtime that torch has already loaded: the library links to none of its own, because the
idle threads of a second one would spin against those of the first.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

SOURCE = Path(__file__).with_name("step.c")
# No contraction and no reassociation: every entry is rounded alike, whatever thread it falls to.
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fopenmp", "-fPIC", "-ffp-contract=off", "-fno-math-errno")
INSTALL = "Install gcc (Debian: apt-get install gcc libc6-dev; conda: conda install gcc) or name one in CC"


class Numbers(ctypes.Structure):
    """As in step.c."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("lr", "decay", "b1", "b2", "eps"))


class Unavailable(RuntimeError):
    """There is no compiled step here; the text says what is missing and how to get it."""


@functools.cache
def library_of(stored: str) -> ctypes.CDLL | Unavailable:
    """step.c for weights of that dtype ("float32"), or why there is none. The first call may compile for seconds."""
    try:
        return _load(stored)
    except Unavailable as reason:
        return reason


def available(stored: str, word: str) -> ctypes.CDLL | None:
    """``moga_step`` and ``moga_finite`` for that dtype; without them None and, for the word "auto", a warning once.

    Raises Unavailable for the word "c", which asks for it.
    """
    found = library_of(stored)
    if not isinstance(found, Unavailable):
        return found
    if word == "c":
        raise found
    _warn(str(found))
    return None


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"{reason}. Until then the optimizer's steps on the CPU are made of tensor operations, several times slower; "
        'implementation="plain" chooses these without a warning',
        stacklevel=2,
    )


def _load(stored: str) -> ctypes.CDLL:
    if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        raise Unavailable("this torch has no GNU OpenMP, whose threads the compiled step shares; take a build that has")
    compiler = _compiler()
    place = _directory() / f"step-{stored}-{_key(compiler)}.so"
    try:
        if not _whole(place):
            place = _compile(compiler, stored, place)
    except OSError as error:
        raise Unavailable(f"the compiled step cannot be made ({error}). {INSTALL}") from None
    try:
        library = ctypes.CDLL(str(place))
        step, finite = library.moga_step, library.moga_finite
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the compiled step at {place} cannot be loaded ({error}); delete that file") from None
    address, number = ctypes.c_void_p, ctypes.c_int64
    step.argtypes = (address, number, address, number, Numbers, ctypes.c_int)
    finite.argtypes = (address, number, ctypes.c_int)
    step.restype = finite.restype = ctypes.c_int
    return library


def _compiler() -> list[str]:
    try:
        given = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise Unavailable(f"CC={os.environ['CC']!r} names no compiler ({error}). {INSTALL}") from None
    for words in [given] if given else [["gcc"], ["cc"]]:
        if path := shutil.which(words[0]):
            return [path, *words[1:]]
    missing = f"CC={os.environ['CC']!r} is not there" if given else "there is no C compiler (gcc, cc)"
    raise Unavailable(f"{missing} to make the compiled step. {INSTALL}")


def _key(compiler: list[str]) -> str:
    """A change of the source, of the compiler or of the processor (a home directory may be shared) compiles anew."""
    binary = Path(compiler[0]).resolve()
    stat = binary.stat()
    parts = (SOURCE.read_text(), FLAGS, compiler, str(binary), stat.st_size, stat.st_mtime_ns, _processor())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    first = {line.partition(":")[0].strip(): line for line in reversed(lines)}
    return repr([first.get(name) for name in ("model name", "flags", "CPU part", "Features")])


def _directory() -> Path:
    """Where libraries stay between processes: in the user's cache, or where that cannot be, in this process alone."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = Path(home) / "moga"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return _own_directory()
    return place if os.access(place, os.W_OK) else _own_directory()


@functools.cache
def _own_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="moga-"))


def _compile(compiler: list[str], stored: str, place: Path) -> Path:
    """Compile and link without an OpenMP library; ranks that start together each rename files of their own."""
    try:
        return _compile_in(place.parent, compiler, stored, place.name)
    except OSError:  # a full or vanished cache
        return _compile_in(_own_directory(), compiler, stored, place.name)


def _compile_in(directory: Path, compiler: list[str], stored: str, name: str) -> Path:
    place = directory / name
    with tempfile.TemporaryDirectory(dir=directory) as work:
        unit, linked, digest = f"{work}/step.o", f"{work}/step.so", f"{work}/digest"
        commands = (
            [*compiler, *FLAGS, f"-DSTORED_{stored}", "-c", str(SOURCE), "-o", unit],
            [*compiler, "-shared", unit, "-lm", "-o", linked],
        )
        for command in commands:
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                says = " ".join(run.stderr.split()[-40:]) or f"exit code {run.returncode}"
                raise Unavailable(f"{shlex.join(command)} failed to make the compiled step: {says}. {INSTALL}")
        Path(digest).write_text(_digest(Path(linked)))
        os.replace(linked, place)
        os.replace(digest, _digest_place(place))
    return place


def _whole(place: Path) -> bool:
    """Whether the library is there as it was written. A cut one, after a power loss, would kill the process."""
    try:
        return _digest_place(place).read_text() == _digest(place)
    except OSError:
        return False


def _digest_place(place: Path) -> Path:
    return place.with_suffix(".sha256")


def _digest(place: Path) -> str:
    return hashlib.sha256(place.read_bytes()).hexdigest()
