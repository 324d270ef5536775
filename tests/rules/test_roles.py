"""The expected tables are written from the code of the models."""

import ast
import re
import warnings

import pytest
import torch
from models.decoders import build
from torch import nn
from transformers import GPT2Config, GPT2Model

from moga.rules.roles import find_roles

# name: role, layout, blocks, fan, module type
VECTOR = ("vector", "vector", (), ((1, 1),))
GPT2_BLOCK = {
    "ln_1.weight": (*VECTOR, "LayerNorm"),
    "ln_1.bias": (*VECTOR, "LayerNorm"),
    "attn.c_attn.weight": ("hidden", "in,out", (64, 64, 64), ((64, 64),) * 3, "Conv1D"),
    "attn.c_attn.bias": (*VECTOR, "Conv1D"),
    "attn.c_proj.weight": ("hidden", "in,out", (), ((64, 64),), "Conv1D"),
    "attn.c_proj.bias": (*VECTOR, "Conv1D"),
    "ln_2.weight": (*VECTOR, "LayerNorm"),
    "ln_2.bias": (*VECTOR, "LayerNorm"),
    "mlp.c_fc.weight": ("hidden", "in,out", (), ((256, 64),), "Conv1D"),
    "mlp.c_fc.bias": (*VECTOR, "Conv1D"),
    "mlp.c_proj.weight": ("hidden", "in,out", (), ((64, 256),), "Conv1D"),
    "mlp.c_proj.bias": (*VECTOR, "Conv1D"),
}
GPT2 = {
    "transformer.wte.weight": ("input", "in,out", (), ((64, 1),), "Embedding"),
    "transformer.wpe.weight": ("input", "in,out", (), ((64, 1),), "Embedding"),
    **{f"transformer.h.{i}.{name}": row for i in range(2) for name, row in GPT2_BLOCK.items()},
    "transformer.ln_f.weight": (*VECTOR, "LayerNorm"),
    "transformer.ln_f.bias": (*VECTOR, "LayerNorm"),
    "lm_head.weight": ("output", "out,in", (), ((1, 64),), "Linear"),
}
LLAMA_BLOCK = {
    "self_attn.q_proj.weight": ("hidden", "out,in", (), ((64, 64),), "Linear"),
    "self_attn.k_proj.weight": ("hidden", "out,in", (), ((32, 64),), "Linear"),
    "self_attn.v_proj.weight": ("hidden", "out,in", (), ((32, 64),), "Linear"),
    "self_attn.o_proj.weight": ("hidden", "out,in", (), ((64, 64),), "Linear"),
    "mlp.gate_proj.weight": ("hidden", "out,in", (), ((160, 64),), "Linear"),
    "mlp.up_proj.weight": ("hidden", "out,in", (), ((160, 64),), "Linear"),
    "mlp.down_proj.weight": ("hidden", "out,in", (), ((64, 160),), "Linear"),
    "input_layernorm.weight": (*VECTOR, "LlamaRMSNorm"),
    "post_attention_layernorm.weight": (*VECTOR, "LlamaRMSNorm"),
}
LLAMA = {
    "model.embed_tokens.weight": ("input", "in,out", (), ((64, 1),), "Embedding"),
    **{f"model.layers.{i}.{name}": row for i in range(2) for name, row in LLAMA_BLOCK.items()},
    "model.norm.weight": (*VECTOR, "LlamaRMSNorm"),
    "lm_head.weight": ("output", "out,in", (), ((1, 64),), "Linear"),
}


def table(assignments):
    return {one.name: (one.role, one.layout, one.blocks, one.fan, one.module_type) for one in assignments}


def by_name(model, roles=None):
    return {one.name: one for one in find_roles(model, roles)}


def named_roles(model, roles=None):
    return {one.name: one.role for one in find_roles(model, roles)}


def test_gpt2(gpt2):
    assert table(find_roles(gpt2())) == GPT2


def test_llama(llama):
    assert table(find_roles(llama())) == LLAMA


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_every_parameter_once_and_the_model_untouched(family, request):
    model = request.getfixturevalue(family)()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = find_roles(model)
    assert [id(one.parameter) for one in found] == [id(parameter) for parameter in model.parameters()]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


