import io
import math
import re
import warnings

import pytest
import torch
from torch import nn

from moga.optim.steepest_descent import SteepestDescent
from moga.rules.groups import describe, param_groups
from moga.rules.recipes import RECIPES

ROLES = {"1.weight": "hidden", "2.weight": "output"}
NAMES = ["0.weight", "1.weight", "1.bias", "2.weight", "2.bias"]


@pytest.fixture
def model():
    """Nine tokens at width 4, a body of (8, 4) and an output of (9, 8)."""
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 8), nn.Linear(8, 9))


def by_name(groups):
    return {name: group for group in groups for name in group["param_names"]}


def test_one_group_says_everything(model):
    group = by_name(param_groups(model, "moga-row", roles=ROLES))["1.weight"]
    assert group["params"][0] is model[1].weight
    assert {key: value for key, value in group.items() if key != "params"} == {
        "param_names": ["1.weight"],
        "role": "hidden",
        "layout": "out,in",
        "blocks": [],
        "interleave": 1,
        "fan": [[8, 4]],
        "norm": "row",
        "p": 2.0,
        "q": None,
        "shape": "rms",
        "polar": "exact",
        "step": "fixed",
        "constraint": "decay",
        "average": "mean",
        "scale": 0.5,
        "decays": True,
        "lr_scale": 1.0,
        "decay_scale": 1.0,
    }


