"""The study from Python: the same runs as the command, with functions for import paths, and frames for files."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

import moga
from moga.cli import main
from moga.study.records import StudyError, read_records, read_study
from tests.study import own_nets

NETS = "tests.study.own_nets"
GRID = {"recipes": ["moga-row", own_nets.adamw], "lrs": {"moga-row": "2**-6:2**-4", own_nets.adamw: [0.01, 0.02, 0.04]}}
SMALL = {"sizes": [16, 32], "seeds": 2, "steps": 6, "workers": 1, "progress": "none"}
WORDS = ["--model", f"{NETS}:net", "--data", f"{NETS}:data", "--recipe", f"moga-row,{NETS}:adamw"]
WORDS += ["--lrs", "2**-6:2**-4", "--lrs", f"{NETS}:adamw=0.01,0.02,0.04"]
WORDS += ["--sizes", "16,32", "--seeds", "2", "--steps", "6", "--workers", "1"]


@pytest.fixture(scope="module")
def found():
    return moga.study.transfer(own_nets.net, data=own_nets.data, **GRID, **SMALL)


def test_the_command_makes_the_same_runs(found, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert main(["transfer", *WORDS, "--out", str(tmp_path / "out")]) == 0
    by_command, by_call = read_records(tmp_path / "out"), read_records(found.directory)
    assert [one["key"] for one in by_command] == [one["key"] for one in by_call]
    assert [one["result"]["loss"] for one in by_command] == [one["result"]["loss"] for one in by_call]
    assert str(moga.study.load(tmp_path / "out")) == str(found)


def test_the_frame_has_a_row_for_every_run(found):
    frame, records = found.frame, read_records(found.directory)
    assert list(frame.columns) == [
        *("recipe", "width", "lr", "seed", "loss", "diverged", "tokens", "parameters", "seconds", "tokens_per_second")
    ]
    assert len(frame) == len(records) >= 24
    assert frame.loss.tolist() == [one["result"]["loss"] for one in records]
    best = frame[frame.recipe == "moga-row"].groupby(["width", "lr"]).loss.mean().groupby("width").min()
    optima = found.optima[found.optima.recipe == "moga-row"].set_index("width")
    assert best.to_dict() == pytest.approx(optima.best_loss.to_dict())
    assert optima.lr.to_dict() == {fit.width: fit.optimum.lr for fit in found.verdicts["moga-row"].widths}
    curve = found.curves.query("recipe == 'moga-row' and width == 16 and lr == 2**-5 and seed == 1")
    assert curve.step.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_diverged_run_has_no_loss():
    found = moga.study.transfer(
        own_nets.squares, data=own_nets.pairs, recipes=own_nets.adamw, lrs=[1e-3, 1e9], sizes=[16], steps=12,
        workers=1, progress="none",
    )  # fmt: skip
    assert found.frame.set_index("lr").diverged.to_dict() == {1e-3: False, 1e9: True}
    assert found.frame.set_index("lr").loss.isna().to_dict() == {1e-3: False, 1e9: True}


def test_it_shows_itself(found, tmp_path):
    assert isinstance(found.figure(), Figure) and isinstance(found.figure("drift"), Figure)
    with pytest.raises(ValueError, match="no figure is called 'curves'; there are transfer, drift"):
        found.figure("curves")
    assert repr(found).startswith(f"Transfer of {NETS}:net, widths 16 to 32, {len(found.frame)} runs\nmoga-row: ")
    assert "<table" in found._repr_html_() and "moga-row: " in found._repr_html_()
    page = found.report(tmp_path / "deep" / "mine.html")
    text = page.read_text(encoding="utf-8")
    assert page == tmp_path / "deep" / "mine.html"
    assert "moga.study.transfer(model=tests.study.own_nets:net" in text
    with pytest.raises(ValueError, match="the records of this study are temporary; give the page a path"):
        found.report()


def test_records_without_a_place_live_as_long_as_their_result():
    found = moga.study.transfer(
        own_nets.net, data=own_nets.data, recipes=own_nets.adamw, lrs=0.1, sizes=[16], steps=2, workers=1,
        progress="none",
    )  # fmt: skip
    directory = found.directory
    assert directory.exists()
    del found
    gc.collect()
    assert not directory.exists()


def scaled(factor):
    """A model that only this process has: it is made inside a function, and holds its factor."""

    def model(width):
        net = own_nets.Net(width)
        torch.nn.init.normal_(net.head.weight, std=factor / width)
        return net

    return model


def test_functions_without_an_import_path_go_on_and_notice_what_changed(tmp_path):
    options = {"data": own_nets.data, "recipes": "moga-row", "lrs": [0.1], **SMALL, "seeds": 1, "out": tmp_path / "out"}
    first = moga.study.transfer(scaled(1.0), **options)
    assert (first.outcome.ran, first.outcome.reused) == (2, 0)
    again = moga.study.transfer(scaled(1.0), **options)
    assert (again.outcome.ran, again.outcome.reused) == (0, 2)
    assert "scaled.<locals>.model" in read_study(tmp_path / "out")["settings"]["family"]
    with pytest.raises(
        StudyError, match="other settings .the code of .*model or .*:data, or of a value that it uses, changed"
    ):
        moga.study.transfer(scaled(2.0), **options)


SCRIPT = """
import sys
import torch
import moga
from torch import nn

