"""State that survives: files, other processes, other orders, copies; and no more of it than stated."""

import copy
import importlib.util
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import moga


def through_a_file(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("words", [{}, {"state_dtype": "bfloat16", "rounding": "stochastic"}], ids=["", "bfloat16"])
def test_a_saved_run_goes_on_as_if_it_had_not_stopped(entry, tools, words, steps_before):
    model, other = tools.Network(torch.bfloat16), tools.Network(torch.bfloat16, seed=1)
    optimizer, resumed = entry.optimizer(model, **words), entry.optimizer(other, lr=0.7, **words)
    tools.run(model.parameters(), optimizer, range(steps_before))
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    assert resumed.param_groups[0]["lr"] == entry.lr
    for weight, state in optimizer.state.items():
        twin = dict(zip(model.parameters(), other.parameters(), strict=True))[weight]
        assert {k: v.dtype for k, v in resumed.state[twin].items()} == {k: v.dtype for k, v in state.items()}
    a, b = tools.run(other.parameters(), resumed, range(5, 8)), tools.run(model.parameters(), optimizer, range(5, 8))
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def load_tools():
    """The table of this folder by its path: in the other process no test runner has loaded it."""
    spec = importlib.util.spec_from_file_location("optimizer_table", Path(__file__).with_name("conftest.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def resume_everything(path):
    """What the other process does: take two steps from every saved state of the file."""
    tools, results = load_tools(), []
    for entry, saved in zip(tools.ENTRIES, torch.load(path, weights_only=True), strict=True):
        model = tools.Network(seed=1)
        optimizer = entry.optimizer(model, lr=0.7)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        results.append(tools.run(model.parameters(), optimizer, [8, 9]))
    torch.save(results, path)


def test_a_saved_run_goes_on_in_another_process(tools, tmp_path):
    path, saved, expected = tmp_path / "states.pt", [], []
    for entry in tools.ENTRIES:
        model = tools.Network()
        optimizer = entry.optimizer(model)
        tools.run(model.parameters(), optimizer, range(2))
        saved.append(copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
        expected.append(tools.run(model.parameters(), optimizer, [8, 9]))
    torch.save(saved, path)
    code = f"import runpy; runpy.run_path({__file__!r})['resume_everything']({str(path)!r})"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.load(path, weights_only=True), expected, rtol=0, atol=0)


def test_groups_in_another_order_are_matched_by_name(entry, tools):
    model, other = tools.Network(), tools.Network()
    optimizer = entry.optimizer(model)
    groups = [dict(group) for group in reversed(entry.optimizer(other).param_groups)]
    for group in groups:
        pairs = list(zip(group.pop("param_names"), group["params"], strict=True))
        group["params"] = pairs[::-1]
    reordered = moga.SteepestDescent(groups, lr=0.5)
    tools.run(model.parameters(), optimizer, range(2))
    reordered.load_state_dict(optimizer.state_dict())
    other.load_state_dict(model.state_dict())
    a, b = (tools.run(m.parameters(), o, [8, 9]) for m, o in ((model, optimizer), (other, reordered)))
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def of_names(*names, **changes):
    groups = [
        {"params": [(name, nn.Parameter(torch.ones(2, 2))) for name in own], "norm": "sign", "layout": "out,in"}
        for own in names
    ]
    return moga.SteepestDescent([{**group, "scale": 1.0, **changes} for group in groups], lr=0.1)


def test_names_that_do_not_match():
    saved = of_names(["a", "b"], ["c"]).state_dict()
    with pytest.raises(ValueError, match="share some parameters, but not c, d; load it into an optimizer on the same"):
        of_names(["a", "b"], ["d"]).load_state_dict(saved)
    text = r"the group of a, c was saved as other groups \(a, b; ...\); make groups as they were"
    with pytest.raises(ValueError, match=text):
        of_names(["a", "c"], ["b"]).load_state_dict(saved)
    of_names(["module.a", "module.b"], ["module.c"]).load_state_dict(saved)  # no name in common: by order, as torch


def test_a_state_of_an_older_version_gets_the_words_that_it_lacks():
    optimizer = of_names(["a"])
    saved = optimizer.state_dict()
    for key in ("step", "constraint", "average", "rounding", "skipped"):
        del saved["param_groups"][0][key]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["constraint"] == "decay" and optimizer.skipped == 0


def test_deepcopy_and_pickle_keep_state_and_words(entry, tools):
    model = tools.Network()
    optimizer = entry.optimizer(model, nonfinite="propagate", maximize=True)
    tools.run(model.parameters(), optimizer, range(2))
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert (other.nonfinite, other.maximize, other.skipped) == ("propagate", True, 0)
        torch.testing.assert_close(list(other.state.values()), list(optimizer.state.values()), rtol=0, atol=0)
        mine, theirs = copy.deepcopy((list(model.parameters()), optimizer))
        copies = [weight for group in other.param_groups for weight in group["params"]]
        order = [weight for group in theirs.param_groups for weight in group["params"]]
        assert mine and len(order) == len(copies)
        torch.testing.assert_close(tools.run(copies, other, [3]), tools.run(order, theirs, [3]), rtol=0, atol=0)


# Tensors of the weight's own size; besides them at most vectors along one side of a matrix and single numbers.
FULL = {"adam": 2, "rmsprop": 1, "sgd": 0, "signsgd": 0, "shampoo": 0, "shampoo-accumulated": 0}


def test_memory_is_as_stated(entry):
    """Measured for one hidden matrix of 64 x 48, in units of the parameter; Shampoo's two squares are its own."""
    weight = nn.Parameter(torch.linalg.qr(torch.randn(64, 48))[0])
    optimizer = entry.optimizer([("w", weight)])
    assert not optimizer.state
    weight.grad = torch.randn(64, 48)
    optimizer.step()
    state = optimizer.state[weight]
    full = sum(value.numel() == weight.numel() for value in state.values())
    expected = FULL["adam"] if optimizer.param_groups[0]["norm"] == "adam" else FULL.get(entry.name, 1)
    assert full == expected
    bytes_of = sum(value.numel() * value.element_size() for value in state.values())
    squares = 8 * (64**2 + 48**2) if entry.name == "shampoo-accumulated" else 0
    assert bytes_of <= 4 * (full * weight.numel() + 5 * 64) + squares


@pytest.mark.parametrize("word,size", [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("norm", ["sign", "row", "column", "spectral"])
def test_one_average_per_parameter(norm, word, size):
    weight = nn.Parameter(torch.ones(6, 4, dtype=torch.bfloat16))
    optimizer = moga.SteepestDescent(
        [{"params": [weight], "norm": norm, "layout": "out,in", "scale": 1.0}], 0.1, state_dtype=word
    )
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    [(name, average)] = optimizer.state[weight].items()
    assert (name, average.shape, average.element_size()) == ("momentum_buffer", weight.shape, size)


def test_state_appears_together(entry, tools):
    model = tools.Network()
    optimizer = entry.optimizer(model)
    weights = list(model.parameters())
    before = weights[-1].detach().clone()
    tools.fill(weights[:1], 0)
    optimizer.step()
    assert set(optimizer.state) == set(weights)
    assert torch.equal(weights[-1], before)  # no gradient: neither step nor decay