TIED = ("tied", "in,out", (), ((64, 1),), "Embedding + Linear")


@pytest.mark.parametrize(
    ("family", "first"), [("gpt2", "transformer.wte.weight"), ("llama", "model.embed_tokens.weight")]
)
def test_a_tied_matrix_is_one_tensor(family, first, request):
    model = request.getfixturevalue(family)(tie_word_embeddings=True)
    expected = {"gpt2": GPT2, "llama": LLAMA}[family] | {first: TIED}
    del expected["lm_head.weight"]
    found = find_roles(model)
    assert table(found) == expected
    assert next(one.aliases for one in found if one.role == "tied") == (first, "lm_head.weight")


class Tied(nn.Module):
    """A plain model whose head and embedding share a matrix; ``head_first`` says which is registered first."""

    def __init__(self, head_first):
        super().__init__()
        parts = {"embedding": nn.Embedding(9, 4), "body": nn.Linear(4, 4), "head": nn.Linear(4, 9, bias=False)}
        parts["head"].weight = parts["embedding"].weight
        for name in reversed(parts) if head_first else parts:
            self.add_module(name, parts[name])


@pytest.mark.parametrize("head_first", [True, False])
def test_the_order_of_names_of_a_tied_matrix_does_not_matter(head_first):
    found = {one.role: one for one in find_roles(Tied(head_first)) if one.role != "vector"}
    tied = found.pop("tied")
    assert (tied.layout, tied.fan, tied.lookup) == ("in,out", ((4, 1),), True)
    names = ("embedding.weight", "head.weight")
    assert tied.aliases == (names[::-1] if head_first else names)
    assert tied.name == tied.aliases[0]
    assert [(role, one.name) for role, one in found.items()] == [("hidden", "body.weight")]


class DeclaresEmbedding(nn.Module):
    """Its output is a functional use of the embedding, as it declares."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.body = nn.Linear(4, 4, bias=False)

    def get_output_embeddings(self):
        return self.embedding


def test_an_embedding_that_is_declared_as_the_output_is_tied():
    assert named_roles(DeclaresEmbedding()) == {"embedding.weight": "tied", "body.weight": "hidden"}


def test_cross_attention_packs_key_and_value(gpt2):
    found = by_name(gpt2(add_cross_attention=True))
    cross = found["transformer.h.0.crossattention.c_attn.weight"]
    assert (cross.blocks, cross.fan) == ((64, 64), ((64, 64),) * 2)
    assert found["transformer.h.0.crossattention.q_attn.weight"].blocks == ()
    assert found["transformer.h.0.attn.c_attn.weight"].blocks == (64, 64, 64)


def test_a_conv1d_elsewhere_is_one_block():
    from transformers.pytorch_utils import Conv1D

    found = by_name(nn.Sequential(nn.Embedding(9, 4), Conv1D(12, 4)), {"1.weight": "hidden"})
    assert (found["1.weight"].layout, found["1.weight"].blocks, found["1.weight"].fan) == ("in,out", (), ((12, 4),))


def test_frozen_parameters_are_left_out(gpt2):
    model = gpt2()
    model.transformer.wte.weight.requires_grad_(False)
    model.lm_head.weight.requires_grad_(False)
    expected = {name: row for name, row in GPT2.items() if name not in ("transformer.wte.weight", "lm_head.weight")}
    assert table(find_roles(model)) == expected


def test_a_wrapped_model_still_declares_its_output(gpt2):
    wrapper = nn.ModuleDict({"module": gpt2()})
    assert table(find_roles(wrapper)) == {f"module.{name}": row for name, row in GPT2.items()}


class Classifier(nn.Module):
    """Declares its last layer as timm's models do; ``answer`` is what it returns instead."""

    def __init__(self, answer=None):
        super().__init__()
        self.tokens = nn.Embedding(9, 4)
        self.body = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 5, bias=False)
        self.other = nn.Linear(4, 5, bias=False)
        self.answer = answer

    def get_classifier(self):
        return self.answer or self.head


def test_get_classifier():
    expected = {"tokens.weight": "input", "body.weight": "hidden", "head.weight": "output", "other.weight": "hidden"}
    assert named_roles(Classifier()) == expected


