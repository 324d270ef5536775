from collections import Counter

import pytest
import torch
from models.decoders import DECODERS, build
from torch import nn
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

import moga
from moga.rules.base import as_matrix
from moga.rules.roles import find_roles
from moga.rules.transfer import effective_fan
from moga.rules.widths import roles_from_widths, settle_with_base


def by_name(groups):
    return {name: group for group in groups for name in group["param_names"]}


def relative(model, base, recipe="mup-adamw", **options):
    return by_name(moga.param_groups(model, recipe, base=base, **options))


def mlp(width, inputs=3, outputs=5):
    return nn.Sequential(nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, outputs))


# Both ways


@pytest.mark.parametrize("family", DECODERS)
def test_modules_and_widths_give_the_same_roles(family):
    small, large = DECODERS[family](32), DECODERS[family](64)
    found = {one.name: one.role for one in find_roles(large)}
    assert roles_from_widths(large, small) == found
    assert set(found.values()) == {"input", "hidden", "output", "vector"}


@pytest.mark.parametrize("family", DECODERS)
def test_the_scale_of_each_block_is_that_of_the_widths(family):
    """Every side doubles, so Adam's 1 / in is half of the base's, and inputs and vectors stay."""
    groups = relative(DECODERS[family](64), DECODERS[family](32))
    for name, group in groups.items():
        scales = group["scale"] if isinstance(group["scale"], list) else [group["scale"]]
        expected = {"hidden": 0.5, "output": 0.5, "input": 1.0, "vector": 1.0}[group["role"]]
        if "conv1d.weight" in name:
            expected = 1.0  # depthwise: the kernel's positions stay
        if (family, group["role"]) == ("gemma2", "input"):
            expected = pytest.approx(0.5**0.5, rel=1e-3)  # the model multiplies it by sqrt(width), in bfloat16
        if family == "gemma2" and group["role"] == "input":
            expected = 0.5**0.5  # the model multiplies its table by sqrt(width)
        assert scales == pytest.approx([expected] * len(scales), rel=1e-12), name


@pytest.mark.parametrize("family", DECODERS)
def test_fans_follow_from_the_sizes_that_a_base_remembers(family):
    for one in find_roles(DECODERS[family](32)):
        if one.layout != "vector":
            sizes = as_matrix(one, one.role).sizes
            assert tuple(effective_fan(one.role, out, in_, one.lookup) for _, out, in_ in sizes) == one.fan, one.name


def test_widths_alone_settle_a_plain_model():
    assert roles_from_widths(mlp(8), mlp(4)) == {
        "0.weight": "input",
        "0.bias": "vector",
        "1.weight": "hidden",
        "1.bias": "vector",
        "2.weight": "output",
        "2.bias": "vector",
    }
    groups = relative(mlp(8), mlp(4))
    assert [(groups[f"{i}.weight"]["role"], groups[f"{i}.weight"]["scale"]) for i in range(3)] == [
        ("input", 1.0),
        ("hidden", 0.5),
        ("output", 0.5),
    ]
    assert [groups[f"{i}.weight"]["fan"] for i in range(3)] == [[[8, 3]], [[8, 8]], [[1, 8]]]
    assert [groups[f"{i}.weight"]["base_fan"] for i in range(3)] == [[[4, 3]], [[4, 4]], [[1, 4]]]


def test_the_same_width_settles_nothing():
    text = r"(?s)parameters without a role \(3\).*The base does not settle them: it has no role for them, and no side"
    with pytest.raises(ValueError, match=text):
        moga.param_groups(mlp(4), "mup-adamw", base=mlp(4))
    assert set(roles_from_widths(mlp(4), mlp(4)).values()) == {"", "vector"}


