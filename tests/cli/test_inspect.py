"""`moga inspect`: words in, a table out, one line for what is wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from models.decoders import DECODERS, build

from moga.cli import main
from moga.rules.recipes import RECIPES

SOURCE = """
from torch import nn
def maps(*sizes):
    return [nn.Linear(*pair, bias=False) for pair in zip(sizes, sizes[1:])]
def mlp(width=32):
    return nn.Sequential(nn.Embedding(9, width), *maps(width, 2 * width, 9))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "inspected_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "inspected_models", raising=False)
    return tmp_path


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_family_fits_in_80_columns(family, recipe, capsys):
    assert main(["inspect", family, "--width", "64", "--recipe", recipe, "--layers", "1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{family}, width 64, 1 layer: ")
    assert all(f"\n{role}  " in text for role in ("input ", "hidden", "output", "vector"))
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("family", DECODERS)
def test_a_config_directory_fits_in_80_columns(family, here, capsys):
    for name, width in (("large", 64), ("small", 32)):
        build(family, width).config.save_pretrained(name)
    assert main(["inspect", "large", "--base", "small", "--recipe", "muon"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"large ({type(build(family, 32)).__name__}): ")
    assert "lr/base" in text and "warning: " in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_function_at_a_width_with_a_base_and_a_stated_role(here, capsys):
    arguments = ["inspect", "inspected_models:mlp", "--width", "64", "--base", "16", "--role", "2.weight=output"]
    assert main([*arguments, "--recipe", "mup-adamw"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "inspected_models:mlp, width 64: 9,920 parameters in 3 tensors"
    assert lines[2] == "base: width 16; lr/base: learning rate relative to it"
    assert next(line for line in lines if line.startswith("1.weight")).split() == [
        *("1.weight", "hidden", "out,in", "128,64", "0.25", "yes")
    ]
    assert main(["inspect", "inspected_models:mlp", "--role", "2.weight=output"]) == 0
    assert "Measured at one width only" in capsys.readouterr().out


def test_json_holds_everything(capsys):
    assert main(["inspect", "gpt2", "--width", "32", "--layers", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recipe"] == "moga-row"
    names = [name for kind in found["kinds"] for name in kind["names"]]
    assert "transformer.h.1.attn.c_attn.weight" in names
    assert {"fan", "scale", "decays", "layout", "shape"} <= set(found["kinds"][0])
    assert {"std", "size", "growth"} <= set(found["starts"][0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["bert"], "unknown model 'bert'; give a family (gpt2, llama), a directory with a config.json, or a function"),
        (["gpt2", "--recipe", "foo"], "unknown recipe 'foo'"),
        (["gpt2", "--width", "0"], "--width must be at least 1, got 0"),
        (["gpt2", "--layers", "0"], "--layers must be at least 1, got 0"),
        (["gpt2", "--head-size", "-1"], "--head-size must be at least 1, got -1"),
        (["gpt2", "--width", "33"], "width 33 is not a multiple of the head size 16"),
        (["gpt2", "--start", "warm"], "unknown word 'warm' for --start; the words are own, moga"),
        (["gpt2", "--base", "nowhere"], "--base: unknown model 'nowhere'"),
        (["gpt2", "--base", "llama"], "the base has no matrix transformer.wte.weight"),
        (["gpt2", "--role", "lm_head.weight"], "'lm_head.weight' states no role"),
        (["inspected_models:mlp", "--role", "3.*=output"], "the pattern '3.*' in roles matches no parameter"),
        ([".", "--width", "8"], "--width is for a family of the study, and . is a config"),
        (["no_such_module:f"], "no module 'no_such_module'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, text, here, capsys):
    assert main(["inspect", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("moga: ")
    assert text in said
    assert said.count("\n") == 1


def test_the_page_shows_what_the_command_prints(capsys):
    """Words and layout to the letter; measured numbers to their last digit but one, as they depend on the machine."""
    page = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text(encoding="utf-8")
    command, shown = re.search(r"^```\n\$ moga (.*?)\n(.*?)^```", page, re.DOTALL | re.MULTILINE).groups()
    assert main(command.split()) == 0
    printed = capsys.readouterr().out
    number = r"\d+\.\d+"
    assert re.sub(number, "", printed).split() == re.sub(number, "", shown).split()
    pairs = zip(re.findall(number, printed), re.findall(number, shown), strict=True)
    assert all(float(one) == pytest.approx(float(other), rel=0.01, abs=0.02) for one, other in pairs)
