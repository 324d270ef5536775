"""Stochastic rounding: unbiased, exact where nothing is lost, and equal on every rank."""

import math

import pytest
import torch

from moga.optim.rounding import DROPPED, Noise, stochastic, write_

every_dtype = pytest.mark.parametrize("dtype", DROPPED)


@every_dtype
@pytest.mark.parametrize("value", [1.001, -0.3333, 3.3e-5, -7.7e-7, 1e-7, 40001.0])
def test_it_is_a_neighbour_and_right_on_average(dtype, value):
    x = torch.full((40000,), value)
    rounded = stochastic(x, dtype, torch.Generator().manual_seed(0))
    low, high = rounded.min().item(), rounded.max().item()
    assert low <= x[0].item() <= high and len(rounded.unique()) <= 2
    deviation = (high - low) / 2 / math.sqrt(len(x))
    assert abs(rounded.double().mean().item() - x[0].item()) <= 4 * deviation


@every_dtype
def test_what_the_dtype_holds_stays_as_it_is(dtype):
    x = torch.randn(1000).to(dtype)
    x[:5] = torch.tensor([0.0, math.inf, -math.inf, 2.0**-24, -0.0], dtype=dtype)
    assert torch.equal(stochastic(x.float(), dtype), x)
    assert stochastic(torch.tensor([math.nan]), dtype).isnan().all()


def test_noise_depends_on_its_seed_and_the_name_alone():
    x, target, other = torch.randn(100), torch.empty(100), torch.empty(100)
    names = {id(target): "w", id(other): "v"}
    first = stochastic(x, torch.bfloat16, Noise(3, names).of(target))
    torch.manual_seed(99)
    noise = Noise(3, names)
    second = stochastic(x, torch.bfloat16, noise.of(other))
    assert torch.equal(first, stochastic(x, torch.bfloat16, noise.of(target)))
    assert not torch.equal(first, second)
    assert not torch.equal(first, stochastic(x, torch.bfloat16, Noise(4, names).of(target)))
    unnamed = Noise(3)
    assert not torch.equal(*(stochastic(x, torch.bfloat16, unnamed.of(target)) for _ in range(2)))


def test_writing_rounds_as_the_word_says():
    values = [torch.full((1000,), 1 + 2**-9)]
    nearest, random = ([torch.zeros(1000, dtype=torch.bfloat16)] for _ in range(2))
    write_(nearest, values, "nearest", None)
    write_(random, values, "stochastic", Noise(0))
    assert nearest[0].unique().tolist() == [1.0] and random[0].unique().tolist() == [1.0, 1.0078125]


def test_a_run_with_random_rounding_goes_on_as_if_it_had_not_stopped(tools):
    entry = tools.ENTRIES[0]
    first, second = tools.Network(torch.bfloat16), tools.Network(torch.bfloat16)
    one, two = (entry.optimizer(model, rounding="stochastic") for model in (first, second))
    tools.run(first.parameters(), one, range(3))
    two.load_state_dict(one.state_dict())
    second.load_state_dict(first.state_dict())
    a, b = tools.run(first.parameters(), one, [5, 6]), tools.run(second.parameters(), two, [5, 6])
    torch.testing.assert_close(a, b, rtol=0, atol=0)
