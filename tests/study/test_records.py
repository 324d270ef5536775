import json
from pathlib import Path
from typing import Any

import pytest

from moga.study.records import StudyError, append_record, config_key, open_study, read_records, read_study


def record(lr: float) -> dict[str, Any]:
    config = {"recipe": "adamw", "width": 32, "lr": lr, "seed": 0}
    return {"key": config_key(config), "config": config, "result": {"loss": 1 / 3, "diverged": False}}


def test_records_come_back_exactly(tmp_path: Path) -> None:
    assert read_records(tmp_path) == []
    written = [record(2**-7.3), record(0.1)]
    for one in written:
        append_record(tmp_path, one)
    assert read_records(tmp_path) == written


@pytest.mark.parametrize("kept", [1, 20, -2])
def test_a_cut_last_line_is_not_believed_and_does_not_glue(tmp_path: Path, kept: int) -> None:
    append_record(tmp_path, record(0.1))
    append_record(tmp_path, record(0.2))
    path = tmp_path / "records.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
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
    message = r"other settings \(steps: 8 there, 9 now; clip: None there, 1.0 now\).*another directory \(--out\)"
    with pytest.raises(StudyError, match=message):
        open_study(tmp_path, {"steps": 9, "batch": 4, "clip": 1.0}, {})
    assert read_study(tmp_path)["settings"] == {"steps": 8, "batch": 4}


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
    (tmp_path / "study.json").write_text('{"format": 99}')
    with pytest.raises(
        StudyError, match=r"study.json is not a study of format 1; it is damaged or from another version"
    ):
        read_study(tmp_path)
