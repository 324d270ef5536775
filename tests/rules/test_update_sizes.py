"""One step of every norm recipe on every decoder: each matrix moves by lr in its own norm, however it is stored."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from models.decoders import DECODERS, build
from torch import Tensor, nn

import moga
from moga.geometry.layout import logical_matrices
from moga.geometry.norms import NORMS
from moga.rules.recipes import RECIPES, resolve_recipe
from moga.rules.roles import Assignment, find_roles
from moga.rules.updates import operator_norm, usable

LR = 0.3
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("moga-row", "moga-column", "muon", "lion", "signsgd", "rmnp", "scion", "shampoo")},
    "moga-row p=1.5": ("moga-row", {"p": 1.5}),
    "moga-column q=4": ("moga-column", {"q": 4.0}),
}
every_family = pytest.mark.parametrize("family", DECODERS)
every_case = pytest.mark.parametrize("case", CASES)


def is_norm_recipe(name: str) -> bool:
    """Whether a hidden matrix takes fixed steps of steepest descent under a norm, with nothing but decay beside it."""
    hidden = resolve_recipe(name)["hidden"]
    return hidden["norm"] in NORMS and (hidden["step"], hidden["constraint"]) == ("fixed", "decay")


def test_the_cases_hold_every_norm_recipe():
    assert {name for name, _ in CASES.values()} == {name for name in RECIPES if is_norm_recipe(name)}


def in_units(case: str) -> dict[str, dict[str, Any]]:
    """The recipe of a case in the norm's own scale, with the exact polar factor, without decay."""
    name, options = CASES[case]
    wanted = {"shape": "rms", "weight_decay": 0.0, "polar": "exact", "eps": 0.0}
    found = {}
    for role, update in resolve_recipe(name, options).items():
        keys = {"norm", *usable(update)}
        changed = {**update, **wanted}
        found[role] = {key: value for key, value in changed.items() if key in keys and value is not None}
    return found


