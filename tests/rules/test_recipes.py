import math
import re

import pytest

from moga.rules.recipes import OPTIONS, RECIPES, Recipe, resolve_recipe
from moga.rules.updates import CHECKS, COMBINATIONS, NUMBERS, UPDATES, checked, complete_update, operator_norm, usable

PLAIN = {"step": "fixed", "constraint": "decay", "average": "mean"}
ROW = {"norm": "row", "p": 2.0, "q": None, "shape": "rms", "polar": "exact", **PLAIN}
COLUMN = {"norm": "column", "p": None, "q": 2.0, "shape": "rms", "polar": "exact", **PLAIN}
SIGN = {"norm": "sign", "p": None, "q": None, "shape": "rms", "polar": "exact", **PLAIN}
ADAM = {"norm": "adam", "p": None, "q": None, "shape": "rms", "polar": "exact", **PLAIN}
MUON = {"norm": "spectral", "p": None, "q": None, "shape": "rms", "polar": "quintic", **PLAIN}
MUON_ADAM = ADAM | {"betas": [0.9, 0.95]}
BARE_ADAM = ADAM | {"shape": "none"}
PLAIN_ADAM = BARE_ADAM | {"betas": [0.9, 0.999], "eps": 1e-8}
LATE_ADAM = BARE_ADAM | {"betas": [0.9, 0.95]}
LION = SIGN | {"shape": "none", "momentum": 0.99, "lookahead": 0.9}
EUCLID = SIGN | {"norm": "euclidean", "shape": "none", "step": "dual"}
RATIO = {"shape": "none", "step": "trust_ratio", "trust_clip": [0.5, 1.5], "calibration": "none"}
LM = {"shape": "moonlight", "step": "trust_ratio", "trust_clip": [0.1, 5.0], "calibration": "first_step"}
SCION = {"weight_decay": 1.0, "momentum": 0.9, "lookahead": "momentum"}


def with_adam(hidden, adam=LATE_ADAM):
    return (hidden, adam, adam, adam)


MOMENTUM = {"momentum": 0.95}
ROWS = {  # hidden, input, output, vector
    "moga-row": (ROW, SIGN, ROW, SIGN),
    "moga-column": (COLUMN, COLUMN, SIGN, SIGN),
    "muon": (MUON, MUON_ADAM, MUON_ADAM, MUON_ADAM),
    "mup-adamw": (ADAM, ADAM, ADAM, ADAM),
    "adamw": (PLAIN_ADAM,) * 4,
    "lion": (LION,) * 4,
    "sgd": (EUCLID | {"average": "none"},) * 4,
    "heavy-ball": (EUCLID | {"average": "sum", "momentum": 0.9, "lookahead": "momentum"},) * 4,
    "rmsprop": (BARE_ADAM | {"norm": "rmsprop", "alpha": 0.99, "eps": 1e-8},) * 4,
    "adam": (PLAIN_ADAM,) * 4,
    "signsgd": (SIGN | {"shape": "none", "average": "none"},) * 4,
    "rmnp": with_adam(ROW | {"shape": "none", "lookahead": "momentum"} | MOMENTUM),
    "scion": (
        MUON | {"radius": 50.0} | SCION,
        COLUMN | {"radius": 3000.0} | SCION,
        SIGN | {"radius": 3000.0} | SCION,
        SIGN | {"radius": 50.0} | SCION,
    ),
    "shampoo": with_adam(
        MUON | {"shape": "none", "polar": "exact", "average": "none"}, BARE_ADAM | {"betas": [0.9, 0.999]}
    ),
    "shampoo-accumulated": with_adam(
        BARE_ADAM | {"norm": "shampoo", "damping": 1e-4}, BARE_ADAM | {"betas": [0.9, 0.999]}
    ),
    "muown": with_adam(
        MUON | {"shape": "moonlight", "constraint": "row_magnitude", "betas": [0.9, 0.95], "eps": 1e-8} | MOMENTUM,
        LATE_ADAM | {"eps": 1e-8},
    ),
    "orscale": with_adam(MUON | RATIO | MOMENTUM),
    "orscale-lm": with_adam(MUON | LM | MOMENTUM),
    "hyperp": with_adam(MUON | {"shape": "none", "constraint": "sphere"} | MOMENTUM),
    "spel": with_adam(
        MUON | {"shape": "none", "polar": "exact", "constraint": "stiefel", "lookahead": "momentum"} | MOMENTUM
    ),
}
TIED = {"scion": ROWS["scion"][2]}  # all others give a tied matrix the input's update


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe(name):
    hidden, first, output, vector = ROWS[name]
    expected = {"hidden": hidden, "input": first, "output": output, "vector": vector, "tied": TIED.get(name, first)}
    assert resolve_recipe(name) == expected


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_source(name):
    assert re.search(r"\d{4}", RECIPES[name].source)
    assert RECIPES[name].maths and RECIPES[name].width


