from pathlib import Path

import numpy as np
import pytest

from moga.study.data import Corpus, is_held_out, load_corpus, training_windows, validation_windows


def write_files(folder: Path, count: int = 60) -> dict[str, bytes]:
    texts = {f"part/file{index}.txt": f"<file {index} of {count}>".encode() * 9 for index in range(count)}
    (folder / "part").mkdir()
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return texts


def test_a_directory_is_split_by_whole_files(tmp_path: Path) -> None:
    texts = write_files(tmp_path)
    corpus = load_corpus(tmp_path, context=16)
    train, held_out = corpus.train.tobytes(), corpus.held_out.tobytes()
    for name, text in texts.items():
        assert (text in held_out, text in train) == (is_held_out(name), not is_held_out(name))
    assert len(train) + len(held_out) == sum(map(len, texts.values()))


def test_hidden_files_caches_and_binary_files_are_not_read(tmp_path: Path) -> None:
    texts = write_files(tmp_path)
    (tmp_path / ".secret").write_text("x" * 100)
    (tmp_path / "image.png").write_bytes(b"\0" * 100)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.txt").write_text("x" * 100)
    corpus = load_corpus(tmp_path, context=16)
    assert len(corpus.train) + len(corpus.held_out) == sum(map(len, texts.values()))


def test_a_single_file_gives_its_last_tenth(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(1, 201)) * 5)
    corpus = load_corpus(tmp_path / "a.txt", context=16)
    assert (len(corpus.train), len(corpus.held_out), corpus.name) == (900, 100, "a.txt")
    assert load_corpus(tmp_path, context=16).held_out.tolist() == corpus.held_out.tolist()


def test_the_standard_library_is_the_default() -> None:
    corpus = load_corpus()
    assert len(corpus.train) > 1_000_000
    assert 0.03 < len(corpus.held_out) / len(corpus.train) < 0.3
    assert corpus.fingerprint == load_corpus().fingerprint
    assert corpus.describe()["held_out_bytes"] == len(corpus.held_out)


def test_the_fingerprint_says_where_the_text_was_cut() -> None:
    text = np.arange(100, dtype=np.uint8)
    assert Corpus("a", text[:90], text[90:]).fingerprint != Corpus("a", text[:80], text[80:]).fingerprint


def test_errors_say_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"no such file or directory: .*nothing'; give a text file or a directory"
    ):
        load_corpus(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no such file or directory: ''; give a text file"):
        load_corpus("")
    with pytest.raises(ValueError, match="holds no text; give a text file"):
        load_corpus(tmp_path)
    (tmp_path / "a.txt").write_text("x" * 300)
    message = (
        r"too short for context 64: its smaller part has 30 of 300 bytes; a window takes 65, so it needs about 650"
    )
    with pytest.raises(ValueError, match=message):
        load_corpus(tmp_path / "a.txt")
    assert load_corpus(tmp_path / "a.txt", context=16).name == "a.txt"


def test_windows_depend_on_seed_and_step(corpus: Corpus) -> None:
    first = training_windows(corpus, 4, 16, seed=0, step=3)
    assert first.shape == (4, 17)
    assert np.array_equal(first, training_windows(corpus, 4, 16, seed=0, step=3))
    assert not np.array_equal(first, training_windows(corpus, 4, 16, seed=0, step=4))
    assert not np.array_equal(first, training_windows(corpus, 4, 16, seed=1, step=3))
    assert first[0].astype(np.uint8).tobytes() in corpus.train.tobytes()


@pytest.mark.parametrize("size", [17, 18, 33, 400, 5000])
def test_validation_windows_count_every_target_once(size: int) -> None:
    positions = np.arange(size) % 251
    corpus = Corpus("a", positions.astype(np.uint8), positions.astype(np.uint8))
    windows = validation_windows(corpus, 16, tokens=1600)
    assert windows.shape == (min(100, (size - 1) // 16), 17)
    assert np.array_equal((windows[:, 1:] - windows[:, :-1]) % 251, np.ones_like(windows[:, 1:]))
    if size < 251:
        targets = windows[:, 1:].ravel().tolist()
        assert len(set(targets)) == len(targets)
