"""`moga balls`: one file, written where it does no harm, that opens in a browser without a network."""

import re

import pytest

from moga.balls.page import MARK, render_balls, write_balls
from moga.cli import main
from moga.report.theme import RECIPE_STYLES


def test_one_small_file_that_loads_nothing():
    page = render_balls()
    assert len(page.encode()) < 60_000
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)\s*=|@import|url\(|https?://(?!www\.w3\.org/2000/svg")""", page)
    assert "{{" not in page


def test_the_steps_have_the_colours_of_the_report():
    (fixed, *_), (dual, *_) = RECIPE_STYLES[:2]
    assert f"--fixed: {fixed}; --dual: {dual};" in render_balls()


def test_the_command_says_where_the_page_is_and_how_to_open_it(tmp_path, capsys):
    out = tmp_path / "new" / "my balls.html"
    assert main(["balls", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"written: {out}", f"open it in a browser: {out.as_uri()}"]
    assert "my%20balls.html" in out.as_uri()
    assert out.read_text(encoding="utf-8") == render_balls()


def test_without_a_name_it_is_balls_html(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["balls"]) == 0
    assert capsys.readouterr().out.startswith("written: balls.html\n")
    assert (tmp_path / "balls.html").is_file()


def test_an_older_page_is_replaced_and_that_is_said(tmp_path, capsys):
    out = tmp_path / "balls.html"
    out.write_text(f"<!doctype html>{MARK}an older page", encoding="utf-8")
    assert main(["balls", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"replaced: {out}\n")
    assert out.read_text(encoding="utf-8") == render_balls()


def test_a_file_of_another_kind_is_kept_unless_forced(tmp_path, capsys):
    out = tmp_path / "notes.html"
    out.write_bytes(b"my notes \xff")
    assert main(["balls", "--out", str(out)]) == 2
    assert capsys.readouterr().err == (
        f"moga: {out} exists and was not made by moga balls; give another --out, or --force to replace it\n"
    )
    assert out.read_bytes() == b"my notes \xff"
    assert main(["balls", "--out", str(out), "--force"]) == 0
    assert capsys.readouterr().out.startswith(f"replaced: {out}\n")
    assert out.read_text(encoding="utf-8") == render_balls()


@pytest.mark.parametrize("force", [False, True])
def test_a_directory_is_refused(tmp_path, force):
    with pytest.raises(IsADirectoryError, match=r"is a directory; give a file, as in --out .*balls.html"):
        write_balls(tmp_path, force=force)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["balls", "--out", str(tmp_path / "file" / "balls.html")]) == 2
    assert capsys.readouterr().err == f"moga: File exists: {tmp_path / 'file'}\n"
