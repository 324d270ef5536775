import errno
import json
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moga.study.lock import hold_study
from moga.study.records import StudyError, append_record, config_key, open_study, read_records, read_runs, read_study


def record(lr: float) -> dict[str, Any]:
    config = {"recipe": "adamw", "width": 32, "lr": lr, "seed": 0}
    return {"key": config_key(config), "config": config, "result": {"loss": 1 / 3, "diverged": False}}


def test_records_come_back_exactly(tmp_path: Path) -> None:
    assert read_records(tmp_path) == []
    written = [record(2**-7.3), record(0.1)]
    for one in written:
        append_record(tmp_path, one)
    assert read_records(tmp_path) == written


def test_a_line_cut_anywhere_is_not_believed_and_does_not_glue(tmp_path: Path) -> None:
    append_record(tmp_path, record(0.1))
    append_record(tmp_path, record(0.2))
    path = tmp_path / "records.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(second) - 1):
        path.write_bytes(first + second[:kept])
        assert read_records(tmp_path) == [record(0.1)]
        append_record(tmp_path, record(0.3))
        assert read_records(tmp_path) == [record(0.1), record(0.3)]
        assert len(path.read_bytes().splitlines()) == 2


def test_a_whole_last_line_without_its_end_is_believed(tmp_path: Path) -> None:
    append_record(tmp_path, record(0.1))
    path = tmp_path / "records.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    append_record(tmp_path, record(0.2))
    assert read_records(tmp_path) == [record(0.1), record(0.2)]


def test_a_run_counts_once(tmp_path: Path) -> None:
    append_record(tmp_path, record(0.1))
    append_record(tmp_path, record(0.1))
    assert read_records(tmp_path) == [record(0.1)]


def test_a_damaged_middle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"key": \n' + json.dumps(record(0.1)) + "\n")
    with pytest.raises(StudyError, match=r"records.jsonl, line 1: not a JSON object; remove the line"):
        read_records(tmp_path)


def test_an_edited_record_is_an_error(tmp_path: Path) -> None:
    one = record(0.1)
    one["config"]["width"] = 64
    append_record(tmp_path, one)
    with pytest.raises(
        StudyError, match=r"line 1: the key is not that of the configuration, so one of them was edited"
    ):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"key": "a", "config": null, "result": {}}', "line 1: the key is not that of the configuration"),
        (b'{"key": "a", "config": [1], "result": {}}', "line 1: the key is not that of the configuration"),
        (b'{"key": "a", "config": {"lr": NaN}, "result": {}}', "line 1: not a JSON object"),
        (b"[" * 100_000, "line 1: not a JSON object"),
        (json.dumps(record(0.3) | {"result": None}).encode(), "line 1: a run without a result; remove the line"),
    ],
)
def test_a_damaged_record_is_an_error(line: bytes, message: str, tmp_path: Path) -> None:
    append_record(tmp_path, record(0.1))
    path = tmp_path / "records.jsonl"
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(StudyError, match=message):
        read_records(tmp_path)


@pytest.mark.parametrize("other", [{"steps": 3}, {"steps": 4, "start": "moga"}, {}])
def test_a_run_of_another_study_is_an_error(other: dict[str, Any], tmp_path: Path) -> None:
    def run(lr: float, **settings: Any) -> dict[str, Any]:
        config = record(lr)["config"] | settings
        return record(lr) | {"config": config, "key": config_key(config)}

    open_study(tmp_path, {"steps": 4, "clip": None}, {})
    append_record(tmp_path, run(0.1, steps=4))
    assert read_runs(tmp_path) == (read_study(tmp_path), [run(0.1, steps=4)])
    append_record(tmp_path, run(0.2, **other))
    with pytest.raises(StudyError, match="holds a run of another study .* in study.json.*; runs under different"):
        read_runs(tmp_path)


def test_a_damaged_study_is_an_error(tmp_path: Path) -> None:
    for missing in ("settings", "corpus", "commands"):
        open_study(tmp_path, {}, {})
        path = tmp_path / "study.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {missing: None}))
        with pytest.raises(StudyError, match="is not a study of format 1; it is damaged"):
            read_study(tmp_path)
        path.unlink()


