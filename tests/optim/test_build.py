"""``moga.optimizer``: the keywords that help() shows are those that it takes, and errors answer in our words."""

import inspect
import pydoc
import re
import typing

import pytest
import torch
from torch import nn

import moga
from moga.optim.build import Keywords, Own
from moga.rules.keywords import keywords_of
from moga.rules.options import OPTIONS, Options
from moga.rules.torch_words import INSTEAD, TORCH

W = [("w", nn.Parameter(torch.ones(3, 2)))]
ROLES = {"w": "hidden"}
GROUP_OWN = ["base", "roles", "overrides", "decay_vectors"]


def names(function):
    return [one.name for one in keywords_of(function)]


OWN = set(Own.__annotations__)


def test_help_shows_every_keyword():
    assert names(moga.param_groups) == [*GROUP_OWN, *OPTIONS]
    assert names(moga.optimizer) == [*names(moga.param_groups), *(n for n in names(moga.SteepestDescent) if n in OWN)]
    text = pydoc.render_doc(moga.optimizer)
    assert "options" not in inspect.signature(moga.optimizer).parameters
    assert all(f" {name}: " in text for name in names(moga.optimizer))
    assert "lookahead: 'float | str | None' = <the recipe's>, " in text and "nonfinite: 'str' = 'skip'" in text


def test_what_the_optimizer_is_given_and_no_recipe_takes():
    assert OWN == set(names(moga.SteepestDescent)) - set(OPTIONS)


def test_editors_are_told_the_same_keywords():
    """They read the annotation of ``**options``, not the signature."""
    hints = typing.get_type_hints(Keywords)
    assert set(hints) == set(names(moga.optimizer))
    own = {key: hint for key, hint in typing.get_type_hints(moga.SteepestDescent.__init__).items() if key in OWN}
    assert {key: hints[key] for key in OWN} == own
    groups = typing.get_type_hints(moga.param_groups)
    assert {key: hints[key] for key in GROUP_OWN} == {key: groups[key] for key in GROUP_OWN}
    assert {key: hints[key] for key in OPTIONS} == typing.get_type_hints(Options)


def test_every_keyword_is_taken():
    """Each one, with the value that the signature shows or one that a recipe can use."""
    values = {"p": 2, "q": 2, "shape": "rms", "polar": "exact", "momentum": 0.9, "lookahead": None, "eps": 1e-8}
    values |= {"betas": (0.9, 0.99), "alpha": 0.9, "damping": 1e-3, "trust_clip": (0.1, 2), "weight_decay": 0.1}
    recipe = {"p": "moga-row", "q": "moga-column", "alpha": "rmsprop", "damping": "shampoo-accumulated"}
    recipe["trust_clip"] = "orscale"
    for one in keywords_of(moga.optimizer):
        given = {one.name: values.get(one.name, one.default), "roles": ROLES}
        made = moga.optimizer(W, recipe.get(one.name, "muon"), lr=0.1, **given)
        assert isinstance(made, moga.SteepestDescent)


# Words of torch


def of_torch():
    kinds = (kind for kind in vars(torch.optim).values() if isinstance(kind, type))
    kinds = [kind for kind in kinds if issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer]
    return {word for kind in kinds for word in inspect.signature(kind).parameters} - {"params"}


def test_every_keyword_of_torch_is_ours_or_has_an_answer():
    assert of_torch() - {"lr"} <= set(names(moga.optimizer)) | set(TORCH)
    assert not set(TORCH) & set(names(moga.optimizer))
    assert set(INSTEAD) <= set(names(moga.optimizer))


@pytest.mark.parametrize("word", sorted(set(TORCH) - {"lr"}))
def test_a_word_of_torch_is_answered_in_ours(word):
    text = f"moga.optimizer has no keyword {word!r}; the keywords are base, roles, .*polar_dtype. Here {word} is "
    with pytest.raises(ValueError, match=f"^{text}{re.escape(TORCH[word])}$"):
        moga.optimizer(W, "muon", lr=0.1, roles=ROLES, **{word: 1})


def test_words_in_the_answers_exist():
    text = " ".join([*TORCH.values(), *(text for _, text in INSTEAD.values())])
    for word in ("polar", "implementation", "weight_decay", "lookahead", "momentum", "shape", "betas"):
        assert word in names(moga.optimizer) and word in text
    for answer in ({"polar": "quintic"}, {"shape": "original"}, {"shape": "moonlight"}, {"lookahead": "momentum"}):
        moga.optimizer(W, "muon", lr=0.1, roles=ROLES, **answer)
    for answer in ("mean", "sum"):
        moga.optimizer(W, {"hidden": {"norm": "row", "average": answer}}, lr=0.1, roles=ROLES)


def test_a_word_that_nobody_knows_gets_the_keywords_alone():
    with pytest.raises(ValueError, match=r"moga.optimizer has no keyword 'roundng'; the keywords are .*, polar_dtype$"):
        moga.optimizer(W, "muon", lr=0.1, roles=ROLES, roundng="nearest")
