"""Functions given as objects: their words, what tells that they changed, and the way to another process."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest

from moga.study import functions
from moga.study.factories import load_function
from moga.study.fingerprints import fingerprint
from moga.study.functions import Given, find_given, given, importable, known, pack, unpack, word_of
from moga.study.records import StudyError
from moga.study.tasks import code_of
from tests.study import own_nets

SOURCE = """
import dataclasses, enum
import numpy as np
import torch

class Kind(enum.Enum):
    ONE = 1

@dataclasses.dataclass
class Config:
    size: int = 3
    names: list = dataclasses.field(default_factory=list)

config, numbers, table = Config(), torch.ones(3), {"a": np.zeros(2), "b": {"x", "y", "z"}}

def helper(x):
    return x + 1

class Net(torch.nn.Module):
    factor = 2

    def __init__(self, width):
        super().__init__()
        self.kind = Kind.ONE

    @property
    def double(self):
        return self.factor * 2

    def forward(self, x):
        return helper(x) * config.size + numbers.sum() + len(table)

def net(width, *, bias=True):
    return Net(width)
"""
CHANGES = {
    "a constant of a function that it calls": ("x + 1", "x + 2"),
    "a method": ("* config.size", "+ config.size"),
    "an attribute of a class": ("factor = 2", "factor = 3"),
    "a property": ("self.factor * 2", "self.factor * 3"),
    "a value in an object": ("size: int = 3", "size: int = 4"),
    "a tensor": ("torch.ones(3)", "torch.zeros(3)"),
    "an array": ("np.zeros(2)", "np.ones(2)"),
    "an entry of a set": ('"z"', '"w"'),
    "a default": ("bias=True", "bias=False"),
    "a member": ("ONE = 1", "ONE = 2"),
    "a base": ("torch.nn.Module", "torch.nn.Identity"),
}


def net_of(source: str):
    """`net` of a module as a notebook has it."""
    namespace = {"__name__": "__main__"}
    exec(source, namespace)
    return namespace["net"]


def test_comments_and_places_of_lines_do_not_count():
    assert fingerprint(net_of(SOURCE)) == fingerprint(net_of("# text\n\n" + SOURCE.replace("x + 1", "x + 1  # one")))


@pytest.mark.parametrize("what", CHANGES)
def test_everything_that_is_used_counts(what):
    changed = SOURCE.replace(*CHANGES[what])
    assert changed != SOURCE
    assert fingerprint(net_of(SOURCE)) != fingerprint(net_of(changed)), what


def test_what_cannot_be_told_is_refused_by_name():
    lock = threading.Lock()

    def model(width):
        return lock

    with pytest.raises(ValueError, match="model uses `lock` .lock., and nothing tells whether that is the same"):
        given([model], compared=True)
    assert given([model], compared=False)[word_of(model)].code == ""


def test_words():
    assert word_of(own_nets.net) == "tests.study.own_nets:net"
    assert importable(own_nets.net) and importable(own_nets.Net)
    assert given([own_nets.net], compared=True) == {}
    with pytest.raises(ValueError, match="a study takes functions and classes, .* got partial .*; write `def name"):
        word_of(functools.partial(own_nets.net, 3))
    first, second = (lambda width: 1), (lambda width: 2)
    with pytest.raises(ValueError, match="two functions of this study are called .*<lambda>; give one of them another"):
        given([first, second], compared=True)


def test_a_given_function_is_found_while_the_study_runs():
    def model(width):
        return width

    word = word_of(model)
    with known(given([model], compared=True)):
        assert load_function(word) is model
        inside = code_of(word)
    assert find_given(word) is None
    with known(given([model], compared=True)):
        assert code_of(word) == inside
    with known({word: Given(model, "changed")}):
        assert code_of(word) != inside


def test_what_is_packed_computes_the_same(monkeypatch):
    scale = np.float64(3)

    def model(width):
        return scale * width

    assert pack() == b""
    with known(given([model], compared=True)):
        packed = pack()
    monkeypatch.setattr(functions, "_GIVEN", {})
    unpack(packed)
    assert load_function(word_of(model))(2) == 6


def test_what_cannot_be_sent_is_refused():
    lock = threading.Lock()

    def model(width):
        return lock

    with known(given([model], compared=False)), pytest.raises(StudyError, match="cannot be sent to worker processes"):
        pack()
