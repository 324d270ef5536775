"""Models by a word: families, configs and functions, what is built of them, and what is said of everything else."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import moga
from moga.study import named
from moga.study.named import Wanted, kind_of, load_base, load_named, smaller

SOURCE = """
from torch import nn
def width_only(width): return nn.Sequential(nn.Embedding(9, width), nn.Linear(width, 9, bias=False))
def even(width):
    if width < 8: raise KeyError(width)
    return width_only(width)
def fixed(): return nn.Linear(4, 4)
"""
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 2, "vocab_size": 31, "n_positions": 8}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with the module `named_models` and the config of a GPT-2."""
    (tmp_path / "named_models.py").write_text(SOURCE)
    write(tmp_path / "small", GPT2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "named_models", raising=False)
    return tmp_path


def write(directory, config):
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return str(directory)


def test_a_word_is_a_family_a_config_or_a_function(here):
    assert [kind_of(word) for word in ("llama", "small", "small/config.json", "a.b:c")] == [
        "family",
        "config",
        "config",
        "function",
    ]


def test_a_family_starts_as_in_the_study_unless_its_own_weights_are_asked_for():
    ours, own = (load_named("gpt2", Wanted(32, 1, start=start)) for start in (None, "own"))
    assert (ours.what, ours.width, ours.start, own.start) == ("gpt2, width 32, 1 layer", 32, "moga", "own")
    assert not ours.model.lm_head.weight.any()
    assert own.model.lm_head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    torch.manual_seed(5)
    again = load_named("gpt2", Wanted(32, 1, start="own"))
    assert torch.equal(again.model.lm_head.weight, own.model.lm_head.weight)


@pytest.mark.parametrize("word", ["small", "small/config.json"])
def test_a_config_is_the_model_of_its_type_in_float32(here, word):
    write(here / "small", {**GPT2, "dtype": "bfloat16"})
    torch.manual_seed(1)
    made = load_named(word, Wanted())
    assert made.what == f"{word} (GPT2LMHeadModel)"
    assert made.start == "own" and made.width is None
    assert made.model.transformer.wte.weight.shape == (31, 16)
    assert {parameter.dtype for parameter in made.model.parameters()} == {torch.float32}
    torch.manual_seed(2)
    again = load_named(word, Wanted())
    assert torch.equal(again.model.transformer.wte.weight, made.model.transformer.wte.weight)


def test_a_config_that_names_a_class_is_of_that_class(here):
    config = {"model_type": "t5", "d_model": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 4, "vocab_size": 9}
    word = write(here / "t5", {**config, "architectures": ["T5ForConditionalGeneration"]})
    assert type(load_named(word, Wanted()).model).__name__ == "T5ForConditionalGeneration"


def test_a_large_model_gets_no_memory(here, monkeypatch):
    monkeypatch.setattr(named, "LARGEST", 1000)
    made = load_named("small", Wanted(start="moga"))
    assert made.start == "none"
    assert all(parameter.is_meta for parameter in made.model.parameters())
    assert smaller("small", made, Wanted()) is None


def test_a_function_is_called_with_the_width_where_one_is_given(here):
    made = load_named("named_models:width_only", Wanted(8))
    assert (made.what, made.start) == ("named_models:width_only, width 8", "own")
    assert load_named("named_models:fixed", Wanted()).model.in_features == 4
    roles = {"1.weight": "output"}
    assert not load_named("named_models:width_only", Wanted(8, start="moga", roles=roles)).model[1].weight.any()


def test_half_of_the_width_where_it_can_be_made(here):
    family = load_named("gpt2", Wanted(32, 1))
    assert smaller("gpt2", family, Wanted(32, 1)).width == 16
    assert smaller("gpt2", load_named("gpt2", Wanted(16, 1)), Wanted(16, 1)) is None  # one head of 16
    wide = load_named("named_models:even", Wanted(8))
    assert smaller("named_models:even", wide, Wanted(8)) is None
    assert smaller("small", load_named("small", Wanted()), Wanted()) is None


@pytest.mark.parametrize(
    ("word", "wanted", "text"),
    [
        (
            "bert",
            Wanted(),
            r"unknown model 'bert'; give a family \(gpt2, llama\), a directory with a config.json, or a",
        ),
        ("gpt2", Wanted(start="warm"), "unknown word 'warm' for --start; the words are own, moga"),
        ("gpt2", Wanted(40), "width 40 is not a multiple of the head size 16"),
        ("small", Wanted(8), "--width is for a family of the study, and small is a config: .* in its config.json"),
        ("named_models:fixed", Wanted(layers=2), "--layers is for .* named_models:fixed is a function: a function is"),
        ("named_models:fixed", Wanted(head_size=2), "--head-size is for a family"),
        ("named_models:fixed", Wanted(8), "fixed has no argument width"),
        ("named_models:width_only", Wanted(), r"width_only\(\) refused: .* without a size, so give one that it takes"),
        (".", Wanted(), r"\. has no config.json; give the directory of a transformers model, or its config"),
        ("bad", "{", "transformers refuses the config of bad: .* not a valid JSON file"),
        ("bad", "{}", "transformers refuses the config of bad: Unrecognized model in bad"),
        ("bad", {"model_type": "nope"}, "transformers refuses the config of bad: .* model type `nope`"),
        ("bad", {"model_type": "t5"}, "transformers refuses the config of bad: Unrecognized configuration class"),
        ("bad", {**GPT2, "n_head": 3}, "transformers refuses the config of bad: `embed_dim` must be divisible"),
        ("bad", {"model_type": "x", "auto_map": {"AutoConfig": "a.B"}}, "refuses the config of bad: .* custom code"),
    ],
)
def test_what_is_refused(here, word, wanted, text):
    if not isinstance(wanted, Wanted):
        write(here / "bad", wanted)
        wanted = Wanted()
    with pytest.raises(ValueError, match=text):
        load_named(word, wanted)


def test_a_base_is_a_width_a_config_or_what_save_base_wrote(here):
    model, what, made = load_base("16", "gpt2", Wanted(32, 1))
    assert (what, made.width, model) == ("width 16", 16, made.model)
    model, what, made = load_base("small", "gpt2", Wanted(32, 1))
    assert what == "small (GPT2LMHeadModel)" and model is made.model
    moga.save_base(model, here / "base.json")
    assert load_base("base.json", "small", Wanted()) == ("base.json", "base.json", None)


@pytest.mark.parametrize(
    ("base", "model", "text"),
    [
        ("16", "small", "--base 16 is a width, and the sizes of small are in its config.json; give the config of a"),
        ("17", "gpt2", "width 17 is not a multiple of the head size 16"),
        ("none.json", "small", "--base: unknown model 'none.json'; give a family"),
        ("list.json", "small", "--base: transformers refuses the config of list.json"),
        ("text.json", "small", "--base: transformers refuses the config of text.json"),
    ],
)
def test_bases_that_are_refused(here, base, model, text):
    (here / "list.json").write_text("[]")
    (here / "text.json").write_text("no JSON")
    with pytest.raises(ValueError, match=text):
        load_base(base, model, Wanted())