def test_a_deep_model_is_told_by_kinds_of_its_parameters():
    deep = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(20)], torch.nn.Linear(4, 2))
    kinds = r"  \*.weight \(Linear, shape \(4, 4\)\), 20 times\n  \*.weight \(Linear, shape \(2, 4\)\)\n"
    with pytest.raises(ValueError, match=rf"without a role \(21\):\n{kinds}"):
        moga.param_groups(deep, "moga-row")


def test_a_tied_matrix_is_tied_by_both():
    small, large = (build("gpt2", width, tie_word_embeddings=True) for width in (32, 64))
    assert roles_from_widths(large, small)["transformer.wte.weight"] == "tied"


def test_named_tensors():
    def pairs(n):
        return [("up", torch.zeros(4 * n, n)), ("down", torch.zeros(n, 4 * n))]

    groups = moga.param_groups(iter(pairs(8)), "muon", base=pairs(4), roles={"*": "hidden"})
    assert [(group["role"], group["param_names"], group["scale"]) for group in groups] == [
        ("hidden", ["up"], 1.0),
        ("hidden", ["down"], 1.0),
    ]
    with pytest.raises(ValueError, match=r"(?s)without a role \(2\):\n  up \(tensor, .*read as \(out, in\)"):
        moga.param_groups(pairs(8), "muon", base=pairs(4))


# Where the two ways differ


def test_a_fixed_rank_makes_low_rank_projections_output_and_input():
    small, large = (build("deepseek_v3", width, q_lora_rank=20, kv_lora_rank=12) for width in (32, 64))
    groups = relative(large, small)
    found = {name: (groups[name]["role"], groups[name]["fan"]) for name in groups if "layers.1.self_attn" in name}
    prefix = "model.layers.1.self_attn."
    heads = 64 // 4
    assert found[f"{prefix}q_a_proj.weight"] == ("output", [[1, 64]])
    assert found[f"{prefix}q_b_proj.weight"] == ("input", [[heads * (8 + 4), 20]])
    assert {tuple(fan) for fan in found[f"{prefix}kv_a_proj_with_mqa.weight"][1]} == {(1, 64)}
    assert found[f"{prefix}kv_b_proj.weight"][0] == "input"
    assert groups[f"{prefix}q_a_proj.weight"]["scale"] == 0.5
    assert groups[f"{prefix}q_b_proj.weight"]["scale"] == 1.0
    by_module = {one.name: one.role for one in find_roles(large)}
    assert by_module[f"{prefix}q_a_proj.weight"] == by_module[f"{prefix}q_b_proj.weight"] == "hidden"


def test_keys_and_values_of_a_fixed_number_of_heads_stay_hidden():
    small, large = (build("llama", width, num_key_value_heads=2) for width in (32, 64))
    name = "model.layers.0.self_attn.k_proj.weight"
    assert roles_from_widths(large, small)[name] == "output"
    group = relative(large, small)[name]
    assert (group["role"], group["fan"], group["base_fan"], group["scale"]) == ("hidden", [[16, 64]], [[16, 32]], 0.5)


def test_fixed_blocks_of_a_hidden_matrix_have_scales_of_their_own():
    small, large = (build("falcon", width) for width in (32, 64))
    group = relative(large, small, "muon")["transformer.h.0.self_attention.query_key_value.weight"]
    assert (group["role"], group["fan"], group["base_fan"]) == (
        "hidden",
        [[64, 64], [8, 64], [8, 64]],
        [[32, 32], [8, 32], [8, 32]],
    )
    assert group["scale"] == pytest.approx([1.0, 0.5**0.5, 0.5**0.5], rel=1e-12)  # sqrt(out/in) over the base's


def test_the_number_of_experts_is_no_width():
    small = build("mixtral", 32, num_local_experts=4)
    groups = relative(build("mixtral", 64), small)
    [router] = {name for name in groups if "layers.0" in name and groups[name]["role"] == "output"}
    assert (groups[router]["fan"], groups[router]["scale"]) == ([[1, 64]], 0.5)
    experts = [group for group in groups.values() if group["layout"].startswith("stack")]
    assert [group["scale"] for group in experts] == [0.5] * len(experts) and experts


