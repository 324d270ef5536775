"""What a user mends between two commands, and what all commands say in one way: roles, recipes, warnings."""

from __future__ import annotations

import importlib
import sys

import pytest

from moga.cli import main
from moga.study.records import read_records, read_study

SOURCE = """
import torch
from torch import nn

def net(width):
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
    return model, torch.ones(2, 4), lambda output, batch: output.square().mean()

def deep(depth):
    maps = [nn.Linear(4, 4, bias=False) for _ in range(depth)]
    return nn.Sequential(*maps), torch.ones(2, 4), lambda output, batch: output.square().mean()

class Tied(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed, self.head = nn.Embedding(256, width), nn.Linear(width, 256, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))

def loss(output, batch):
    return output.square().mean()

def tied(width):
    return Tied(width), torch.arange(8)[None], loss

def tied_without_batch(width):
    return Tied(width), None, loss

def tokens(split, seed):
    return [torch.arange(8)[None]] * 2

def data(split, seed):
    return [torch.ones(2, 4)] * 2

def sgd(model, lr):
    return torch.optim.SGD(model.parameters(), lr)
"""
OWN = ["--recipe", "mistaken_nets:sgd", "--sizes", "8,16", "--steps", "2"]
TRANSFER = ["transfer", "--model", "mistaken_nets:net", "--data", "mistaken_nets:data", *OWN, "--lrs", "0.1,0.2"]
CHECK = ["check", "mistaken_nets:net", *OWN, "--lr", "0.01", "--seeds", "2"]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes the user's module into the working directory, as a new process finds it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source):
        (tmp_path / "mistaken_nets.py").write_text(source)
        monkeypatch.delitem(sys.modules, "mistaken_nets", raising=False)
        importlib.invalidate_caches()

    return write


@pytest.mark.parametrize("arguments", [[*TRANSFER, "--workers", "1"], CHECK], ids=["transfer", "check"])
def test_a_model_that_was_refused_is_mended_and_the_same_command_goes_on(arguments, write, capsys):
    write(SOURCE.replace("output.square().mean()", "output.squared()"))
    assert main([*arguments, "--out", "out"]) == 2
    assert "has no attribute 'squared'" in capsys.readouterr().err
    assert not read_records("out")
    write(SOURCE)
    assert main([*arguments, "--out", "out"]) in (0, 1)
    assert len(read_records("out")) == 4 and "unfinished" not in read_study("out")


@pytest.mark.parametrize("command", [["check"], ["inspect"], ["transfer", "--model"]], ids=lambda one: one[0])
def test_roles_are_asked_for_in_lines_and_as_options(command, write, capsys):
    write(SOURCE.replace("def deep(depth):", "def deep(depth=3):"))
    over = [] if command == ["inspect"] else ["--over", "depth", "--sizes", "3,4", "--out", "out"]
    assert main([*command, "mistaken_nets:deep", *over]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("moga: parameters without a role (") and lines[1].startswith("  0.weight (Linear, ")
    assert lines[-1].startswith("  --role '*=hidden' --role 0.weight=input --role ")
    assert not any("roles=" in line for line in lines)


@pytest.mark.parametrize("command", [["check"], ["inspect"], ["transfer", "--model"], ["smoothness", "--model"]])
def test_an_unknown_recipe_is_said_before_a_model_is_made(command, write, capsys):
    model = "gpt2" if command[0] == "smoothness" else "no_such_module:net"
    out = [] if command == ["inspect"] else ["--out", "out"]
    assert main([*command, model, "--recipe", "AdamW", *out]) == 2
    said = capsys.readouterr().err
    assert said.startswith("moga: unknown recipe 'AdamW'; ") and said.endswith("; did you mean adamw?\n")


def test_a_warning_is_a_line_and_is_said_once(write, capsys):
    write(SOURCE)
    assert main(["check", "mistaken_nets:tied", "--sizes", "8,16", "--steps", "2", "--seeds", "2", "--out", "out"]) < 2
    said = capsys.readouterr().err
    assert "warning: embed.weight is input and output in one" in said.splitlines()[0]
    assert said.count("is input and output in one") == 1 and "UserWarning" not in said


def test_a_warning_of_a_worker_is_one_too(write, capfd):
    write(SOURCE)
    arguments = ["transfer", "--model", "mistaken_nets:tied_without_batch", "--data", "mistaken_nets:tokens"]
    arguments += ["--recipe", "moga-row", "--sizes", "8,16", "--lrs", "0.1", "--steps", "2", "--workers", "2"]
    assert main([*arguments, "--out", "out"]) == 0
    said = capfd.readouterr().err
    assert said.count("warning: embed.weight is input and output in one") == 1 and "UserWarning" not in said