def test_get_classifier_may_return_several():
    model = Classifier()
    model.answer = (model.head, model.other)
    assert named_roles(model)["other.weight"] == "output"


class Regressor(nn.Module):
    """Declares a dense first layer, and an output."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(i, o, bias=False) for i, o in ((3, 8), (8, 8), (8, 2)))

    def get_input_embeddings(self):
        return self.first

    def get_output_embeddings(self):
        return self.last


def test_a_declared_dense_input_keeps_its_fan():
    found = by_name(Regressor())
    assert [one.role for one in found.values()] == ["input", "hidden", "output"]
    assert found["first.weight"].fan == ((8, 3),)


class Silent(nn.Module):
    """Has the methods of a transformers model without an answer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4, bias=False)

    def get_input_embeddings(self):
        raise NotImplementedError

    def get_output_embeddings(self):
        return None


def test_a_model_that_declares_nothing_has_to_be_told():
    with pytest.raises(ValueError, match=re.escape("roles={'body.weight': 'hidden'}")):
        find_roles(Silent())
    assert named_roles(Silent(), {"*": "hidden"}) == {"body.weight": "hidden"}


def test_plain_models_raise_and_list_every_open_parameter(mlp):
    text = (
        "parameters without a role (3):\n"
        "  0.weight (Linear, shape (8, 3))\n"
        "  2.weight (Linear, shape (8, 8))\n"
        "  4.weight (Linear, shape (5, 8))\n"
        "Which linear map is the first and which the last does not follow from the modules. State roles by name, for "
        "example\n  roles={'*': 'hidden', '0.weight': 'input', '4.weight': 'output'}"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        find_roles(mlp)


def test_a_plain_model_with_stated_roles(mlp):
    found = by_name(mlp, {"*": "hidden", "0.weight": "input", "4.weight": "output"})
    assert {name: (one.role, one.fan) for name, one in found.items()} == {
        "0.weight": ("input", ((8, 3),)),
        "0.bias": ("vector", ((1, 1),)),
        "2.weight": ("hidden", ((8, 8),)),
        "2.bias": ("vector", ((1, 1),)),
        "4.weight": ("output", ((1, 8),)),
        "4.bias": ("vector", ((1, 1),)),
    }


def test_stated_ends_settle_the_middle(mlp):
    assert named_roles(mlp, {"0.weight": "input", "4.weight": "output"})["2.weight"] == "hidden"


@pytest.mark.parametrize("roles", [{"0.weight": "input"}, {"4.weight": "output"}, {"2.weight": "hidden"}])
def test_half_a_statement_is_not_enough(mlp, roles):
    with pytest.raises(ValueError, match=r"parameters without a role \(2\)") as error:
        find_roles(mlp, roles)
    assert not any(f"  {name} " in str(error.value) for name in roles)


class Unknown(nn.Module):
    """Holds a matrix that no known module type explains."""

    def __init__(self, *shape):
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(shape))


def with_unknown():
    return nn.Sequential(nn.Embedding(9, 4), Unknown(4, 6), nn.Linear(4, 9))


def shared_lookup():
    model = nn.Sequential(nn.Embedding(9, 4), Unknown(9, 4))
    model[1].matrix = model[0].weight
    return model


OPEN = {
    "one linear": lambda: nn.Sequential(nn.Linear(3, 4)),
    "two linears": lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)),
    "embedding": lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9)),
    "unknown": lambda: nn.Sequential(Unknown(4, 6)),
    "unknown and linear": with_unknown,
    "unknown and linears": lambda: nn.Sequential(nn.Linear(3, 4), Unknown(4, 6), nn.Linear(4, 9)),
    "shared with unknown": shared_lookup,
    "backbone": lambda: GPT2Model(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=16, n_positions=8)),
    "backbone of experts": lambda: build("mixtral", 32).model,
    "named stack": lambda: [("w", torch.zeros(3, 4, 6)), ("b", torch.zeros(4))],
    "stack": lambda: nn.Sequential(Unknown(3, 4, 6)),
    "kernel": lambda: nn.Sequential(nn.Embedding(9, 4), Unknown(4, 6, 3, 3)),
    "convolutions": lambda: nn.Sequential(nn.Conv2d(3, 4, 2), nn.Conv2d(4, 4, 2, groups=4), nn.Conv2d(4, 5, 1)),
}


