"""What a base remembers, what keeps it, and that the optimizer at the base is the plain one."""

import copy
import io
import json
import pickle
import re

import pytest
import torch
from models.decoders import DECODERS, build
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import moga
from moga.rules.base import any_layer, plain_name, plain_names, read_base
from moga.rules.recipes import RECIPES


@pytest.fixture(scope="module")
def small():
    return build("llama", 32)


@pytest.fixture
def large():
    return build("llama", 64)


def settings(groups):
    return [{key: value for key, value in group.items() if key != "params"} for group in groups]


def scales(groups):
    return {name: group["scale"] for group in groups for name in group["param_names"]}


def train(model, optimizer, steps=10):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


# At the base the optimizer is the plain one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_at_the_base_mup_adamw_is_adamw_to_the_last_bit(small, dtype):
    first, second = copy.deepcopy(small).to(dtype), copy.deepcopy(small).to(dtype)
    relative = moga.optimizer(first, "mup-adamw", lr=3e-4, weight_decay=0.1, base=small)
    plain = moga.optimizer(second, "adamw", lr=3e-4, weight_decay=0.1)
    assert all(map(torch.equal, train(first, relative), train(second, plain)))


def test_at_the_base_mup_adamw_is_that_of_torch(small):
    """Whose arithmetic is in another order: equal to rounding."""
    first, second = copy.deepcopy(small).double(), copy.deepcopy(small).double()
    relative = moga.optimizer(first, "mup-adamw", lr=3e-4, weight_decay=0.1, decay_vectors=True, base=small)
    plain = torch.optim.AdamW(second.parameters(), lr=3e-4, weight_decay=0.1, foreach=False)
    for one, other in zip(train(first, relative), train(second, plain), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def test_away_from_the_base_it_is_not(small, large):
    other = copy.deepcopy(large)
    relative = train(large, moga.optimizer(large, "mup-adamw", lr=3e-4, base=small))
    plain = train(other, moga.optimizer(other, "adamw", lr=3e-4))
    differ = [not torch.equal(one, another) for one, another in zip(relative, plain, strict=True)]
    matrices = [parameter.ndim > 1 and "embed" not in name for name, parameter in large.named_parameters()]
    assert differ == matrices


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", ["gpt2", "deepseek_v3"])
def test_at_the_base_every_scale_is_one_but_for_a_radius(family, recipe):
    model = DECODERS[family](32)
    for group in moga.param_groups(model, recipe, base=DECODERS[family](32)):
        assert group["scale"] == group.get("radius", 1.0)
        assert group["base_fan"] == group["fan"]


def test_a_wider_model_has_the_ratio_of_the_scales(small, large):
    for recipe in ("moga-row", "moga-column", "muon", "scion", "mup-adamw"):
        here, there = scales(moga.param_groups(large, recipe)), scales(moga.param_groups(small, recipe))
        radius = {n: g.get("radius", 1.0) for g in moga.param_groups(large, recipe) for n in g["param_names"]}
        for name, scale in scales(moga.param_groups(large, recipe, base=small)).items():
            assert scale == pytest.approx(here[name] / there[name] * radius[name], rel=1e-12), (recipe, name)


class Readout(nn.Linear):
    """muP's output in its own form: the input is divided by width / base_width, and the rate is not."""

    def forward(self, features):
        return super().forward(features * 16 / self.in_features)


def test_a_wider_model_trains_as_under_the_table_of_mup():
    """Tensor Programs V, arXiv 2203.03466, Table 8, by torch's AdamW: hidden rates over width / base_width, and decays
    times it, so that their product stays."""

    def network(width, output):
        layers = nn.Embedding(11, width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        return nn.Sequential(*layers, nn.ReLU(), output(width, 11)).double()

    torch.manual_seed(0)
    theirs, ours, base, ratio = network(64, Readout), network(64, nn.Linear), network(16, nn.Linear), 4
    ours.load_state_dict(theirs.state_dict())
    ours[5].weight.data /= ratio  # the same function
    hidden = [theirs[1].weight, theirs[3].weight]
    rest = [one for one in theirs.parameters() if all(one is not other for other in hidden)]
    groups = [{"params": rest}, {"params": hidden, "lr": 0.01 / ratio, "weight_decay": 0.1 * ratio}]
    settings = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-30}  # eps so small that gradients of any size are alike
    both = (
        (theirs, torch.optim.AdamW(groups, **settings)),
        (
            ours,
            moga.optimizer(ours, "mup-adamw", decay_vectors=True, base=base, **settings),
        ),
    )
    for _ in range(20):
        tokens = torch.randint(11, (32,))
        losses = []
        for model, optimizer in both:
            optimizer.zero_grad()
            losses.append(nn.functional.cross_entropy(model(tokens), (3 * tokens + 1) % 11))
            losses[-1].backward()
            optimizer.step()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)
    assert losses[0] < 1.0  # it has learned, from log 11


