"""The multiplier of the logits: what it does, where it is kept, and what it is for."""

import codecs
import copy
import io
import math
import pickle
import re
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from models.decoders import TOKENS, build
from torch import nn
from torch.nn.functional import cross_entropy

import moga
from moga.rules.logits import FIELDS, KEY, check_logits, logit_scale, logit_scales, user_level

IDS = torch.arange(24).reshape(2, 12)


def tied(width=64, family="gpt2", **changes):
    return build(family, width, tie_word_embeddings=True, **changes).eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def scales(groups):
    return {name: group["scale"] for group in groups for name in group["param_names"]}


# What it does


def test_the_logits_are_multiplied_by_base_width_over_width():
    model = tied()
    before = logits(model)
    assert moga.scale_logits_(model, base_width=16) is model
    assert torch.equal(logits(model), before / 4)
    assert (logit_scale(model), logit_scales(model)) == (0.25, {id(model.lm_head.weight): 0.25})
    assert list(model.state_dict()) == list(tied().state_dict())
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_width_of_the_users_own():
    model = tied()
    before = logits(model)
    torch.testing.assert_close(logits(moga.scale_logits_(model, base_width=30, width=40)), before * 0.75)


def test_gradients_are_multiplied_too():
    model, other = tied(), moga.scale_logits_(tied(), base_width=16)
    grads = []
    for one in (model, other):
        one(input_ids=IDS).logits[..., 5].sum().backward()
        grads.append(one.transformer.h[0].mlp.c_fc.weight.grad)
    torch.testing.assert_close(grads[1], grads[0] / 4)


@pytest.mark.parametrize("width", [32, 512])
def test_a_multiplied_tied_matrix_starts_as_at_the_base(width):
    """So that a step of lr is the same part of it at every width."""
    model = moga.initialize_(moga.scale_logits_(tied(width), base_width=64), "moga-row")
    assert model.lm_head.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    plain = moga.initialize_(tied(width), "moga-row")
    assert plain.lm_head.weight.std().item() == pytest.approx(width**-0.5, rel=0.05)


@pytest.mark.parametrize("recipe", ["moga-row", "mup-adamw", "muon"])
def test_an_output_of_its_own_takes_the_same_step_with_and_without(recipe):
    """Multiplied logits, and a step divided by the multiplier: the map moves as before."""
    changes = []
    for multiplied in (False, True):
        model = build("gpt2", 64).eval()
        moga.initialize_(model, recipe, generator=torch.Generator().manual_seed(0))
        if multiplied:
            moga.scale_logits_(model, base_width=16, outputs="all")
        optimizer = moga.optimizer(model, recipe, lr=0.1)
        cross_entropy(model(input_ids=IDS).logits.flatten(0, 1), IDS.flatten()).backward()
        optimizer.step()
        changes.append(logits(model))
    assert changes[0].abs().max() > 0.01
    torch.testing.assert_close(changes[1], changes[0], rtol=1e-3, atol=1e-5)


def test_the_scale_of_an_output_of_its_own_relative_to_the_base():
    small, large = build("gpt2", 32), build("gpt2", 64)
    for model in (small, large):
        moga.scale_logits_(model, base_width=32, outputs="all")
    assert scales(moga.param_groups(large, "mup-adamw"))["lm_head.weight"] == 1 / 64 / 0.5
    assert scales(moga.param_groups(large, "mup-adamw", base=small))["lm_head.weight"] == 1.0
    assert scales(moga.param_groups(small, "mup-adamw", base=small))["lm_head.weight"] == 1.0
    assert scales(moga.param_groups(large, "adamw"))["lm_head.weight"] == 1.0
    [group] = [group for group in moga.param_groups(large, "adamw") if group["role"] == "output"]
    assert group["logit_scale"] == 0.5


# What it is for

WIDTHS = (64, 128, 256, 512)