@pytest.mark.parametrize("build", OPEN.values(), ids=OPEN)
def test_the_example_in_the_error_settles_the_model(build):
    model = build()
    with pytest.raises(ValueError, match="State roles by name, for example") as error:
        find_roles(model)
    example = ast.literal_eval(str(error.value).rpartition("roles=")[2])
    assert len(find_roles(model, example)) == len(model if isinstance(model, list) else list(model.parameters()))


def test_a_matrix_of_an_unknown_module_type_raises():
    text = r"1\.matrix \(Unknown, shape \(4, 6\)\)\nWhat a module of unknown type does with a tensor is not known"
    with pytest.raises(ValueError, match=text):
        find_roles(with_unknown(), {"2.weight": "output"})


@pytest.mark.parametrize(("role", "fan"), [("hidden", (4, 6)), ("input", (4, 6)), ("output", (1, 6))])
def test_a_matrix_of_an_unknown_module_type_is_read_as_out_in(role, fan):
    found = by_name(with_unknown(), {"1.*": role, "2.weight": "output"})["1.matrix"]
    assert (found.role, found.layout, found.fan) == (role, "out,in", (fan,))


def test_the_output_alone_settles_a_model_with_an_embedding():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 9, bias=False))
    assert list(named_roles(model, {"2.weight": "output"}).values()) == ["input", "hidden", "output"]


def test_the_last_matching_pattern_wins(mlp):
    assert set(named_roles(mlp, {"4.*": "output", "*": "hidden"}).values()) == {"hidden", "vector"}


def test_a_stated_role_wins_over_a_found_one(llama):
    assert named_roles(llama(), {"*.q_proj.weight": "input"})["model.layers.0.self_attn.q_proj.weight"] == "input"


def test_a_pattern_may_use_any_name_of_a_shared_parameter():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    [one] = find_roles(model, {"1.weight": "hidden"})
    assert (one.name, one.aliases) == ("0.weight", ("0.weight", "1.weight"))


IMPOSSIBLE = [  # roles, text
    ({"0.weight": "head"}, "roles['0.weight'] is 'head'; the roles are input, hidden, output, tied, vector"),
    (
        {"1.bias": "hidden"},
        "roles['1.bias'] is 'hidden' but matches only 1.bias (Linear, shape (4,)); a tensor of fewer",
    ),
    ({"1.weight": "vector"}, "1.weight (Linear, shape (4, 4)) cannot be 'vector'; it can be 'input' or 'hidden' or"),
    ({"1.weight": "tied"}, "1.weight (Linear, shape (4, 4)) cannot be 'tied'"),
    ({"0.weight": "hidden"}, "0.weight (Embedding, shape (9, 4)) cannot be 'hidden'; it can be 'input' or 'tied'"),
    ({"0.weight": "output"}, "0.weight (Embedding, shape (9, 4)) cannot be 'output'"),
    ({"head.*": "output"}, "the pattern 'head.*' in roles matches no parameter; the names are: 0.weight, 1.weight"),
]


@pytest.mark.parametrize(("roles", "text"), IMPOSSIBLE)
def test_impossible_roles(roles, text):
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4))
    with pytest.raises(ValueError, match=re.escape(text)):
        find_roles(model, roles)


def test_a_tied_matrix_can_be_nothing_else():
    with pytest.raises(ValueError, match=r"cannot be 'output'; it can be 'tied'$"):
        find_roles(Tied(head_first=False), {"head.weight": "output"})


