"""Functions given as objects: their words, what tells that they changed, and the way to another process."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
import torch

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


ALIKE = {
    "a docstring": ("def helper(x):", 'def helper(x):\n    "words"'),
    "a docstring of a method": ("def forward(self, x):", 'def forward(self, x):\n        "words"'),
}
WRAPPED = """
import functools, re
import numpy as np

@functools.lru_cache
def helper():
    return 1

class Net:
    @functools.cached_property
    def kept(self):
        return 2

pattern, apply = re.compile("a"), np.add

def net(width):
    class Inner:
        "A docstring."
        def inside(self):
            "Another one."
    return helper() + Net().kept + net.factor, pattern, apply, Inner

net.factor = 3
"""
WRAPPED_CHANGES = {
    "under a cache": ("return 1", "return 5"),
    "a cached property": ("return 2", "return 5"),
    "an attribute of a function": ("net.factor = 3", "net.factor = 4"),
    "a pattern": ('compile("a")', 'compile("b")'),
    "a ufunc": ("np.add", "np.multiply"),
}


@pytest.mark.parametrize("what", ALIKE)
def test_docstrings_do_not_count(what):
    assert (changed := SOURCE.replace(*ALIKE[what])) != SOURCE
    assert fingerprint(net_of(SOURCE)) == fingerprint(net_of(changed))


@pytest.mark.parametrize("gone", ['"A docstring."', '"Another one."'])
def test_docstrings_inside_a_function_do_not_count(gone):
    for words in ('"Other words."', "pass"):
        assert fingerprint(net_of(WRAPPED)) == fingerprint(net_of(WRAPPED.replace(gone, words)))


@pytest.mark.parametrize("what", WRAPPED_CHANGES)
def test_what_is_wrapped_counts(what):
    changed = WRAPPED.replace(*WRAPPED_CHANGES[what])
    assert fingerprint(net_of(WRAPPED)) == fingerprint(net_of("\n" + WRAPPED))
    assert fingerprint(net_of(WRAPPED)) != fingerprint(net_of(changed))


@pytest.mark.parametrize("held", [torch.eye(2).to_sparse(), torch.ones(2, device="meta")])
def test_tensors_without_plain_entries_are_refused(held):
    with pytest.raises(ValueError, match="uses `held` .a tensor of layout torch.* on .*nothing tells whether"):
        given([lambda width: held], compared=True)


def test_a_process_runs_one_study_at_a_time():
    def model(width):
        return width

    with known(given([model], compared=False)):
        with (
            pytest.raises(StudyError, match="a study runs in this process already.* in a process of its own"),
            known({}),
        ):
            pytest.fail("two ran")
        assert load_function(word_of(model)) is model
    with known({}):
        assert find_given(word_of(model)) is None


def test_a_made_model_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"makes a model at every size.*\(Linear\); give a function") as said:
        word_of(torch.nn.Linear(2, 2))
    assert "\n" not in str(said.value)