def random(tensor: Tensor, seed: int) -> Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sizes(one: Decoder, groups: list[dict[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """How far each logical matrix moved, in units of lr (and of the radius, where the recipe has one).

    A table's rows are measured as the model passes them on.
    """
    multipliers = {assigned.name: assigned.multiplier for assigned in one.assignments}
    for group in groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            moved = (parameter.detach() - one.before[parameter]) * multipliers[name]
            blocks = logical_matrices(moved, group["layout"], group["blocks"], group["interleave"])
            for block, fan in zip(blocks, group["fan"], strict=True):
                yield name, operator_norm(group).measure(block, fan=tuple(fan)) / (LR * group.get("radius", 1.0))


@dataclass
class Decoder:
    """A model with random gradients, and its weights at the start."""

    model: nn.Module
    before: dict[Tensor, Tensor]
    assignments: list[Assignment]

    def groups(self, case: str) -> list[dict[str, Any]]:
        """The groups of a case, with the weights back at the start."""
        with torch.no_grad():
            for parameter, value in self.before.items():
                parameter.copy_(value)
        return moga.param_groups(self.model, in_units(case))


@functools.cache
def decoder(family: str) -> Decoder:
    model = build(family, 32).double()
    for seed, parameter in enumerate(model.parameters()):
        parameter.grad = random(parameter, seed)
    before = {parameter: parameter.detach().clone() for parameter in model.parameters()}
    return Decoder(model, before, find_roles(model))


@functools.cache
def stepped(family: str, case: str) -> tuple[list[tuple[str, Tensor]], dict[tuple[str, int], Tensor]]:
    """The size of the step of each logical matrix, and the matrices after it, by their places."""
    one = decoder(family)
    groups = one.groups(case)
    moga.SteepestDescent(groups, lr=LR).step()
    return list(sizes(one, groups)), places(one.assignments)


@every_case
@every_family
def test_every_logical_matrix_moves_by_lr_in_its_own_norm(family, case):
    measured, _ = stepped(family, case)
    assert {name for name, _ in measured} == {one.name for one in decoder(family).assignments}
    for name, size in measured:
        assert ((size - 1).abs() <= 1e-4).all(), f"{name}: {size}"


def test_a_scale_that_is_wrong_by_a_thousandth_is_seen():
    """The control of the test above."""
    one = decoder("llama")
    groups = one.groups("moga-row")
    for group in groups:
        group["scale"] *= 1.001
    moga.SteepestDescent(groups, lr=LR).step()
    for _, size in sizes(one, groups):
        assert ((size - 1).abs() > 1e-4).all()


def pieces(one: Assignment, tensor: Tensor) -> list[Tensor]:
    """Every logical matrix (out, in) of a tensor, one by one; of a vector, the tensor."""
    if one.role == "vector":
        return [tensor]
    blocks = logical_matrices(tensor, one.layout, one.blocks, one.interleave)
    return [matrix for block in blocks for matrix in block.reshape(-1, *block.shape[-2:])]


def places(assignments: list[Assignment]) -> dict[tuple[str, int], Tensor]:
    """A copy of every logical matrix, by the name of its tensor and its number there."""
    return {
        (one.name, index): piece.clone()
        for one in assignments
        for index, piece in enumerate(pieces(one, one.parameter.detach()))
    }


@dataclass(frozen=True)
class Storage:
    """Which matrices share a tensor (those with the same ``key``), how they are put in, and taken out again."""

    key: Callable[[Assignment, int, Tensor], Hashable]
    pack: Callable[[list[Tensor]], Tensor]
    unpack: Callable[[Tensor, list[int]], Any]  # with the sizes along out
    words: dict[str, Any]
    fused: bool = False


def alone(one: Assignment, index: int, matrix: Tensor) -> Hashable:
    return one.name, index


def beside(one: Assignment, index: int, matrix: Tensor) -> Hashable:
    """What modules side by side make of the same features: queries, keys and values; gate and up; experts."""
    return one.name.rsplit(".", 2)[0], one.role, one.lookup, matrix.shape[-1]


def alike(one: Assignment, index: int, matrix: Tensor) -> Hashable:
    return beside(one, index, matrix), matrix.shape[0]


VECTORS = Storage(alone, lambda m: m[0], lambda t, n: [t], {})
STORAGES = {
    "split, listed": Storage(alone, lambda m: m[0], lambda t, n: [t], {"layout": "out,in"}),
    "split, transposed": Storage(alone, lambda m: m[0].mT, lambda t, n: [t.mT], {"layout": "in,out"}),
    "fused": Storage(beside, torch.cat, lambda t, n: t.split(n), {"layout": "out,in"}, True),
    "stacked, transposed": Storage(
        alike, lambda m: torch.stack(m).mT, lambda t, n: t.mT.unbind(), {"layout": "stack,in,out"}
    ),
}


@dataclass
class Shared:
    """A tensor of a storage: what is stated of it, the matrices that it holds, their gradients and their places."""

    storage: Storage
    words: dict[str, Any]
    multiplier: float = 1.0
    places: list[tuple[str, int]] = field(default_factory=list)
    matrices: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)

    def parameter(self) -> nn.Parameter:
        made = nn.Parameter(self.storage.pack(self.matrices).clone())
        made.grad = self.storage.pack(self.grads).clone()
        return made

    def statement(self) -> dict[str, Any]:
        blocks = (
            {"blocks": [len(one) for one in self.matrices]} if self.storage.fused and len(self.matrices) > 1 else {}
        )
        return {**self.words, **self.storage.words, **blocks}


@functools.cache
def restored(family: str, name: str) -> list[Shared]:
    """The matrices of a model at the start, with their gradients, put into the tensors of a storage."""
    decoded, storage = decoder(family), STORAGES[name]
    found: dict[Hashable, Shared] = {}
    for one in decoded.assignments:
        own = VECTORS if one.role == "vector" else storage
        words = {"role": one.role} | ({"kind": "lookup"} if one.lookup else {})
        weights, grads = pieces(one, decoded.before[one.parameter]), pieces(one, one.parameter.grad)
        for index, (matrix, grad) in enumerate(zip(weights, grads, strict=True)):
            shared = found.setdefault(own.key(one, index, matrix), Shared(own, words, one.multiplier))
            shared.places.append((one.name, index))
            shared.matrices.append(matrix)
            shared.grads.append(grad)
    return list(found.values())


def moved(tensors: list[Shared], recipe: dict[str, Any], say_blocks: bool = True) -> dict[tuple[str, int], Tensor]:
    """Each logical matrix after a step, by its place in the model."""
    statements: list[dict[str, Any]] = []
    parameters: dict[str, nn.Parameter] = {}
    for index, one in enumerate(tensors):
        words = {key: value for key, value in one.statement().items() if say_blocks or key != "blocks"}
        statements += [] if words in statements else [words]
        parameters[f"{statements.index(words)}.{index}"] = one.parameter()
    roles = {f"{index}.*": words for index, words in enumerate(statements)}
    known = {name: {"lr_scale": 1 / one.multiplier} for name, one in zip(parameters, tensors, strict=True)}
    groups = moga.param_groups(list(parameters.items()), recipe, roles=roles, overrides=known)
    moga.SteepestDescent(groups, lr=LR).step()
    found: dict[tuple[str, int], Tensor] = {}
    for parameter, one in zip(parameters.values(), tensors, strict=True):
        cut = one.storage.unpack(parameter.detach(), [len(matrix) for matrix in one.matrices if matrix.ndim])
        found |= dict(zip(one.places, cut, strict=True))
    return found


@every_case
@every_family
def test_the_same_matrices_take_the_same_step_in_every_storage(family, case):
    _, own = stepped(family, case)
    for name in STORAGES:
        found = moved(restored(family, name), in_units(case))
        assert found.keys() == own.keys()
        for place, matrix in own.items():
            assert torch.allclose(found[place], matrix, rtol=1e-9, atol=1e-9), f"{name}: {place}"


def test_the_storages_are_other_ones():
    """How many tensors hold the matrices of LLaMA's two layers and its two tables."""
    count = {name: sum("layout" in one.storage.words for one in restored("llama", name)) for name in STORAGES}
    # q and k and v, o, gate and up, down; as a stack k and v alone
    layers = {"split, listed": 7, "split, transposed": 7, "fused": 4, "stacked, transposed": 5}
    assert count == {name: 2 * tensors + 2 for name, tensors in layers.items()}


def test_blocks_that_are_not_said_are_another_step():
    """The control: queries, keys and values read as one matrix."""
    tensors = restored("llama", "fused")
    right, wrong = moved(tensors, in_units("muon")), moved(tensors, in_units("muon"), say_blocks=False)
    place = ("model.layers.0.self_attn.q_proj.weight", 0)
    assert (right[place] - wrong[place]).abs().max() > 1e-3
