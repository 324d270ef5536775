"""A small text and small settings: a run takes a fraction of a second."""

from pathlib import Path

import pytest

from moga.study.data import Corpus, load_corpus
from moga.study.settings import Settings

WORDS = ("def", "return", "for", "width", "in", "norm", "loss", "if", "rate", "not", "step", "else", "row", "column")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(WORDS[(index * index + index // 7) % len(WORDS)] for index in range(4000)))
    return path


@pytest.fixture(scope="session")
def corpus(text_file: Path) -> Corpus:
    return load_corpus(text_file, context=16)


@pytest.fixture
def small(corpus: Corpus) -> Settings:
    return Settings(layers=1, head_size=8, context=16, batch=4, steps=8, warmup=2, corpus=corpus.fingerprint)
