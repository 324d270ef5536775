import re
from pathlib import Path

import pytest
import torch
import transformers
from models.decoders import build
from torch import nn
from transformers import (
    BloomForTokenClassification,
    DbrxConfig,
    DbrxForCausalLM,
    FalconForQuestionAnswering,
    GPT2ForSequenceClassification,
    LlamaForSequenceClassification,
    MixtralForTokenClassification,
    OPTForSequenceClassification,
)
from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe

from moga.rules.declared import declared_inputs, declared_outputs, declared_routers, is_base_model
from moga.rules.places import ROUTERS
from moga.rules.roles import find_roles

HEADS = [  # class, family, name of its head
    (GPT2ForSequenceClassification, "gpt2", "score"),
    (LlamaForSequenceClassification, "llama", "score"),
    (OPTForSequenceClassification, "opt", "score"),
    (BloomForTokenClassification, "bloom", "classifier"),
    (MixtralForTokenClassification, "mixtral", "score"),
    (FalconForQuestionAnswering, "falcon", "qa_outputs"),
]


@pytest.mark.parametrize(("model", "family", "head"), HEADS)
def test_the_head_of_a_classifier_is_its_output(model, family, head):
    labels = 2 if head == "qa_outputs" else 3
    config = build(family, 32).config
    config.num_labels = labels
    built = model(config)
    assert declared_outputs(built) == {id(built.get_submodule(head).weight)}
    outputs = {one.name: one.fan for one in find_roles(built) if one.role == "output" and one.part == ""}
    assert outputs == {f"{head}.weight": ((1, 32),)}


class TwoHeads(nn.Module):
    """Two maps to ``num_labels`` outputs: which of them is the output does not follow."""

    def __init__(self):
        super().__init__()
        self.base_model = nn.Linear(4, 4)
        self.pre, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.config = type("Config", (), {"num_labels": 4})()


def test_two_heads_of_labels_are_no_declared_output():
    model = TwoHeads()
    assert declared_outputs(model) == set()
    model.config.num_labels = 3
    model.head = nn.Linear(4, 3)
    assert declared_outputs(model) == {id(model.head.weight)}


def test_a_model_inside_another_declares_its_ends():
    model = nn.ModuleDict({"inner": build("llama", 32)})
    inner = model["inner"]
    assert declared_inputs(model) == {id(inner.model.embed_tokens.weight)}
    assert declared_outputs(model) == {id(inner.lm_head.weight)}


def test_a_router_may_be_a_linear_map_inside_of_the_declared_class():
    config = DbrxConfig(
        d_model=32,
        n_heads=4,
        n_layers=1,
        max_seq_len=17,
        vocab_size=61,
        attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        ffn_config={"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 2, "hidden_size": 32},
    )
    model = DbrxForCausalLM(config)
    router = model.transformer.blocks[0].ffn.router.layer
    assert declared_routers(model) == ({id(router.weight)}, set())


class Recorded(nn.Module):
    """Records scores under the name of a class that holds more than a router."""

    def __init__(self, *sizes):
        super().__init__()
        self.mixture = Mixture(*sizes)
        self._can_record_outputs = {"router_logits": Mixture, "hidden_states": nn.Linear}


class Mixture(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(4, size) for size in sizes)
        self.scale = nn.Parameter(torch.ones(4))


@pytest.mark.parametrize(("sizes", "router", "undecided"), [((3,), 1, 0), ((3, 5), 0, 2), ((), 0, 0)])
def test_a_declared_class_is_a_router_if_it_holds_one_matrix(sizes, router, undecided):
    found = declared_routers(Recorded(*sizes))
    assert [len(one) for one in found] == [router, undecided]


def test_which_of_several_matrices_is_the_router_has_to_be_said():
    model = nn.Sequential(nn.Embedding(9, 4), Recorded(3, 5), nn.Linear(4, 9))
    text = (
        r"(?s)without a role \(2\).*records router_logits scores the experts is not known.*\{'1.mixture.maps.0.weight':"
    )
    with pytest.raises(ValueError, match=text) as caught:
        find_roles(model, {"2.weight": "output"})
    assert "unknown type" not in str(caught.value)
    roles = {"2.weight": "output", "1.mixture.maps.0.weight": "hidden", "1.mixture.maps.1.weight": "output"}
    assert [one.role for one in find_roles(model, roles) if one.role != "vector"] == [
        "input",
        *list(roles.values())[1:],
        "output",
    ]


class Nested(Recorded):
    """Records the scores of a mixture and of the router in it: the router is known."""

    def __init__(self):
        super().__init__(3, 5)
        self.mixture.router = Inner(4, 6)
        self._can_record_outputs = {"router_logits": [Mixture, Inner]}


class Inner(nn.Linear):
    pass


def test_a_mixture_around_a_declared_router_leaves_nothing_open():
    model = Nested()
    assert declared_routers(model) == ({id(model.mixture.router.weight)}, set())


MIXED = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
MIXED |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "num_key_value_heads": 2, "head_dim": 8}
ROUTERS_INSIDE = [  # class, settings, matrices of the first layer that scores experts -> number of scores
    ("DogeForCausalLM", {"is_moe": True, "num_experts": 9}, {"mlp.router_gate.weight": 6}),
    (
        "ZayaForCausalLM",
        {"num_experts": 5, "num_experts_per_tok": 1, "moe_intermediate_size": 40, "router_hidden_size": 16},
        {"mlp.gate.router_mlp.out_proj.weight": 6},
    ),
]


