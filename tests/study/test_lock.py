import os
import signal
from pathlib import Path

import pytest

from moga.study.lock import hold_study
from moga.study.records import StudyError, append_record, open_study, run_record


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    message = rf"a is in use: process {os.getpid()} on .+ is writing to it; wait until that ends, or give another"
    with hold_study(folder, {}, {}, "first"):
        assert names(folder) == ["study.json", "study.lock"]
        with pytest.raises(StudyError, match=message), hold_study(folder, {}, {}, "second"):
            pytest.fail("two writers")
    assert names(folder) == ["study.json"]
    with hold_study(folder, {}, {}):
        pass


def test_what_goes_wrong_inside_gives_the_directory_back(tmp_path: Path) -> None:
    open_study(tmp_path, {"steps": 8}, {})
    append_record(tmp_path, run_record({"steps": 8}, {}, {}))
    with pytest.raises(KeyboardInterrupt), hold_study(tmp_path, {"steps": 8}, {}):
        raise KeyboardInterrupt
    with pytest.raises(StudyError, match="other settings"), hold_study(tmp_path, {"steps": 9}, {}):
        pytest.fail("other settings were taken")
    assert names(tmp_path) == ["records.jsonl", "study.json"]


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StudyError, match="holds files but no study"), hold_study(tmp_path, {}, {}):
        pytest.fail("a directory of other files was taken")
    assert names(tmp_path) == ["thesis.txt"]


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    open_study(tmp_path, {}, {})
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:  # only system calls from here on
        with hold_study(tmp_path, {}, {}):
            os.write(theirs, b"held")
            signal.pause()
    assert os.read(ours, 4) == b"held"
    try:
        with pytest.raises(StudyError, match=f"in use: process {child} on "), hold_study(tmp_path, {}, {}):
            pytest.fail("two writers")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert names(tmp_path) == ["study.json", "study.lock"]
    with hold_study(tmp_path, {}, {}):
        pass
    assert names(tmp_path) == ["study.json"]


def test_a_lock_that_its_holder_removed_meanwhile_is_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, the holder before ends and removes the file: the name must be locked, not that."""
    real, opened = os.open, []

    def slow_open(path: Path, flags: int, mode: int) -> int:
        descriptor = real(path, flags, mode)
        if not opened:
            os.unlink(path)
        opened.append(descriptor)
        return descriptor

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", slow_open)
        with hold_study(tmp_path, {}, {}):
            assert len(opened) == 2
            assert os.path.samestat(os.stat(tmp_path / "study.lock"), os.fstat(opened[1]))