OPTION_ROWS = [  # recipe, option, value, roles that change, key's value there
    ("moga-row", "p", 1.5, {"hidden", "output"}, 1.5),
    ("moga-row", "p", 1, {"hidden", "output"}, 1.0),
    ("moga-row", "p", math.inf, {"hidden", "output"}, math.inf),
    ("moga-row", "p", None, set(), None),
    ("moga-row", "momentum", 0.9, {"hidden", "input", "output", "vector", "tied"}, 0.9),
    ("moga-row", "lookahead", None, {"hidden", "input", "output", "vector", "tied"}, None),
    ("moga-column", "q", 4, {"hidden", "input", "tied"}, 4.0),
    ("moga-column", "q", math.inf, {"hidden", "input", "tied"}, math.inf),
    ("muon", "shape", "moonlight", {"hidden"}, "moonlight"),
    ("muon", "polar", "exact", {"hidden"}, "exact"),
    ("muon", "momentum", 0.9, {"hidden"}, 0.9),
    ("muon", "betas", (0.8, 0.9), {"input", "output", "vector", "tied"}, [0.8, 0.9]),
    ("muon", "weight_decay", 0.1, {"hidden", "input", "output", "vector", "tied"}, 0.1),
    ("adamw", "eps", 1e-6, {"hidden", "input", "output", "vector", "tied"}, 1e-6),
    ("lion", "momentum", 0.95, {"hidden", "input", "output", "vector", "tied"}, 0.95),
]


@pytest.mark.parametrize(("recipe", "option", "value", "roles", "expected"), OPTION_ROWS)
def test_an_option_reaches_the_rows_that_can_use_it(recipe, option, value, roles, expected):
    plain, changed = resolve_recipe(recipe), resolve_recipe(recipe, {option: value})
    for role, update in changed.items():
        assert update == (plain[role] | {option: expected} if role in roles else plain[role])


def test_options_do_not_change_the_table():
    before = {name: resolve_recipe(name) for name in RECIPES}
    for name in RECIPES:
        resolve_recipe(name, {"weight_decay": 0.3})
    assert {name: resolve_recipe(name) for name in RECIPES} == before


ALLOWED = {
    "moga-row": "p, momentum, lookahead, weight_decay",
    "moga-column": "q, momentum, lookahead, weight_decay",
    "muon": "shape, polar, momentum, lookahead, betas, eps, weight_decay",
    "mup-adamw": "betas, eps, weight_decay",
    "adamw": "betas, eps, weight_decay",
    "lion": "momentum, lookahead, weight_decay",
    "sgd": "weight_decay",
    "heavy-ball": "momentum, lookahead, weight_decay",
    "rmsprop": "eps, alpha, weight_decay",
    "adam": "betas, eps, weight_decay",
    "signsgd": "weight_decay",
    "rmnp": "p, momentum, lookahead, betas, eps, weight_decay",
    "scion": "q, shape, polar, momentum, lookahead, weight_decay",
    "shampoo": "shape, polar, betas, eps, weight_decay",
    "shampoo-accumulated": "betas, eps, damping, weight_decay",
    "muown": "shape, polar, momentum, lookahead, betas, eps, weight_decay",
    "orscale": "shape, polar, momentum, lookahead, betas, eps, trust_clip, weight_decay",
    "orscale-lm": "shape, polar, momentum, lookahead, betas, eps, trust_clip, weight_decay",
    "hyperp": "polar, momentum, lookahead, betas, eps, weight_decay",
    "spel": "shape, polar, momentum, lookahead, betas, eps, weight_decay",
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_no_row_can_use_lists_those_that_one_can(name, option):
    if option in ALLOWED[name].split(", "):
        return
    text = f"the option {option!r} cannot be used by {name!r}; its options are {ALLOWED[name]}"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}($|. Here {option} is )"):
        resolve_recipe(name, {option: 2})


INSTEAD = [  # recipe, option that it cannot use, the end of the error
    ("moga-row", "betas", ". Here betas is momentum and lookahead: the decay of the average, and its weight in a step"),
    ("lion", "betas", ". Here betas is momentum and lookahead: the decay of the average, and its weight in a step"),
    ("adamw", "momentum", ". Here momentum is betas, the decays of both averages"),
    ("adamw", "lookahead", ". Here lookahead is betas, the decays of both averages"),
    ("signsgd", "betas", "; its options are weight_decay"),
    ("sgd", "momentum", "; its options are weight_decay"),
    ("moga-row", "lr", "lr) or moga.SteepestDescent(groups, lr)"),
]


