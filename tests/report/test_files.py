"""A report is there whole or not at all."""

import os
import stat

import pytest

from moga.report import files
from moga.report.files import write_whole
from moga.report.page import write_report
from moga.study.records import StudyError


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "report.html"
    for content in (b"old, and longer", b"new"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
    other = tmp_path / "other"
    other.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)  # not for the owner alone


def test_a_writer_that_dies_leaves_the_old_report(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_whole(path, b"old")

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_a_place_that_refuses_says_what_to_do(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(StudyError, match=r"report\.html; the finished runs there are kept"):
        write_whole(tmp_path / "report.html", b"new")


def test_every_file_of_a_report_is_written_that_way(make_study, monkeypatch):
    directory = make_study({"moga-row": {}})
    moved = []
    replace = os.replace
    monkeypatch.setattr(files.os, "replace", lambda part, path: (moved.append(path.name), replace(part, path)))
    before = {path.name for path in directory.iterdir()}
    write_report(directory)
    assert {path.name for path in directory.iterdir()} - before == set(moved) == {
        "transfer.png", "drift.png", "report.html",
    }  # fmt: skip
