"""Batches of token windows for a long run: from files, or from a streamed dataset. They remember where they are.

Both kinds are iterated without end, give int64 arrays (batch, context + 1), depend on no number of ranks, and have
``state_dict`` and ``load_state_dict``, so that a checkpoint can hold the position in the data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]

BYTES = 256
GPT2 = 50304  # the 50257 tokens of GPT-2, rounded up to a multiple of 128
# First number of a token file of llm.c, whose header are 256 int32 numbers; the third is the number of tokens. A file
# of nanoGPT has no header and cannot be mistaken for one: 20240520 would be the tokens 55432, 308.
HEADERS = {20240520: np.uint16, 20240801: np.uint32}
SEPARATOR = "\n"  # between documents of bytes; a tokenizer has a token of its own for the end of a document


class FileBatches:
    """Random windows of files; those of a batch depend on the seed and the number of the batch alone.

    Text files are read as bytes. Files called .bin hold uint16 tokens as those of nanoGPT, or what their header says as
    those of llm.c. They are mapped into memory, not read.

    Args:
        vocabulary: number of tokens that .bin files may hold; GPT-2's without it. Text has 256.

    Raises ValueError for files of both kinds, one that is cut off or shorter than a window, and, when a window is read
    that holds it, for a token beyond the vocabulary.

    >>> source = FileBatches([__file__], batch=2, context=8)
    >>> first, second = zip(iter(source), range(2))
    >>> resumed = FileBatches([__file__], batch=2, context=8)
    >>> resumed.load_state_dict({"batches": 1})
    >>> first[0].shape, bool((next(iter(resumed)) == second[0]).all())
    ((2, 9), True)
    """

    def __init__(
        self, files: Sequence[str | Path], *, batch: int, context: int, vocabulary: int | None = None, seed: int = 0
    ) -> None:
        kinds = {Path(file).suffix == ".bin" for file in files}
        if len(kinds) != 1:
            raise ValueError(f"give text files or .bin files, and at least one; got {[str(file) for file in files]}")
        if vocabulary is not None and kinds != {True}:
            raise ValueError(f"a vocabulary ({vocabulary}) is for .bin files; text has the {BYTES} bytes")
        self.vocabulary = (vocabulary or GPT2) if kinds == {True} else BYTES
        self._names = files
        self._files = [_mapped(Path(file)) for file in files]
        self._batch, self._length, self._seed, self._done = batch, context + 1, seed, 0
        for file, tokens in zip(files, self._files, strict=True):
            if len(tokens) < self._length:
                raise ValueError(f"{file} has {len(tokens)} tokens, and a window takes {self._length}; leave it out")

    def __iter__(self) -> Iterator[Tokens]:
        room = np.array([len(tokens) - self._length + 1 for tokens in self._files])
        window = np.arange(self._length)
        while True:
            rng = np.random.default_rng((self._seed, self._done))
            chosen = rng.choice(len(room), self._batch, p=room / room.sum())
            starts = rng.integers(room[chosen])
            self._done += 1
            found = np.stack([self._files[i][start + window] for i, start in zip(chosen, starts, strict=True)])
            for i, largest in zip(chosen, found.max(axis=1), strict=True):
                if largest >= self.vocabulary:
                    beyond = f"holds the token {largest}, and the vocabulary is 0 to {self.vocabulary - 1}"
                    raise ValueError(f"{self._names[i]} {beyond}; give the vocabulary of its tokenizer")
            yield found.astype(np.int64)

    def state_dict(self) -> dict[str, Any]:
        """The number of batches that were given."""
        return {"batches": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after as many."""
        self._done = state["batches"]


def _mapped(path: Path) -> NDArray[Any]:
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty; leave it out")
    if path.suffix != ".bin":
        return np.memmap(path, np.uint8, "r")
    if path.stat().st_size % 2:
        raise ValueError(f"{path} is cut off: tokens take 2 bytes each, and it has {path.stat().st_size}")
    header = np.fromfile(path, np.int32, 3)
    if len(header) < 3 or header[0] not in HEADERS:
        return np.memmap(path, np.uint16, "r")
    tokens = np.memmap(path, HEADERS[header[0]], "r", offset=1024)
    if len(tokens) != header[2]:
        raise ValueError(f"{path} is cut off: its header says {header[2]} tokens, and it has {len(tokens)}")
    return tokens


