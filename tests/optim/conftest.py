"""The table of all optimizers that drives the common tests: a test with the argument ``entry`` runs for every row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import moga

ADAM = {"norm": "adam", "shape": "none"}
MIXTURE = {
    "hidden": {"norm": "row", "constraint": "sphere", "momentum": 0.95},
    **dict.fromkeys(("input", "output", "vector"), ADAM),
}


@dataclass(frozen=True)
class Entry:
    """A recipe with a learning rate at which it trains the network below.

    At ``lr / slow`` a step changes a weight by about 2^-10 of itself: less than bfloat16 can hold.
    """

    name: str
    lr: float
    slow: float
    options: dict[str, Any] = field(default_factory=dict)
    recipe: Any = None

    def optimizer(self, model: Any, lr: float | Tensor | None = None, **options: Any) -> moga.SteepestDescent:
        """The row's optimizer on a :class:`Network`, or on named tensors that are all hidden."""
        own = {"roles": ROLES if isinstance(model, nn.Module) else {"*": "hidden"}, **self.options, **options}
        return moga.optimizer(model, self.recipe or self.name, lr=self.lr if lr is None else lr, **own)


ENTRIES = [
    Entry("moga-row", 0.2, 128),
    Entry("moga-column", 0.2, 128),
    Entry("muon", 0.2, 256),
    Entry("muon", 0.2, 256, {"shape": "original"}),
    Entry("muon", 0.08, 256, {"shape": "moonlight"}),
    Entry("mup-adamw", 0.2, 64),
    Entry("adamw", 0.04, 256),
    Entry("lion", 0.04, 512),
    Entry("sgd", 0.4, 512),
    Entry("heavy-ball", 0.06, 512),
    Entry("rmsprop", 0.02, 256),
    Entry("adam", 0.04, 256),
    Entry("signsgd", 0.02, 256),
    Entry("rmnp", 0.08, 256),
    Entry("scion", 2e-3, 128, {"weight_decay": 0.0}),
    Entry("shampoo", 0.04, 64),
    Entry("shampoo-accumulated", 0.2, 64),
    Entry("muown", 0.16, 256),
    Entry("orscale", 0.08, 128),
    Entry("orscale-lm", 0.08, 128),
    Entry("hyperp", 0.08, 128),
    Entry("spel", 0.08, 128),
    Entry("row-on-sphere", 0.08, 128, recipe=MIXTURE),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entry" in metafunc.fixturenames:
        ids = ["-".join([one.name, *map(str, one.options.values())]) for one in ENTRIES]
        metafunc.parametrize("entry", ENTRIES, ids=ids)


class Network(nn.Module):
    """Every role once: tokens (n,) -> logits (n, 5)."""

    def __init__(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = nn.Embedding(7, 6)
            self.up = nn.Linear(6, 8)
            self.down = nn.Linear(8, 6, bias=False)
            self.head = nn.Linear(6, 5, bias=False)
            for weight in (self.up.weight, self.down.weight):
                nn.init.orthogonal_(weight)
        self.to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.down(torch.tanh(self.up(x))))


ROLES = {"up.weight": "hidden", "down.weight": "hidden", "head.weight": "output"}


def fill(weights: Any, seed: int, bad: float | None = None, size: float = 1.0) -> None:
    """Give every weight a gradient of random numbers; the last one ends in ``bad``."""
    generator = torch.Generator().manual_seed(seed)
    weights = list(weights)
    for weight in weights:
        weight.grad = (size * torch.randn(weight.shape, generator=generator)).to(weight.dtype)
    if bad is not None:
        weights[-1].grad.view(-1)[-1] = bad


def run(weights: Any, optimizer: torch.optim.Optimizer, seeds: Any) -> list[Tensor]:
    """Take a step for every seed and return copies of the weights."""
    weights = list(weights)
    for seed in seeds:
        fill(weights, seed)
        optimizer.step()
    return [weight.detach().clone() for weight in weights]


@pytest.fixture
def tools() -> Any:
    """This module, for tests that build their own networks and gradients."""
    import sys

    return sys.modules[__name__]
