"""Every optimizer trains: a quadratic, a factorisation, a small network; and in half precision as well as in full."""

import pytest
import torch
from torch import nn

from moga.geometry.polar import polar_factor
from moga.optim import rounding


def orthogonal(out, in_, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.empty(out, in_)
    nn.init.orthogonal_(weight, generator=generator)
    return weight


def minimise(optimizer, loss_of, steps):
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / steps)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def test_a_quadratic(entry):
    """``|W - T|_F^2 / 2`` with both on the manifold, so that every constraint can reach the minimum."""
    target = orthogonal(4, 6, 0)
    weight = nn.Parameter(polar_factor(target + 0.4 * orthogonal(4, 6, 1)))
    optimizer = entry.optimizer([("w", weight)])
    losses = minimise(optimizer, lambda: 0.5 * ((weight - target) ** 2).sum(), 50)
    assert losses[-1] < 2e-2 * losses[0]


def test_a_matrix_factorisation(entry):
    target = orthogonal(6, 3, 0) @ orthogonal(3, 5, 1)
    a, b = nn.Parameter(orthogonal(6, 3, 2)), nn.Parameter(orthogonal(3, 5, 3))
    optimizer = entry.optimizer([("a", a), ("b", b)])
    losses = minimise(optimizer, lambda: 0.5 * ((a @ b - target) ** 2).sum(), 100)
    assert losses[-1] < 5e-2 * losses[0]


def train(entry, tools, dtype, steps=60, **options):
    """The mean loss of the last steps on a task that needs every parameter: the next token of a fixed table."""
    model = tools.Network(dtype)
    optimizer = entry.optimizer(model, lr=entry.lr / 4, **options)
    tokens, labels = torch.arange(7), torch.tensor([3, 1, 4, 1, 0, 2, 2])
    losses = minimise(optimizer, lambda: nn.functional.cross_entropy(model(tokens).float(), labels), steps)
    return losses[0], losses[-1]


def test_a_network(entry, tools):
    first, last = train(entry, tools, torch.float32)
    assert last < 0.8 * first


def truncated(x, dtype, generator=None):
    """The planted fault: what the dtype cannot hold is cut off, always towards zero."""
    dropped = rounding.DROPPED[dtype]
    return (x.contiguous().view(torch.int32) & -(1 << dropped)).view(torch.float32).to(dtype)


def loss_after_200_steps(entry, dtype, word):
    """Of ``|W - T|_F^2 / 2``, in steps of which bfloat16 cannot hold one."""
    target = orthogonal(16, 24, 0)
    weight = nn.Parameter(polar_factor(target + 0.6 * orthogonal(16, 24, 1)).to(dtype))
    optimizer = entry.optimizer([("w", weight)], lr=entry.lr / entry.slow, rounding=word)
    for _ in range(200):
        weight.grad = (weight.detach().float() - target).to(dtype)
        optimizer.step()
    return 0.5 * (weight.detach().float() - target).square().sum().item()


def test_low_precision_with_stochastic_rounding_and_not_with_truncation(entry, monkeypatch):
    exact = loss_after_200_steps(entry, torch.float32, "nearest")
    for dtype in (torch.bfloat16, torch.float16):
        assert loss_after_200_steps(entry, dtype, "stochastic") == pytest.approx(exact, rel=0.02), dtype
    monkeypatch.setattr(rounding, "stochastic", truncated)
    assert abs(loss_after_200_steps(entry, torch.bfloat16, "stochastic") / exact - 1) > 0.02


@pytest.mark.parametrize("name", ["moga-row", "adamw", "muown", "hyperp", "spel"])  # one of each way to move a weight
def test_rounding_to_the_nearest_loses_such_steps(tools, name):
    entry = next(one for one in tools.ENTRIES if one.name == name)
    exact = loss_after_200_steps(entry, torch.float32, "nearest")
    assert abs(loss_after_200_steps(entry, torch.bfloat16, "nearest") / exact - 1) > 0.02


def test_averages_in_bfloat16(entry, tools):
    """Half the memory, and nearly the same training."""
    _, full = train(entry, tools, torch.float32, steps=25)
    _, half = train(entry, tools, torch.float32, steps=25, state_dtype="bfloat16", rounding="stochastic")
    assert half == pytest.approx(full, rel=0.1, abs=0.02)