@pytest.mark.parametrize(("name", "option", "end"), INSTEAD)
def test_an_option_of_other_recipes_is_answered_with_the_words_of_this_one(name, option, end):
    with pytest.raises(ValueError, match=f"{re.escape(end)}$"):
        resolve_recipe(name, {option: 0.9})


def test_an_unknown_option():
    text = "the option 'nesterov' is unknown to this recipe; its options are p, momentum, lookahead, weight_decay"
    with pytest.raises(ValueError, match=text):
        resolve_recipe({"hidden": "row"}, {"nesterov": True})


def test_a_recipe_of_ones_own():
    own = {"hidden": {"norm": "row", "p": 1.5}, "input": "sign", "tied": "column"}
    expected = {"hidden": ROW | {"p": 1.5}, "input": SIGN, "tied": COLUMN}
    assert resolve_recipe(own) == expected
    assert own == {"hidden": {"norm": "row", "p": 1.5}, "input": "sign", "tied": "column"}


def test_what_a_row_states_wins_over_the_default_of_its_recipe(monkeypatch):
    rows = {"hidden": {"norm": "sign", "momentum": 0.5}, "vector": "sign"}
    monkeypatch.setitem(RECIPES, "made-up", Recipe(rows, "a source", {"momentum": 0.9}))
    assert {role: update["momentum"] for role, update in resolve_recipe("made-up").items()} == {
        "hidden": 0.5,
        "vector": 0.9,
    }


def test_a_recipe_without_input_has_no_tied_update():
    assert resolve_recipe({"hidden": "row"}) == {"hidden": ROW}


BAD = [  # recipe, error, text
    (
        "sgdm",
        ValueError,
        "unknown recipe 'sgdm'; the recipes are moga-row, moga-column, muon, mup-adamw, adamw, lion, sgd",
    ),
    (("row",), TypeError, "a recipe is a name or a dict role -> update; got tuple"),
    ({}, ValueError, "the recipe is empty; it needs an update for each role that occurs (input, hidden, output, tied"),
    (
        {"head": "row"},
        ValueError,
        "unknown role 'head' in the recipe; the roles are input, hidden, output, tied, vector",
    ),
    ({"hidden": "l2"}, ValueError, "unknown norm 'l2' in an update; the norms are adam, column, euclidean, rmsprop"),
    (
        {"hidden": 2},
        ValueError,
        "the recipe's 'hidden' update is 2; it must be a norm's word or a dict with it: {'norm'",
    ),
    ({"hidden": {"p": 2}}, ValueError, "the recipe's 'hidden' update is {'p': 2}; it must be a norm's word"),
    (
        {"hidden": {"norm": "sign", "p": 2}},
        ValueError,
        "the recipe's 'hidden' update has 'p'; for norm 'sign' the keys are norm, shape, radius, average, momentum, lo",
    ),
    ({"hidden": {"norm": "row", "p": 0.5}}, ValueError, "norm 'row' needs p >= 1, inf included; got p = 0.5"),
    ({"hidden": {"norm": "column", "q": 1.5}}, ValueError, "norm 'column' needs q >= 2, inf included; got q = 1.5"),
    (
        {"hidden": {"norm": "row", "shape": "fan"}},
        ValueError,
        "unknown shape 'fan'; the words are rms, original, moonl",
    ),
    ({"hidden": {"norm": "spectral", "polar": "svd"}}, ValueError, "unknown polar 'svd'; the words are "),
    (
        {"hidden": {"norm": "row", "constraint": "stiefel"}},
        ValueError,
        "norm 'row', step 'fixed' and constraint 'stiefel' do not exist together; 'fixed' with 'decay' goes with every "
        "norm, and besides (norm step constraint): euclidean dual decay, sign dual decay, spectral dual decay, "
        "spectral trust_ratio decay, spectral fixed sphere, row fixed sphere, spectral fixed stiefel, spectral fixed r",
    ),
    ({"hidden": {"norm": "row", "step": "adaptive"}}, ValueError, "unknown step 'adaptive'; the words are fixed, dual"),
    (
        {"hidden": {"norm": "row", "constraint": "ball"}},
        ValueError,
        "unknown constraint 'ball'; the words are decay, s",
    ),
    ({"hidden": {"norm": "row", "average": "max"}}, ValueError, "unknown average 'max'; the words are mean, sum, none"),
    (
        {"hidden": {"norm": "row", "constraint": "sphere", "weight_decay": 0.1}},
        ValueError,
        "has 'weight_decay'; for norm 'row', constraint 'sphere' the keys are norm, p, average, momentum, lookahead",
    ),
    (
        {"hidden": {"norm": "sign", "average": "none", "momentum": 0.9}},
        ValueError,
        "has 'momentum'; for norm 'sign', average 'none' the keys are norm, shape, radius, average, weight_decay, step",
    ),
]


