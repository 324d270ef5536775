import math

import pytest
import torch

from moga import norm
from moga.rules.transfer import (
    adamw_decay,
    adamw_rate,
    branch_multiplier,
    effective_fan,
    follows_width,
    initial_std,
    logit_multiplier,
    table_factor,
    width_factor,
)

FANS = [  # role, out, in, lookup, fan
    ("hidden", 256, 64, False, (256, 64)),
    ("input", 64, 50257, True, (64, 1)),
    ("input", 64, 784, False, (64, 784)),
    ("output", 50257, 64, False, (1, 64)),
    ("tied", 64, 50257, True, (64, 1)),
    ("vector", 64, 1, False, (1, 1)),
]


@pytest.mark.parametrize(("role", "out", "in_", "lookup", "fan"), FANS)
def test_effective_fan(role, out, in_, lookup, fan):
    assert effective_fan(role, out, in_, lookup) == fan


def test_effective_fan_of_an_unknown_role():
    with pytest.raises(ValueError, match="unknown role 'head'; the roles are input, hidden, output, tied, vector"):
        effective_fan("head", 4, 4)


STDS = [  # role, out, in, lookup, standard deviation
    ("hidden", 64, 64, False, 1 / 8),
    ("hidden", 256, 64, False, 1 / 8),
    ("hidden", 64, 256, False, 1 / 32),
    ("input", 64, 16, False, 1 / 4),
    ("input", 64, 50257, True, 1.0),
    ("output", 50257, 64, False, 0.0),
    ("tied", 64, 50257, True, 1 / 8),
]


@pytest.mark.parametrize(("role", "out", "in_", "lookup", "std"), STDS)
def test_initial_std(role, out, in_, lookup, std):
    assert initial_std(role, out, in_, lookup) == pytest.approx(std, rel=1e-12)


def test_a_vector_has_no_random_start():
    with pytest.raises(
        ValueError, match="role 'vector' has no random start; the roles that have one are input, hidden"
    ):
        initial_std("vector", 4, 1)


@pytest.mark.parametrize(("out", "in_"), [(400, 400), (800, 200), (200, 800), (1200, 100), (100, 1200)])
def test_a_hidden_matrix_starts_at_one_plus_the_root_of_its_aspect(out, in_):
    torch.manual_seed(0)
    W = torch.randn(out, in_, dtype=torch.float64) * initial_std("hidden", out, in_)
    assert float(norm("spectral").measure(W)) == pytest.approx(1 + math.sqrt(min(out, in_) / max(out, in_)), rel=0.05)


@pytest.mark.parametrize(("base_width", "width", "multiplier"), [(64, 64, 1.0), (64, 512, 0.125), (96, 64, 1.5)])
def test_logit_multiplier(base_width, width, multiplier):
    assert logit_multiplier(base_width, width) == multiplier
    assert initial_std("tied", width, 9, logit_scale=multiplier) == pytest.approx(base_width**-0.5, rel=1e-12)


@pytest.mark.parametrize("roots", [0, 1, 2])
def test_what_a_model_does_by_roots_of_the_width_is_left_out_of_the_multiplier(roots):
    """The step of a logit: multiplier * products that add up * step of an entry, with one root in either factor."""
    steps = []
    for width in (64, 256):
        added_up = width / (math.sqrt(width) if roots == 2 else 1)
        entry = 1 / (math.sqrt(width) if roots else 1)
        steps.append(logit_multiplier(64, width, roots) * added_up * entry)
    assert steps[0] == pytest.approx(steps[1], rel=1e-12)


def test_a_lookup_that_the_model_multiplies():
    assert initial_std("input", 64, 9, lookup=True, multiplier=12.0) == pytest.approx(1 / 12)
    for logits in (1.0, 0.5):  # by sqrt(width): the start is 1 / sqrt(width); by a constant: as without it
        assert initial_std("tied", 64, 9, logit_scale=logits, multiplier=8.0) == pytest.approx(1 / 8)
        assert initial_std("tied", 64, 9, logit_scale=logits, multiplier=12.0) == pytest.approx((64 * logits) ** -0.5)
    assert follows_width(table_factor(1152) * (1 + 2**-9), 1152)  # as bfloat16 rounds it
    assert not follows_width(table_factor(1152) * 1.01, 1152)
    with pytest.raises(ValueError, match="width must be a whole number of at least 1, the number of features; got 0"):
        table_factor(0)


