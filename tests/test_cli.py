"""The command line: words in, runs and text out, one line for what is wrong."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from moga.api.progress import show_progress
from moga.cli import main
from moga.cli.plan import parse_recipes
from moga.report.results import load_results
from moga.study import sweep
from moga.study.plans import seeds_of, transfer_plan
from moga.study.presets import PRESETS

TINY = ["--recipe", "moga-row", "--widths", "32,64", "--lrs", "2**-4:2**-2", "--steps", "3", "--batch", "2"]
TINY += ["--context", "16", "--layers", "1", "--workers", "1"]


def test_transfer_trains_reports_and_goes_on(tmp_path, capsys):
    data, out = tmp_path / "text.txt", tmp_path / "runs" / "tiny"
    data.write_text("The quick brown fox jumps over the lazy dog. " * 400)
    arguments = ["transfer", *TINY, "--data", str(data), "--out", str(out)]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith("6 runs") or said.out.splitlines()[0].startswith("7 runs")
    assert "moga-row: " in said.out
    assert said.out.splitlines()[-1] == f"report: {out / 'report.html'}"
    assert "sweep: 6 runs\n[1/6] moga-row, width 64, lr 0.0625, seed 0: loss " in said.err
    assert json.loads((out / "study.json").read_text())["commands"] == [shlex.join(["moga", *arguments])]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "moga transfer --recipe moga-row" in page

    assert main(arguments) == 0
    again = capsys.readouterr()
    assert again.out.splitlines()[0].startswith("0 runs (")
    assert "from before" in again.err


def test_transfer_of_ones_own_model_data_and_optimizer(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    nets, out = "tests.study.own_nets", tmp_path / "out"
    arguments = ["transfer", "--model", f"{nets}:net", "--data", f"{nets}:data", "--recipe", f"moga-row,{nets}:adamw"]
    arguments += ["--sizes", "16,32", "--lrs", "2**-6:2**-4", "--steps", "6", "--seeds", "2", "--workers", "1"]
    arguments += ["--refine", "3", "--budget", "5m", "--out", str(out)]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.err.startswith("ahead: 24 runs, 144 steps, 1.2e+03 tokens, ")
    assert f"{nets}:adamw: " in said.out
    assert said.out.splitlines()[-1] == f"report: {out / 'report.html'}"
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("0 runs (")


def test_transfer_over_depth_is_reported_as_that(tmp_path, capsys):
    data, out = tmp_path / "text.txt", tmp_path / "out"
    data.write_text("The quick brown fox jumps over the lazy dog. " * 400)
    arguments = [
        "transfer",
        "--over",
        "depth",
        "--sizes",
        "1,2",
        "--width",
        "16",
        "--branches",
        "1/K",
        "--data",
        str(data),
    ]
    arguments += [*TINY[:2], *TINY[4:12], "--workers", "1", "--out", str(out)]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "moga-row, depth 2, lr 0.0625, seed 0: loss " in said.err
    assert "depth 1" in said.out
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Each depth at its best learning rate" in page
    assert "One curve per depth;" in page


def test_a_report_of_a_directory_that_grows(make_study, capsys):
    """At every moment the file holds some whole lines and perhaps the beginning of one more."""
    directory = make_study({"moga-row": {}, "adamw": {"drift": -0.9, "optimum": -3.0}})
    whole = (directory / "records.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    for count in range(1, len(lines)):
        (directory / "records.jsonl").write_bytes(b"".join(lines[:count]) + lines[count][: count % 50])
        assert len(load_results(directory).records) == count
    for count in (0, 1, 20):
        (directory / "records.jsonl").write_bytes(b"".join(lines[:count]) + lines[count][:40])
        assert main(["report", str(directory)]) == (0 if count else 2)
    assert "no finished run in" in capsys.readouterr().err


def test_report_is_written_again_from_records(make_study, capsys):
    directory = make_study({"moga-row": {}, "adamw": {"drift": -0.9, "optimum": -3.0}})
    assert main(["report", str(directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("moga-row: the best rate moved by ")
    assert lines[1].startswith("adamw: the best rate moved by -0.90 octave per doubling")
    assert lines[-1] == f"report: {directory / 'report.html'}"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["transfer"], "Missing option '--out'"),
        (["transfer", "--out", "{tmp}/x", "--stepz", "3"], "No such option: --stepz"),
        (["transfer", "--out", "{tmp}/x", "--steps", "many"], "Invalid value for '--steps'"),
        (["transfer", "--out", "{tmp}/x", "--preset", "huge"], "unknown preset 'huge'; known: quick, full"),
        (["transfer", "--out", "{tmp}/x", "--recipe", "foo"], "unknown recipe 'foo'"),
        (["transfer", "--out", "{tmp}/x", "--widths", "wide"], "'wide' is no list of whole numbers"),
        (["transfer", "--out", "{tmp}/x", "--widths", "33"], "width 33 is not a multiple"),
        (["transfer", "--out", "{tmp}/x", "--lrs", "fast"], "'fast' is no learning rate"),
        (
            ["transfer", "--out", "{tmp}/x", "--lrs", "sgd=1:2"],
            "learning rates are given for 'sgd', which is not run; those that are: moga-row, adamw",
        ),
        (["transfer", "--out", "{tmp}/x", "--betas", "0.9"], "'0.9' is no pair of betas"),
        (["transfer", "--out", "{tmp}/x", "--betas", "0.9,1.5"], "betas must be at least 0 and below 1, got 1.5"),
        (["transfer", "--out", "{tmp}/x", "--momentum", "1"], "momentum must be at least 0 and below 1, got 1.0"),
        (["transfer", "--out", "{tmp}/x", "--head-size", "24"], "width 128 is not a multiple of the head size 24"),
        (["transfer", "--out", "{tmp}/x", "--seeds", "0"], "numbers must be at least 1, got 0"),
        (["transfer", "--out", "{tmp}/x", "--model", "bert"], "unknown model family 'bert'"),
        (["transfer", "--out", "{tmp}/x", "--data", "{tmp}/none.txt"], "no such file or directory"),
        (
            ["transfer", "--out", "{tmp}/x", "--model", "a:b", "--layers", "2"],
            "layers has no effect here: a:b makes its",
        ),
        (["transfer", "--out", "{tmp}/x", "--width", "64"], "width has no effect here: it is what grows over width"),
        (
            ["transfer", "--out", "{tmp}/x", "--data", "a:b", "--batch", "2"],
            "batch has no effect here: a:b makes its",
        ),
        (["transfer", "--out", "{tmp}/x", "--over", "depth"], "over depth the study needs depths: give sizes"),
        (["transfer", "--out", "{tmp}/x", "--over", "time"], "unknown over 'time'"),
        (["transfer", "--out", "{tmp}/x", "--budget", "soon"], "'soon' is no time"),
        (["transfer", "--out", "{tmp}/x", "--device", "abacus"], "no device 'abacus' here"),
        (["transfer", "--out", "{tmp}/x", "--device", "meta"], "no device 'meta' here"),
        (["transfer", "--out", "{tmp}/x", "--refine", "0.1"], "is taken over seeds, and there is one"),
        (["transfer", "--out", "{tmp}/x", "--model", "no_such:net"], "no module 'no_such'"),
        (["transfer", "--out", "{tmp}/file"], "is a file; give a directory (--out)"),
        (["transfer", "--out", "{tmp}/file/x"], "Not a directory: "),
        (["report", "{tmp}/x"], "holds no study"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, text, tmp_path, capsys):
    (tmp_path / "file").write_text("not a directory")
    assert main([word.replace("{tmp}", str(tmp_path)) for word in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("moga: ")
    assert text in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_no_command_shows_the_commands(capsys):
    assert main([]) == 2
    said = capsys.readouterr()
    assert all(command in said.out + said.err for command in ("transfer", "report", "inspect"))
    assert "moga: " not in said.err


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_sweep", interrupted)
    arguments = ["transfer", "--out", str(tmp_path / "my runs")]
    assert main(arguments) == 130
    assert capsys.readouterr().err == (
        f"moga: stopped; the finished runs are kept in {tmp_path}/my runs. "
        f"To go on: moga transfer --out '{tmp_path}/my runs'\n"
    )


def test_ctrl_c_elsewhere_stops_quietly(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("moga.study.records.read_study", interrupted)
    assert main(["report", "anywhere"]) == 130
    assert capsys.readouterr().err.strip() == "moga: stopped"


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError("a bug"), TypeError("a bug")])
def test_a_bug_keeps_its_traceback(error, tmp_path, monkeypatch):
    source, names = "def broken(*_, **__):\n    raise error", {"error": error}
    exec(compile(source, shlex.__file__, "exec"), names)  # in an installed module, which no user wrote
    monkeypatch.setattr(sweep, "run_sweep", names["broken"])
    with pytest.raises(type(error), match="a bug"):
        main(["transfer", "--out", str(tmp_path / "x")])


def test_without_the_extra_the_command_names_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["--help"]) == 2
    assert capsys.readouterr().err == (
        'moga: the module typer is missing; the command line needs: pip install "moga[study]"\n'
    )


def test_another_missing_module_is_a_bug(monkeypatch):
    monkeypatch.setitem(sys.modules, "moga.study.sweep", None)
    with pytest.raises(ModuleNotFoundError):
        main(["transfer", "--out", "x"])


def test_recipes_and_seeds_are_read():
    assert parse_recipes(["adamw", "moga-row, lion", ""]) == ("adamw", "moga-row", "lion")
    assert seeds_of("2") == (0, 1)
    assert seeds_of("3,1") == (1, 3)


def test_a_preset_alone_is_the_preset():
    for name, plan in PRESETS.items():
        assert transfer_plan(name) == plan


def test_rates_go_from_the_recipe_to_all_to_the_preset():
    plan = transfer_plan("quick", recipes=["moga-row", "adamw", "lion"], lrs={"moga-row": "0.1,0.2"})
    assert plan.rates["moga-row"] == (0.1, 0.2)
    assert plan.rates["adamw"] == PRESETS["quick"].rates["adamw"]
    assert "lion" in plan.rates
    plan = transfer_plan("quick", recipes=["moga-row", "adamw"], lrs={"adamw": 0.001, "": "0.5:1"})
    assert dict(plan.rates) == {"moga-row": (0.5, 1.0), "adamw": (0.001,)}


def test_fewer_steps_bring_a_shorter_warmup():
    assert transfer_plan("quick", settings={"steps": 50, "batch": None}).settings.warmup == 5
    assert transfer_plan("quick", settings={"steps": 50, "warmup": 1}).settings.warmup == 1


def fake_states():
    """What a sweep reports: a start, a step of a run, two ends (one diverged)."""
    run = SimpleNamespace(recipe="adamw", size=64)
    active = {0: SimpleNamespace(run=run, step=3, loss=2.5), 1: SimpleNamespace(run=run, step=0, loss=None)}
    config = {"recipe": "adamw", "width": 64, "lr": 0.03125, "seed": 1}
    good = {"config": config, "result": {"diverged": False, "loss": 2.25}}
    bad = {"config": config, "result": {"diverged": True, "loss": None}}
    base = {"phase": "grid", "total": 3, "reused": 1, "active": {}, "diverged": 0, "latest": None, "seconds_left": None}
    return [
        SimpleNamespace(**base | {"done": 1}),
        SimpleNamespace(**base | {"done": 1, "active": active, "seconds_left": 75.0}),
        SimpleNamespace(**base | {"done": 2, "latest": good, "seconds_left": 30.0}),
        SimpleNamespace(**base | {"done": 3, "latest": bad, "diverged": 1, "seconds_left": 0.0}),
        SimpleNamespace(**base | {"phase": "regret", "total": 0, "done": 0}),
    ]


def test_plain_lines_outside_a_terminal():
    text = io.StringIO()
    with show_progress(Console(file=text, force_terminal=False)) as progress:
        for state in fake_states():
            progress(state)
    assert text.getvalue().splitlines() == [
        "sweep: 3 runs, 1 of them from before",
        "[2/3] adamw, width 64, lr 0.03125, seed 1: loss 2.250, 30 s left",
        "[3/3] adamw, width 64, lr 0.03125, seed 1: diverged",
    ]


def test_a_live_bar_in_a_terminal():
    states = fake_states()
    for upto, expected in ((2, "adamw 64: 2.500  1 min 15 s left"), (5, "1 diverged")):
        text = io.StringIO()
        with show_progress(Console(file=text, force_terminal=True, width=100)) as progress:
            for state in states[:upto]:
                progress(state)
        assert expected in text.getvalue()
        assert "sweep" in text.getvalue()
