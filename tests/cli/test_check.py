"""`moga check`: words in, verdicts and an exit code out, one line for what is wrong."""

from __future__ import annotations

import math
import shlex
import sys

import pytest

from moga.cli import main
from moga.study import coordinates
from moga.study.records import read_records, read_study

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed, self.up, self.head = nn.Embedding(256, width), nn.Linear(width, width), nn.Linear(width, 256)

    def forward(self, tokens):
        return self.head(self.up(self.embed(tokens)))

def net(width):
    return Net(width)

def mlp(width):
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

def mlp_and_loss(width):
    return mlp(width), None, lambda output, batch: nn.functional.cross_entropy(output, batch[1])

def batches(split, seed):
    generator = torch.Generator().manual_seed({"train": seed, "held-out": 99}[split])
    while True:
        x = torch.randn(8, 12, generator=generator)
        yield x, x[:, :4].argmax(1)
"""
OWN = ["--sizes", "32,64,128", "--seeds", "6", "--steps", "2", "--start", "moga"]
SMALL = [*OWN, "--context", "8"]  # of text


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with the user's module and a text, as the working directory."""
    (tmp_path / "cli_nets.py").write_text(SOURCE)
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 400)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_nets", raising=False)
    return tmp_path


def test_exit_codes_say_whether_it_passes(here, capsys):
    arguments = ["check", "cli_nets:net", *SMALL, "--data", "text.txt", "--out", "out"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out.startswith("moga-row: passes. 3 modules; the largest slope is ")
    assert said.out.splitlines()[-1] == "report: out/report.html"
    assert said.err.splitlines()[0].startswith("[1/18] moga-row, width 32, seed 0 (")
    assert read_study("out")["commands"] == [shlex.join(["moga", *arguments])]
    assert main(["report", "out"]) == 0
    assert capsys.readouterr().out == said.out

    assert main([*arguments, "--plant", "none,scale", "--recipe", "moga-row"]) == 1
    right, wrong = capsys.readouterr().out.split("\n\n")[:2]
    assert right.startswith("moga-row: passes.")
    assert wrong.startswith("moga-row with the planted fault 'scale': fails. ")
    assert "the first is up: the update of up.weight (hidden): it moves outputs as width^+" in wrong
    assert len(read_records("out")) == 36
    assert main(["report", "out"]) == 0  # it draws; only the check itself says by its exit code what it found


@pytest.mark.parametrize("model", ["mlp", "mlp_and_loss"])
def test_data_of_ones_own_give_the_batch(model, here, capsys):
    words = [*OWN, "--data", "cli_nets:batches", "--out", "out"]
    assert main(["check", f"cli_nets:{model}", *words]) == 0, capsys.readouterr()
    assert read_study("out")["settings"]["corpus"] == read_study("out")["corpus"]["name"] == "cli_nets:batches"
    losses = [one["result"]["loss"] for one in read_records("out")]
    assert all(one[0] == pytest.approx(math.log(4), abs=0.1) and one[-1] < one[0] for one in losses)
    assert main(["check", f"cli_nets:{model}", *words, "--plant", "scale"]) == 1  # and sees a fault
    capsys.readouterr()
    assert main(["check", f"cli_nets:{model}", *words, "--data", "cli_nets:net"]) == 2
    assert "cli_nets:net is called as function(split, seed) and takes (width); give" in capsys.readouterr().err
    assert main(["check", f"cli_nets:{model}", *words, "--context", "8"]) == 2
    assert "context has no effect here: cli_nets:batches makes its own batches" in capsys.readouterr().err


def test_a_model_of_other_things_than_text_is_told_so(here, capsys):
    assert main(["check", "cli_nets:mlp", *SMALL, "--data", "text.txt", "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "moga: your code failed: RuntimeError: cli_nets:mlp at 32 fails on bytes of text (integers of"
    )
    assert "RuntimeError: mat1 and mat2 must have the same dtype" in said
    assert "give batches with --data package.module:function, or let the function return (model, batch)" in said


def test_options_reach_the_plan(here, capsys):
    words = ["--recipe", "muon,adamw", "--lr", "2**-9", "--lr", "adamw=0.25", "--mark", "0.5"]
    words += ["--role", "head.weight=output", "--device", "cpu", "--batch", "1"]
    assert main(["check", "cli_nets:net", *SMALL, *words, "--data", "text.txt", "--out", "out"]) == 1
    records = read_records("out")
    assert {(one["config"]["recipe"], one["config"]["lr"]) for one in records} == {("muon", 2**-9), ("adamw", 0.25)}
    settings = read_study("out")["settings"]
    named = ("start", "mark", "roles", "device", "batch", "context", "steps")
    assert [settings[name] for name in named] == ["moga", 0.5, {"head.weight": "output"}, "cpu", 1, 8, 2]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["bert"], "unknown model 'bert'; give a family (gpt2, llama) or a function, as package.module:function"),
        (
            ["nowhere.at_all:f"],
            "no module 'nowhere' for 'nowhere.at_all:f'; call moga from the directory that holds it",
        ),
        (["cli_nets:Net", "--recipe", "lion", "--sizes", "32"], "a check needs at least two widths, got [32]: a slope"),
        (["gpt2", "--sizes", "33,64"], "width 33 is not a multiple of the head size 16"),
        (["gpt2", "--seeds", "1"], "a check needs at least two seeds, got [0]"),
        (["gpt2", "--recipe", "scion"], "no learning rate is known for 'scion', only for"),
        (["gpt2", "--recipe", "rows", "--lr", "1"], "unknown recipe 'rows'"),
        (["gpt2", "--lr", "0.1,0.2"], "--lr '0.1,0.2' has 2 rates; a check has one for each recipe"),
        (
            ["gpt2", "--lr", "muon=1"],
            "learning rates are given for 'muon', which is not checked; those that are: moga-row",
        ),
        (["gpt2", "--role", "head"], "'head' states no role; write a pattern and a role, as in \"head.weight=output\""),
        (["gpt2", "--plant", "bug"], "unknown fault 'bug' to plant"),
        (["gpt2", "--over", "time"], "unknown word 'time' for over; the words are width, depth"),
        (["gpt2", "--device", "abacus"], "no device 'abacus' here"),
        (["gpt2", "--threads", "0"], "threads must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, text, here, capsys):
    assert main(["check", *words, "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("moga: ")
    assert text in said
    assert said.count("\n") == 1
    assert not (here / "out").exists()


def test_ctrl_c_says_how_to_go_on(here, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(coordinates, "run_check", interrupted)
    assert main(["check", "gpt2", "--out", "x"]) == 130
    assert "moga: stopped; a check is made anew each time. To run it again: moga check gpt2 --out x" in (
        capsys.readouterr().err
    )