def test_a_study_goes_on_with_the_same_settings(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    open_study(folder, {"steps": 8}, {"name": "text"}, "moga transfer --seeds 0")
    open_study(folder, {"steps": 8}, {"name": "text"}, "moga transfer --seeds 1")
    open_study(folder, {"steps": 8}, {"name": "text"}, "moga transfer --seeds 1")
    study = read_study(folder)
    assert study["commands"] == ["moga transfer --seeds 0", "moga transfer --seeds 1"]
    assert (study["format"], study["settings"], study["corpus"]) == (1, {"steps": 8}, {"name": "text"})
    assert [path.name for path in folder.iterdir()] == ["study.json"]


def test_other_settings_are_an_error_that_names_them(tmp_path: Path) -> None:
    open_study(tmp_path, {"steps": 8, "batch": 4}, {})
    append_record(tmp_path, record(0.1))
    message = r"other settings \(steps: 8 there, 9 now; clip: None there, 1.0 now\).*another directory \(--out\)"
    with pytest.raises(StudyError, match=message):
        open_study(tmp_path, {"steps": 9, "batch": 4, "clip": 1.0}, {})
    assert read_study(tmp_path)["settings"] == {"steps": 8, "batch": 4}


@pytest.mark.parametrize("lines", [None, b"", b'{"key": "a cut li'])
def test_a_study_without_a_run_is_begun_anew_with_other_settings(lines: bytes | None, tmp_path: Path) -> None:
    open_study(tmp_path, {"steps": 8}, {"name": "old"}, "moga transfer --steps 8")
    if lines is not None:
        (tmp_path / "records.jsonl").write_bytes(lines)
    open_study(tmp_path, {"steps": 9}, {"name": "new"}, "moga transfer --steps 9")
    study = read_study(tmp_path)
    assert (study["settings"], study["corpus"]) == ({"steps": 9}, {"name": "new"})
    assert study["commands"] == ["moga transfer --steps 9"]


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StudyError, match=r"holds files but no study \(study.json is missing\); give a new or empty"):
        open_study(tmp_path, {}, {})
    with pytest.raises(StudyError, match=r"thesis.txt is a file; give a directory \(--out\)"):
        open_study(tmp_path / "thesis.txt", {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_crash_while_the_study_file_was_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "study.json.part").write_text('{"for')
    open_study(tmp_path, {"steps": 8}, {})
    assert read_study(tmp_path)["settings"] == {"steps": 8}


def test_reading_what_is_no_study_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"holds no study \(study.json is missing\)"):
        read_study(tmp_path)
    for text in ('{"for', '{"format": 0}', "[]"):
        (tmp_path / "study.json").write_text(text)
        with pytest.raises(StudyError, match=r"study.json is not a study of format 1; it is damaged"):
            read_study(tmp_path)


def test_what_a_newer_version_wrote_is_refused_in_words(tmp_path: Path) -> None:
    message = r": of format 2, which a newer moga wrote, and this one reads 1; update moga, or give another directory"
    (tmp_path / "study.json").write_text('{"format": 2, "runs": []}')
    with pytest.raises(StudyError, match=r"study.json" + message):
        read_study(tmp_path)
    with pytest.raises(StudyError, match=r"study.json" + message):
        open_study(tmp_path, {}, {})
    append_record(tmp_path, record(0.1))
    append_record(tmp_path, {"format": 2, "id": "of a kind that nobody knows yet"})
    with pytest.raises(StudyError, match=r"records.jsonl, line 2" + message):
        read_records(tmp_path)


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_loses_nothing_finished(tmp_path: Path, room: int) -> None:
    """A limit on the size of files cuts the write in the middle of the line, as a disk without space does."""
    append_record(tmp_path, record(0.1))
    path = tmp_path / "records.jsonl"
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, limits[1]))
    try:
        with pytest.raises(StudyError, match=r"File too large: .*records.jsonl; the finished runs.*; free some space"):
            append_record(tmp_path, record(0.2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    append_record(tmp_path, record(0.2))
    assert read_records(tmp_path) == [record(0.1), record(0.2)]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "No space left on device: .*; free some space, and the same command goes on"),
        (errno.EROFS, r"Read-only file system: .*; make it writable or give another directory \(--out\)"),
        (errno.EIO, "Input/output error: .*; put that right, and the same command goes on"),
    ],
)
def test_a_disk_that_refuses_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    append_record(tmp_path, record(0.1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(StudyError, match=message):
            append_record(tmp_path, record(0.2))
    assert read_records(tmp_path) == [record(0.1)]


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A directory in which this process may not write: root gives up its rights for the test."""
    folder = Path(tempfile.mkdtemp())
    open_study(folder, {}, {})
    append_record(folder, record(0.1))
    for path in (folder / "records.jsonl", folder / "study.json"):
        path.chmod(0o444)
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield folder
    if root:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_directory_can_be_read_and_says_what_to_do(read_only: Path) -> None:
    message = r"Permission denied: .*; the finished runs there are kept; make it writable or give another directory"
    with pytest.raises(StudyError, match=message):
        append_record(read_only, record(0.2))
    with pytest.raises(StudyError, match=message):
        open_study(read_only, {}, {}, "again")
    with pytest.raises(StudyError, match=message), hold_study(read_only, {}, {}):
        pytest.fail("held a directory that cannot be written")
    assert read_records(read_only) == [record(0.1)]
    assert read_study(read_only)["settings"] == {}


def test_a_study_is_unfinished_until_its_lock_is_given_back_in_good_order(tmp_path: Path) -> None:
    with hold_study(tmp_path, {}, {}, "moga transfer --seeds 0"):
        assert read_study(tmp_path)["unfinished"] == "moga transfer --seeds 0"
    assert "unfinished" not in read_study(tmp_path)
    with pytest.raises(KeyboardInterrupt), hold_study(tmp_path, {}, {}, "moga transfer --seeds 1"):
        raise KeyboardInterrupt
    assert read_study(tmp_path)["unfinished"] == "moga transfer --seeds 1"