INSIDE = 16

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.middle, self.head = nn.Linear(INSIDE, width), nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, x, labels=None):
        return self.head(self.middle(self.up(x).relu()).relu())

def batches(split, seed):
    generator = torch.Generator().manual_seed(seed if split == "train" else 10_000)
    for _ in range(5):
        x = torch.randn(8, INSIDE, generator=generator)
        yield {"x": x, "labels": x[:, :4].argmax(1)}

def sgd(model, lr):
    return torch.optim.SGD(model.parameters(), lr)

if __name__ == "__main__":
    for workers, out in ((2, "two"), (1, "one"), (1, "two")):
        found = moga.study.transfer(
            Net, data=batches, recipes=sgd, lrs="2**-4:2**-2", sizes=[8, 16], steps=3, workers=workers, out=out
        )
        print(found.outcome.ran, found.outcome.reused)
"""


def test_a_scripts_own_functions_reach_worker_processes(tmp_path):
    """With one worker nothing is sent: both must give the same keys and losses, and either goes on with the other."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["6 0", "6 0", "0 6"]
    on_two, on_one = read_records(tmp_path / "two"), read_records(tmp_path / "one")
    assert {one["environment"]["workers"] for one in on_two} == {2}
    losses = [{one["key"]: one["result"]["loss"] for one in records} for records in (on_two, on_one)]
    assert losses[0] == losses[1] and len(losses[0]) == 6


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"device": "cuda"}, "no device 'cuda' here \\(.*\\); give cpu, or one that this torch can use"),
        ({"device": "meta"}, "no device 'meta' here"),
        ({"progress": "loud"}, "unknown word 'loud' for progress; the words are auto, none"),
        ({"stepz": 3}, "unknown setting 'stepz'; the settings are family, layers, "),
        ({"recipe": "muon"}, "unknown setting 'recipe'; .*; other keywords are recipes, .*; did you mean recipes\\?$"),
        ({"widths": (8, 16)}, "unknown setting 'widths'; .*; did you mean sizes\\?$"),
        ({"recipes": own_nets.adamw(torch.nn.Linear(2, 2), 0.1)}, "a function .model, lr. .* got an optimizer, AdamW"),
        ({"recipes": [own_nets.adamw(torch.nn.Linear(2, 2), 0.1)]}, "write `def own.model, lr.: return AdamW"),
        ({"recipes": torch.optim.AdamW}, "got the class AdamW; write `def own"),
        ({"lrs": {"muon": 0.1}}, "learning rates are given for 'muon', which is not run; those that are: moga-row"),
        ({"seeds": 0}, "a study needs at least one seed, got 0"),
        ({"layers": 2}, "layers has no effect here: tests.study.own_nets:net makes its own model"),
        ({"batch": 2}, "batch has no effect here: tests.study.own_nets:data makes its own batches"),
        ({"budget": "soon"}, "'soon' is no time"),
        ({"budget": 60}, "'60' is no time; write a number above 0 and s, m or h, as in 30m"),
    ],
)
def test_bad_input_says_what_is_allowed(given, text, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=text):
        moga.study.transfer(
            own_nets.net, data=own_nets.data, **{"recipes": "moga-row", "lrs": 0.1, **SMALL, "progress": "none"} | given
        )


def test_a_name_that_the_study_does_not_have():
    with pytest.raises(AttributeError, match="module 'moga.study' has no attribute 'transfers'"):
        moga.study.transfers  # noqa: B018
    with pytest.raises(AttributeError, match="module 'moga' has no attribute 'studies'"):
        moga.studies  # noqa: B018
    assert {"transfer", "check", "smoothness", "load"} <= set(dir(moga.study))


def test_numbers_of_the_verdict_are_in_reach(make_study):
    directory = make_study({"adamw": {"drift": -0.9, "optimum": -4.0}})
    verdict = moga.study.load(directory).verdicts["adamw"]
    assert verdict.drift == pytest.approx(-0.9, abs=0.05)
    assert math.log2(verdict.widths[0].optimum.lr) == pytest.approx(-4.0, abs=0.1)
    assert verdict.widths[0].optimum.stderr_log2 == pytest.approx(0.05, abs=0.05)
    assert verdict.regret > 0 and verdict.transfers is False
