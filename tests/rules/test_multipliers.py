"""Tables whose rows the model itself multiplies: how they are found, start and move, and what becomes of the logits."""

import math
import re
from pathlib import Path

import pytest
import torch
import transformers
from models import encoders
from models.decoders import build
from torch import nn
from torch.nn.functional import cross_entropy

import moga
from moga.rules.logits import logit_scale
from moga.rules.places import FACTORS, OWN_FACTORS, table_multipliers
from moga.rules.roles import find_roles

IDS = torch.randint(3, 61, (8, 16), generator=torch.Generator().manual_seed(1))
WIDTHS = (64, 128, 256, 512)
TEXTS = {
    path.parent.name: path.read_text("utf-8")
    for path in Path(transformers.__file__).parent.glob("models/*/m*.py")
    if path.name == f"modeling_{path.parent.name}.py"
}
CLASS = re.compile(r"^class (\w+)\(([^)]*)\):\n(.*?)(?=^\S|\Z)", re.DOTALL | re.MULTILINE)


def table(model):
    return model.get_input_embeddings().weight


def multiplier(model):
    [found] = [one.multiplier for one in find_roles(model) if one.parameter is table(model)]
    return found


def scale(model, recipe="moga-row", **options):
    [found] = [
        group["scale"]
        for group in moga.param_groups(model, recipe, **options)
        if any(one is table(model) for one in group["params"])
    ]
    return found


# How they are found


