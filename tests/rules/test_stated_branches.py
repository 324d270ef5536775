"""Branches that the user states: residual networks of one's own, and families that are not known."""

import copy
import re

import pytest
import torch
import transformers
from models.deep import WORDS, Residual, hf, randomised
from torch import nn

import moga
from moga.rules.branches import branch_scales


class ConvBlock(nn.Module):
    """A pre-activation residual block, two norms and two convolutions in a branch."""

    def __init__(self, channels):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        y = self.conv1(torch.relu(self.bn1(x)))
        return x + self.conv2(torch.relu(self.bn2(y)))


def test_a_pre_activation_residual_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), *[ConvBlock(5) for _ in range(4)], nn.Conv2d(5, 2, 1)).eval()
    x = torch.randn(2, 3, 8, 8)
    stem = model[0](x)
    plain = model[1](stem) - stem
    moga.scale_branches_(model, base_depth=1, branches=["*.conv2"])
    torch.testing.assert_close(model[1](stem) - stem, plain / 4, rtol=1e-4, atol=1e-6)
    assert branch_scales(model) == {f"{block}.conv2": 1 / 4 for block in (1, 2, 3, 4)}
    expected, keys = model(x), list(model.state_dict())
    moga.fold_branches_(model)
    torch.testing.assert_close(model(x), expected)
    assert list(model.state_dict()) == keys


ENDS = {
    "nothing": (),
    "dropout": (nn.Dropout(0.5), nn.Identity()),
    "layer norm": (nn.LayerNorm(4),),
    "rms norm": (nn.RMSNorm(4),),
    "batch norm": (nn.BatchNorm1d(4), nn.Dropout(0.1)),
    "group norm": (nn.GroupNorm(2, 4),),
    "sequential": (nn.Sequential(nn.Tanh(), nn.Linear(4, 4)),),
    "huggingface": (transformers.pytorch_utils.Conv1D(4, 4),),
}


@pytest.mark.parametrize("end", ENDS)
def test_ends_of_a_branch(end):
    model = randomised(nn.Sequential(*[Residual(4, *copy.deepcopy(ENDS[end])) for _ in range(3)]))
    x = torch.randn(5, 4)
    plain = model[0](x) - x
    moga.scale_branches_(model, branches=["*.branch"])
    torch.testing.assert_close(model[0](x) - x, plain / 3, rtol=1e-4, atol=1e-6)
    expected = model(x)
    torch.testing.assert_close(moga.fold_branches_(model)(x), expected, rtol=1e-4, atol=1e-6)


class Gated(nn.Module):
    """A branch whose last map only its code knows, and which returns a pair."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(6, 4), nn.Linear(4, 6)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x))), "weights"


class GatedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixer = Gated()

    def forward(self, x):
        return x + self.mixer(x)[0]


def test_the_last_map_is_stated_where_only_the_code_knows_it():
    model = nn.Sequential(GatedBlock(), GatedBlock())
    text = (
        "the last affine map of the branch 0.mixer is not known: it ends in 0.mixer (Gated). State the map by its name "
        "inside of the branch: branches={pattern: 'fc2'}"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        moga.scale_branches_(model, branches=["*.mixer"])
    x = torch.randn(5, 4)
    before = model[0](x) - x
    moga.scale_branches_(model, branches={"*.mixer": "down"})
    torch.testing.assert_close(model[0](x) - x, before / 2)
    expected = model(x)
    torch.testing.assert_close(moga.fold_branches_(model)(x), expected)


def stated(branches, depth=None, last=()):
    model = nn.Sequential(*[Residual(4, *last) for _ in range(3)])
    return lambda: moga.scale_branches_(model, branches=branches, depth=depth)


STATED = [  # what is stated, error
    (
        stated("*.branch"),
        TypeError,
        "branches must be a list of patterns of module names, or a dict from them; got '*.b",
    ),
    (stated([]), TypeError, "branches must be a list of patterns of module names, or a dict from them; got []"),
    (
        stated(["*.mlp"]),
        ValueError,
        "the pattern '*.mlp' in branches matches no module; the names begin with: 0, 0.branch, 0.branch.0",
    ),
    (
        stated(["*.branch", "0.branch.0"]),
        ValueError,
        "branches match 0.branch and, inside of it, 0.branch.0, which would be multiplied twice",
    ),
    (
        stated(["0.branch", "[12].branch"]),
        ValueError,
        "the patterns in branches match different numbers of modules, {'0.branch': 1, '[12].branch': 2}; state depth=",
    ),
    (stated({"*.branch": "last"}), ValueError, "branches: 0.branch (Sequential) has nothing with the name 'last'"),
    (
        stated(["*.branch"], last=(nn.GELU(),)),
        ValueError,
        "the last affine map of the branch 0.branch is not known: it ends in 0.branch.3 (GELU)",
    ),
    (stated(["*.branch"], last=(nn.AlphaDropout(),)), ValueError, "it ends in 0.branch.3 (AlphaDropout)"),
]


@pytest.mark.parametrize(("make", "kind", "text"), STATED)
def test_what_cannot_be_stated(make, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        make()


def test_depth_settles_different_numbers():
    model = nn.Sequential(*[Residual(4) for _ in range(3)])
    moga.scale_branches_(model, branches=["0.branch", "[12].branch"], depth=3)
    assert branch_scales(model) == {f"{block}.branch": 1 / 3 for block in range(3)}


def test_a_branch_that_returns_something_else():
    class Named(Gated):
        def forward(self, x):
            return {"output": super().forward(x)[0]}

    model = nn.Sequential(Named())
    moga.scale_branches_(model, branches={"0": "down"})
    text = "a residual branch returns a tensor, or a tuple that begins with one; Named returned dict"
    with pytest.raises(TypeError, match=text):
        model(torch.randn(2, 4))


def test_an_unknown_model_can_be_stated():
    model = hf("GPTJModel", n_embd=16, n_layer=2, n_head=2, rotary_dim=4, vocab_size=31)().eval()
    moga.scale_branches_(model, branches={"h.?.attn": "out_proj", "h.?.mlp": "fc_out"})
    expected = model(WORDS).last_hidden_state
    assert len(branch_scales(model)) == 4
    torch.testing.assert_close(moga.fold_branches_(model)(WORDS).last_hidden_state, expected)
