"""Byte corpora: real text, split into a training part and a held-out part that share no file (or no byte).

The default is the source text of the running Python's standard library: about 11 MB that is always there.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

HELD_OUT = 10  # one file in ten, or the last tenth of a single file
VALIDATION_TOKENS = 32_768
# Not text that a package is made of: other people's packages, tests (odd data), caches, and two applications.
LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "lib2to3"})


@dataclass(frozen=True)
class Corpus:
    """Two byte arrays without overlap. `fingerprint` is the sha256 of both, so it also fixes where they were cut."""

    name: str
    train: Bytes
    held_out: Bytes

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the training part's length, the training part and the held-out part."""
        digest = hashlib.sha256(f"{len(self.train)}:".encode())
        digest.update(self.train.tobytes())
        digest.update(self.held_out.tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, str | int]:
        """Plain data for the study's file."""
        return {
            "name": self.name,
            "sha256": self.fingerprint,
            "train_bytes": len(self.train),
            "held_out_bytes": len(self.held_out),
        }


def load_corpus(path: str | Path | None = None, *, context: int = 64) -> Corpus:
    """The standard library's source (None), a text file, or a directory of text files.

    Files are held out whole: about one in ten, chosen by a hash of the relative path, so that a file added later
    moves no other. A single file (or too few files for that) gives its last tenth.

    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: no text in it, or a part too short for one window of `context + 1` bytes.
    """
    if path is None:
        root = Path(sysconfig.get_paths()["stdlib"])
        files = [(name, text) for name, text in _texts(root) if name.endswith(".py")]
        corpus = _split_files("the standard library of the running Python", files)
    elif not str(path) or not Path(path).exists():  # no word at all would be the present directory
        raise FileNotFoundError(
            f"no such file or directory: {str(path)!r}; give a text file or a directory of text files"
        )
    elif Path(path).is_dir():
        corpus = _split_files(Path(path).resolve().name, list(_texts(Path(path))))
    else:
        corpus = _split_bytes(Path(path).name, Path(path).read_bytes())
    _check_length(corpus, "the standard library" if path is None else str(path), context)
    return corpus


def _texts(root: Path) -> Iterator[tuple[str, bytes]]:
    """(relative path, bytes) of every file without zero bytes, sorted by path; neither hidden files nor LEFT_OUT."""
    paths = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in LEFT_OUT and not name.startswith(".")]
        paths += [Path(folder) / name for name in names if not name.startswith(".")]
    for path in sorted(paths, key=lambda found: found.relative_to(root).as_posix()):
        text = path.read_bytes()
        if text and b"\0" not in text:
            yield path.relative_to(root).as_posix(), text


def is_held_out(relative_path: str) -> bool:
    """True for about one path in ten, the same on every machine.

    >>> sum(is_held_out(f"file{index}.py") for index in range(10_000))
    1030
    """
    return int.from_bytes(hashlib.sha256(relative_path.encode()).digest()[:8], "big") % HELD_OUT == 0


def _split_files(name: str, files: list[tuple[str, bytes]]) -> Corpus:
    held_out = b"".join(text for path, text in files if is_held_out(path))
    train = b"".join(text for path, text in files if not is_held_out(path))
    if not held_out or not train:
        return _split_bytes(name, train or held_out)
    return Corpus(name, np.frombuffer(train, np.uint8), np.frombuffer(held_out, np.uint8))


def _split_bytes(name: str, text: bytes) -> Corpus:
    cut = len(text) - len(text) // HELD_OUT
    return Corpus(name, np.frombuffer(text[:cut], np.uint8), np.frombuffer(text[cut:], np.uint8))


def _check_length(corpus: Corpus, source: str, context: int) -> None:
    size, window = len(corpus.train) + len(corpus.held_out), context + 1
    if size == 0:
        raise ValueError(f"{source} holds no text; give a text file or a directory of text files")
    shortest = min(len(corpus.train), len(corpus.held_out))
    if shortest < window:
        raise ValueError(
            f"{source} is too short for context {context}: its smaller part has {shortest} of {size} bytes; a window "
            f"takes {window}, so it needs about {HELD_OUT * window} bytes; give more text or a shorter context"
        )


def training_windows(corpus: Corpus, batch: int, context: int, seed: int, step: int) -> NDArray[np.int64]:
    """Random windows (batch, context + 1) that depend on (seed, step) and sizes alone: the same for every optimizer."""
    last = len(corpus.train) - context
    starts = np.random.default_rng((seed, step)).integers(0, last, size=batch)
    return _windows(corpus.train, starts, context)


def validation_windows(corpus: Corpus, context: int, tokens: int = VALIDATION_TOKENS) -> NDArray[np.int64]:
    """Evenly spaced windows (about tokens / context, context + 1) of the held-out part, the same for every run.

    Windows overlap by at most the one byte that is input to one and target of none, so no token counts twice.
    """
    count = min(tokens, len(corpus.held_out) - 1) // context
    starts = np.linspace(0, len(corpus.held_out) - 1 - context, count).astype(np.int64)
    return _windows(corpus.held_out, starts, context)


def _windows(text: Bytes, starts: NDArray[np.int64], context: int) -> NDArray[np.int64]:
    windows: NDArray[np.int64] = text[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return windows