SCALES = {  # recipe: input (4, 1), hidden (8, 4), output (1, 8), vector (1, 1); the last of one norm's free options
    "moga-row": (1, 1 / 2, 1 / math.sqrt(8), 1),
    "moga-column": (2, math.sqrt(8) / 4, 1 / 8, 1),
    "muon": (1, math.sqrt(2), 1 / 8, 1),
    "mup-adamw": (1, 1 / 4, 1 / 8, 1),
    "adamw": (1, 1, 1, 1),
    "lion": (1, 1, 1, 1),
    **dict.fromkeys(("sgd", "heavy-ball", "rmsprop", "adam", "signsgd", "rmnp", "shampoo"), (1, 1, 1, 1)),
    **dict.fromkeys(("shampoo-accumulated", "orscale", "hyperp", "spel"), (1, 1, 1, 1)),
    **dict.fromkeys(("muown", "orscale-lm"), (1, 0.2 * math.sqrt(8), 1, 1)),
    "scion": (3000 * 2, 50 * math.sqrt(2), 3000 / 8, 50),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_scales(model, recipe):
    groups = by_name(param_groups(model, recipe, roles=ROLES))
    scales = [groups[name]["scale"] for name in ("0.weight", "1.weight", "2.weight", "1.bias")]
    assert scales == pytest.approx(SCALES[recipe], rel=1e-12)


OPTION_SCALES = [  # recipe, options, scale of the hidden (8, 4)
    ("moga-row", {"p": 1}, 1 / 4),
    ("moga-row", {"p": 4}, 4**-0.25),
    ("moga-row", {"p": math.inf}, 1),
    ("moga-column", {"q": 4}, 8**0.25 / 4),
    ("moga-column", {"q": math.inf}, 1 / 4),
    ("muon", {"shape": "original"}, math.sqrt(2)),
    ("muon", {"shape": "moonlight"}, 0.2 * math.sqrt(8)),
    ("muon", {"shape": "none"}, 1),
]


@pytest.mark.parametrize(("recipe", "options", "scale"), OPTION_SCALES)
def test_options_change_the_scale(model, recipe, options, scale):
    groups = by_name(param_groups(model, recipe, roles=ROLES, **options))
    assert groups["1.weight"]["scale"] == pytest.approx(scale, rel=1e-12)


def test_gpt2_groups(gpt2):
    groups = param_groups(gpt2(), "moga-row")
    found = [(g["role"], g["layout"], g["blocks"], g["fan"], g["scale"], len(g["params"])) for g in groups]
    assert found == [
        ("input", "in,out", [], [[64, 1]], 1.0, 2),
        ("vector", "vector", [], [[1, 1]], 1.0, 18),
        ("hidden", "in,out", [64, 64, 64], [[64, 64]] * 3, 0.125, 2),
        ("hidden", "in,out", [], [[64, 64]], 0.125, 2),
        ("hidden", "in,out", [], [[256, 64]], 0.125, 2),
        ("hidden", "in,out", [], [[64, 256]], 0.0625, 2),
        ("output", "out,in", [], [[1, 64]], 0.125, 1),
    ]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_parameter_is_in_one_group(family, recipe, request):
    model = request.getfixturevalue(family)()
    groups = param_groups(model, recipe)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [(id(p), name) for group in groups for p, name in zip(group["params"], group["param_names"], strict=True)]
    assert sorted(found) == sorted(names.items())


def plain(value):
    if isinstance(value, (list, tuple)):
        return all(map(plain, value))
    return value is None or type(value) in (str, int, float, bool)


@pytest.mark.parametrize("recipe", RECIPES)
def test_groups_are_plain_data(model, recipe):
    overrides = {"1.weight": {"norm": "row", "p": math.inf}, "2.weight": {"norm": "adam", "betas": (0.9, 0.9)}}
    groups = param_groups(model, recipe, roles=ROLES, overrides=overrides, weight_decay=0.1)
    settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    assert all(plain(value) for group in settings for value in group.values())
    file = io.BytesIO()
    torch.save(settings, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == settings


def test_groups_are_the_same_each_time(model):
    first, second = (param_groups(model, "muon", roles=ROLES) for _ in range(2))
    assert [g["param_names"] for g in first] == [g["param_names"] for g in second]
    first[0]["fan"][0][0] = 99
    assert second[0]["fan"] == [[4, 1]]


@pytest.mark.parametrize("decay_vectors", [False, True])
def test_vectors_decay_only_if_asked(model, decay_vectors):
    groups = param_groups(model, "moga-row", roles=ROLES, decay_vectors=decay_vectors)
    assert {g["role"]: g["decays"] for g in groups} == {
        "input": True,
        "hidden": True,
        "output": True,
        "vector": decay_vectors,
    }


def test_a_group_states_only_the_hyper_parameters_that_somebody_stated(model):
    keys = ("momentum", "lookahead", "betas", "eps", "weight_decay")

    def stated(recipe, **options):
        group = by_name(param_groups(model, recipe, roles=ROLES, **options))["0.weight"]
        return {key: group[key] for key in keys if key in group}

    assert stated("moga-row") == {}
    assert stated("moga-row", momentum=0.9, weight_decay=0) == {"momentum": 0.9, "weight_decay": 0.0}
    assert stated("muon") == {"betas": [0.9, 0.95]}
    assert stated("lion") == {"momentum": 0.99, "lookahead": 0.9}


def test_named_tensors():
    w = torch.zeros(8, 4)
    [group] = param_groups([("w", w)], "moga-row", roles={"w": "hidden"})
    assert group["params"][0] is w
    assert (group["param_names"], group["fan"], group["scale"]) == (["w"], [[8, 4]], 0.5)


def test_a_role_without_an_update(model):
    text = "0.weight has the role 'input'; the recipe has an update for hidden, vector only: add one"
    with pytest.raises(ValueError, match=text):
        param_groups(model, {"hidden": "row", "vector": "sign"}, roles=ROLES)


def test_an_override_may_stand_in_for_a_missing_update(model):
    overrides = {"[02].weight": {"norm": "column"}}
    groups = by_name(param_groups(model, {"hidden": "row", "vector": "sign"}, roles=ROLES, overrides=overrides))
    assert [groups[name]["norm"] for name in NAMES] == ["column", "row", "sign", "column", "sign"]


OVERRIDES = [  # overrides, parameter, what its group then says
    ({"1.weight": {"lr_scale": 0.1}}, "1.weight", {"norm": "row", "lr_scale": 0.1, "decay_scale": 1.0}),
    ({"1.*": {"decay_scale": 0}}, "1.bias", {"norm": "sign", "decay_scale": 0.0}),
    ({"*": {"weight_decay": 0.1}, "1.*": {"lr_scale": 2}}, "1.weight", {"weight_decay": 0.1, "lr_scale": 2.0}),
    ({"*": {"lr_scale": 3}, "1.*": {"lr_scale": 2}}, "1.weight", {"lr_scale": 2.0}),
    ({"1.weight": {"norm": "sign"}}, "1.weight", {"norm": "sign", "p": None, "scale": 0.25}),
    ({"1.weight": {"norm": "row", "p": 1, "lr_scale": 2}}, "1.weight", {"p": 1.0, "scale": 0.25, "lr_scale": 2.0}),
    ({"1.weight": {"norm": "row", "shape": "none"}}, "1.weight", {"scale": 1.0}),
    ({"*": {"lr_scale": 3}, "1.weight": {"norm": "column"}}, "1.weight", {"norm": "column", "lr_scale": 3.0}),
    ({"1.weight": {"norm": "column"}, "*": {"lr_scale": 3}}, "1.weight", {"norm": "column", "lr_scale": 3.0}),
    ({"1.*": {"norm": "sign", "momentum": 0.5}, "1.w*": {"norm": "row"}}, "1.weight", {"norm": "row", "p": 2.0}),
]


@pytest.mark.parametrize(("overrides", "name", "expected"), OVERRIDES)
def test_overrides(model, overrides, name, expected):
    group = by_name(param_groups(model, "moga-row", roles=ROLES, overrides=overrides))[name]
    assert {key: group[key] for key in expected} == expected


def test_a_whole_update_replaces_all_of_the_former_one(model):
    overrides = {"1.*": {"norm": "sign", "momentum": 0.5}, "1.weight": {"norm": "adam"}}
    group = by_name(param_groups(model, "lion", roles=ROLES, overrides=overrides))["1.weight"]
    assert group["norm"] == "adam"
    assert "momentum" not in group
    assert "lookahead" not in group


def test_overrides_split_groups():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 9))
    roles = {"3.weight": "output"}
    assert [g["param_names"] for g in param_groups(model, "muon", roles=roles)][1] == ["1.weight", "2.weight"]
    changed = param_groups(model, "muon", roles=roles, overrides={"2.*": {"lr_scale": 0.5}})
    assert [g["param_names"] for g in changed][1:3] == [["1.weight"], ["2.weight"]]