CONVOLUTIONS = [  # module, layout, fan, part
    (nn.Conv1d(6, 4, 5), "out,in,k", (4, 6 * 5), ""),
    (nn.Conv2d(6, 4, (2, 3), groups=2), "2*out,in,k", (4 // 2, 6 // 2 * 6), ""),
    (nn.Conv2d(6, 6, 3, groups=6), "6*out,in,k", (1, 9), "depthwise"),
    (nn.Conv1d(3, 6, 5, groups=3), "3*out,in,k", (2, 5), "depthwise"),
    (nn.ConvTranspose2d(6, 4, (2, 3)), "in,out,k", (4, 6 * 6), ""),
    (nn.ConvTranspose1d(6, 4, 5, groups=2), "2*in,out,k", (4 // 2, 6 // 2 * 5), ""),
]


@pytest.mark.parametrize(("module", "layout", "fan", "part"), CONVOLUTIONS)
def test_convolutions(module, layout, fan, part):
    model = nn.Sequential(nn.Linear(2, 2), module, nn.Linear(2, 2))
    found = by_name(model, {"0.weight": "input", "2.weight": "output"})["1.weight"]
    assert (found.role, found.layout, found.fan, found.part) == ("hidden", layout, (fan,), part)


def test_a_depthwise_convolution_is_hidden_wherever_it_stands():
    [one] = find_roles(nn.Conv1d(6, 6, 5, groups=6, bias=False))
    assert (one.role, one.part) == ("hidden", "depthwise")


def test_a_frozen_tensor_of_more_dimensions_is_no_obstacle():
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Linear(4, 5, bias=False))
    model[0].requires_grad_(False)
    assert named_roles(model, {"1.weight": "output"}) == {"1.weight": "output"}


@pytest.mark.parametrize("model", [nn.Sequential(), nn.Linear(3, 2).requires_grad_(False)], ids=["empty", "frozen"])
def test_nothing_to_train(model):
    with pytest.raises(ValueError, match="has no trainable parameter; set requires_grad where it should train"):
        find_roles(model)


def test_named_tensors():
    tensors = [
        ("a.up", torch.zeros(8, 4)),
        ("head", torch.zeros(9, 8)),
        ("bias", torch.zeros(9)),
        ("t", torch.zeros(())),
    ]
    found = find_roles(tensors, {"a.*": "input", "head": "output"})
    assert table(found) == {
        "a.up": ("input", "out,in", (), ((8, 4),), "tensor"),
        "head": ("output", "out,in", (), ((1, 8),), "tensor"),
        "bias": (*VECTOR, "tensor"),
        "t": (*VECTOR, "tensor"),
    }


NAMED = [  # tensors, roles, error, text
    ([("w", torch.zeros(3, 2))], None, ValueError, "w (tensor, shape (3, 2))"),
    ([("w", torch.zeros(3, 2))], None, ValueError, "roles={'w': 'hidden'}"),
    ([("w", torch.zeros(3, 2))], {"w": "tied"}, ValueError, "w (tensor, shape (3, 2)) cannot be 'tied'"),
    ([("w", torch.zeros(3))], {"w": "hidden"}, ValueError, "is 'hidden' but matches only w (tensor, shape (3,))"),
    ([("w", torch.zeros(3, 2, 2))], {"w": "hidden"}, ValueError, "w (tensor, shape (3, 2, 2)) has 3 dimensions; state"),
    ([("w", torch.zeros(3, 2))], {"x": "hidden"}, ValueError, "matches no parameter; the names are: w"),
]


@pytest.mark.parametrize(("tensors", "roles", "error", "text"), NAMED)
def test_named_tensors_that_cannot_be_settled(tensors, roles, error, text):
    with pytest.raises(error, match=re.escape(text)):
        find_roles(tensors, roles)


def test_finding_roles_warns_of_nothing(gpt2):
    model = gpt2(tie_word_embeddings=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_roles(model)


def test_an_assignment_shows_itself_without_its_numbers():
    [one] = find_roles(nn.Linear(900, 900, bias=False), {"weight": "hidden"})
    assert "fan=((900, 900),)" in repr(one)
    assert len(repr(one)) < 300 and "tensor(" not in repr(one)


def test_the_example_of_a_base_model():
    """A base model's example names its layers, and keeps what the pattern should not have covered."""
    model = build("mixtral", 32).model
    with pytest.raises(ValueError, match="This is a base model: it ends in features") as error:
        find_roles(model)
    example = ast.literal_eval(str(error.value).rpartition("roles=")[2])
    assert example == {"layers.*": "hidden", "layers.*.mlp.gate.weight": "output"}
    assert named_roles(model, example)["layers.1.mlp.gate.weight"] == "output"
    assert by_name(model, example)["layers.1.mlp.gate.weight"].part == "router"