def moved(family, width, tie, multiplier):
    """How far one step moves the logit of the right answer, on average over the text of a library."""
    settings = {"n_layer": 2} if family == "gpt2" else {"num_hidden_layers": 2}
    model = build(family, width, vocab_size=256, tie_word_embeddings=tie, **settings).eval()
    if multiplier:
        moga.scale_logits_(model, base_width=WIDTHS[0])
    moga.initialize_(model, "moga-row", generator=torch.Generator().manual_seed(0))
    optimizer = moga.optimizer(model, "moga-row", lr=0.01)
    text = torch.frombuffer(bytearray(Path(codecs.__file__).read_bytes()[2000:2136]), dtype=torch.uint8)
    windows = text.long().reshape(8, 17)
    tokens, answers = windows[:, :-1], windows[:, 1:]
    before = model(input_ids=tokens).logits
    cross_entropy(before.flatten(0, 1), answers.flatten()).backward()
    optimizer.step()
    change = model(input_ids=tokens).logits - before
    return change.gather(-1, answers.unsqueeze(-1)).mean().item()


def slope(values):
    """Of log2(value) against log2(width), by least squares over three doublings."""
    return sum(weight * math.log2(value) for weight, value in zip((-0.3, -0.1, 0.1, 0.3), values, strict=True))


@pytest.mark.filterwarnings("ignore:.* is input and output in one")
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize(("tie", "multiplier"), [(True, True), (False, False), (True, False)])
def test_one_step_moves_the_logits_as_far_at_every_width(family, tie, multiplier):
    """Tied with the multiplier, or untied; tied without it the step grows with the width.

    Gemma 2 multiplies its table by sqrt(width), so the step of the table is smaller by that, and the logits grow less.
    """
    found = slope([moved(family, width, tie, multiplier) for width in WIDTHS])
    assert (abs(found) < 0.1) == (multiplier or not tie), found
    if tie and not multiplier:
        assert found > (0.15 if family == "gemma2" else 0.5)


def test_half_of_the_multiplier_is_in_gemma_itself(monkeypatch):
    """The control: with base_width / width, as for a table that is not multiplied, the logits move less and less."""
    monkeypatch.setattr("moga.rules.logits.follows_width", lambda multiplier, width: False)
    assert slope([moved("gemma2", width, True, True) for width in WIDTHS]) < -0.3


def test_slope():
    assert slope([3.0, 6.0, 12.0, 24.0]) == pytest.approx(1.0)


# What keeps it


def through_torch(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": through_torch,
}


@pytest.mark.parametrize("kept", COPIES)
def test_copies_keep_it(kept):
    model = moga.scale_logits_(tied(), base_width=16)
    other = COPIES[kept](model)
    assert torch.equal(logits(other), logits(model))
    assert logit_scale(other) == 0.25


class Plain(nn.Module):
    """A table that a linear map shares, without any config."""

    def __init__(self, bias=False):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, 9, bias=bias)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(self.table(tokens))


def test_torch_compile_traces_it():
    tokens = torch.arange(9)
    model = moga.scale_logits_(Plain(), base_width=2)
    expected = model(tokens)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(tokens), expected)
    assert logit_scale(compiled) == 0.25


def test_a_bias_is_not_multiplied():
    """It moves the logits by lr at every width, without the multiplier."""
    model = Plain(bias=True)
    before = model(torch.arange(9)) - model.head.bias
    moga.scale_logits_(model, base_width=2)
    torch.testing.assert_close(model(torch.arange(9)) - model.head.bias, before / 4)
    assert [set(group) & {"logit_scale"} for group in moga.param_groups(model, "moga-row")] == [{"logit_scale"}, set()]


def test_a_state_dict_loads_into_a_model_with_and_without(tmp_path):
    model = moga.scale_logits_(tied(), base_width=16)
    other = moga.scale_logits_(tied(), base_width=16)
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other), logits(model))
    plain = tied()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(logits(plain) / 4, logits(model))


