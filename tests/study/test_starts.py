"""Sizes of weights at the start: known matrices are measured right, and constant initialisation is seen."""

from __future__ import annotations

import math

import pytest
import torch
from models.decoders import build
from torch import nn

import moga
from moga.study.starts import measure_starts, start_warnings

ROLES = {"4.weight": "output"}


def network(width, starts=None, vocabulary=50):
    """Embedding, three hidden maps, output; ``starts``: a standard deviation as a function of (out, in), or 0.02."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(vocabulary, width),
        nn.Linear(width, 4 * width, bias=False),
        nn.Linear(4 * width, width, bias=False),
        nn.Linear(width, width, bias=False),
        nn.Linear(width, vocabulary, bias=False),
    )
    for layer in model:
        nn.init.normal_(layer.weight, std=0.02)
        if starts and not isinstance(layer, nn.Embedding):
            nn.init.normal_(layer.weight, std=starts(layer.out_features, layer.in_features))
    return model


def rows_of(model, other=None, fresh=None, roles=ROLES):
    return measure_starts(model, moga.param_groups(model, "muon", roles=roles), roles, other, fresh)


def test_the_size_is_the_spectral_norm_of_the_matrix_over_the_square_root_of_out_over_in():
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 2, bias=False), nn.Linear(2, 9, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.full((3, 4), -0.5))
        model[1].weight.copy_(torch.tensor([[0.0, 3.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]]))
        model[2].weight.zero_()
    rows = rows_of(model, roles={"1.weight": "hidden", "2.weight": "output"})
    assert [row["norm"] for row in rows] == ["rms", "spectral", "spectral"]
    assert rows[0]["size"] == [0.5, 0.5]
    assert rows[1]["size"] == pytest.approx([4 * math.sqrt(2)] * 2)  # out = 2, in = 4
    assert rows[1]["std"] == pytest.approx(math.sqrt(25 / 8))
    assert rows[2]["size"] == [0.0, 0.0]


def test_blocks_are_measured_one_by_one_and_experts_by_their_mean():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.packed = nn.Parameter(torch.cat([torch.eye(4), 3 * torch.eye(4)]))
            self.experts = nn.Parameter(torch.stack([torch.eye(4), 3 * torch.eye(4)]))

    packed = {"role": "hidden", "layout": "out,in", "blocks": [4, 4]}
    roles = {"packed": packed, "experts": {"role": "hidden", "layout": "stack,out,in"}}
    rows = rows_of(Odd(), roles=roles)
    assert rows[0]["size"] == pytest.approx([1, 3])
    assert rows[1]["size"] == pytest.approx([2, 2])


def test_a_constant_standard_deviation_grows_and_is_warned_of():
    rows = rows_of(network(128), network(32))
    assert rows[0]["growth"] == pytest.approx(0, abs=0.02)  # a token's vector: the same at both widths
    # sigma ~ 0.02 (sqrt(out) + sqrt(in)): both sides grow, so the square root
    assert [row["growth"] for row in rows[1:4]] == pytest.approx([0.5] * 3, abs=0.1)
    assert rows[1]["other_size"][0] == pytest.approx(0.02 * 3 * math.sqrt(32) / 2, rel=0.15)
    [warning] = start_warnings([{**row, "pattern": f"<{row['name']}>"} for row in rows], "moga-row")
    assert warning.startswith("<1.weight>, <2.weight> and 2 more: the size of these weights at the start changes with")
    assert "the same at both widths" in warning
    assert warning.endswith('moga.initialize_(model, "moga-row") gives sizes that stay')


def test_the_start_of_initialize_is_not_warned_of():
    """At both widths, at one alone, and tied; and the rules of torch and of Glorot, which know the fans."""
    wide, narrow = (moga.initialize_(network(width), "muon", roles=ROLES) for width in (128, 32))
    assert start_warnings(rows_of(wide, narrow), "muon") == start_warnings(rows_of(wide), "muon") == []
    for rule in (lambda out, in_: in_**-0.5, lambda out, in_: math.sqrt(2 / (in_ + out))):
        assert start_warnings(rows_of(network(64, rule)), "muon") == []


def test_weights_that_shrink_with_width_are_warned_of_too():
    models = [network(width, lambda out, in_: 1 / in_) for width in (128, 32)]
    [warning] = start_warnings(rows_of(*models), "muon")
    assert "as its power -0." in warning
    assert "the same at both widths" not in warning


def test_one_width_tells_by_matrices_of_other_sizes_or_by_the_config():
    rows = rows_of(network(64))
    [warning] = start_warnings(rows, "muon")
    assert warning.startswith("1.weight, 2.weight and 2 more: these weights start with a standard deviation, 0.0")
    square = [rows[0], rows[3], rows[4]]  # one hidden matrix alone tells nothing
    assert start_warnings(square, "muon") == []
    [warning] = start_warnings(square, "muon", declared=0.02)
    assert warning.startswith("3.weight, 4.weight: ")
    assert start_warnings(square, "muon", declared=0.3) == []


@pytest.mark.filterwarnings("ignore:.*is input and output in one")
def test_a_tied_matrix_is_measured_as_the_output_that_it_is():
    model, small = (build("gpt2", width, tie_word_embeddings=True) for width in (128, 32))
    rows = {row["name"]: row for row in rows_of(model, small, roles={})}
    tied = rows["transformer.wte.weight"]
    assert (tied["norm"], tied["out"], tied["in"]) == ("spectral", 128, 61)
    assert tied["growth"] > 0.4
    moga.scale_logits_(model, base_width=32, width=128)
    moga.scale_logits_(small, base_width=32, width=32)
    tied = rows_of(model, small, roles={})[0]
    assert tied["norm"] == "rms" and tied["growth"] == pytest.approx(0, abs=0.02)


def test_fresh_weights_are_measured_beside():
    rows = rows_of(network(64), fresh=moga.initialize_(network(64), "muon", roles=ROLES))
    assert rows[0]["wanted"] == pytest.approx([1, 1], rel=0.05)
    assert rows[1]["wanted"] == pytest.approx([1.5, 1.5], rel=0.1)  # 1 + sqrt(64 / 256)
    assert rows[4]["wanted"] == [0, 0]


def test_what_cannot_be_compared_has_no_growth():
    model = network(32)
    assert [row["growth"] for row in rows_of(model, network(32))] == [None] * 5  # no side differs
    rows = rows_of(model, nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 9)))  # "*.weight" may be either
    assert [row["other_size"] is None for row in rows] == [False, False, True, True, True]
    assert rows[1]["growth"] is not None


def test_a_deeper_model_is_compared_layer_by_layer():
    deep, shallow = (build("llama", width, num_hidden_layers=layers) for width, layers in ((64, 3), (32, 1)))
    rows = [row for row in rows_of(deep, shallow, roles={}) if row["role"] == "hidden"]
    assert len(rows) == 7
    assert all(row["growth"] > 0.35 for row in rows)
