"""The benchmark for GPUs where there is none: it says so, and makes its tables of timings that are known."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from scripts import load_script

PLACE = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def cuda():
    return load_script("benchmarks/cuda_step_time.py")


def test_without_a_gpu_it_says_so(cuda, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.main(["--out", str(tmp_path / "figures")]) == 2
    assert "There is no GPU that torch" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_bytes_that_a_step_cannot_do_without(cuda):
    found = {name: cuda.moved_bytes(name, 10, 4) for name in cuda.CONTESTANTS}
    assert found["torch SGD fused"] == found["moga row"] == found["moga sign, plain"] == found["moga column"] == 200
    assert found["torch AdamW fused"] == found["moga adam"] == 280
    assert found["torch Muon"] is found["moga spectral, triton"] is None
    assert cuda.moved_bytes("moga row, skip", 10, 2) == 140 and cuda.moved_bytes("torch AdamW fused", 10, 2) == 140


def rows(cuda):
    """A copy of a GiB in 2 s, so 1 GiB/s; rows of 2^28 entries move 5 GiB in 6.25 s: 0.8 of that."""
    times = {"moga row": 6.25, "moga sign": 5.5, "torch AdamW fused": 7.0, "torch Muon": 20.0, "moga spectral": 15.0}
    device = {name: [seconds, seconds, seconds] for name, seconds in times.items()}
    return cuda.rows_of(device, {name: [0.001, 0.002, 0.003] for name in times}, [2.0, 2.0, 2.0], 1 << 28, 4)


def test_rows_and_verdicts_of_known_timings(cuda):
    row, sign, adamw, muon, spectral = rows(cuda)
    assert row["of copy"] == pytest.approx([0.8] * 3) and sign["of copy"][1] == pytest.approx(5 / 5.5)
    assert adamw["of copy"][1] == pytest.approx(1.0) and "of copy" not in muon
    assert row["/ torch AdamW fused"][1] == pytest.approx(6.25 / 7) and spectral["/ torch Muon"][1] == 0.75
    assert row["call ms"] == pytest.approx([1.5, 2.0, 2.5])
    assert cuda.verdicts(rows(cuda)) == [
        "moga row: 0.80 of the copy's bandwidth, MISSED (target 0.85)",
        "moga row: 0.89 of fused AdamW's time, met (target: below 1)",
        "moga sign: 0.91 of the copy's bandwidth, met (target 0.85)",
        "moga sign: 0.79 of fused AdamW's time, met (target: below 1)",
        "moga spectral: 0.75 of the time of torch Muon, met (target: at most 1)",
    ]
    text = cuda.report({"gpu": "made up"}, {"float32": rows(cuda)})
    assert "- gpu: made up\n\n## float32\n\n| name | ms |" in text and "| moga row | 6250.00 (" in text


def test_everything_but_the_device(cuda, monkeypatch, capsys, tmp_path):
    """On the CPU, with a clock that counts: who runs takes turns, who does not is named, and both files are written."""
    ticks = itertools.count(1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "made up")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    monkeypatch.setattr(torch, "ones", lambda *shape, **words: torch.zeros(1))
    monkeypatch.setattr(cuda, "queued", lambda step: (step(), (float(next(ticks)), 0.5))[1])
    monkeypatch.setitem(cuda.CONTESTANTS, "dion Muon", cuda.peer("no_such_package", "Muon"))
    names = ["torch AdamW fused", "dion Muon", "moga row", "moga sign"]
    given = ["--workload", "test", "--rounds", "2", "--out", str(tmp_path / "figures"), "--only", *names]
    assert cuda.main(given) == 0
    printed = capsys.readouterr().out
    assert "left out: dion Muon (ModuleNotFoundError: No module named 'no_such_package')" in printed
    written = json.loads((tmp_path / "figures.json").read_text())
    assert set(written["rows"]) == {"float32", "bfloat16"} and written["about"]["gpu"] == "made up"
    assert [row["name"] for row in written["rows"]["float32"]] == [names[0], *names[2:]]
    assert written["rows"]["float32"][1]["ms"] == [12000.0, 13000.0, 14000.0]  # ticks 11 and 15 of 4 in a round
    assert (tmp_path / "figures.md").read_text().strip() in printed