def test_from_pretrained_loses_it_and_says_so(tmp_path):
    model = moga.scale_logits_(tied(), base_width=16)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert getattr(loaded.config, KEY) == 0.25
    assert torch.equal(logits(loaded) / 4, logits(model))
    text = r"the config says that the logits are multiplied by 0.25 \(moga_logit_scale\), but this model does not do it"
    for make in (moga.param_groups, lambda *given: moga.optimizer(*given, lr=0.1)):
        with pytest.raises(ValueError, match=text):
            make(loaded, "moga-row")
    moga.scale_logits_(loaded)
    assert torch.equal(logits(loaded), logits(model))
    check_logits(loaded)
    assert moga.optimizer(loaded, "moga-row", lr=0.1)


def test_a_model_without_its_output_has_nothing_to_multiply(tmp_path):
    model = moga.scale_logits_(tied(), base_width=16)
    model.save_pretrained(tmp_path)
    body = transformers.GPT2Model.from_pretrained(tmp_path)
    moga.param_groups(body, "moga-row", roles={"h.*": "hidden"})


def test_folding_gives_a_plain_model_with_the_same_logits(tmp_path):
    model = moga.scale_logits_(tied(), base_width=16)
    expected = logits(model)
    assert moga.fold_logits_(model) is model
    torch.testing.assert_close(logits(model), expected)
    assert model.lm_head.weight is not model.transformer.wte.weight
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(loaded), expected)
    assert not hasattr(loaded.config, KEY)
    with pytest.raises(ValueError, match="the logits of this model are not multiplied: there is nothing to fold"):
        moga.fold_logits_(loaded)


def test_a_field_of_the_config_needs_no_folding():
    model = moga.scale_logits_(with_field(FIELDS[0]), base_width=16)
    with pytest.raises(ValueError, match="the multiplier is in config.logit_scale, which is saved with the model: not"):
        moga.fold_logits_(model)


SIZES = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 2,
    "num_experts": 2,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "shared_intermediate_size": 32,
}
OWN_SIZES = {
    "granitemoehybrid": {"layer_types": ["attention"], "mamba_expand": 1},
    "falcon_h1": {"mamba_expand": 1},
    "cohere_compass": {
        "layer_types": ["full_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    },
}


def with_field(row):
    """A tiny model of a family whose config has a field for the multiplier."""
    kind = getattr(transformers, row.model)
    config = kind.config_class(**SIZES, **OWN_SIZES.get(row.family, {}), **TOKENS, tie_word_embeddings=True)
    torch.manual_seed(0)
    return kind(config).eval()


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row.family)
def test_families_with_a_field_for_it_keep_it_there(row, tmp_path):
    model = with_field(row)
    plain, before = logits(model), getattr(model.config, row.setting)
    moga.scale_logits_(model, base_width=16)
    torch.testing.assert_close(logits(model), plain / 4)
    assert getattr(model.config, row.setting) == pytest.approx((before or 1.0) * 0.25**row.power)
    assert not model.lm_head._forward_pre_hooks
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(loaded), plain / 4)
    assert logit_scales(loaded) == {id(loaded.lm_head.weight): 0.25}
    with pytest.raises(ValueError, match="the logits are multiplied by 0.25 already; call scale_logits_ once"):
        moga.scale_logits_(loaded)


MULTIPLIED = re.compile(
    r"(?:logits = logits|lm_head\(\w+\)) ([*/]) (self\.(?:config\.|model\.)?\w*(?:scal|multipl)\w*)", re.IGNORECASE
)


def test_no_family_with_a_field_is_missing():
    """By the text of transformers' models: those that multiply or divide their logits by a number of their config."""
    found = {}
    for path in (Path(transformers.__file__).parent / "models").glob("*/modeling_*.py"):
        for sign, where in MULTIPLIED.findall(path.read_text("utf-8")):
            found[path.parent.name] = (where.rpartition(".")[2], 1 if sign == "*" else -1)
    assert found == {row.family: (row.setting, row.power) for row in FIELDS}


# Errors and warnings


