import math

import pytest
import torch

from moga import norm
from moga.rules.transfer import effective_fan, initial_std, logit_multiplier

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


@pytest.mark.parametrize(("base_width", "width", "word"), [(0, 4, "base_width"), (4, 2.0, "width"), (True, 4, "base_")])
def test_no_width(base_width, width, word):
    with pytest.raises(ValueError, match=f"{word}.* must be a whole number of at least 1, the number of features; got"):
        logit_multiplier(base_width, width)