def test_vocabulary_and_context_are_no_widths():
    small = build("gpt2", 32, vocab_size=41, n_positions=9)
    groups = relative(build("gpt2", 64), small)
    assert (groups["lm_head.weight"]["role"], groups["lm_head.weight"]["scale"]) == ("output", 0.5)
    assert (groups["transformer.wte.weight"]["role"], groups["transformer.wte.weight"]["scale"]) == ("input", 1.0)
    assert (groups["transformer.wpe.weight"]["role"], groups["transformer.wpe.weight"]["scale"]) == ("input", 1.0)


@pytest.mark.parametrize(
    ("family", "changes"),
    [("llama", {"vocab_size": 100}), ("gpt2", {"n_positions": 40}), ("mixtral", {"num_local_experts": 9})],
)
def test_at_the_same_width_vocabulary_context_and_experts_may_differ(family, changes):
    large, small = build(family, 32, **changes), build(family, 32)
    found = {name: group["role"] for name, group in relative(large, small).items()}
    assert found == {one.name: one.role for one in find_roles(large)}
    assert {group["scale"] for group in moga.param_groups(large, "mup-adamw", base=small)} == {1.0}


def with_table(width, tokens, *, factor=1):
    inner = nn.Linear(width, factor * width), nn.Linear(factor * width, width)
    return nn.Sequential(nn.Embedding(tokens, width), *inner, nn.Linear(width, tokens))


def test_a_vocabulary_that_differs_tells_where_an_output_is():
    expected = {"0.weight": "input", "1.weight": "hidden", "2.weight": "hidden", "3.weight": "output"}
    for large, small in (((64, 100), (32, 61)), ((64, 61), (32, 100)), ((64, 61), (32, 61))):
        model, base = with_table(*large, factor=3), with_table(*small, factor=3)
        groups = relative(model, base, "muon")
        assert {name: groups[name]["role"] for name in expected} == expected
        assert {n: role for n, role in roles_from_widths(model, base).items() if n in expected} == expected
        model[0].requires_grad_(False)
        assert relative(model, base, "muon")["3.weight"]["role"] == "output"


@pytest.mark.parametrize(("large", "small", "factor"), [((64, 64), (32, 32), 1), ((64, 192), (32, 96), 3)])
def test_a_vocabulary_that_differs_as_features_do_tells_nothing(large, small, factor):
    model, base = with_table(*large, factor=factor), with_table(*small, factor=factor)
    with pytest.raises(ValueError, match=r"no side differs, or in a way that two widths do not explain"):
        moga.param_groups(model, "muon", base=base)
    groups = relative(model, base, "muon", roles={"*": "hidden", "0.weight": "input", "3.weight": "output"})
    assert groups["3.weight"]["base_fan"] == [[1, 32]]


def test_at_the_same_width_an_output_of_other_tokens_is_no_input():
    small, large = (nn.Sequential(nn.Embedding(n, 8), nn.Linear(8, n)) for n in (9, 12))
    assert roles_from_widths(large, small)["1.weight"] == ""


def test_an_output_that_grows_with_no_table_is_a_contradiction():
    """The number of classes differs as a width would, and no table of tokens has that length."""

    class Classifier(nn.Module):
        def __init__(self, width, classes):
            super().__init__()
            self.table, self.head = nn.Embedding(9, width), nn.Linear(width, classes)

        def get_classifier(self):
            return self.head

    text = (
        r"parameters whose module and widths say different roles \(1\):\n  head.weight \(Linear, shape \(7, 8\)\), at "
        r"the base \(5, 4\): 'output' by its module, 'hidden' by its widths\nState the one that holds, for example\n  "
        r"roles={'head.weight': 'output'}"
    )
    with pytest.raises(ValueError, match=text):
        moga.param_groups(Classifier(8, 7), "mup-adamw", base=Classifier(4, 5))
    groups = relative(Classifier(8, 7), Classifier(4, 5), roles={"head.weight": "output"})
    assert (groups["head.weight"]["role"], groups["head.weight"]["scale"]) == ("output", 0.5)