def test_an_override_may_use_any_name_of_a_tied_matrix(gpt2):
    model = gpt2(tie_word_embeddings=True)
    groups = param_groups(model, "adamw", overrides={"lm_head.*": {"lr_scale": 0.5}})
    assert by_name(groups)["transformer.wte.weight"]["lr_scale"] == 0.5


BAD_OVERRIDES = [  # overrides, error, text
    (
        {"3.*": {"lr_scale": 1}},
        ValueError,
        "the pattern '3.*' in overrides matches no parameter; the names are: 0.weight",
    ),
    (
        {"1.*": {"lr": 1}},
        ValueError,
        "overrides['1.*'] has 'lr'; the keys are lr_scale, decay_scale, weight_decay, or a whole update that has",
    ),
    ({"1.*": {"p": 1}}, ValueError, "overrides['1.*'] has 'p'; the keys are lr_scale"),
    (
        {"1.*": {"norm": "sign", "p": 1}},
        ValueError,
        "overrides['1.*'] has 'p'; for norm 'sign' the keys are norm, shape",
    ),
    ({"1.*": {"norm": "l2"}}, ValueError, "unknown norm 'l2' in an update"),
    ({"1.*": {"lr_scale": -1}}, ValueError, "lr_scale must be a number of at least 0; got -1"),
    ({"1.*": 0.1}, TypeError, "overrides['1.*'] must be a dict such as {'lr_scale': 0.1}; got 0.1"),
    ([("1.*", 1)], TypeError, "overrides must be a dict from patterns of parameter names; got list"),
]


