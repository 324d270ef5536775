"""What width does: the spectral norm of a step of signs, and ten steps of Adam in a network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from figures.classical import slope
from torch import Tensor, nn

import moga

WIDTHS = (64, 128, 256, 512, 1024, 2048)
RANKS = (1, 4, 16, 0)  # 0: dense
RATES = {"adamw": 1e-4, "mup-adamw": 64 * 1e-4}  # the same step at width 64
ROLES = {"0.weight": "input", "2.weight": "hidden", "4.weight": "output"}
STEPS = 10


def largest_singular_value(W: Tensor) -> float:
    """``|W|_2``, from below, by subspace iteration: a whole decomposition at 2048 takes seconds."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return float(torch.svd_lowrank(W, q=24, niter=12)[1][0])


def gradient(n: int, rank: int, seed: int) -> Tensor:
    """``A B^T`` with normal A, B (n, rank), or a normal (n, n) where rank is 0."""
    generator = torch.Generator().manual_seed(seed)
    if not rank:
        return torch.randn(n, n, generator=generator)
    return torch.randn(n, rank, generator=generator) @ torch.randn(rank, n, generator=generator)


def sign_step(G: Tensor) -> Tensor:
    """sign(G): the direction of the norm "sign" without its scale."""
    return moga.norm("sign").direction(G, fan=(1, 1))


@cache
def sign_sizes(rank: int) -> list[float]:
    """``|sign(G)|_2`` at each of the widths, the geometric mean of three G."""
    sizes = []
    for n in WIDTHS:
        drawn = [largest_singular_value(sign_step(gradient(n, rank, seed))) for seed in range(3)]
        sizes.append(math.exp(sum(map(math.log, drawn)) / len(drawn)))
    return sizes


def sign_slope(rank: int) -> float:
    return slope(list(WIDTHS), sign_sizes(rank))


def limit(rank: int) -> float:
    """``E |w_1|`` of a random unit vector w with ``rank`` entries: the limit of ``|sign(G)|_2 / n``."""
    return math.exp(math.lgamma(rank / 2) - math.lgamma((rank + 1) / 2)) / math.sqrt(math.pi)


@dataclass(frozen=True)
class Moved:
    """What ten steps did to the hidden matrix W of a network of one width."""

    spectral: float  # |W_10 - W_0|_2
    effect: float  # root mean square of (W_10 - W_0) h, for the h that enter W
    loss: float  # at the tenth step


@cache
def train(recipe: str, n: int, lr: float | None = None) -> Moved:
    """Ten steps on 64 points of ``y = sin(2 x u)``, x (64, 16), with three layers, tanh and mean squared error."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 16, generator=generator)
    y = torch.sin(x @ torch.randn(16, 1, generator=generator) / 2)
    layers = [nn.Linear(*sides, bias=False, device="meta") for sides in ((16, n), (n, n), (n, 1))]
    net = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2]).to_empty(device="cpu")
    moga.initialize_(net, recipe, roles=ROLES, generator=torch.Generator().manual_seed(1))
    optimizer = moga.optimizer(net, recipe, lr=RATES[recipe] if lr is None else lr, roles=ROLES)
    start = layers[1].weight.detach().clone()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    change = layers[1].weight.detach() - start
    effect = torch.tanh(layers[0](x)).detach() @ change.mT
    return Moved(largest_singular_value(change), float(effect.square().mean().sqrt()), float(loss.detach()))


def trained(recipe: str, what: str) -> list[float]:
    """``spectral``, ``effect`` or ``loss`` at each of the widths."""
    return [getattr(train(recipe, n), what) for n in WIDTHS]


def trained_slope(recipe: str, what: str) -> float:
    return slope(list(WIDTHS), trained(recipe, what))
