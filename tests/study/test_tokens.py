"""Batches of token windows: what is read, and that a position that was saved is one to go on from."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from moga.study.tokens import FileBatches, StreamBatches, token_batches

SIZE = {"batch": 3, "context": 4}


def first(source, count):
    return list(itertools.islice(source, count))


def headed(magic, tokens, count=None):
    header = np.zeros(256, np.int32)
    header[:3] = magic, 1, len(tokens) if count is None else count
    return header.tobytes() + tokens.tobytes()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The numbers 1000 to 1099 in every form of a token file, and letters as text and as documents."""
    tokens = np.arange(1000, 1100)
    (tmp_path / "bare.bin").write_bytes(tokens.astype(np.uint16).tobytes())
    (tmp_path / "headed.bin").write_bytes(headed(20240520, tokens.astype(np.uint16)))
    (tmp_path / "long.bin").write_bytes(headed(20240801, tokens.astype(np.uint32)))
    (tmp_path / "cut.bin").write_bytes(headed(20240520, tokens.astype(np.uint16), 101))
    (tmp_path / "odd.bin").write_bytes(tokens.astype(np.uint16).tobytes() + b"x")
    for name in ("empty.txt", "empty.bin", "empty.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "null.jsonl").write_text('{"text": "abcdefgh"}\n{"text": null}\n')
    (tmp_path / "code.txt").write_text("abcdefghij")
    (tmp_path / "short.txt").write_text("abc")
    letters = [chr(ord("a") + i) * (i + 1) for i in range(7)]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in letters))
    return {path.name: str(path) for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["bare.bin", "headed.bin", "long.bin"])
def test_token_files_of_every_form_hold_the_same(files, name):
    [batch] = first(FileBatches([files[name]], **SIZE), 1)
    [expected] = first(FileBatches([files["bare.bin"]], **SIZE), 1)
    assert batch.shape == (3, 5) and batch.dtype == np.int64 and (batch == expected).all()
    assert (np.diff(batch) == 1).all() and batch.min() >= 1000 and batch.max() < 1100


def test_every_window_of_every_file_is_drawn(files):
    """Files are drawn by their number of windows, down to the first and the last one of each."""
    batches = first(FileBatches([files["bare.bin"], files["long.bin"]], batch=64, context=94), 20)
    assert set(np.concatenate(batches)[:, 0]) == set(range(1000, 1006))
    bytes_alone = np.concatenate(first(FileBatches([files["code.txt"]], batch=64, context=7), 2))
    assert {bytes(row.tolist()) for row in bytes_alone} == {b"abcdefgh", b"bcdefghi", b"cdefghij"}


def test_documents_are_joined_and_read_again(files):
    text = "".join(chr(ord("a") + i) * (i + 1) + "\n" for i in range(7))
    [batch] = first(StreamBatches(["json"], [files["lines.jsonl"]], batch=9, context=4), 1)
    windows = [text[at : at + 5] for at in range(0, len(text) - 4, 4)]
    assert [bytes(row.tolist()).decode() for row in batch] == [*windows, *windows][:9]


@pytest.mark.parametrize("kind", ["files", "stream"])
def test_a_saved_position_is_gone_on_from(files, kind):
    """Also in the second pass over the data; the position is plain data with the same keys at all times."""

    def make():
        dataset, names = (["json"], ["lines.jsonl"]) if kind == "stream" else ([], ["bare.bin", "headed.bin"])
        return token_batches([files[name] for name in names], dataset, **SIZE)

    source = make()
    batches, saved = [], [source.state_dict()]
    for batch in itertools.islice(source, 8):
        batches.append(batch)
        saved.append(json.loads(json.dumps(source.state_dict())))
    assert len({json.dumps(sorted(state)) for state in saved}) == 1
    for done in (1, 3, 6):
        other = make()
        other.load_state_dict(saved[done])
        found = first(other, 8 - done)
        assert all((a == b).all() for a, b in zip(found, batches[done:], strict=True))
        assert not (found[0] == batches[done - 1]).all()


def test_the_documents_of_a_tokenizer_end_with_its_own_token(files, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "bb": 2, "?": 3}, "?"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    for ends in (True, False):
        made = PreTrainedTokenizerFast(tokenizer_object=inner, **({"eos_token": "<end>"} if ends else {}))
        made.save_pretrained(tmp_path / str(ends))
    source = token_batches([files["lines.jsonl"]], ["json"], tokenizer=str(tmp_path / "True"), batch=1, context=4)
    assert source.vocabulary == 4 and first(source, 1)[0].tolist() == [[1, 0, 2, 0, 3]]
    with pytest.raises(ValueError, match=r"has no token that ends a document \(eos_token\)"):
        token_batches([files["lines.jsonl"]], ["json"], tokenizer=str(tmp_path / "False"), **SIZE)


def test_tokens_are_within_the_vocabulary(files):
    assert FileBatches([files["bare.bin"]], **SIZE).vocabulary == 50304
    assert len(first(FileBatches([files["bare.bin"]], vocabulary=1100, **SIZE), 20)) == 20
    source = token_batches([files["headed.bin"], files["long.bin"]], vocabulary=1099, batch=64, context=94)
    with pytest.raises(ValueError, match=r"\.bin holds the token 1099, and the vocabulary is 0 to 1098; give the voc"):
        first(source, 20)


@pytest.mark.parametrize(
    "names, options, text",
    [
        ([], {}, "give text files or .bin files, and at least one; got []"),
        (["bare.bin", "code.txt"], {}, "give text files or .bin files, and at least one; got ['"),
        (["code.txt", "short.txt"], {}, "short.txt has 3 tokens, and a window takes 5; leave it out"),
        (["cut.bin"], {}, "cut.bin is cut off: its header says 101 tokens, and it has 100"),
        (["odd.bin"], {}, "odd.bin is cut off: tokens take 2 bytes each, and it has 201"),
        (["bare.bin", "empty.bin"], {}, "empty.bin is empty; leave it out"),
        (["empty.txt"], {}, "empty.txt is empty; leave it out"),
        (["lines.jsonl", "empty.jsonl"], {"dataset": ["json"]}, "empty.jsonl is empty; leave it out"),
        (["null.jsonl"], {"dataset": ["json"]}, "a document of json "),
        (["code.txt"], {"vocabulary": 300}, "a vocabulary (300) is for .bin files; text has the 256 bytes"),
        (["lines.jsonl"], {"dataset": ["json"], "vocabulary": 300}, "a vocabulary (300) is for .bin files; a dataset"),
        (["code.txt"], {"tokenizer": "gpt2"}, "a tokenizer (gpt2) is for a dataset; read text files as the dataset"),
        (["lines.jsonl"], {"dataset": ["json"], "context": 99}, "lines.jsonl does not fill a window of 100 tokens"),
    ],
)
def test_refusals_say_what_to_do(files, names, options, text):
    import re

    with pytest.raises(ValueError, match=re.escape(text)):
        token_batches([files[name] for name in names], **{**SIZE, **options})