class StreamBatches:
    """Windows of the documents of a dataset, joined one after another, in the order in which they are stored.

    ``load_dataset(*dataset, data_files=files, streaming=True)`` of Hugging Face ``datasets`` reads them: ``["name",
    "subset"]`` of its hub, or ``["json"]``, ``["text"]``, ... with local files. The field ``text`` counts. Every
    thousand documents are joined, and what is left of them after their last window is dropped. After the last document
    the first comes again.

    Args:
        tokenizer: name or directory of one of transformers; bytes without it.

    Raises ValueError for an empty file, documents that fill no window and, when it is read, one without text.
    """

    def __init__(
        self,
        dataset: Sequence[str],
        files: Sequence[str | Path] = (),
        *,
        batch: int,
        context: int,
        tokenizer: str | None = None,
    ) -> None:
        from datasets import load_dataset

        encode, self.vocabulary = _encoder(tokenizer)
        length = context + 1
        name = " ".join([*dataset, *map(str, files)])

        def windows(documents: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
            if None in documents["text"]:
                raise ValueError(f"a document of {name} has no text (null); leave it out")
            tokens = [token for text in documents["text"] for token in encode(text)]
            return {"tokens": [tokens[at : at + length] for at in range(0, len(tokens) - context, context)]}

        paths = [str(file) for file in files] or None
        for file in files:
            if Path(file).is_file() and Path(file).stat().st_size == 0:
                raise ValueError(f"{file} is empty; leave it out")
        documents = load_dataset(*dataset, data_files=paths, split="train", streaming=True).select_columns("text")
        found = documents.map(windows, batched=True, remove_columns="text")
        if next(iter(found), None) is None:  # before it is repeated for ever
            raise ValueError(f"{name} does not fill a window of {length} tokens")
        self._batches = found.repeat(None).batch(batch)

    def __iter__(self) -> Iterator[Tokens]:
        for batch in self._batches:
            yield np.array(batch["tokens"], np.int64)

    def state_dict(self) -> dict[str, Any]:
        """Where the dataset is, as one text: its keys change on the way, and a checkpoint wants the same ones."""
        return {"dataset": json.dumps(self._batches.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._batches.load_state_dict(json.loads(state["dataset"]))


def _encoder(tokenizer: str | None) -> tuple[Callable[[str], Sequence[int]], int]:
    """From a document to tokens with one that ends it, and the number of all tokens."""
    if tokenizer is None:
        return lambda text: (text + SEPARATOR).encode(), BYTES
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(tokenizer)
    if made.eos_token_id is None:
        raise ValueError(f"the tokenizer {tokenizer} has no token that ends a document (eos_token); set one")
    return lambda text: [*made(text)["input_ids"], made.eos_token_id], len(made)


def token_batches(
    files: Sequence[str | Path] = (),
    dataset: Sequence[str] = (),
    *,
    batch: int,
    context: int,
    tokenizer: str | None = None,
    vocabulary: int | None = None,
) -> FileBatches | StreamBatches:
    """:class:`StreamBatches` of a dataset where one is named, else :class:`FileBatches` of the files.

    Raises ValueError for a tokenizer with files, which are bytes or tokens already, and for a vocabulary with a
    dataset, whose tokenizer has one.

    >>> token_batches([__file__], batch=2, context=8).vocabulary
    256
    """
    if dataset:
        if vocabulary is not None:
            raise ValueError(f"a vocabulary ({vocabulary}) is for .bin files; a dataset has its tokenizer's")
        return StreamBatches(dataset, files, batch=batch, context=context, tokenizer=tokenizer)
    if tokenizer is not None:
        raise ValueError(f"a tokenizer ({tokenizer}) is for a dataset; read text files as the dataset 'text'")
    return FileBatches(files, batch=batch, context=context, vocabulary=vocabulary)
