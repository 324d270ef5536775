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
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

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


def test_what_a_hook_returns_is_loaded_names_and_tensors_included(entry, tools):
    """Saved under other names: a hook renames them, and what it does to the state is done."""
    model, other = tools.Network(), tools.Network()
    optimizer, resumed = entry.optimizer(model), entry.optimizer(other)
    tools.run(model.parameters(), optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:  # as an older model would have named and ordered them
        group["params"], group["param_names"] = group["params"][::-1], [f"old.{n}" for n in group["param_names"][::-1]]
    saved["param_groups"].reverse()

    def rename(own, loaded):
        groups = [
            {**group, "param_names": [name.removeprefix("old.") for name in group["param_names"]]}
            for group in loaded["param_groups"]
        ]
        state = {i: {key: 2 * value for key, value in one.items()} for i, one in loaded["state"].items()}
        return {"state": state, "param_groups": groups}

    resumed.register_load_state_dict_pre_hook(rename)
    resumed.load_state_dict(saved)
    twins = dict(zip(other.parameters(), model.parameters(), strict=True))
    for weight, state in resumed.state.items():
        expected = {key: 2 * value for key, value in optimizer.state[twins[weight]].items()}
        torch.testing.assert_close(dict(state), expected, rtol=0, atol=0)


WORDS = [  # two groups of the same parameters that differ in one word
    ({"norm": "sign"}, {"norm": "row"}, "norm = 'sign' and has norm = 'row' here"),
    ({"norm": "row", "p": 2.0}, {"norm": "row", "p": 3.0}, "p = 2.0 and has p = 3.0 here"),
    ({"norm": "column", "q": 2.0}, {"norm": "column", "q": 4.0}, "q = 2.0 and has q = 4.0 here"),
    ({"step": "dual"}, {}, "step = 'dual' and has step = 'fixed' here"),
    (
        {"norm": "spectral"},
        {"norm": "spectral", "constraint": "sphere"},
        "constraint = 'decay' and has constraint = 'sphere' here",
    ),
    ({"average": "none"}, {"average": "mean"}, "average = 'none' and has average = 'mean' here"),
    ({"shape": "rms"}, {"shape": "none"}, "shape = 'rms' and has shape = 'none' here"),
    ({"norm": "spectral", "polar": "quintic"}, {"norm": "spectral"}, "polar = 'quintic' and has polar = 'exact' here"),
    ({"layout": "out,in"}, {"layout": "in,out"}, "layout = 'out,in' and has layout = 'in,out' here"),
    ({"blocks": [1, 1]}, {}, r"blocks = \[1, 1\] and has blocks = \(\) here"),
]


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("before,now,text", WORDS, ids=[text for _, _, text in WORDS])
def test_a_state_of_another_recipe_is_refused(before, now, text, names):
    saved, optimizer = of_names(["a", "b"], ["c"], **before).state_dict(), of_names(["a", "b"], ["c"], **now)
    if not names:
        for group in saved["param_groups"]:
            del group["param_names"]
    unchanged = copy.deepcopy(optimizer.param_groups)
    with pytest.raises(
        ValueError, match=f"the group of a, b was saved with {text}; make the optimizer with the recipe"
    ):
        optimizer.load_state_dict(saved)
    assert [group["norm"] for group in optimizer.param_groups] == [group["norm"] for group in unchanged]


def test_a_state_of_any_other_optimizer_of_the_table_is_refused(entry, tools):
    """Whatever groups the two make: hidden weights tell them apart, or they are the same optimizer."""
    model = tools.Network()
    optimizer = entry.optimizer(model)
    own = moga.rules.resolve_recipe(
        entry.recipe or entry.name, {k: v for k, v in entry.options.items() if k == "shape"}
    )
    for other in tools.ENTRIES:
        words = {k: v for k, v in other.options.items() if k == "shape"}
        theirs = moga.rules.resolve_recipe(other.recipe or other.name, words)
        keys = ("norm", "p", "q", "polar", "shape", "step", "constraint", "average", "calibration")
        same = all(a.get(key) == b.get(key) for role, a in own.items() for b in [theirs[role]] for key in keys)
        saved = other.optimizer(tools.Network()).state_dict()
        if same:
            optimizer.load_state_dict(saved)
        else:
            with pytest.raises(
                ValueError, match=r"the group of .* was saved with (norm|polar|shape|step|constr|aver|calib)"
            ):
                optimizer.load_state_dict(saved)


def test_hyper_parameters_are_loaded_as_torch_does():
    words = {"momentum": 0.5, "weight_decay": 0.3, "lr": 0.7, "betas": [0.1, 0.2], "eps": 0.5, "lookahead": 0.1}
    words |= {
        "lr_scale": 3.0,
        "decay_scale": 2.0,
        "trust_clip": [0.25, 8.0],
        "state_dtype": "bfloat16",
        "decays": False,
    }
    optimizer = of_names(["a"])
    optimizer.load_state_dict(of_names(["a"], **words).state_dict())
    assert {key: optimizer.param_groups[0][key] for key in words} == words


def test_a_float64_run_goes_on_in_float32(entry, tools):
    model, other = tools.Network(torch.float64), tools.Network()
    optimizer, resumed = entry.optimizer(model), entry.optimizer(other)
    tools.run(model.parameters(), optimizer, range(2))
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    fresh = entry.optimizer(twin := tools.Network())
    tools.run(twin.parameters(), fresh, [0])
    dtypes = [[value.dtype for value in state.values()] for state in fresh.state.values()]
    assert [[value.dtype for value in state.values()] for state in resumed.state.values()] == dtypes
    a, b = tools.run(other.parameters(), resumed, [5, 6]), tools.run(model.parameters(), optimizer, [5, 6])
    torch.testing.assert_close(a, [weight.float() for weight in b], rtol=1e-3, atol=1e-3)


def saved_run(recipe="muown"):
    weight = nn.Parameter(torch.linalg.qr(torch.arange(12.0).reshape(4, 3).cos())[0])
    optimizer = moga.optimizer([("up.weight", weight)], recipe, lr=0.1, roles={"*": "hidden"})
    weight.grad = torch.ones(4, 3)
    optimizer.step()
    return optimizer, copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize("key", ["momentum_buffer", "magnitude", "magnitude_exp_avg", "step"])
@pytest.mark.parametrize("bad", [torch.ones(3, 4), 0.5, None], ids=str)
def test_tensors_that_do_not_fit_are_refused_with_the_name_of_the_parameter(key, bad):
    optimizer, saved = saved_run()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    if bad is None:
        del saved["state"][0][key]
    else:
        saved["state"][0][key] = bad
    got = r"has shape \(3, 4\)" if isinstance(bad, torch.Tensor) else f"is {bad}"
    text = f"the saved '{key}' of parameter 'up.weight' {got}; a tensor of shape .* for a parameter of shape"
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(saved)
    torch.testing.assert_close(optimizer.state_dict()["state"], before, rtol=0, atol=0)


def test_what_is_no_state_is_refused():
    optimizer, saved = saved_run("adamw")
    with pytest.raises(TypeError, match=r"a state is what state_dict\(\) has returned, a dict; got NoneType"):
        optimizer.load_state_dict(None)
    with pytest.raises(ValueError, match="the saved state lacks 'param_groups'; load what optimizer.state_dict"):
        optimizer.load_state_dict({"state": saved["state"]})
    torchs = torch.optim.AdamW([nn.Parameter(torch.ones(4, 3))]).state_dict()
    with pytest.raises(
        ValueError, match="the saved group 0 lacks 'norm', 'layout', 'scale': it is of another optimizer"
    ):
        optimizer.load_state_dict(torchs)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({**saved, "param_groups": [{**saved["param_groups"][0], "param_names": ["x"]}] * 2})


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
def test_a_checkpoint_of_torch_distributed_goes_on(entry, tools, flat):
    """Its functions bring a state to names and back, and make state by a step with lr = 0."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, other = tools.Network(), tools.Network()
    optimizer, resumed = entry.optimizer(model), entry.optimizer(other, lr=0.7)
    tools.run(model.parameters(), optimizer, range(2))
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=options))
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, resumed, saved, options=options)
    a, b = tools.run(other.parameters(), resumed, [5]), tools.run(model.parameters(), optimizer, [5])
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_state_of_a_model_whose_logits_were_multiplied_is_refused_by_one_without(tools):
    model, plain = (torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7, bias=False)) for _ in range(2))
    for one in (model, plain):
        one[1].weight = one[0].weight
    moga.scale_logits_(model, base_width=2)
    saved = moga.optimizer(model, "moga-row", lr=0.1).state_dict()
    with pytest.warns(UserWarning, match="multiplied"):
        other = moga.optimizer(plain, "moga-row", lr=0.1)
    with pytest.raises(ValueError, match=r"saved with logit_scale = 0.5 and has logit_scale = 1.0 here"):
        other.load_state_dict(saved)
    moga.optimizer(model, "moga-row", lr=0.1).load_state_dict(saved)


def test_the_implementation_is_that_of_the_machine_and_not_of_the_saved_run():
    saved, other = (
        moga.optimizer(
            [("w", torch.nn.Parameter(torch.ones(3, 2)))],
            "moga-row",
            lr=0.1,
            roles={"w": "hidden"},
            implementation=word,
        )
        for word in ("auto", "plain")
    )
    other.load_state_dict(saved.state_dict())
    assert [group["implementation"] for group in other.param_groups] == ["plain"]