@pytest.mark.parametrize(("recipe", "error", "text"), BAD)
def test_bad_recipes(recipe, error, text):
    with pytest.raises(error, match=re.escape(text)):
        resolve_recipe(recipe)


BAD_OPTIONS = [  # recipe, options, text
    ("moga-row", {"p": 0.9}, "norm 'row' needs p >= 1, inf included; got p = 0.9"),
    ("moga-row", {"p": math.nan}, "norm 'row' needs p >= 1, inf included; got p = nan"),
    ("moga-column", {"q": 1}, "norm 'column' needs q >= 2, inf included; got q = 1"),
    ("muon", {"shape": "kimi"}, "unknown shape 'kimi'"),
    ("muon", {"polar": "newton"}, "unknown polar 'newton'"),
    ("muon", {"momentum": 1}, "momentum must be a number in [0, 1); got 1"),
]


@pytest.mark.parametrize(("recipe", "options", "text"), BAD_OPTIONS)
def test_option_values_out_of_range(recipe, options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        resolve_recipe(recipe, options)


VALUES = [  # key, good, bad
    ("momentum", (0, 0.95), (-0.1, 1, math.nan, True, "0.9", None)),
    ("lookahead", (None, 0, 0.9, "momentum"), (-0.1, 1.0, "auto")),
    ("betas", ((0.9, 0.999), [0, 0.5]), (0.9, (0.9,), (0.9, 1.0), (0.9, 0.9, 0.9))),
    ("eps", (0, 1e-8), (-1e-8, math.inf)),
    ("alpha", (0, 0.99), (-0.1, 1.0)),
    ("damping", (1e-4, 1), (0, -1, math.inf)),
    ("trust_clip", ((0.5, 1.5), [0, 5]), (1.0, (2, 1), (-1, 1), (0, math.inf))),
    ("calibration", ("none", "first_step"), ("first", None)),
    ("radius", (1, 50.0), (0, -1, math.inf)),
    ("weight_decay", (0, 0.1, 5), (-0.1, math.inf, None)),
    ("lr_scale", (0, 0.1, 10), (-1, math.nan)),
    ("decay_scale", (0, 1), (-1, "0")),
]


@pytest.mark.parametrize(("key", "good", "bad"), VALUES)
def test_ranges(key, good, bad):
    for value in good:
        plain = checked(key, value)
        assert plain == (list(value) if isinstance(value, tuple) else value)
        assert type(plain) in (float, list, str, type(None))
    for value in bad:
        with pytest.raises(ValueError, match=re.escape(f"{key} must be {CHECKS[key][1]}; got {value!r}")):
            checked(key, value)


def test_every_checked_key_is_in_the_table_above():
    assert [key for key, _, _ in VALUES] == list(CHECKS)


@pytest.mark.parametrize("norm,step,constraint", COMBINATIONS)
def test_every_key_of_an_update_has_a_check_or_a_table(norm, step, constraint):
    words = {"p", "q", "shape", "polar", "average", "step", "constraint"}
    keys = set(usable({"norm": norm, "step": step, "constraint": constraint}))
    assert keys <= words | set(CHECKS) and set(NUMBERS) <= set(CHECKS)
    full = complete_update({"norm": norm, "step": step, "constraint": constraint})
    assert complete_update({key: value for key, value in full.items() if key in (*keys, "norm")}) == full


@pytest.mark.parametrize("update", [ROW, COLUMN, SIGN, ADAM, MUON, PLAIN_ADAM, LION])
def test_a_complete_update_is_plain_and_stays_as_it_is(update):
    given = {key: value for key, value in update.items() if key in ("norm", *usable(update["norm"]))}
    assert complete_update(given) == update


def test_every_norm_has_a_plain_update():
    assert {norm for norm, step, constraint in COMBINATIONS if (step, constraint) == ("fixed", "decay")} == set(UPDATES)


def test_adam_is_measured_as_sign():
    assert operator_norm(ADAM) == operator_norm(SIGN)
