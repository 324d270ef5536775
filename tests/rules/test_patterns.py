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


def test_a_list_is_no_set_of_patterns():
    with pytest.raises(TypeError, match="roles must be a dict from patterns of parameter names; got list"):
        list(match_patterns("roles", ["a.*"], NAMES))