@pytest.mark.parametrize(("overrides", "error", "text"), BAD_OVERRIDES)
def test_bad_overrides(model, overrides, error, text):
    with pytest.raises(error, match=re.escape(text)):
        param_groups(model, "moga-row", roles=ROLES, overrides=overrides)


def test_unknown_options(model):
    with pytest.raises(
        ValueError, match="the option 'nesterov' is unknown to 'moga-row'; its options are p, momentum,"
    ):
        param_groups(model, "moga-row", roles=ROLES, nesterov=True)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_tied_matrix_warns_where_width_is_scaled(gpt2, recipe):
    model = gpt2(tie_word_embeddings=True)
    text = r"(?s)transformer\.wte\.weight is input and output in one: .* multiplied by base_width / width.*untie"
    if recipe not in ("moga-row", "moga-column", "muon", "mup-adamw", "scion"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            param_groups(model, recipe)
    else:
        with pytest.warns(UserWarning, match=text) as caught:
            param_groups(model, recipe)
        assert caught[0].filename == __file__


def test_an_untied_model_warns_of_nothing(gpt2):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        param_groups(gpt2(), "moga-row")


DESCRIPTION = """
role    update        layout     fan     scale   tensors  params  names
input   sign          in,out     64,1    1             2   20480  ..r.wte.weight
vector  sign          vector     1,1     1            18    1792  ...ln_1.weight
hidden  row p=2       in,out x3  64,64   0.125         2   24576  .._attn.weight
hidden  row p=2       in,out     64,64   0.125         2    8192  .._proj.weight
hidden  row p=2       in,out     256,64  0.125         2   32768  ...c_fc.weight
hidden  row p=2       in,out     64,256  0.0625        2   32768  .._proj.weight
output  row p=2 *0.5  out,in     1,64    0.125         1   16384  lm_head.weight
total   7 groups, 29 tensors, 136960 parameters
"""


def test_description(gpt2):
    groups = param_groups(gpt2(), "moga-row", overrides={"lm_head.*": {"lr_scale": 0.5}})
    assert describe(groups) == DESCRIPTION.strip()


RELATIVE = """
role    update  layout     fan     scale  tensors  params
input   adam    in,out     64,1    1            2   20480
vector  adam    vector     1,1     1           18    1792
hidden  adam    in,out x3  64,64   0.5          2   24576
hidden  adam    in,out     64,64   0.5          2    8192
hidden  adam    in,out     256,64  0.5          2   32768
hidden  adam    in,out     64,256  0.5          2   32768
output  adam    out,in     1,64    0.5          1   16384
"""


def test_description_of_scales_relative_to_a_base(gpt2):
    lines = describe(param_groups(gpt2(n_head=4), "mup-adamw", base=gpt2(32, n_head=2))).splitlines()
    for line, expected in zip(lines[:-1], RELATIVE.strip().splitlines(), strict=True):
        assert line.startswith(expected)
    assert lines[-1] == "total   7 groups, 29 tensors, 136960 parameters; scale 1: as at the base"


def test_blocks_of_different_size_have_a_scale_each_and_a_description(monkeypatch):
    from moga.rules import groups as module
    from moga.rules.roles import Assignment

    fused = torch.zeros(12, 4)
    one = Assignment("qkv", ("qkv",), fused, "hidden", "out,in", (8, 2, 2), ((8, 4), (2, 4), (2, 4)), "Fused", False)
    monkeypatch.setattr(module, "find_roles", lambda model, roles: [one])
    [group] = param_groups([("qkv", fused)], "muon")
    assert group["blocks"] == [8, 2, 2]
    assert group["scale"] == pytest.approx([math.sqrt(2), math.sqrt(1 / 2), math.sqrt(1 / 2)])
    assert describe([group]).splitlines()[1].split() == [
        "hidden",
        "spectral",
        "out,in",
        "x3",
        "8,4..",
        "1.414..",
        "1",
        "48",
        "qkv",
    ]


def test_long_descriptions_stay_in_80_columns():
    name = "a" * 100
    tensors = [(name, torch.empty(50257, 12288, device="meta")), ("short", torch.empty(50257, 12288, device="meta"))]
    table = describe(param_groups(tensors, "moga-row", roles={"*": "hidden"}, p=1.2345678))
    assert max(map(len, table.splitlines())) <= 80
    assert table.splitlines()[1].endswith("aaa")


def test_the_table_counts_blocks_and_the_units_in_which_they_are_interleaved():
    how = {"role": "hidden", "layout": "stack,in,out", "blocks": (8, 4, 4), "interleave": 4}
    groups = param_groups(
        [("qkv", torch.ones(3, 5, 16)), ("w", torch.ones(3, 2))], "moga-row", roles={"qkv": how, "w": "hidden"}
    )
    assert [line.split()[3:5] for line in describe(groups).splitlines()[1:2]] == [["stack,in,out", "x3/4"]]
    assert "out,in" in describe(groups).splitlines()[2] and "/" not in describe(groups).splitlines()[2]


NOT_GROUPS = [  # what is described, error, text
    (lambda model, groups: model, TypeError, "got Sequential: describe(moga.param_groups(model, recipe))"),
    (
        lambda model, groups: SteepestDescent(groups, 0.1),
        TypeError,
        "SteepestDescent: describe(optimizer.param_groups)",
    ),
    (lambda model, groups: torch.optim.SGD(model.parameters()), TypeError, "SGD: describe(optimizer.param_groups)"),
    (lambda model, groups: groups[0], TypeError, "got dict: describe(moga.param_groups(model, recipe))"),
    (lambda model, groups: None, TypeError, "describe needs parameter groups, a list of dicts; got NoneType"),
    (lambda model, groups: "moga-row", TypeError, "describe needs parameter groups, a list of dicts; got str"),
    (
        lambda model, groups: torch.optim.SGD(model.parameters()).param_groups,
        ValueError,
        "a parameter group lacks 'norm'; describe shows those that moga.param_groups(model, recipe) makes",
    ),
]


@pytest.mark.parametrize(("what", "error", "text"), NOT_GROUPS)
def test_what_cannot_be_described_says_what_can(model, what, error, text):
    with pytest.raises(error, match=re.escape(text)):
        describe(what(model, param_groups(model, "moga-row", roles=ROLES)))


def test_groups_of_an_optimizer_and_from_a_generator_are_described(model):
    groups = param_groups(model, "moga-row", roles=ROLES)
    assert describe(SteepestDescent(groups, 0.1).param_groups) == describe(iter(groups)) == describe(groups)


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("nothing", [None, 3, nn.Linear, torch.ones(2, 2)], ids=str)
def test_no_model(model, nothing, with_base):
    text = r"a model or a list of \(name, tensor\) pairs is needed; got \w+: give an nn.Module, or model.named_param"
    with pytest.raises(TypeError, match=text):
        param_groups(nothing, "moga-row", base=model if with_base else None)


BAD_ROLES = [  # roles, text
    ({0: "hidden"}, "roles has the key 0; a key is a pattern of parameter names, a string"),
    ({("1.weight",): "hidden"}, "roles has the key ('1.weight',); a key is a pattern of parameter names, a string"),
    (["1.weight"], "roles must be a dict from patterns of parameter names; got list"),
    ("hidden", "roles must be a dict from patterns of parameter names; got str"),
]


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize(("roles", "text"), BAD_ROLES)
def test_roles_that_are_no_patterns(model, roles, text, with_base):
    with pytest.raises(TypeError, match=re.escape(text)):
        param_groups(model, "moga-row", roles=roles, base=model if with_base else None)