def test_every_contradiction_is_shown():
    class Narrow(nn.Module):
        """Hidden maps through features of a fixed number, in a model whose ends are known."""

        def __init__(self, width):
            super().__init__()
            self.table, self.down, self.up = nn.Embedding(9, width), nn.Linear(width, 6), nn.Linear(6, width)
            self.head = nn.Linear(width, 9)

        def get_input_embeddings(self):
            return self.table

        def get_output_embeddings(self):
            return self.head

    with pytest.raises(
        ValueError,
        match=r"\(2\):\n  down.weight .* 'hidden' by .* 'output' by .*\n  up.weight .* 'hidden' by .* 'input' by",
    ):
        moga.param_groups(Narrow(8), "muon", base=Narrow(4))
    groups = relative(Narrow(8), Narrow(4), roles={"down.weight": "output", "up.weight": "hidden"})
    assert (groups["down.weight"]["role"], groups["up.weight"]["role"]) == ("output", "hidden")


class Stack(nn.Module):
    """Three matrices in one tensor, of which a module of its own says nothing."""

    def __init__(self, width):
        super().__init__()
        self.stack = nn.Parameter(torch.zeros(3, 2 * width, width))


def test_what_is_stated_of_a_model_holds_for_the_base_too():
    roles = {"stack": {"role": "hidden", "layout": "stack,out,in"}}
    group = relative(Stack(8), Stack(4), roles=roles)["stack"]
    assert (group["fan"], group["base_fan"], group["scale"]) == ([[16, 8]], [[8, 4]], 0.5)
    with pytest.raises(ValueError, match=r"parameters without a role \(1\):\n  stack"):
        moga.param_groups(Stack(8), "mup-adamw", base=Stack(4))


# What is no base


def test_a_base_without_the_matrix():
    with pytest.raises(ValueError, match=r"the base has no matrix 0.weight \(Linear, shape \(8, 3\)\), and none"):
        moga.param_groups(mlp(8), "mup-adamw", base=nn.Linear(4, 4))


def test_layers_that_the_base_lacks_take_the_sizes_of_its_layers():
    groups = relative(build("gpt2", 64, n_layer=13), build("gpt2", 32))
    assert groups["transformer.h.12.mlp.c_fc.weight"]["base_fan"] == [[80, 32]]
    assert Counter(groups[f"transformer.h.{i}.mlp.c_fc.weight"]["scale"] for i in range(13)) == {0.5: 13}
    relative(build("gpt2", 64, n_layer=1), build("gpt2", 32))  # fewer are all there


def test_layers_of_several_kinds_stand_for_none():
    text = r"the base has several matrices that 3.weight \(Linear, shape \(8, 8\)\) may stand for: 0.weight \(4, 3\); 1"
    with pytest.raises(ValueError, match=text):
        roles_from_widths(nn.Sequential(*mlp(8), nn.Linear(8, 8)), mlp(4))


def deep(width, layers, outputs=5):
    return nn.Sequential(
        nn.Linear(3, width), *(nn.Linear(width, width) for _ in range(layers)), nn.Linear(width, outputs)
    )


