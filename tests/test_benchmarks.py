"""Each benchmark runs on tiny sizes, and its arithmetic is right; the figures themselves are no test."""

import json
from pathlib import Path

import pytest
from scripts import load_script

from moga.optim.kernels.onednn import available

PLACE = Path(__file__).parents[1] / "benchmarks"


def script(name):
    return load_script(f"benchmarks/{name}.py")


@pytest.fixture(scope="module")
def step_time():
    return script("step_time")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_step_time_prints_a_row_for_everyone_and_writes_the_figures(step_time, tmp_path, capsys, dtype):
    names = [name for name in step_time.CONTESTANTS if name.startswith(("torch", "moga"))]
    step_time.main(
        ["--workload", "test", "--dtype", dtype, "--rounds", "2", "--json", str(tmp_path / "a.json"), "--only", *names]
    )
    printed, written = capsys.readouterr().out, json.loads((tmp_path / "a.json").read_text())
    [table] = written["tables"]
    assert [row["name"] for row in table["rows"]] == names
    assert all(f"| {name} |" in printed for name in names)
    assert written["about"]["versions"]["torch"] and table["threads"] >= 1


def test_the_suite_measures_every_table_with_one_thread_and_with_two(step_time, tmp_path, capsys, monkeypatch):
    names = [name for row in step_time.SUITE for name in row[2]]
    assert set(names) <= set(step_time.CONTESTANTS) and "moga adam, skip" in names
    monkeypatch.setattr(step_time, "SUITE", (("test", "float32", ("moga row", "moga row, skip"), 3),))
    step_time.main(["--suite", "--json", str(tmp_path / "a.json")])
    printed, written = capsys.readouterr().out, json.loads((tmp_path / "a.json").read_text())
    assert [table["threads"] for table in written["tables"]] == [1, 2]
    assert "workload test, dtype float32, threads 2, rounds 3" in printed
    assert "/ without skip" in written["tables"][0]["rows"][1]


def test_a_peer_that_is_not_installed_is_named(step_time, capsys, monkeypatch):
    monkeypatch.setitem(step_time.CONTESTANTS, "torch Muon", step_time.peer("no_such_package", "Muon"))
    step_time.main(["--workload", "test", "--rounds", "1", "--only", "torch Muon", "moga sign"])
    printed = capsys.readouterr().out
    assert "left out: torch Muon" in printed and "pip install 'moga[bench]'" in printed and "| moga sign |" in printed
    with pytest.raises(ImportError, match="torch.optim has no Nothing"):
        step_time.peer("torch.optim", "Nothing")([])


def test_ratios_are_taken_within_a_round(step_time):
    rows = step_time.results({"torch SGD fused": [1.0, 10.0, 2.0], "b": [2.0, 10.0, 4.0]}, ("torch SGD fused",))
    assert rows[1] == {"name": "b", "ms": [3000.0, 4000.0, 7000.0], "/ torch SGD fused": [1.5, 2.0, 2.0]}
    assert "| b | 4000.00 (3000.00 to 7000.00) | 2.000 (1.500 to 2.000) |" in step_time.table(rows)
    assert step_time.quartiles([5.0]) == (5.0, 5.0, 5.0)


def test_the_clock_of_one_thread_is_not_taken_for_more(step_time, capsys):
    with pytest.raises(SystemExit):
        step_time.main(["--clock", "cpu", "--threads", "2"])
    assert "say --threads 1" in capsys.readouterr().err


def test_everyone_finds_gradients_whoever_came_before(step_time, monkeypatch):
    seen = []

    def make(weights):
        def step():
            seen.append([weight.grad is not None for weight in weights])
            for weight in weights:
                weight.grad = None  # as heavyball does

        return step

    monkeypatch.setitem(step_time.CONTESTANTS, "moga row", make)
    monkeypatch.setitem(step_time.CONTESTANTS, "moga sign", make)
    step_time.main(["--workload", "test", "--rounds", "2", "--only", "moga row", "moga sign"])
    assert seen == [[True, True]] * 8


@pytest.fixture(scope="module")
def sweep_throughput():
    return script("sweep_throughput")


TINY = ["--widths", "16", "32", "--steps", "4", "--rounds", "1", "--seeds", "1", "--workers", "1", "--threads", "1"]


def test_a_study_and_the_plain_loop_make_the_same_losses(sweep_throughput, tmp_path, capsys):
    sweep_throughput.main([*TINY, "--json", str(tmp_path / "a.json")])
    written = json.loads((tmp_path / "a.json").read_text())
    (only,) = written["rounds"]
    assert only["runs"] == 8 and only["apart"] < 1e-5 and only["other"] == 0 and min(only["study"], only["loop"]) > 0
    assert written["about"]["workers"] == written["about"]["loop_threads"] == 1 and written["about"]["processor"]
    assert "| median (losses: all) |" in capsys.readouterr().out


def test_a_loop_that_does_something_else_is_seen(sweep_throughput, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_throughput, "schedule", lambda settings: lambda step: 1.0)
    sweep_throughput.main([*TINY, "--json", str(tmp_path / "a.json")])
    (only,) = json.loads((tmp_path / "a.json").read_text())["rounds"]
    assert only["apart"] > 1e-3 and only["other"] > 0


@pytest.mark.parametrize("word", ["gelu_new", "autocast", "nudged"])
def test_the_loop_may_train_another_model(sweep_throughput, tmp_path, word):
    sweep_throughput.main([*TINY, "--model", word, "--json", str(tmp_path / "a.json")])
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["about"]["model"] == word and 0 < written["rounds"][0]["apart"] < 0.1


def test_the_ratio_of_a_study_is_that_of_runs_per_hour(sweep_throughput):
    rounds = [{"runs": 10, "study": 10.0, "loop": loop, "apart": loop / 1e4, "other": 1} for loop in (20, 15, 18)]
    lines = sweep_throughput.table(rounds).splitlines()
    assert lines[2] == "| 1 | 3600 | 1800 | 2.00 | 2.0e-03 | 1 of 10 |"
    assert lines[-1] == "| median (losses: all) | 3600 | 2000 | 1.80 | 2.0e-03 | 3 of 30 |"


def test_where_the_time_goes_adds_up(sweep_throughput, capsys):
    sweep_throughput.main(["--where", "--widths", "16", "32"])
    tables = [part.splitlines() for part in capsys.readouterr().out.split("\n\n") if part.startswith("|")]
    assert len(tables) == 1 + available()
    for table in tables:
        adds_up(table, sweep_throughput)


def adds_up(table, sweep_throughput):
    lines = [line.strip("| ").split(" | ") for line in table]
    rows = {name: [float(value) for value in values] for name, *values in lines[2:]}
    assert lines[0] == ["ms of one step at width", "16", "32"]
    assert set(sweep_throughput.KINDS) < set(rows) and min(rows["matrix products"] + rows["attention"]) > 0
    whole = rows.pop("sum")
    assert [sum(column) for column in zip(*rows.values(), strict=True)] == pytest.approx(whole, abs=0.5)
