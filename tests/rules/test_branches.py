"""The multiplier of residual branches: its rules, what keeps it, and what it is for."""

import codecs
import copy
import io
import math
import pickle
import re
from pathlib import Path

import pytest
import torch
from models.decoders import DECODERS
from models.deep import IDS, Residual, build, first, logits
from torch import nn
from torch.nn.functional import cross_entropy

import moga
from moga.rules.branches import KEY, branch_scales, check_branches
from moga.rules.transfer import DEPTH_RULES

RULES = [  # rule, base depth, multiplier at 3 blocks of 2 branches
    (None, None, 1 / 3),
    ("1/K", None, 1 / 3),
    ("1/K", 2, 2 / 3),
    ("1/K", 3, 1.0),
    ("1/sqrt(2K)", None, 6**-0.5),
    ("1/sqrt(2K)", 2, (2 / 3) ** 0.5),
]


@pytest.mark.parametrize(("rule", "base_depth", "multiplier"), RULES)
def test_rules(rule, base_depth, multiplier):
    scales = branch_scales(moga.scale_branches_(build("llama"), rule, base_depth=base_depth))
    assert list(scales.values()) == pytest.approx([multiplier] * 6)
    assert list(scales)[:3] == ["model.layers.0.self_attn", "model.layers.0.mlp", "model.layers.1.self_attn"]


def test_the_branches_are_counted_for_the_root():
    """A block of Mamba-2 has one branch, one of GPT-2 with cross-attention three."""
    scales = branch_scales(moga.scale_branches_(build("mamba2"), "1/sqrt(2K)"))
    assert list(scales.values()) == pytest.approx([3**-0.5] * 3)
    scales = branch_scales(moga.scale_branches_(build("gpt2", add_cross_attention=True), "1/sqrt(2K)"))
    assert list(scales.values()) == pytest.approx([9**-0.5] * 9)


def test_none_changes_nothing():
    model = build("gpt2")
    before = logits(model)
    assert moga.scale_branches_(model, "none") is model
    assert torch.equal(logits(model), before)
    assert branch_scales(model) == {} and not hasattr(model.config, KEY)


def test_a_depth_of_the_users_own():
    """For a part of a model, such as a stage of a pipeline."""
    scales = branch_scales(moga.scale_branches_(build("llama"), "1/sqrt(2K)", depth=12))
    assert list(scales.values()) == pytest.approx([24**-0.5] * 6)
    stated = moga.scale_branches_(build("llama"), "1/sqrt(2K)", depth=12, branches=["*.o_proj", "*.down_proj"])
    assert list(branch_scales(stated).values()) == pytest.approx([24**-0.5] * 6)


# What keeps it


def through_torch(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m)), "torch.save": through_torch}


@pytest.mark.parametrize("kept", COPIES)
def test_copies_keep_it(kept):
    model = moga.scale_branches_(build("gpt2"))
    other = COPIES[kept](model)
    assert torch.equal(logits(other), logits(model))
    assert branch_scales(other) == branch_scales(model)
    expected = logits(other)
    torch.testing.assert_close(logits(moga.fold_branches_(other)), expected, rtol=1e-4, atol=1e-5)


def test_a_state_dict_is_that_of_the_plain_model():
    model = moga.scale_branches_(build("llama"))
    assert list(model.state_dict()) == list(build("llama").state_dict())
    other = moga.scale_branches_(build("llama"))
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other), logits(model))


def test_torch_compile_traces_it():
    model = moga.scale_branches_(nn.Sequential(Residual(4), Residual(4)), branches=["*.branch"])
    x = torch.randn(3, 4)
    expected = model(x)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)
    with pytest.raises(ValueError, match="the model is compiled, and would still multiply; fold the one that was comp"):
        moga.fold_branches_(compiled)
    torch.testing.assert_close(moga.fold_branches_(model)(x), expected)


def test_gradient_checkpointing_multiplies_once():
    model = moga.scale_branches_(build("llama")).train()
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(input_ids=IDS, use_cache=False).logits.square().mean().backward()
        grads.append(model.model.layers[0].mlp.down_proj.weight.grad.clone())
    torch.testing.assert_close(grads[1], grads[0])


def test_from_pretrained_loses_it_and_the_config_remembers(tmp_path):
    model = moga.scale_branches_(build("gpt2"), "1/sqrt(2K)", base_depth=2)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert getattr(loaded.config, KEY) == {"rule": "1/sqrt(2K)", "base_depth": 2, "depth": None}
    text = (
        "the config says that the residual branches are multiplied, rule '1/sqrt(2K)' (moga_branches), but this model"
    )
    for refuse in (check_branches, moga.fold_branches_, lambda model: moga.param_groups(model, "moga-row")):
        with pytest.raises(ValueError, match=re.escape(text)):
            refuse(loaded)
    for contradiction, word in (
        ({"rule": "1/K"}, "the config says rule='1/sqrt(2K)' (moga_branches), and rule='1/K' is given; leave out the"),
        ({"base_depth": 3}, "the config says base_depth=2 (moga_branches), and base_depth=3 is given"),
        ({"depth": 5}, "the config says depth=None (moga_branches), and depth=5 is given"),
        ({"rule": "none"}, "the config says rule='1/sqrt(2K)' (moga_branches), and rule='none' is given"),
    ):
        with pytest.raises(ValueError, match=re.escape(word)):
            moga.scale_branches_(loaded, **contradiction)
    moga.scale_branches_(loaded)
    assert torch.equal(logits(loaded), logits(model))
    check_branches(loaded)