# Every form of a base says the same


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.filterwarnings("ignore:.* is input and output in one")
def test_every_form_of_a_base_says_the_same(family, tied, tmp_path):
    small, large = (build(family, width, tie_word_embeddings=tied) for width in (32, 64))
    saved = moga.save_base(small, tmp_path / "base.json")
    assert (tmp_path / "base.json").stat().st_size < 6000
    assert json.loads((tmp_path / "base.json").read_text()) == saved
    expected = settings(moga.param_groups(large, "muon", base=small))
    for form in (small.config, saved, tmp_path / "base.json", str(tmp_path / "base.json")):
        assert settings(moga.param_groups(large, "muon", base=form)) == expected


def test_a_config_builds_no_weights(large):
    config = copy.deepcopy(large.config)
    config.hidden_size, config.intermediate_size, config.vocab_size = 32 * 1024, 80 * 1024, 10**6  # 128 GB
    config.num_attention_heads = config.num_key_value_heads = 1
    before = copy.deepcopy(config.to_dict())
    record = read_base(config, large)
    assert record.matrices[0].shape == (10**6, 32 * 1024)
    assert config.to_dict() == before


def test_the_saved_roles_settle_a_plain_model(tmp_path):
    def mlp(width):
        return nn.Sequential(nn.Linear(3, width), nn.Linear(width, width), nn.Linear(width, 5))

    roles = {"*": "hidden", "0.weight": "input", "2.weight": "output"}
    saved = moga.save_base(mlp(4), tmp_path / "base.json", roles=roles)
    found = {g["param_names"][0]: g["role"] for g in moga.param_groups(mlp(4), "mup-adamw", base=saved)}
    assert found == {"0.weight": "input", "0.bias": "vector", "1.weight": "hidden", "2.weight": "output"}
    wrong = moga.save_base(mlp(4), tmp_path / "base.json", roles=roles | {"0.weight": "hidden"})
    with pytest.raises(ValueError, match=r"0.weight .*: 'hidden' by its module, 'input' by its widths"):
        moga.param_groups(mlp(8), "mup-adamw", base=wrong)


# What keeps it


def test_groups_survive_saving_copying_pickling_and_loading(small, large):
    optimizer = moga.optimizer(large, "mup-adamw", lr=0.1, base=small)
    expected = settings(optimizer.param_groups)
    assert all("base_fan" in group for group in expected)
    train(large, optimizer, 1)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for kept in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert [g["base_fan"] for g in kept.param_groups] == [g["base_fan"] for g in expected]
        assert [g["scale"] for g in kept.param_groups] == [g["scale"] for g in expected]
    other = moga.optimizer(build("llama", 64), "mup-adamw", lr=0.2)
    other.load_state_dict(saved)
    assert [(g["scale"], g["base_fan"]) for g in other.param_groups] == [(g["scale"], g["base_fan"]) for g in expected]


def test_nothing_is_kept_on_parameters(small, large, tmp_path):
    """So nothing is lost by from_pretrained, which makes new ones."""
    expected = scales(moga.param_groups(large, "mup-adamw", base=small))
    large.save_pretrained(tmp_path)
    loaded = type(large).from_pretrained(tmp_path)
    assert scales(moga.param_groups(loaded, "mup-adamw", base=small)) == expected
    assert scales(moga.param_groups(pickle.loads(pickle.dumps(large)), "mup-adamw", base=small)) == expected


class Holder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.network = model


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rank", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def checkpointed(model):
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = checkpoint_wrapper(layer)
    return model