def test_a_tied_model_is_warned_with_code_that_helps():
    model = tied()
    text = "(?s)is input and output in one.*unless they are multiplied by base_width / width"
    for make in (
        lambda: moga.param_groups(model, "moga-row"),
        lambda: moga.optimizer(model, "moga-row", lr=0.1),
        lambda: moga.optimizer(model, "moga-row", lr=0.1, base=tied(32)),
    ):
        with pytest.warns(UserWarning, match=text) as caught:
            make()
        assert [warning.filename for warning in caught] == [__file__]
    code = str(caught[-1].message).splitlines()[-1]
    assert code == "  moga.scale_logits_(model, base_width=32)"
    exec(code.strip(), {"model": model, "moga": moga})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moga.param_groups(model, "moga-row")
        moga.optimizer(model, "moga-row", lr=0.1, base=tied(32))
        moga.optimizer(tied(), "moga-row", lr=0.1, base=tied())  # at the base the multiplier is 1
        moga.optimizer(tied(), "adamw", lr=0.1)


def test_the_level_of_a_warning_is_that_of_the_caller_outside():
    assert user_level() == 1


BAD = [  # arguments, error
    ({}, "base_width is needed, the width at which lr was tuned: the config remembers no multiplier"),
    ({"base_width": 0}, "base_width must be a whole number of at least 1, the number of features; got 0"),
    ({"base_width": 16, "width": 1.5}, "width must be a whole number of at least 1, the number of features; got 1.5"),
    ({"base_width": 16, "outputs": "both"}, "unknown word outputs='both'; the words are tied, all"),
]


@pytest.mark.parametrize(("arguments", "text"), BAD)
def test_bad_arguments(arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        moga.scale_logits_(tied(), **arguments)


def test_twice():
    model = moga.scale_logits_(tied(), base_width=16)
    with pytest.raises(ValueError, match="the logits are multiplied by 0.25 already; call scale_logits_ once"):
        moga.scale_logits_(model, base_width=16)


def test_no_model():
    with pytest.raises(TypeError, match="scale_logits_ needs a model, an nn.Module; got list"):
        moga.scale_logits_([("w", torch.ones(2, 2))], base_width=16)


def test_an_untied_model():
    text = r'no output to multiply: no trainable matrix .* is input and output in one.*outputs="all" multiplies its'
    with pytest.raises(ValueError, match=text):
        moga.scale_logits_(build("gpt2", 64), base_width=16)


def test_a_router_is_no_output():
    model = build("mixtral", 32)
    moga.scale_logits_(model, base_width=16, outputs="all")
    assert list(logit_scales(model)) == [id(model.lm_head.weight)]


@pytest.mark.parametrize("compiled", [torch.compile, lambda model: (model.compile(), model)[1]])
def test_a_compiled_model(compiled):
    with pytest.raises(ValueError, match="the model is compiled, and would not see the multiplier; call scale_log"):
        moga.scale_logits_(compiled(tied()), base_width=16)


def test_a_base_width_that_contradicts_the_config():
    model = tied()
    setattr(model.config, KEY, 0.5)
    text = r"says that the logits are multiplied by 0.5 \(moga_logit_scale\), and with this base_width it is 0.25"
    with pytest.raises(ValueError, match=text):
        moga.scale_logits_(model, base_width=16)
    assert logit_scale(moga.scale_logits_(model, base_width=32)) == 0.5


class Functional(nn.Module):
    """A table that is the output too, without a module for it."""

    def __init__(self):
        super().__init__()
        self.table, self.body = nn.Embedding(9, 4), nn.Linear(4, 4)

    def forward(self, tokens):
        return self.body(self.table(tokens)) @ self.table.weight.T


def test_logits_that_no_module_makes():
    roles = {"table.weight": "tied"}
    with pytest.raises(ValueError, match="no module makes logits with table.weight, only a forward pass of the mod"):
        moga.scale_logits_(Functional(), base_width=2, roles=roles)