@pytest.mark.parametrize(("kind", "settings", "routers"), ROUTERS_INSIDE)
def test_routers_among_other_matrices(kind, settings, routers):
    made = getattr(transformers, kind)
    model = made(made.config_class(**MIXED, **settings))
    found = [one for one in find_roles(model) if one.part == "router"]
    assert {one.role for one in found} == {"output"} and len(found) == 2 * len(routers)
    for one, (name, number) in zip(found, 2 * [*routers.items()], strict=True):
        assert one.name.endswith(name) and len(one.parameter) == number


def test_both_routers_of_a_mixture_of_text_and_images():
    config = transformers.Ernie4_5_VLMoeTextConfig(
        **MIXED, moe_num_experts=6, num_experts=6, moe_k=2, moe_intermediate_size=[24, 20], moe_num_shared_experts=1
    )
    block = modeling_ernie4_5_vl_moe.Ernie4_5_VLMoeMoeBlock(config)
    block._can_record_outputs = {"router_logits": type(block)}
    assert declared_routers(block) == ({id(block.text_moe.gate.weight), id(block.vision_moe.gate.weight)}, set())


RECORDED = re.compile(r'"router_logits": (?:OutputRecorder\()?(\w+)')
MODULES = re.compile(
    r"self\.\w+(?:: [^=\n]+)? = (?:nn\.(?:Linear|Parameter|Embedding)|[A-Z]\w*(?:Router|Gate|MLP|Block|Experts))\("
)
VECTORS = re.compile(r"bias = |scale = ")


def test_no_declared_class_of_several_matrices_is_missing():
    """By the text of transformers' models: those that hold more than a matrix with its vectors."""
    found = set()
    for path in (Path(transformers.__file__).parent / "models").glob("*/modeling_*.py"):
        text = path.read_text("utf-8")
        for name in set(RECORDED.findall(text)):
            [body] = re.findall(rf"^class {name}\([^)]*\):\n(.*?)(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)
            held = [line for line in body.splitlines() if MODULES.search(line) and not VECTORS.search(line)]
            if len(held) > 1:
                found.add(f"transformers.models.{path.parent.name}.{path.stem}.{name}")
    assert found == set(ROUTERS)


def test_a_matrix_of_the_declared_class_itself_comes_before_those_inside_of_it():
    """Some routers hold a table of corrections in a module of their own."""
    model = Recorded(3, 5)
    model.mixture.weight = nn.Parameter(torch.ones(6, 4))
    assert declared_routers(model) == ({id(model.mixture.weight)}, set())


def test_base_models():
    assert is_base_model(build("llama", 32).model)
    assert is_base_model(nn.DataParallel(build("gpt2", 32).transformer))
    assert is_base_model(torch.compile(build("gpt2", 32).transformer))
    assert not is_base_model(build("llama", 32))
    assert not is_base_model(build("llama", 32, tie_word_embeddings=True))
    assert not is_base_model(nn.Linear(2, 2))


def test_a_base_model_with_a_head_of_your_own_is_none():
    model = nn.ModuleDict({"backbone": build("llama", 32).model, "head": nn.Linear(32, 3)})
    assert not is_base_model(model)
    with pytest.raises(ValueError, match=r"roles=\{'head\.weight': 'output'\}$"):
        find_roles(model)
    assert {one.role for one in find_roles(model, {"head.weight": "output"})} == {"input", "hidden", "output", "vector"}
