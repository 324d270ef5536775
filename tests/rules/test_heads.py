"""Heads of another size than the base's."""

import re

import pytest
from models.decoders import build
from torch import nn

import moga
from moga.rules.heads import heads_of


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"head_dim": 32}),
        ("gpt_neox", {"num_attention_heads": 2}),
        ("deepseek_v3", {"qk_nope_head_dim": 44}),
        ("mpt", {"n_heads": 2}),
    ],
)
def test_the_error_about_heads_says_what_mends_it(family, changes):
    small, large = build(family, 32), build(family, 64, **changes)
    with pytest.raises(ValueError, match=r"has heads of \d+ features, and of \d+ at the base") as caught:
        moga.param_groups(large, "mup-adamw", base=small)
    exec(str(caught.value).partition("for example\n  ")[2].replace("\n  ", "\n"), {"model": large})
    assert moga.param_groups(large, "mup-adamw", base=small)


def test_heads_of_another_size_need_products_scaled_by_it():
    small, large = build("llama", 32, head_dim=8), build("llama", 64, head_dim=32)
    text = (
        r"(?s)model.layers.0.self_attn has heads of 32 features, and of 8 at the base.*it scales by 0.1768, which "
        r"should be 0.08839, for example\n(  for module.*)$"
    )
    with pytest.raises(ValueError, match=text) as caught:
        moga.param_groups(large, "mup-adamw", base=small)
    exec(re.search(text, str(caught.value))[1].replace("\n  ", "\n").strip(), {"model": large})
    assert large.model.layers[1].self_attn.scaling == pytest.approx(8**-0.5 * 8 / 32, rel=1e-5)
    assert moga.param_groups(large, "mup-adamw", base=small)


class Attention(nn.Module):
    """Attention that says of its heads what ``settings`` are."""

    def __init__(self, width, **settings):
        super().__init__()
        self.proj = nn.Linear(width, width)
        for key, value in settings.items():
            setattr(self, key, value)


def plain(width, **settings):
    return nn.Sequential(nn.Embedding(9, width), Attention(width, **settings), nn.Linear(width, 9))


@pytest.mark.parametrize(
    ("large", "small"),
    [
        ({"head_dim": 16}, {"head_dim": 8}),
        ({"n_head": 4, "n_embd": 64}, {"n_head": 4, "n_embd": 32}),
        ({"num_heads": 4, "embed_dim": 64}, {"num_heads": 4, "embed_dim": 32}),
        ({"num_attention_heads": 4, "hidden_size": 64}, {"num_attention_heads": 4, "hidden_size": 32}),
    ],
)
def test_heads_whose_scale_is_not_known_need_a_statement(large, small, tmp_path):
    large, small = plain(64, **large), plain(32, **small)
    text = (
        r"(?s)^1 has heads of 16 features, and of 8 at the base.*Which scale it has is not known here. If both models "
        r"do so, say it in both:\n(.*)  # and 1 / 8 at the base$"
    )
    for base in (small, moga.save_base(small, tmp_path / "base.json")):
        with pytest.raises(ValueError, match=text) as caught:
            moga.param_groups(large, "mup-adamw", base=base)
    example = re.search(text, str(caught.value))[1].replace("\n  ", "\n").strip()
    exec(example, {"model": large})
    exec(example.replace("1 / 16", "1 / 8"), {"model": small})
    assert (large[1].scaling, small[1].scaling) == (1 / 16, 1 / 8)
    assert moga.param_groups(large, "mup-adamw", base=small)
    small[1].scaling = 8**-0.5
    with pytest.raises(ValueError, match=r"it scales by 0.0625, which should be 0.1768"):
        moga.param_groups(large, "mup-adamw", base=small)


@pytest.mark.parametrize(("family", "few"), [("falcon", "num_attention_heads"), ("bloom", "n_head")])
def test_families_whose_scale_is_not_known(family, few):
    with pytest.raises(ValueError, match=r"has heads of 16 features, and of 8 at the base.*is not known here"):
        moga.param_groups(build(family, 64, **{few: 4}), "mup-adamw", base=build(family, 32))


def test_heads_of_the_same_size_and_those_of_a_state_space_model():
    same = [{"n_head": width // 8, "n_embd": width} for width in (64, 32)]
    assert moga.param_groups(plain(64, **same[0]), "mup-adamw", base=plain(32, **same[1]))
    large = build("mamba2", 64, num_heads=8, head_dim=16)
    assert heads_of(large) == {} and moga.param_groups(large, "mup-adamw", base=build("mamba2", 32))


def test_a_module_that_holds_attention_has_no_heads_of_its_own():
    model = plain(32, head_dim=4)
    model.n_head, model.n_embd = 2, 32
    assert heads_of(model) == {"1": (4, 0.0)}
    assert heads_of(Attention(32, n_head=2, n_embd=32, scaling=0.5)) == {"": (16, 0.5)}


@pytest.mark.parametrize("wrap", [lambda model: nn.Sequential(model), lambda model: model])
def test_heads_are_seen_inside_of_holders(wrap):
    """Of the model, and of the base."""
    large, small = (plain(width, n_head=4, n_embd=width) for width in (64, 32))
    for model, base in ((wrap(large), small), (large, wrap(small)), (wrap(large), wrap(small))):
        with pytest.raises(ValueError, match=r"1 has heads of 16 features, and of 8 at the base"):
            moga.param_groups(model, "mup-adamw", base=base)
