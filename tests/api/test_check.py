"""The coordinate check and the constants from Python: the same records as the commands, as frames."""

from __future__ import annotations

import pytest
import torch
from matplotlib.figure import Figure

import moga
from moga.study.records import read_records

TINY = {"widths": [8, 16], "layers": [1], "trained": [0], "head_size": 8, "context": 8, "windows": 1, "random": 0}


def net(width):
    inside = (torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU())
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    return (
        torch.nn.Sequential(*inside, torch.nn.Linear(width, 3)),
        x,
        lambda output, batch: (output - batch[:, :3]).square().mean(),
    )


@pytest.fixture(scope="module")
def found():
    return moga.study.check(
        lambda width: net(width), sizes=[32, 128], seeds=4, start="moga", plants=["none", "scale"], progress="none"
    )


def test_a_check_passes_and_one_with_a_fault_fails(found):
    assert found.verdicts == {"moga-row": "passes", "moga-row with the planted fault 'scale'": "fails"}
    assert not found.passes
    assert str(found).startswith("moga-row: passes.") and "fails" in found._repr_html_()
    worst = found.slopes[found.slopes.verdict == "fails"]
    assert set(worst.case) == {"moga-row with the planted fault 'scale'"}
    assert (worst.change.abs() > 0.25).any() and worst.cause.str.len().min() > 10


def test_data_that_make_their_own_batches():
    def batches(split, seed):
        generator = torch.Generator().manual_seed(seed)
        while True:
            x = torch.randn(16, 8, generator=generator)
            yield x, x[:, :3].argmax(1)

    def classifier(width):
        return net(width)[0]

    words = {"sizes": [16, 32], "seeds": 2, "steps": 2, "start": "moga", "progress": "none"}
    assert moga.study.check(classifier, data=batches, **words).verdicts["moga-row"] in ("passes", "undecided")
    with pytest.raises(ValueError, match=r"batch has no effect here: .*batches makes its own batches"):
        moga.study.check(classifier, data=batches, batch=4, **words)
    with pytest.raises(ValueError, match=r"a function batches\(split, seed\), or the path of a text file .*, got list"):
        moga.study.check(classifier, data=[1], **words)


def test_the_frame_has_a_row_for_every_run_and_module(found, tmp_path):
    records = read_records(found.directory)
    assert len(records) == 2 * 2 * 4
    assert len(found.frame) == sum(len(one["result"]["modules"]) for one in records)
    first = found.frame.iloc[0]
    assert first.start == records[0]["result"]["modules"][first.module]["start"][1]
    assert isinstance(found.figure(), Figure)
    assert "moga.study.check(model=" in found.report(tmp_path / "page.html").read_text(encoding="utf-8")


def test_constants_come_as_frames(tmp_path, text_file):
    found = moga.study.smoothness(
        norms=["sign", "row"], steps=1, data=text_file, out=tmp_path / "out", progress="none", **TINY
    )
    assert found.measured == len(found.frame) == 4
    grown = found.exponents.query("constant == 'smoothness' and norm == 'sign'")
    values = found.frame.query("norm == 'sign'").set_index("width").smoothness
    assert 2 ** grown.exponent.item() == pytest.approx(values[16] / values[8])
    assert isinstance(found.figure(), Figure)
    with pytest.raises(ValueError, match="no figure over 'layers': give width or layers, and measure at two sizes"):
        found.figure("layers")
    again = moga.study.load(tmp_path / "out")
    assert str(again) == str(found) and again.measured == 0
    assert found.report() == tmp_path / "out" / "report.html"
    assert "smoothness" in found._repr_html_()


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        (moga.study.check, {"recipe": "muon"}, "recipes"),
        (moga.study.check, {"widths": (8, 16)}, "sizes"),
        (moga.study.smoothness, {"norm": "row"}, "norms"),
        (moga.study.smoothness, {"recipes": "muon"}, "recipe"),
    ],
)
def test_a_word_that_is_none_names_the_one_that_was_meant(call, given, meant):
    with pytest.raises(ValueError, match=f"unknown setting {next(iter(given))!r}; .*; did you mean {meant}\\?$"):
        call("gpt2", **given)


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 400)
    return path
