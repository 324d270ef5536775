"""What every rank of a launch does and finds; each function is one case."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from distributed.tensors import SPECS, gradients, groups_of, shard, weights
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import moga

# where the axes of a parameter are cut: counted from the end if negative
CUTS = {"first": 0, "second": 1, "last": -1, "whole": None}

# All parameters for the recipes that take every route, these for the others.
THOROUGH = ("moga-row", "moga-column", "muon", "adamw")
SOME = ["seven", "three rows", "stored (in, out)", "query, key, value", "interleaved", "experts", "embedding", "gain"]


def line() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def placement(cut: str, value: Tensor) -> Replicate | Shard:
    axis = CUTS[cut]
    if axis is None:
        return Replicate()
    return Shard(min(axis, value.ndim - 1) if axis >= 0 else value.ndim + axis)


class Twins:
    """The same parameters whole and sharded, with an optimizer each."""

    def __init__(self, recipe: object, names: list[str], mesh: DeviceMesh, placements, **options) -> None:
        own = {
            key: options.pop(key) for key in ("nonfinite", "rounding", "state_dtype", "polar_dtype") if key in options
        }
        values = weights(names, options.pop("dtype", torch.float32))
        lr, distribute = options.pop("lr", 0.02), options.pop("distribute", "none")
        self.mesh, self.placements = mesh, {name: placements(name, value) for name, value in values.items()}
        self.whole = {name: nn.Parameter(value.clone()) for name, value in values.items()}
        self.sharded = {name: nn.Parameter(self.cut(name, value)) for name, value in values.items()}
        self.plain = moga.SteepestDescent(groups_of(recipe, self.whole, **options), lr, **own)
        self.spread = moga.SteepestDescent(groups_of(recipe, self.sharded, **options), lr, **own, distribute=distribute)

    def cut(self, name: str, value: Tensor) -> Tensor:
        return shard(value, self.mesh, self.placements[name])

    def fill(self, seed: int) -> None:
        for name, grad in gradients(list(self.whole), seed).items():
            self.whole[name].grad = grad.to(self.whole[name].dtype)
            self.sharded[name].grad = self.cut(name, self.whole[name].grad)

    def run(self, steps: int) -> None:
        for seed in range(steps):
            self.fill(seed)
            self.plain.step()
            self.spread.step()

    def differences(self) -> dict[str, float]:
        """The largest difference of each weight and each tensor of its state, over its largest entry."""
        found = {}
        for name, weight in self.whole.items():
            found[name] = relative(self.sharded[name], weight)
            mine, other = self.spread.state[self.sharded[name]], self.plain.state[weight]
            assert mine.keys() == other.keys()
            found |= {f"{name} {key}": relative(mine[key], other[key]) for key in other}
        return found

    def check(self, tolerance: float = 1e-6) -> None:
        wrong = {name: size for name, size in self.differences().items() if not size <= tolerance}
        assert not wrong, wrong


def relative(value: Tensor, expected: Tensor) -> float:
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    assert value.shape == expected.shape and value.dtype == expected.dtype
    return float((value - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def decayed(recipe: str) -> dict[str, float]:
    return {} if recipe in ("hyperp", "spel", "row-on-sphere") else {"weight_decay": 0.1}


def cut_everywhere(recipe: object, names: Iterable[str], **options: object) -> Twins:
    """Every parameter four times: cut along its first, second and last axis, and not cut."""
    names = [f"{name}/{cut}" for name in names for cut in CUTS]
    return Twins(recipe, names, line(), lambda name, value: [placement(name.split("/")[1], value)], **options)


def steps(recipe: str) -> None:
    """Ten steps of every parameter, cut along each of its axes, equal those of one process."""
    twins = cut_everywhere(recipe, SPECS if recipe in THOROUGH else SOME, **decayed(recipe))
    twins.run(10)
    twins.check()


def exponent(norm: str, value: str) -> None:
    """Every exponent, also those that need two rounds, and gradients whose powers leave float32."""
    letter = {"row": "p", "column": "q"}[norm]
    update = {"norm": norm, letter: float(value)}
    for size in (1e-25, 1.0, 1e25):
        twins = cut_everywhere(dict.fromkeys(("hidden", "input", "output", "vector"), update), SOME)
        for seed in range(3):
            twins.fill(seed)
            for weight in [*twins.whole.values(), *twins.sharded.values()]:
                weight.grad *= size
            for name in twins.whole:  # entries of equal size, and a row and a column of zeros
                tie(twins.whole[name].grad)
                twins.sharded[name].grad = twins.cut(name, twins.whole[name].grad)
            twins.plain.step()
            twins.spread.step()
        twins.check()


def tie(grad: Tensor) -> None:
    flat = grad.view(grad.shape[0], -1)
    flat[:, -1] = flat.abs().amax(1)
    flat[-1] = flat.abs().amax(0)
    flat[0], flat[:, 0] = 0, 0


def precision(dtype: str, recipe: str) -> None:
    """Other dtypes: float64 to its own rounding, bfloat16 to its last bit."""
    twins = cut_everywhere(recipe, SOME, dtype=getattr(torch, dtype))
    twins.run(4)
    twins.check({"float64": 1e-12, "bfloat16": 2**-7}[dtype])


def replaced() -> None:
    """Rows that somebody else has written start anew, on shards as in one process."""
    twins = cut_everywhere("muown", SOME)
    twins.run(1)
    with torch.no_grad():
        for weight in [*twins.whole.values(), *twins.sharded.values()]:
            weight.mul_(3)
    twins.run(2)
    twins.check()
