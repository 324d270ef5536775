"""The same matrices, stored in every way that a layout can say, take the same step, and each of them one of size lr."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from models.groups import GROUP
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import moga
from moga.geometry.network import block_norm
from moga.geometry.norms import norm
from moga.geometry.polar import polar_factor
from moga.optim.reference import reference
from moga.optim.update import batched, new_state
from moga.rules.updates import COMBINATIONS

pytestmark = pytest.mark.filterwarnings("ignore:weight_decay = .* is used nowhere")


@dataclass(frozen=True)
class Storage:
    """Shapes of some matrices (out, in), and how they are put into one tensor; what a group says of it."""

    shapes: list[tuple[int, int]]
    pack: Callable[[list[Tensor]], Tensor]
    layout: str
    blocks: tuple[int, ...] = ()
    interleave: int = 1

    @property
    def words(self) -> dict[str, Any]:
        return {"layout": self.layout, "blocks": self.blocks, "interleave": self.interleave}

    def unpack(self, stored: Tensor) -> list[Tensor]:
        """The matrices again: where the numbers 0, 1, ... of packed matrices lie says where each entry lies."""
        sizes = [out * in_ for out, in_ in self.shapes]
        numbers = torch.arange(sum(sizes)).split(sizes)
        places = self.pack([n.reshape(shape) for n, shape in zip(numbers, self.shapes, strict=True)]).flatten()
        return [
            entries.reshape(shape)
            for entries, shape in zip(stored.flatten()[places.argsort()].split(sizes), self.shapes, strict=True)
        ]


def units(blocks: list[Tensor], heads: int) -> Tensor:
    """Head after head: the rows of the first head of each block, then those of the second, ..."""
    return torch.cat([torch.cat([block.chunk(heads)[i] for block in blocks]) for i in range(heads)])


STORAGES = {
    "transposed": Storage([(6, 4)], lambda m: m[0].mT, "in,out"),
    "fused": Storage([(2, 4)] * 3, torch.cat, "out,in", (2, 2, 2)),
    "fused transposed": Storage([(2, 4)] * 3, lambda m: torch.cat(m).mT, "in,out", (2, 2, 2)),
    "unequal": Storage([(4, 5), (2, 5), (3, 5)], torch.cat, "out,in", (4, 2, 3)),
    "unequal transposed": Storage([(4, 5), (2, 5), (3, 5)], lambda m: torch.cat(m).mT, "in,out", (4, 2, 3)),
    "by head": Storage([(6, 4)] * 3, lambda m: units(m, 2), "out,in", (6, 6, 6), 2),
    "grouped queries": Storage([(8, 3), (4, 3), (4, 3)], lambda m: units(m, 2), "out,in", (8, 4, 4), 2),
    "row by row": Storage([(3, 4)] * 2, lambda m: units(m, 3).mT, "in,out", (3, 3), 3),
    "convolution": Storage([(6, 12)], lambda m: m[0].reshape(6, 2, 2, 3), "out,in,k"),
    "grouped": Storage([(3, 8)] * 2, lambda m: torch.cat(m).reshape(6, 4, 2), "2*out,in,k"),
    "depthwise": Storage([(1, 3)] * 5, lambda m: torch.stack(m), "5*out,in,k"),
    "turned round": Storage([(6, 12)], lambda m: m[0].reshape(6, 4, 3).transpose(0, 1), "in,out,k"),
    "turned round, grouped": Storage(
        [(3, 4)] * 2, lambda m: torch.cat([x.reshape(3, 2, 2).transpose(0, 1) for x in m]), "2*in,out,k"
    ),
    "experts": Storage([(6, 4)] * 3, torch.stack, "stack,out,in"),
    "experts transposed": Storage([(6, 4)] * 3, lambda m: torch.stack(m).mT, "stack,in,out"),
    "experts, gate and up": Storage(
        [(3, 4)] * 6, lambda m: torch.stack([torch.cat(m[i : i + 2]) for i in (0, 2, 4)]), "stack,out,in", (3, 3)
    ),
    "experts, row by row": Storage(
        [(3, 4)] * 6, lambda m: torch.stack([units(m[i : i + 2], 3).mT for i in (0, 2, 4)]), "stack,in,out", (3, 3), 3
    ),
    "experts, unequal": Storage(
        [(3, 4), (2, 4)] * 2, lambda m: torch.stack([torch.cat(m[i : i + 2]) for i in (0, 2)]), "stack,out,in", (3, 2)
    ),
    "experts, grouped": Storage(
        [(2, 3)] * 4, lambda m: torch.stack([torch.cat(m[i : i + 2]) for i in (0, 2)])[..., None], "stack,2*out,in,k"
    ),
}
every_storage = pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)


def random(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def start(storage):
    """Matrices with orthonormal rows or columns, which every constraint can start from."""
    return [polar_factor(matrix) for matrix in random(storage.shapes, 0)]


def follow(entry, storage, tensors, named_roles, gradients, **options):
    """The optimizer after a step along each of the lists of gradients."""
    optimizer = entry.optimizer([(f"w{i}", tensor) for i, tensor in enumerate(tensors)], roles=named_roles, **options)
    for grads in gradients:
        for tensor, grad in zip(tensors, grads, strict=True):
            tensor.grad = grad.clone()
        optimizer.step()
    return optimizer


@every_storage
def test_the_same_matrices_take_the_same_step_however_they_are_stored(entry, storage):
    listed = [torch.nn.Parameter(matrix) for matrix in start(storage)]
    gradients = [random(storage.shapes, seed) for seed in (1, 2)]
    follow(entry, storage, listed, {"*": "hidden"}, gradients)
    stored = torch.nn.Parameter(storage.pack(start(storage)))
    role = {"w0": {"role": "hidden", **storage.words}}
    follow(entry, storage, [stored], role, [[storage.pack(one)] for one in gradients])
    torch.testing.assert_close(storage.unpack(stored.data), [one.data for one in listed], rtol=1e-9, atol=1e-9)
    assert not torch.equal(stored.data, storage.pack(start(storage)))


def test_a_wrong_interleave_is_another_step():
    """The control of the test above: the same tensor read in another way ends elsewhere."""
    storage = STORAGES["by head"]
    weights = []
    for interleave in (2, 3):
        weights.append(torch.nn.Parameter(storage.pack(start(storage))))
        role = {"w0": {"role": "hidden", **storage.words, "interleave": interleave}}
        optimizer = moga.optimizer([("w0", weights[-1])], "muon", lr=0.1, roles=role)
        weights[-1].grad = storage.pack(random(storage.shapes, 1))
        optimizer.step()
    assert (weights[0] - weights[1]).abs().max() > 1e-2


UPDATES = [
    {"norm": "sign"},
    *({"norm": "row", "p": p} for p in (1.0, 1.5, 2.0, float("inf"))),
    *({"norm": "column", "q": q} for q in (2.0, 4.0, float("inf"))),
    {"norm": "spectral", "polar": "exact"},
]


@every_storage
@pytest.mark.parametrize("update", UPDATES, ids=lambda update: "-".join(map(str, update.values())))
def test_every_logical_matrix_moves_by_lr_in_its_own_norm(update, storage):
    weight = torch.nn.Parameter(storage.pack(random(storage.shapes, 0)))
    recipe = {"hidden": {**update, "weight_decay": 0.0}}
    groups = moga.param_groups([("w", weight)], recipe, roles={"w": {"role": "hidden", **storage.words}})
    optimizer = moga.SteepestDescent(groups, lr=0.3)
    before = weight.detach().clone()
    weight.grad = storage.pack(random(storage.shapes, 1))
    optimizer.watch()
    optimizer.step()
    moved = weight.detach() - before
    own = norm(update["norm"], update.get("p"), update.get("q"))
    for matrix, (out, in_) in zip(storage.unpack(moved), storage.shapes, strict=True):
        assert own.measure(matrix, fan=(out, in_)).item() == pytest.approx(0.3, rel=1e-4)
    assert optimizer.last_update()[0]["update"] == pytest.approx(0.3, rel=1e-4)
    assert block_norm(groups).measure([moved]).item() == pytest.approx(0.3, rel=1e-4)


@every_storage
@pytest.mark.parametrize("words", COMBINATIONS, ids="-".join)
def test_batched_equals_reference_with_a_scale_for_each_block(words, storage):
    group = {**GROUP, **dict(zip(("norm", "step", "constraint"), words, strict=True)), **storage.words}
    group |= {"calibration": "first_step", "scale": [0.7, 0.2, 0.4][: max(1, len(storage.blocks))]}
    fast = [storage.pack(random(storage.shapes, seed)) for seed in (0, 1)]
    slow = copy.deepcopy(fast)
    states = [[new_state(weight, group) for weight in weights] for weights in (fast, slow)]
    for seed in (2, 3, 4):
        grads = [storage.pack(random(storage.shapes, seed + 10 * i)) for i in range(2)]
        batched(fast, grads, states[0], group, torch.tensor(True))
        for weight, grad, state in zip(slow, grads, states[1], strict=True):
            reference(weight, grad, state, group)
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(states[0], states[1], rtol=1e-9, atol=1e-9)


def test_entries_of_a_vector_are_the_same_in_every_shape(entry):
    """Biases of experts are stored (experts, out): numbers, and no matrix."""
    flat, square = (torch.nn.Parameter(random([(15,)], 0)[0].reshape(shape)) for shape in ((15,), (3, 5)))
    for tensor in (flat, square):
        optimizer = entry.optimizer([("b", tensor)], roles={"b": "vector"}, decay_vectors=True)
        for seed in (1, 2):
            tensor.grad = random([(15,)], seed)[0].reshape(tensor.shape)
            optimizer.step()
    assert torch.equal(flat.data.reshape(3, 5), square.data)
    assert optimizer.param_groups[0]["layout"] == "vector"


@pytest.mark.parametrize("name", ["shampoo-accumulated", "orscale-lm", "muown"])
@every_storage
def test_the_state_of_stacked_matrices_is_saved_and_loaded(name, storage):
    def build():
        weight = torch.nn.Parameter(storage.pack(start(storage)))
        role = {"w": {"role": "hidden", **storage.words}}
        return weight, moga.optimizer([("w", weight)], name, lr=0.1, roles=role)

    (one, first), (other, second) = build(), build()
    gradients = [storage.pack(random(storage.shapes, seed)) for seed in (1, 2, 3)]
    for grad in gradients[:2]:
        one.grad = grad
        first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    other.data.copy_(one.data)
    for weight, optimizer in ((one, first), (other, second)):
        weight.grad = gradients[2]
        optimizer.step()
    assert torch.equal(one, other)


class Recorded(TorchDispatchMode):
    """Writes down the name and the output sizes of every operation on tensors, those that only make views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if not any(argument.alias_info for argument in function._schema.arguments) or function._schema.is_mutable:
            self.operations.append(function._schema.name)
        return result


