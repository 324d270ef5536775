import re

import pytest

from moga.rules.patterns import match_patterns

NAMES = [("a.weight", "b.weight"), ("a.bias",)]


def test_any_name_of_a_parameter_matches():
    assert list(match_patterns("roles", {"b.*": 1, "a.*": 2}, NAMES)) == [("b.*", 1, [0]), ("a.*", 2, [0, 1])]


def test_nothing_stated_matches_nothing():
    assert list(match_patterns("roles", None, NAMES)) == []


def test_case_matters():
    with pytest.raises(ValueError, match="matches no parameter"):
        list(match_patterns("roles", {"A.*": 1}, NAMES))


def test_a_pattern_that_matches_nothing_lists_the_names():
    text = "the pattern 'c.*' in overrides matches no parameter; the names are: a.weight, b.weight, a.bias"
    with pytest.raises(ValueError, match=re.escape(text)):
        list(match_patterns("overrides", {"c.*": 1}, NAMES))


@pytest.mark.parametrize("piece", ["qkv", "*qkv", "qkv*", "attn.qkv"])
def test_a_piece_of_a_name_gets_the_pattern_that_covers_it(piece):
    names = [("h.0.attn.qkv.weight",), ("h.0.mlp.weight",), ("h.1.attn.qkv.weight",)]
    text = (
        f"the pattern {piece!r} in roles matches no parameter; a pattern covers whole names: '*{piece.strip('*')}*' "
        "matches 2 of them, such as h.0.attn.qkv.weight"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        list(match_patterns("roles", {piece: 1}, names))


def test_of_many_names_the_first_are_listed():
    names = [(f"w{index}",) for index in range(45)]
    with pytest.raises(ValueError, match=r"the names are: w0, w1, .*, w39, and 5 more$"):
        list(match_patterns("roles", {"x": 1}, names))


def test_a_list_is_no_set_of_patterns():
    with pytest.raises(TypeError, match="roles must be a dict from patterns of parameter names; got list"):
        list(match_patterns("roles", ["a.*"], NAMES))
