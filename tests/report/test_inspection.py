"""The page of `moga inspect`: 80 columns, names that can be read, every number in its column."""

from __future__ import annotations

import re

from moga.report.inspection import text

LAYER = "model.layers.{0..31}."
LONG = "self_attn.a_projection_of_a_very_long_name_indeed.and_more_of_it.weight"


def kind(pattern, role="hidden", **changes):
    row = {
        "pattern": pattern,
        "role": role,
        "update": "row p=2",
        "decays": role != "vector",
        "stored": "out,in",
        "fan": [[64, 16]],
        "scale": [0.25],
        "relative": None,
    }
    return {**row, **changes}


def start(pattern, **changes):
    row = {"pattern": pattern, "std": 0.02, "size": [0.5, 0.75], "wanted": None, "other_size": None, "growth": None}
    return {**row, **changes}


def page(**changes):
    roles = [
        {"role": "hidden", "update": "row p=2", "decays": True, "tensors": 96, "parameters": 1234567}
        | {"scale": [0.125, 0.25], "relative": None}
    ]
    found = {
        "model": "llama",
        "base": None,
        "start": "own",
        "other": None,
        "recipe": "adamw",
        "width_rule": "none: the best lr falls as 1 / in",
        "parameters": 7654321,
        "tensors": 97,
        "roles": roles,
        "kinds": [
            kind("embed.weight", "input", fan=[[16, 1]], scale=[16970.6]),
            kind(LAYER + "q.weight", fan=[[64, 16], [8, 16]], scale=[0.25, 0.125], stored="out,in x2"),
            kind(LAYER + "norm.weight", "vector", scale=[1.0]),
            kind("model.layers.0." + "only.weight"),
        ],
        "starts": [start("embed.weight")],
        "warnings": [],
    }
    return text({**found, **changes})


def table(page, first):
    """The lines of the table whose head starts with a word."""
    lines = page.splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith(first + " "))
    return lines[begin : begin + [*lines[begin:], ""].index("")]


def test_head_and_roles():
    lines = page().splitlines()
    assert lines[0] == "llama: 7,654,321 parameters in 97 tensors"
    assert lines[1] == "recipe adamw: the best lr falls as 1 / in"
    assert table(page(), "role") == [
        "role    update   decay  tensors  parameters  scale",
        "hidden  row p=2  yes         96   1,234,567  0.125 to 0.25",
    ]


def test_kinds_stand_under_the_layers_that_hold_them():
    assert table(page(), "parameter") == [
        "parameter                   role    layout     fan      scale   decay",
        "embed.weight                input   out,in     16,1     16,971  yes",
        "model.layers.{0..31}.",
        "  q.weight                  hidden  out,in x2  64,16..  0.25..  yes",
        "  norm.weight               vector                      1       no",
        "model.layers.0.only.weight  hidden  out,in     64,16    0.25    yes",
    ]


def test_with_a_base_the_learning_rate_is_relative_to_it():
    row = kind("w", relative=[0.5])
    found = page(base="width 64", kinds=[row], roles=[{**row, "tensors": 1, "parameters": 4, "relative": [0.5, 0.5]}])
    assert "base: width 64; lr/base: learning rate relative to it" in found.splitlines()
    assert table(found, "role") == [
        "role    update   decay  tensors  parameters  lr/base",
        "hidden  row p=2  yes          1           4  0.5",
    ]
    assert table(found, "parameter")[1].split() == ["w", "hidden", "out,in", "64,16", "0.5", "yes"]


def test_starts_with_and_without_another_width():
    alone = page()
    assert "weights at the start, as the model's code makes them\nMeasured at one width only: how they grow" in alone
    assert alone.endswith(
        "size: spectral; of a lookup the root mean square\nparameter     std   size\nembed.weight  0.02  0.75.."
    )
    row = start("w", wanted=[1.5, 1.5], other_size=[0.25, 0.25], growth=0.5)
    both = page(other="width 32", start="moga", starts=[row, start("b")])
    assert "weights at the start, as moga.initialize_ makes them\nsize: " in both
    assert both.endswith(
        "size: spectral; of a lookup the root mean square; wanted: of moga.initialize_\n"
        "parameter  std   size    wanted  at width 32  growth\n"
        "w          0.02  0.75..  1.5     0.25         +0.50\n"
        "b          0.02  0.75.."
    )
    assert page(start="none", starts=[]).endswith("not measured, the model is too large to be given any here")


def test_warnings_are_wrapped_and_code_is_not():
    warning = "a few words " * 20 + "then:\n  code_that_is_pasted(as_it_stands, " + "x" * 80 + ")"
    lines = page(warnings=[warning]).splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith("warning: a few words"))
    assert max(map(len, lines[begin:-1])) <= 80
    assert lines[-1] == warning.splitlines()[1]


def test_long_names_give_way_at_80_columns():
    rows = [kind(LAYER + LONG, stored="128*out,in,k x3/128", fan=[[18432, 16384]] * 2), kind(LAYER + "b.weight")]
    lines = table(page(kinds=rows), "parameter")
    assert max(map(len, lines)) == 80
    name = lines[2].split()[0]
    assert lines[2].startswith("  ..") and LONG.endswith(name.removeprefix(".."))
    assert re.match(r"  b\.weight +hidden ", lines[3])
