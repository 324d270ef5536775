"""`moga smoothness`: words in, tables out, one line for what is wrong."""

from __future__ import annotations

import shlex

import pytest

from moga.cli import main
from moga.study import smoothness_sweep
from moga.study.records import read_records, read_study

TINY = ["--widths", "8,16", "--layers", "1", "--norms", "row,spectral", "--trained", "0,1", "--head-size", "8"]
TINY += ["--context", "8", "--windows", "1", "--batch", "1", "--random", "0", "--steps", "1"]


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 400)
    return path


def test_it_measures_prints_and_goes_on(tmp_path, text_file, capsys):
    out = tmp_path / "runs" / "x"
    arguments = ["smoothness", *TINY, "--data", str(text_file), "--out", str(out)]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out.startswith("8 measurements\n")
    assert "gpt2, 1 layers, after 1 steps: smoothness, from below\nnorm" in said.out
    assert "estimate from below" in said.out
    assert max(map(len, said.out.splitlines()[:-1])) <= 80  # the last one is a path
    assert said.out.splitlines()[-1] == f"report: {out / 'report.html'}"
    assert said.err.startswith("[1/8] row, width 8, 1 layers, 0 steps: smoothness ")
    assert read_study(out)["commands"] == [shlex.join(["moga", *arguments])]
    assert (out / "smoothness-width.png").exists()

    assert main([*arguments, "--seeds", "0,1", "--norms", "row"]) == 0
    assert capsys.readouterr().out.startswith("4 measurements\n")
    assert len(read_records(out)) == 12

    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert "spectral: layers with the largest smoothness" in capsys.readouterr().out
    assert (out / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--norms", "rows"], "'rows' is no norm; give sign, column, row, spectral"),
        (["--norms", ","], "needs at least one norm, got none"),
        (["--widths", "33"], "width 33 is not a multiple of the head size 16"),
        (["--widths", "wide"], "'wide' is no list of whole numbers"),
        (["--trained", "-1"], "numbers must be at least 0, got -1"),
        (["--model", "bert"], "unknown model family 'bert'"),
        (["--lr", "0"], "a learning rate must be finite and above 0, got 0"),
        (["--threads", "0"], "threads must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, text, tmp_path, capsys):
    assert main(["smoothness", "--out", str(tmp_path / "x"), *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("moga: ")
    assert text in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(smoothness_sweep, "run_smoothness", interrupted)
    assert main(["smoothness", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == (
        f"moga: stopped; the finished measurements are kept in {tmp_path}. To go on: moga smoothness --out {tmp_path}\n"
    )