def test_a_depth_of_ones_own_is_remembered(tmp_path):
    model = moga.scale_branches_(build("gpt2"), depth=12)
    model.save_pretrained(tmp_path)
    loaded = moga.scale_branches_(type(model).from_pretrained(tmp_path))
    assert branch_scales(loaded) == branch_scales(model)


# Errors


def test_twice():
    model = moga.scale_branches_(build("gpt2"))
    with pytest.raises(
        ValueError, match="transformer.h.0.attn is multiplied by 0.333333 already; call scale_branches_ o"
    ):
        moga.scale_branches_(model)
    moga.fold_branches_(model)
    with pytest.raises(ValueError, match="the branches of this model are not multiplied: there is nothing to fold"):
        moga.fold_branches_(model)


def test_bad_arguments():
    model = build("gpt2")
    for arguments, text in (
        ({"rule": "1/L"}, "unknown depth rule '1/L'; the rules are 1/K, 1/sqrt(2K), none"),
        ({"base_depth": 0}, "base_depth must be a whole number of at least 1, the number of blocks; got 0"),
        ({"depth": 0}, "depth must be a whole number of at least 1, the number of blocks; got 0"),
        ({"depth": 2.5}, "depth must be a whole number of at least 1, the number of blocks; got 2.5"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            moga.scale_branches_(model, **arguments)
        assert branch_scales(model) == {} and not hasattr(model.config, KEY)
    with pytest.raises(TypeError, match="scale_branches_ needs a model, an nn.Module; got list"):
        moga.scale_branches_([])


@pytest.mark.parametrize("compiled", [torch.compile, lambda model: (model.compile(), model)[1]])
def test_a_compiled_model(compiled):
    with pytest.raises(
        ValueError, match="the model is compiled, and would not see the multiplier; call scale_branches_"
    ):
        moga.scale_branches_(compiled(build("gpt2")))


# What it is for

DEPTHS = (2, 8, 64)
TEXT = torch.frombuffer(bytearray(Path(codecs.__file__).read_bytes()[2000:2136]), dtype=torch.uint8)


def first_change(depth, rule):
    """How far one step moves the last block's output and the logits, root mean square. The output is not zero."""
    model = DECODERS["gpt2"](64, vocab_size=256, n_layer=depth).eval()
    moga.scale_branches_(model, rule)
    moga.initialize_(model, "moga-row", generator=torch.Generator().manual_seed(0))
    nn.init.normal_(model.lm_head.weight, std=1 / 8, generator=torch.Generator().manual_seed(1))
    optimizer = moga.optimizer(model, "moga-row", lr=0.01)
    windows = TEXT.long().reshape(8, 17)
    outputs = []
    model.transformer.h[-1].register_forward_hook(lambda module, args, output: outputs.append(first(output).detach()))
    before = model(input_ids=windows[:, :-1]).logits
    cross_entropy(before.flatten(0, 1), windows[:, 1:].flatten()).backward()
    optimizer.step()
    with torch.no_grad():
        after = model(input_ids=windows[:, :-1]).logits
    changes = outputs[1] - outputs[0], after - before.detach()
    return [change.square().mean().sqrt().item() for change in changes]


def slope(values):
    """Of log2(value) against log2(depth), by least squares."""
    x = [math.log2(depth) for depth in DEPTHS]
    middle = sum(x) / len(x)
    return sum((a - middle) * math.log2(value) for a, value in zip(x, values, strict=True)) / sum(
        (a - middle) ** 2 for a in x
    )


@pytest.fixture(scope="module")
def changes():
    """By rule, those of the last block and those of the logits, at each depth."""
    found = {rule: [first_change(depth, rule) for depth in DEPTHS] for rule in DEPTH_RULES}
    return {rule: list(zip(*rows, strict=True)) for rule, rows in found.items()}


def test_one_step_changes_a_deep_model_as_much_as_a_shallow_one(changes):
    """With 1/K, and only with it: without, and with the root alone, the changes of the blocks add up."""
    slopes = {rule: [slope(values) for values in columns] for rule, columns in changes.items()}
    assert max(map(abs, slopes["1/K"])) < 0.2, slopes
    assert min(slopes["1/sqrt(2K)"]) > 0.3 and max(slopes["1/sqrt(2K)"]) < 0.6, slopes
    assert slopes["none"][0] > 0.9 and slopes["none"][1] > 0.4, slopes


def test_the_page_shows_what_is_measured(changes):
    page = (Path(__file__).parents[2] / "docs" / "depth.md").read_text("utf-8")
    for rule, (block, logits_) in changes.items():
        [row] = re.findall(rf"^\| `{re.escape(rule)}` \|(.*)\|$", page, re.MULTILINE)
        assert [float(cell) for cell in row.split("|")] == pytest.approx([*block, *logits_], rel=0.03)


def test_slope():
    assert slope([depth**0.7 for depth in DEPTHS]) == pytest.approx(0.7)