@pytest.mark.parametrize(("base_width", "width", "word"), [(0, 4, "base_width"), (4, 2.0, "width"), (True, 4, "base_")])
def test_no_width(base_width, width, word):
    with pytest.raises(ValueError, match=f"{word}.* must be a whole number of at least 1, the number of features; got"):
        logit_multiplier(base_width, width)


WIDTH_FACTORS = [  # norm, exponents, at 4 times the width: hidden, input, output, vector
    ("sign", {}, (1 / 4, 1, 1 / 4, 1)),
    ("row", {"p": 2}, (1 / 2, 1, 1 / 2, 1)),
    ("row", {"p": 1}, (1 / 4, 1, 1 / 4, 1)),
    ("column", {"q": 2}, (1 / 2, 2, 1 / 4, 1)),
    ("column", {"q": math.inf}, (1 / 4, 1, 1 / 4, 1)),
    ("spectral", {}, (1, 2, 1 / 2, 1)),
]


@pytest.mark.parametrize(("name", "exponents", "factors"), WIDTH_FACTORS)
def test_width_factor(name, exponents, factors):
    roles = ("hidden", "input", "output", "vector")
    assert tuple(width_factor(norm(name, **exponents), role, 64, 256) for role in roles) == pytest.approx(factors)
    assert {width_factor(norm(name, **exponents), role, 64, 64) for role in roles} == {1.0}


def test_width_factor_is_what_keeps_the_size_of_a_step():
    """A matrix of unit entries' signs at both widths, each times its factor, has the same size."""
    torch.manual_seed(0)
    for name in ("sign", "row", "column", "spectral"):
        sizes = []
        for width in (16, 64):
            step = norm(name).direction(torch.randn(width, width, dtype=torch.float64)) / norm(name).scale(width, width)
            sizes.append(
                float(
                    norm(name).measure(step * norm(name).scale(16, 16) * width_factor(norm(name), "hidden", 16, width))
                )
            )
        assert sizes == pytest.approx([1.0, 1.0])


def test_adamw_rate_and_decay():
    """The decay is published as sqrt(width) where a step removes lr / width of it: 1 / sqrt(width) of lr."""
    assert adamw_rate(3e-4, 256, 1024) == pytest.approx(0.75e-4)
    assert adamw_decay(0.1, 256, 1024) == pytest.approx(0.05)
    published = 0.1 * math.sqrt(1024 / 256)
    assert 3e-4 * adamw_decay(0.1, 256, 1024) == pytest.approx(adamw_rate(3e-4, 256, 1024) * published)


MULTIPLIERS = [  # rule, depth, base depth, branches per block, multiplier
    ("1/K", 10, None, 2, 1 / 10),
    ("1/K", 10, 5, 3, 1 / 2),
    ("1/sqrt(2K)", 8, None, 2, 1 / 4),
    ("1/sqrt(2K)", 9, None, 1, 1 / 3),
    ("1/sqrt(2K)", 9, 1, 2, 1 / 3),
    ("none", 9, 1, 2, 1.0),
]


@pytest.mark.parametrize(("rule", "depth", "base_depth", "branches", "multiplier"), MULTIPLIERS)
def test_branch_multiplier(rule, depth, base_depth, branches, multiplier):
    assert branch_multiplier(rule, depth, base_depth, branches) == pytest.approx(multiplier, rel=1e-12)


def test_no_depth():
    with pytest.raises(
        ValueError, match="base_depth must be a whole number of at least 1, the number of blocks; got 0"
    ):
        branch_multiplier("1/K", 4, 0)
    with pytest.raises(ValueError, match="unknown depth rule '2K'; the rules are 1/K, 1/sqrt.2K., none"):
        branch_multiplier("2K", 4)