def sharded(model):
    mesh = init_device_mesh("cpu", (1,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WRAPPERS = {
    "DistributedDataParallel": DistributedDataParallel,
    "compiled": torch.compile,
    "checkpointed": checkpointed,
    "FSDP2": sharded,
    "held": Holder,
    "all": lambda model: Holder(torch.compile(DistributedDataParallel(checkpointed(model)))),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("form", ["model", "config"])
def test_wrappers_around_the_model(small, large, wrapper, form, one_rank):
    expected = moga.param_groups(large, "mup-adamw", base=small)
    wrapped = moga.param_groups(WRAPPERS[wrapper](large), "mup-adamw", base=small if form == "model" else small.config)
    keys = ("role", "layout", "fan", "base_fan", "scale")
    found = [({key: group[key] for key in keys}, len(group["params"])) for group in wrapped]
    assert found == [({key: group[key] for key in keys}, len(group["params"])) for group in expected]


@pytest.mark.parametrize("wrapper", ["DistributedDataParallel", "compiled", "checkpointed", "held", "all"])
@pytest.mark.parametrize("holder", [lambda model: model, Holder])
def test_wrappers_around_the_base(large, wrapper, holder, one_rank):
    keys = ("role", "layout", "fan", "base_fan", "scale")
    bare, wrapped = (
        [[group[key] for key in keys] for group in moga.param_groups(model, "mup-adamw", base=base)]
        for model, base in ((large, build("llama", 32)), (holder(large), WRAPPERS[wrapper](build("llama", 32))))
    )
    assert wrapped == bare


def test_named_tensors_of_a_wrapper_as_the_base(large, one_rank):
    roles = {"*": "hidden", "*embed*": {"role": "input", "layout": "in,out", "kind": "lookup"}, "*head*": "output"}
    expected = scales(moga.param_groups(large, "mup-adamw", base=build("llama", 32)))
    base = list(DistributedDataParallel(build("llama", 32)).named_parameters())
    assert scales(moga.param_groups(large, "mup-adamw", base=base, roles=roles)) == expected


def test_a_module_of_the_model_may_be_called_module():
    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.module, self.weight = nn.Linear(width, 3 * width), nn.Parameter(torch.zeros(width, width))

    def model(width):
        parts = {"table": nn.Embedding(9, width), "block": Block(width), "head": nn.Linear(width, 9)}
        return nn.ModuleDict(parts)

    for large in (model(32), torch.compile(model(32)), Holder(model(32))):
        groups = moga.param_groups(large, "mup-adamw", base=model(8), roles={"*block.weight": "hidden"})
        base_fan = {name: group["base_fan"] for group in groups for name in group["param_names"]}
        found = {name.removeprefix("network."): fan for name, fan in base_fan.items()}
        assert (found["block.weight"], found["block.module.weight"]) == ([[8, 8]], [[24, 8]])


# What of a base does not matter


@pytest.mark.parametrize("frozen", ["all", "embed_tokens", "layers"])
def test_a_base_may_be_frozen(large, frozen, tmp_path):
    expected = settings(moga.param_groups(large, "mup-adamw", base=build("llama", 32)))
    base = build("llama", 32)
    for name, parameter in base.named_parameters():
        parameter.requires_grad_(frozen != "all" and frozen not in name)
    before = [parameter.requires_grad for parameter in base.parameters()]
    assert settings(moga.param_groups(large, "mup-adamw", base=base)) == expected
    saved = moga.save_base(base, tmp_path / "base.json")
    assert settings(moga.param_groups(large, "mup-adamw", base=saved)) == expected
    assert [parameter.requires_grad for parameter in base.parameters()] == before


def test_what_is_frozen_and_not_known_is_asked_for_only_where_it_trains():
    class Own(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.table, self.own = nn.Embedding(9, width), nn.Parameter(torch.zeros(width, width))
            self.head = nn.Linear(width, 9)

    large, small = Own(8), Own(4)
    small.own.requires_grad_(False)
    with pytest.raises(ValueError, match=r"the base has no matrix own \(Own, shape \(8, 8\)\)"):
        moga.param_groups(large, "muon", base=moga.save_base(small, "/dev/null"), roles={"own": "hidden"})
    groups = moga.param_groups(large, "muon", base=small, roles={"own": "hidden"})
    assert [group["base_fan"] for group in groups if group["param_names"] == ["own"]] == [[[4, 4]]]
    large.own.requires_grad_(False)
    assert moga.param_groups(large, "muon", base=small)


def test_every_form_of_a_base_has_its_multiplier_of_the_logits(tmp_path):
    """1 / 64 over 16 / 64 here, and 1 / 32 over 16 / 32 at the base: the step of the output is the same."""
    small, large = (moga.scale_logits_(build("llama", width), base_width=16, outputs="all") for width in (32, 64))
    small.save_pretrained(tmp_path)
    loaded = type(small).from_pretrained(tmp_path)  # which has lost it, and whose config remembers it
    saved = moga.save_base(small, tmp_path / "base.json")
    for base in (small, small.config, loaded, saved, moga.save_base(loaded, tmp_path / "loaded.json")):
        groups = moga.param_groups(large, "mup-adamw", base=base)
        assert [group["scale"] for group in groups if group["role"] == "output"] == [1.0]


def test_names():
    assert plain_names(["model.module.w", "model.w.module", "model.w"]) == ("model.w",)
    assert plain_names(["module.h._orig_mod.w"]) == ("module.h.w",)
    assert plain_name("_fsdp_wrapped_module.module.x.modules.weight") == "x.modules.weight"
    assert any_layer("2.block3.10.weight") == "*.block3.*.weight"


# Errors


@pytest.mark.parametrize("base", [3, object(), {1}])
def test_what_is_no_base(large, base):
    text = (
        r"base must be a model, a list of \(name, tensor\) pairs, a config, or what moga.save_base wrote .*; got "
        + (type(base).__name__)
    )
    with pytest.raises(TypeError, match=text):
        moga.param_groups(large, "mup-adamw", base=base)


def test_a_file_that_is_missing_or_no_base(large, tmp_path):
    path = tmp_path / "base.json"
    with pytest.raises(ValueError, match=r"base = '.*base.json' is no file; write one with moga.save_base"):
        moga.param_groups(large, "mup-adamw", base=path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"base = '.*base.json' is not JSON \(Expecting property name.*\); moga.save"):
        moga.param_groups(large, "mup-adamw", base=path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match=r"base: .*base.json is not one that moga.save_base wrote; version 1 is"):
        moga.param_groups(large, "mup-adamw", base=path)


def test_a_saved_base_of_another_version_or_damaged(small, large, tmp_path):
    saved = moga.save_base(small, tmp_path / "base.json")
    with pytest.raises(ValueError, match=r"base: the dict has version 2; version 1 is needed: write it with moga"):
        moga.param_groups(large, "mup-adamw", base=saved | {"moga_base": 2})
    damages = [
        ({"matrices": 3}, "TypeError"),
        ({"heads": [1]}, "AttributeError"),
        ({"logit_scale": "x"}, "ValueError"),
        ({"matrices": [saved["matrices"][0] | {"layout": "rows"}]}, "unknown layout 'rows'"),
        ({"matrices": [{"names": [["x"]]}]}, "KeyError('shape')"),
    ]
    for damage, what in damages:
        text = f"base: the dict is damaged (.*{re.escape(what)}.*); write it anew with moga.save_base"
        with pytest.raises(ValueError, match=text.replace("(.*", r"\(.*").replace(".*);", r".*\);")):
            moga.param_groups(large, "mup-adamw", base=saved | damage)


def test_a_config_of_another_family(large):
    text = r"base is a GPT2Config, but the model \(LlamaForCausalLM\) has no part with such a config; give the config"
    with pytest.raises(TypeError, match=text):
        moga.param_groups(large, "mup-adamw", base=build("gpt2", 32).config)


def test_what_is_no_model_is_not_saved(tmp_path):
    for base in (None, 3):
        with pytest.raises(TypeError, match=f"a model or a list of .* is needed; got {type(base).__name__}: give an"):
            moga.save_base(base, tmp_path / "base.json")
    with pytest.raises(TypeError, match="roles must be a dict from patterns of parameter names; got str"):
        moga.save_base(build("llama", 32), tmp_path / "base.json", roles="hidden")