@pytest.mark.parametrize("outputs", [5, 100])
@pytest.mark.parametrize("saved", [False, True])
def test_a_sequence_that_is_longer_at_the_base(outputs, saved, tmp_path):
    """Its last layer has another number: what is the output here is a hidden matrix there, wherever its sizes grow."""
    base = deep(16, 2, outputs)
    if saved:
        roles = {"*": "hidden", "0.weight": "input", "3.weight": "output"}
        base = moga.save_base(base, tmp_path / "base.json", roles=roles)
    text = (
        r"the base has 3.weight, which this model lacks, and layers of several kinds under such names: which of them "
        r"0.weight \(Linear, shape \(64, 3\)\) is cannot be told. State roles= or take a base of as many layers"
    )
    for ask in (
        lambda: moga.param_groups(deep(64, 1, outputs), "muon", base=base),
        lambda: roles_from_widths(deep(64, 1, outputs), base),
    ):
        with pytest.raises(ValueError, match=text):
            ask()
    part = deep(64, 2, outputs)
    part[0].requires_grad_(False)  # as many layers, of which one does not train
    assert relative(part, base, "muon")["3.weight"]["role"] == "output"


def test_layers_of_one_kind_may_be_fewer_where_roles_are_open():
    def model(width, layers):
        parts = {"first": nn.Linear(3, width), "h": nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))}
        return nn.ModuleDict({**parts, "last": nn.Linear(width, 5)})

    groups = relative(model(64, 1), model(16, 3))
    found = {name: group["role"] for name, group in groups.items() if "weight" in name}
    assert found == {"first.weight": "input", "h.0.weight": "hidden", "last.weight": "output"}


def test_a_matrix_of_which_one_side_grows_and_one_shrinks_is_not_known():
    small, large = (nn.ModuleDict({"up": nn.Linear(3, n), "down": nn.Linear(n, m)}) for n, m in ((16, 16), (64, 5)))
    assert roles_from_widths(large, small)["down.weight"] == ""
    with pytest.raises(ValueError, match=r"(?s)without a role \(2\).*or in a way that two widths do not explain"):
        moga.param_groups(large, "muon", base=small)


def test_the_score_of_a_shared_expert_is_a_router():
    def model(width, experts=6):
        sizes = {"hidden_size": width, "moe_intermediate_size": width, "shared_expert_intermediate_size": width}
        heads = {"num_attention_heads": width // 8, "num_key_value_heads": width // 16, "num_hidden_layers": 1}
        config = Qwen2MoeConfig(**sizes, **heads, num_experts=experts, vocab_size=61, num_experts_per_tok=2)
        return Qwen2MoeForCausalLM(config)

    for base in (model(32), model(32, experts=4), model(64, experts=4)):
        groups = relative(model(64), base)
        for gate in ("gate", "shared_expert_gate"):
            assert groups[f"model.layers.0.mlp.{gate}.weight"]["role"] == "output"
    assert find_roles(model(32))


def test_tied_here_and_not_at_the_base():
    tied, untied = build("gpt2", 64, tie_word_embeddings=True), build("gpt2", 32)
    text = (
        r"transformer.wte.weight .* is one matrix under 2 names, tied, and the base has 2, untied: "
        r"transformer.wte.weight, lm_head.weight. A base is the same architecture"
    )
    with pytest.raises(ValueError, match=text):
        moga.param_groups(tied, "mup-adamw", base=untied)
    text = r"transformer.wte.weight .* is 'input' here and 'tied' at the base. A base is the same architecture"
    with pytest.raises(ValueError, match=text):
        moga.param_groups(build("gpt2", 64), "mup-adamw", base=build("gpt2", 32, tie_word_embeddings=True))


def test_other_blocks_at_the_base():
    base = moga.save_base(build("gpt2", 32), "/dev/null")
    row = next(row for row in base["matrices"] if row["blocks"])
    row["blocks"] = []
    with pytest.raises(ValueError, match=r"c_attn.weight .* holds 3 matrices and 1 at the base, \(32, 96\): it is not"):
        moga.param_groups(build("gpt2", 64), "mup-adamw", base=base)


def test_settled_roles_keep_the_order_of_the_model():
    large = build("mamba2", 64)
    settled = [one.assignment.name for one in settle_with_base(large, build("mamba2", 32))]
    assert settled == [one.name for one in find_roles(large)]