def small(kind, **settings):
    """A tiny model of a class of transformers, of width 36."""
    sizes = {
        "vocab_size": 61,
        "hidden_size": 36,
        "head_dim": 8,
        "d_model": 36,
        "n_embd": 36,
        "intermediate_size": 40,
        "n_head": 4,
    }
    sizes |= {"num_hidden_layers": 1, "encoder_layers": 1, "decoder_layers": 1, "n_layer": 1, "num_layers": 1}
    sizes |= {"num_attention_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "dff": 40, "bos_token_id": 0, "eos_token_id": 1}
    sizes |= {"pad_token_id": 2, "forced_eos_token_id": 1, "decoder_start_token_id": 0}
    made = getattr(transformers, kind)
    return made(made.config_class(**sizes, **settings))


CASES = [  # class, settings, by what the table's rows are multiplied: 6 = sqrt(36)
    ("BartForConditionalGeneration", {"scale_embedding": True}, 6.0),
    ("BartForConditionalGeneration", {"scale_embedding": False}, 1.0),
    ("PegasusForConditionalGeneration", {"scale_embedding": True}, 6.0),
    ("MarianMTModel", {"scale_embedding": True}, 6.0),
    ("MarianMTModel", {"scale_embedding": False}, 1.0),
    ("BioGptForCausalLM", {"scale_embedding": True}, 6.0),
    ("BigBirdForMaskedLM", {"rescale_embeddings": True, "attention_type": "original_full"}, 6.0),
    ("BigBirdForMaskedLM", {"attention_type": "original_full"}, 1.0),
    ("CTRLLMHeadModel", {}, 6.0),
    ("AfmoeForCausalLM", {"mup_enabled": True}, 6.0),
    ("AfmoeForCausalLM", {"mup_enabled": False}, 1.0),
    ("Gemma3ForCausalLM", {}, 6.0),
    ("LlamaForCausalLM", {}, 1.0),
]


@pytest.mark.parametrize(("kind", "settings", "expected"), CASES)
def test_multipliers(kind, settings, expected):
    assert multiplier(small(kind, **settings)) == pytest.approx(expected, rel=1e-12)


class Scaled(nn.Embedding):
    """A user's own class, of whose forward pass nothing is known."""

    embed_scale = 3.0


def test_a_number_of_that_name_on_another_class_says_nothing():
    assert table_multipliers(Scaled(9, 4)) == {}
    assert {one.multiplier for one in find_roles(build("gemma2", 32)) if not one.lookup} == {1.0}


def test_lookups_that_multiply_do_it_by_the_number_that_is_read():
    """By the text of transformers: all lookups with such a number have one that is plain on the meta device too."""
    found = 0
    for family, text in TEXTS.items():
        for name, bases, body in CLASS.findall(text):
            if "nn.Embedding" in bases and "embed_scale" in body:
                found += 1
                assert "super().forward(input_ids) * self.embed_scale" in body, (family, name)
                assert "nn.Buffer" not in body or f"self.{OWN_FACTORS[0]} = embed_scale" in body, (family, name)
    assert found > 20


MULTIPLIES = re.compile(
    r"\* self\.embed_scale|self\.embed_scale \*|\* (?:self\.)?normalizer|\*=? np\.sqrt\(self\.d_model_size"
    r"|\* math\.sqrt\(self\.config\.hidden_size\)|\* \(self\.(?:config\.)?hidden_size ?\*\* ?0\.5\)"
)
# Classes that multiply something else so: frames of sound, the characters of a vocoder, images.
NO_TABLES = {"Speech2TextEncoder", "SeamlessM4Tv2TextToUnitDecoder", "SpeechT5SpeechEncoderPrenet"}


def test_no_module_that_multiplies_a_table_is_missing():
    found = {
        f"transformers.models.{family}.modeling_{family}.{name}"
        for family, text in TEXTS.items()
        for name, bases, body in CLASS.findall(text)
        if MULTIPLIES.search(re.sub(r"#.*", "", body)) and "nn.Embedding" not in bases and name not in NO_TABLES
    }
    assert found == set(FACTORS)


@pytest.mark.parametrize("path", FACTORS)
def test_the_tables_are_there(path):
    family, name = path.split(".")[2], path.rpartition(".")[2]
    [body] = [body for found, _, body in CLASS.findall(TEXTS[family]) if found == name]
    for child in FACTORS[path]:
        assert re.search(rf"self\.{child}(?:: \S+)? = ", body), child


# How they start and move


def residual(family, width, tie):
    """RMS of what the tokens enter the residual stream with, and of how far a step moves it."""
    model = build(family, width, tie_word_embeddings=tie).eval()
    if tie:
        moga.scale_logits_(model, base_width=WIDTHS[0])
    moga.initialize_(model, "moga-row", generator=torch.Generator().manual_seed(0))
    optimizer = moga.optimizer(model, "moga-row", lr=0.01)
    entered = []
    for _ in range(3):  # an output of zeros passes no gradient on in the first step
        found = model(input_ids=IDS, output_hidden_states=True)
        entered.append(found.hidden_states[0].detach())
        cross_entropy(found.logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [float(one.square().mean().sqrt()) for one in (entered[0], entered[-1] - entered[0])]


def slopes(family, tie):
    """Of both sizes against width, per doubling, from the first width to the last."""
    found = [residual(family, width, tie) for width in (WIDTHS[0], WIDTHS[-1])]
    return [math.log2(wide / narrow) / 3 for narrow, wide in zip(*found, strict=True)]


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("family", ["gemma2", "llama"])
def test_tokens_enter_and_move_the_same_at_every_width(family, tie):
    assert slopes(family, tie) == pytest.approx([0, 0], abs=0.1)


@pytest.mark.parametrize("tie", [False, True])
def test_a_multiplier_that_is_not_seen_makes_them_grow(tie, monkeypatch):
    """The control."""
    monkeypatch.setattr("moga.rules.roles.table_multipliers", lambda model: {})
    assert slopes("gemma2", tie) == pytest.approx([0.5, 0.5], abs=0.1)


@pytest.mark.parametrize("width", [64, 256])
def test_tokens_start_at_size_one(width):
    model = moga.initialize_(build("gemma2", width), "moga-row")
    with torch.no_grad():
        assert model.model.embed_tokens(IDS).std().item() == pytest.approx(1, rel=0.05)
    assert scale(model) == pytest.approx(width**-0.5)


def test_one_lr_for_all_stays_one_lr_for_all():
    assert scale(build("gemma2", 64), "adamw") == scale(build("gemma2", 64), "adamw", base=build("gemma2", 32)) == 1.0
    assert scale(build("gemma2", 64), "mup-adamw") == 1 / 8


def test_a_base_in_any_form_knows_its_multiplier(tmp_path):
    base, model = build("gemma2", 32), build("gemma2", 128)
    forms = (base, base.config, moga.save_base(base, tmp_path / "base.json"), tmp_path / "base.json")
    assert [scale(model, base=form) for form in forms] == pytest.approx([0.5] * 4)
    assert scale(base, base=build("gemma2", 32)) == 1.0


def test_a_constant_multiplier_of_both_cancels():
    settings = {"scale_emb": 12.0, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
    base, model = (small("MiniCPM3ForCausalLM", **settings) for _ in range(2))
    assert multiplier(model) == 12.0
    with pytest.warns(UserWarning, match="is input and output in one"):
        assert scale(model) == pytest.approx(1 / 12)
    assert scale(model, base=base) == 1.0


def test_a_list_does_not_say_it():
    model, base = build("gemma2", 64), build("gemma2", 32)
    roles = {"*": "hidden", "lm_head.weight": "output", "*embed_tokens*": {"role": "input", "kind": "lookup"}}
    text = "a list of tensors does not say by what: give the model on both sides"
    with pytest.raises(ValueError, match=f"by 8 here and 1 at the base as far as known; {text}"):
        moga.param_groups(model, "moga-row", base=list(base.named_parameters()), roles=roles)
    with pytest.raises(ValueError, match=f"by 1 here and {base.config.hidden_size**0.5:g} at the base as far as known"):
        moga.param_groups(list(model.named_parameters()), "moga-row", base=base, roles=roles)


# What becomes of the logits


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (build("gemma2", 64, tie_word_embeddings=True), 0.5),
        (build("llama", 64, tie_word_embeddings=True), 0.25),
        (encoders.build("t5", 64), 0.5),
    ],
    ids=["gemma2", "llama", "t5"],
)
def test_a_root_that_the_model_has_itself_is_left_out_of_the_multiplier(model, expected):
    assert logit_scale(moga.scale_logits_(model, base_width=16)) == expected


@pytest.mark.parametrize("base_width", [None, 16])
def test_a_tied_table_starts_as_it_moves(base_width):
    """1 / sqrt(width) in the matrix, 1 in the residual stream, with and without the multiplier of the logits."""
    model = build("gemma2", 256, tie_word_embeddings=True)
    if base_width:
        moga.scale_logits_(model, base_width=base_width)
    moga.initialize_(model, "moga-row")
    assert table(model).std().item() == pytest.approx(1 / 16, rel=0.05)


def moved_by_t5(width, multiplied):
    """How far one step moves the logit of the right answer, on average."""
    model = encoders.build("t5", width).eval()
    if multiplied:
        moga.scale_logits_(model, base_width=WIDTHS[0])
    moga.initialize_(model, "moga-row", generator=torch.Generator().manual_seed(0))
    optimizer, answers = moga.optimizer(model, "moga-row", lr=0.01), IDS.roll(-1, 1)
    before = model(input_ids=IDS, decoder_input_ids=IDS).logits
    cross_entropy(before.flatten(0, 1), answers.flatten()).backward()
    optimizer.step()
    change = model(input_ids=IDS, decoder_input_ids=IDS).logits - before
    return change.gather(-1, answers.unsqueeze(-1)).mean().item()


@pytest.mark.filterwarnings("ignore:.* is input and output in one")
@pytest.mark.parametrize("multiplied", [True, False])
def test_one_step_moves_the_logits_of_t5_as_far_at_every_width(multiplied):
    """T5 divides the features of its output by sqrt(width); without the other half of the multiplier they grow."""
    logs = [math.log2(moved_by_t5(width, multiplied)) for width in WIDTHS]
    found = sum(weight * log for weight, log in zip((-0.3, -0.1, 0.1, 0.3), logs, strict=True))
    assert abs(found) < 0.1 if multiplied else found > 0.2
