"""Each benchmark runs on tiny sizes, and its arithmetic is right; the figures themselves are no test."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[1] / "benchmarks"


def script(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", PLACE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
    assert [row["name"] for row in written["rows"]] == names
    assert all(f"| {name} |" in printed for name in names)
    assert written["about"]["versions"]["torch"] and written["about"]["threads"] >= 1


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