def operations(words, changes, shape=(12, 8)):
    group = {**GROUP, **dict(zip(("norm", "step", "constraint"), words, strict=True)), "scale": 0.5, **changes}
    weights = [torch.randn(shape) for _ in range(2)]
    states = [new_state(weight, group) for weight in weights]
    with Recorded() as record:
        batched(weights, [torch.randn(shape) for _ in weights], states, group, None)
    return record.operations


BY_HEAD = {"layout": "out,in", "blocks": (4, 4, 4), "interleave": 2}
ONE_PASS = [(word, "fixed", "decay") for word in ("sign", "row", "adam", "rmsprop")] + [("euclidean", "dual", "decay")]


@pytest.mark.parametrize("words", ONE_PASS, ids="-".join)
def test_what_works_on_rows_or_entries_is_not_cut_into_blocks(words):
    """The same operations as for a plain matrix: no gather, no copy."""
    plain = operations(words, {"layout": "out,in"})
    assert operations(words, BY_HEAD) == plain
    assert operations(words, {**BY_HEAD, "blocks": (8, 2, 2)}) == plain
    assert operations(words, {"layout": "2*out,in,k"}, (12, 4, 2)) == plain


@pytest.mark.parametrize("words", [("column", "fixed", "decay"), ("spectral", "fixed", "decay")], ids="-".join)
def test_what_works_on_matrices_is(words):
    assert operations(words, BY_HEAD) != operations(words, {"layout": "out,in"})


def test_a_layout_that_does_not_fit_is_refused_with_the_name_of_the_parameter():
    group = {"params": [torch.nn.Parameter(torch.ones(4, 2))], "param_names": ["qkv"], "norm": "row", "scale": 1.0}
    with pytest.raises(ValueError, match=r"parameter 'qkv': layout 'stack,out,in' needs a tensor of 3 dimensions; got"):
        moga.SteepestDescent([{**group, "layout": "stack,out,in"}], lr=0.1)
    with pytest.raises(ValueError, match=r"parameter 'qkv': interleave = 3 does not divide every block of \[2, 2\]"):
        moga.SteepestDescent([{**group, "layout": "out,in", "blocks": [2, 2], "interleave": 3}], lr=0.1)
