import pytest
import torch
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

from moga.rules.declared import declared_inputs, declared_outputs, declared_routers, is_base_model
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
    assert declared_routers(model) == {id(router.weight)}


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


@pytest.mark.parametrize(("sizes", "count"), [((3,), 1), ((3, 5), 0), ((), 0)])
def test_a_declared_class_is_a_router_if_it_holds_one_matrix(sizes, count):
    model = Recorded(*sizes)
    assert len(declared_routers(model)) == count


def test_a_matrix_of_the_declared_class_itself_comes_before_those_inside_of_it():
    """Some routers hold a table of corrections in a module of their own."""
    model = Recorded(3, 5)
    model.mixture.weight = nn.Parameter(torch.ones(6, 4))
    assert declared_routers(model) == {id(model.mixture.weight)}


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
