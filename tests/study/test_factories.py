"""Models by import path: what is called, what may come back, and what is said of everything else."""

from __future__ import annotations

import functools
import math
import sys

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from moga.study.batches import arguments_of, called, labels_of, moved
from moga.study.factories import (
    Built,
    call_factory,
    default_loss,
    load_function,
    loss_of,
    own_loss,
)

SOURCE = """
from torch import nn
number = 3
def model(width): return nn.Linear(width, 2)
def pair(width): return nn.Linear(width, 2), {"input": 1}
def triple(width): return nn.Linear(width, 2), (1,), sum
def nothing(width): return None
def three(width): return nn.Linear(width, 2), 1, 2
def odd(width):
    if width % 2: raise ValueError("width must be even")
    return nn.Linear(width, 2)
def deep(depth): return nn.Sequential(*(nn.Linear(2, 2) for _ in range(depth)))
def broken(width): raise KeyError("a bug")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module `own_models` in the working directory, which is not on the path."""
    (tmp_path / "own_models.py").write_text(SOURCE)
    (tmp_path / "needs_more.py").write_text("import not_there_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_models", raising=False)


def test_a_function_is_called_with_the_size(own):
    assert call_factory("own_models:model", "width", 5).model.in_features == 5
    assert len(call_factory("own_models:deep", "depth", 3).model) == 3
    assert call_factory("own_models:pair", "width", 5).batch == {"input": 1}
    built = call_factory("own_models:triple", "width", 5)
    assert (built.batch, built.loss) == ((1,), sum)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("bert", r"'bert' is no model family \(gpt2, llama\) and no import path; write package.module:function"),
        ("own_models:", "is no model family .* and no import path"),
        (":model", "is no model family .* and no import path"),
        ("not_there:f", "no module 'not_there' for 'not_there:f'; call moga from the directory that holds it"),
        ("own_models.sub:f", "no module 'own_models.sub'"),
        ("own_models:absent", "'own_models' has no function 'absent'; it has: broken, deep, model, .*odd"),
        ("own_models:number", "'own_models' has no function 'number'"),
        ("own_models:nothing", r"nothing\(width=5\) must return a model, \(model, batch\) or .*; got NoneType"),
        ("own_models:three", "must return a model, .*; got Linear, int, int"),
        ("own_models:odd", r"odd\(width=5\) refused: ValueError: width must be even; it is called with width= one of"),
        ("own_models:deep", r"deep has no argument width \(it has: depth\); name its argument width"),
    ],
)
def test_what_is_refused(own, path, words):
    with pytest.raises(ValueError, match=words):
        call_factory(path, "width", 5)


def test_a_bug_of_the_users_keeps_its_traceback(own):
    with pytest.raises(KeyError, match="a bug"):
        call_factory("own_models:broken", "width", 5)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        load_function("needs_more:f")


def test_a_batch_is_what_the_model_is_called_with():
    add = lambda x, y=1: x + y  # noqa: E731
    assert called(add, {"x": 1, "y": 2}) == 3
    assert called(add, (1, 5)) == 6
    assert called(add, 4) == 5


class Takes(nn.Module):
    def forward(self, x, mask=None, **more):
        return x


class Decorated(nn.Linear):
    @functools.wraps(nn.Linear.forward)
    def forward(self, *values, **named):
        return super().forward(*values, **named)


def test_labels_that_forward_does_not_take_stay_out_of_the_call():
    x, labels, real = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long), torch.zeros(3)
    linear = nn.Linear(2, 4)
    for model in (linear, nn.Sequential(linear), Decorated(2, 4), AveragedModel(linear)):
        assert arguments_of(model, {"input": x, "labels": labels}, False, "m") == ({"input": x}, labels)
        assert arguments_of(model, [x, labels], False, "m") == ([x], labels)
        assert arguments_of(model, (x, real), True, "m") == ((x,), real)
        assert arguments_of(model, x, False, "m") == (x, None)
        with pytest.raises(
            ValueError, match=r"m is called with a tensor of .*\(3,\), and its forward takes input; a batch"
        ):
            arguments_of(model, (x, real), False, "m")
    for batch in ({"x": x, "labels": labels}, (x, labels)):  # all of it is taken
        assert arguments_of(Takes(), batch, False, "m")[0] is batch
    with pytest.raises(ValueError, match=r"m is called with dict with y, and its forward takes x, mask=None, \*\*more"):
        arguments_of(Takes(), {"y": x}, False, "m")


def test_moving_keeps_the_form():
    batch = {"x": torch.zeros(2), "more": [torch.ones(1), "word"], "pair": (torch.ones(1),)}
    there = moved(batch, "meta")
    assert there["x"].device.type == there["more"][0].device.type == there["pair"][0].device.type == "meta"
    assert there["more"][1] == "word" and isinstance(there["pair"], tuple)


class Output:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_losses_that_an_output_holds():
    two = torch.tensor(2.0)
    logits = torch.zeros(3)
    for output in (
        two,
        {"loss": two, "logits": 1},
        Output(loss=two),
        (two, logits),
        (logits, two),
        [logits, None, two],
    ):
        assert own_loss(output) is two
    for output in (torch.zeros(1), torch.tensor(2), {"loss": None}, {}, Output(loss=None), (), (two, two), None):
        assert own_loss(output) is None


def test_the_default_loss_is_cross_entropy_of_logits_at_labels():
    labels = torch.zeros(2, 3, dtype=torch.long)
    logits = torch.zeros(2, 3, 4)
    for output in (logits, {"logits": logits}, Output(logits=logits), (logits, None)):
        assert default_loss(output, labels) == pytest.approx(math.log(4))
    assert default_loss(logits, labels.int()) == pytest.approx(math.log(4))
    assert default_loss(logits, None) is default_loss(logits, labels.bool()) is None
    assert default_loss(logits, labels[:, 1:]) is None
    assert default_loss(logits, labels.float()) is None
    assert default_loss("text", labels) is None
    assert labels_of({"labels": labels}) is labels and labels_of(logits) is None


def test_the_loss_of_a_model():
    built, labels = Built(nn.Identity()), torch.zeros(2, dtype=torch.long)
    assert loss_of(built, {"loss": torch.tensor(7.0), "logits": torch.zeros(2, 4)}, labels, "m") == 7
    assert loss_of(built, torch.zeros(2, 4), labels, "m") == pytest.approx(math.log(4))
    own = Built(nn.Identity(), torch.tensor([1.0, 2.0]), lambda output, batch: (output * batch).sum())
    assert loss_of(own, torch.tensor([3.0, 4.0], requires_grad=True), None, "m") == 11
    with pytest.raises(
        ValueError, match=r"the loss of m must be a tensor without dimensions; got a tensor of shape \(2,"
    ):
        loss_of(Built(nn.Identity(), None, lambda output, batch: output), torch.zeros(2), None, "m")
    words = (
        r"output of m has no loss: it is a tensor of shape \(2, 4\), and no logits .* key 'labels' \(there are none\)"
    )
    with pytest.raises(ValueError, match=words):
        loss_of(built, torch.zeros(2, 4), None, "m")
    with pytest.raises(ValueError, match=r"no loss: it is dict with hidden, .* function \(model, batch, loss\)"):
        loss_of(built, {"hidden": torch.zeros(2, 4)}, labels, "m")
    with pytest.raises(ValueError, match="no loss: it is str"):
        loss_of(built, "text", labels, "m")
