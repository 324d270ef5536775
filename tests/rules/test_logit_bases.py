"""One width is the base of a whole model, and the multiplier of the logits comes before the start."""

import copy
import io
import re
import warnings

import pytest
import torch
from models.decoders import build
from torch import nn

import moga
from moga.rules.logits import KEY


def tied(width=64, family="gpt2"):
    return build(family, width, tie_word_embeddings=True)


def multiplied(width, base_width, family="gpt2"):
    return moga.scale_logits_(tied(width, family), base_width=base_width)


MAKERS = {
    "groups": moga.param_groups,
    "optimizer": lambda model, recipe, base: moga.optimizer(model, recipe, lr=0.1, base=base),
}


def forms_of(model, folder):
    saved = moga.save_base(model, folder / "base.json")
    return [model, model.config, saved, folder / "base.json"]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("recipe", ["moga-row", "adamw"])
def test_two_bases_are_refused(make, recipe, tmp_path):
    text = (
        "two bases in one model: the logits of transformer.wte.weight, of width 64, are multiplied by 0.25 "
        "(moga.scale_logits_), and base=, of width 32, asks for 0.5. Call scale_logits_ on a new model with "
        "base_width=32, or give the base= that goes with it"
    )
    for base in forms_of(tied(32), tmp_path):
        with pytest.raises(ValueError, match=re.escape(text)):
            MAKERS[make](multiplied(64, 16), recipe, base=base)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            MAKERS[make](multiplied(64, 32), recipe, base=base)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("base_width", [16, 32, 64, 128])
def test_the_base_width_is_that_of_the_base(family, base_width):
    """Also for Gemma, which has the root of the multiplier in itself; and where the model is its own base."""
    model = multiplied(64, base_width, family)
    assert moga.param_groups(model, "moga-row", base=tied(base_width, family))
    with pytest.raises(ValueError, match="and base=, of width 48, asks for .* with base_width=48, or give the base="):
        moga.param_groups(model, "moga-row", base=tied(48, family))


def test_a_base_that_is_multiplied_itself(tmp_path):
    """From width 16 to 32, and from there to 64: both were told 16."""
    saved = moga.save_base(multiplied(32, 16), tmp_path / "base.json")
    moga.param_groups(multiplied(64, 16), "moga-row", base=saved)
    moga.param_groups(multiplied(32, 16), "moga-row", base=saved)
    asks = (
        "and base=, of width 32 and itself multiplied by 0.5, asks for {}. Call scale_logits_ on a new model with the"
    )
    for model, done, needed in [
        (multiplied(64, 32), "multiplied by 0.5 (moga.scale_logits_)", 0.25),
        (tied(64), "not multiplied", 0.25),
        (tied(32), "not multiplied", 0.5),
    ]:
        with pytest.raises(ValueError, match=re.escape(f"are {done}, {asks.format(needed)} base_width that it had")):
            moga.param_groups(model, "moga-row", base=saved)


def test_a_ratio_of_ones_own_goes_with_a_base_that_has_one_too():
    def model(width, own):
        return moga.scale_logits_(tied(width), base_width=3, width=own)

    moga.param_groups(model(64, 4), "moga-row", base=model(32, 2))
    with pytest.raises(ValueError, match="are multiplied by 0.75 .* asks for 0.5"):
        moga.param_groups(model(64, 4), "moga-row", base=tied(32))


def test_what_the_config_remembers_is_compared_too(tmp_path):
    multiplied(64, 16).save_pretrained(tmp_path)
    loaded = moga.scale_logits_(type(tied()).from_pretrained(tmp_path))
    moga.param_groups(loaded, "moga-row", base=tied(16))
    with pytest.raises(ValueError, match="are multiplied by 0.25 .* asks for 0.5"):
        moga.param_groups(loaded, "moga-row", base=tied(32))


def test_an_output_of_its_own_may_be_multiplied_by_anything():
    """Its step is divided by the multiplier."""
    for base_width in (16, 32):
        model = moga.scale_logits_(build("gpt2", 64), base_width=base_width, outputs="all")
        groups = moga.param_groups(model, "mup-adamw", base=build("gpt2", 32))
        assert [group["logit_scale"] for group in groups if group["role"] == "output"] == [base_width / 64]


# The start


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_start_before_the_multiplier_is_refused(family):
    model = moga.initialize_(tied(64, family), "moga-row")
    text = (
        "which is input and output in one, with entries of size 0.125; with logits multiplied by 0.25 they start as at "
        "the base, at 0.25. Call scale_logits_ on the new model first, and initialize_ after it"
    )
    with pytest.raises(ValueError, match=f"^initialize_ has started .*weight, {re.escape(text)}$"):
        moga.scale_logits_(model, base_width=16)
    assert getattr(model.config, KEY, None) is None  # nothing was changed
    moga.scale_logits_(tied(64, family), base_width=16)


def test_it_is_seen_through_conversions():
    model = moga.initialize_(tied(), "moga-row").to(torch.bfloat16)
    with pytest.raises(ValueError, match="initialize_ has started transformer.wte.weight"):
        moga.scale_logits_(model, base_width=16)


ALIKE = {  # a model that initialize_ has started as it would have with the multiplier
    "at the base": (lambda: tied(16), {"base_width": 16}),
    "the model multiplies its table": (lambda: tied(64, "gemma2"), {"base_width": 16}),
    "an output of zeros": (lambda: build("gpt2", 64), {"base_width": 16, "outputs": "all"}),
}


@pytest.mark.parametrize("which", ALIKE)
def test_a_start_that_is_the_same_with_the_multiplier_is_fine(which):
    make, arguments = ALIKE[which]
    moga.scale_logits_(moga.initialize_(make(), "moga-row"), **arguments)


def loaded(model):
    model.load_state_dict(tied().state_dict())
    return model


def trained(model):
    weight = model.lm_head.weight
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.1).step()
    return model


def replaced(model):
    model.transformer.wte.weight = model.lm_head.weight = nn.Parameter(torch.ones_like(model.lm_head.weight))
    return model


@pytest.mark.parametrize("since", [loaded, trained, replaced])
def test_weights_that_were_written_since_are_no_start(since):
    moga.scale_logits_(since(moga.initialize_(tied(), "moga-row")), base_width=16)


def test_what_is_excluded_was_not_started():
    model = moga.initialize_(tied(), "moga-row", exclude=["*wte.weight"])
    moga.scale_logits_(model, base_width=16)


def test_the_mark_stays_out_of_files_and_copies():
    """A state is plain, and a copy is no longer what initialize_ wrote."""
    model, file = moga.initialize_(tied(), "moga-row"), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    assert not any(vars(value) for value in torch.load(file, weights_only=True).values())
    moga.scale_logits_(copy.deepcopy(model), base_width=16)


def test_weights_of_inference_mode_have_no_version():
    with torch.inference_mode():
        model = moga.initialize_(tied(), "moga-row")
        moga.scale_logits_(model, base_width=16)
