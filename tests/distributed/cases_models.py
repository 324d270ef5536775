"""Models as torch itself shards them: FSDP2, tensor parallel, both, hybrid, and what is special in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from distributed.cases import decayed, relative
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import moga
from moga.optim.distributed.pieces import own_piece


class Network(nn.Module):
    """Tokens (n,) -> logits (n, 11). ``even``: sizes that tensor parallelism can cut; else of 7, 10, 72 and 3 rows."""

    def __init__(self, even: bool = False, tied: bool = False) -> None:
        super().__init__()
        a, b, c, d = (8, 8, 16, 8) if even else (7, 10, 72, 3)
        self.embed = nn.Embedding(11, d)
        self.up = nn.Linear(d, a)
        self.middle = nn.Linear(a, b)
        self.wide = nn.Linear(b, c, bias=False)
        self.down = nn.Linear(c, d)
        self.head = nn.Linear(d, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        with torch.no_grad():
            for i, weight in enumerate(self.parameters()):
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(i)))
        for layer in (self.up, self.middle, self.wide, self.down):
            nn.init.orthogonal_(layer.weight, generator=torch.Generator().manual_seed(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.down(torch.tanh(self.wide(torch.tanh(self.middle(self.up(x)))))))


LAYERS = ("up", "middle", "wide", "down")


def on_line(model: nn.Module, axis: int | None = None) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    place = None if axis is None else lambda weight: Shard(min(axis, weight.ndim - 1))
    for name in LAYERS:
        fully_shard(getattr(model, name), mesh=mesh, shard_placement_fn=place)
    fully_shard(model, mesh=mesh, shard_placement_fn=place)


def tensor_parallel(model: nn.Module, mesh: Any = None) -> None:
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(), "middle": RowwiseParallel(), "wide": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)


def both(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    tensor_parallel(model, mesh["tensor"])
    for name in LAYERS:
        fully_shard(getattr(model, name), mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])


def hybrid(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)


ARRANGED: dict[str, tuple[Callable[[nn.Module], None], dict[str, bool]]] = {
    "fsdp": (on_line, {}),
    "tied": (on_line, {"tied": True}),
    "fsdp along in": (lambda model: on_line(model, 1), {"even": True}),
    "tensor": (tensor_parallel, {"even": True}),
    "fsdp and tensor": (both, {"even": True}),
    "hybrid": (hybrid, {}),
}


def pair(kind: str, recipe: str, **options: Any) -> tuple[nn.Module, nn.Module, Any, Any]:
    arrange, sizes = ARRANGED[kind]
    plain, model = Network(**sizes), Network(**sizes)
    arrange(model)
    roles = {"head.weight": "tied" if sizes.get("tied") else "output"}
    options = {**decayed(recipe), "lr": 0.02, "roles": roles, **options}
    return plain, model, moga.optimizer(plain, recipe, **options), moga.optimizer(model, recipe, **options)


def give(weight: nn.Parameter, grad: Tensor) -> None:
    """The gradient that every rank has whole, to a parameter however it is placed."""
    if not isinstance(weight, DTensor):
        weight.grad = grad
        return
    part = own_piece(weight).of(grad).contiguous()
    mesh, placements = weight.device_mesh, weight.placements
    weight.grad = DTensor.from_local(part, mesh, placements, shape=grad.shape, stride=grad.stride())
    assert torch.equal(weight.grad.full_tensor(), grad)  # the pieces are those of torch


def random(weights: Any, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(weight.shape, generator=generator) for weight in weights]


def check(model: nn.Module, plain: nn.Module, tolerance: float = 1e-6) -> None:
    others = dict(plain.named_parameters())
    wrong = {name: relative(w, others[name]) for name, w in model.named_parameters()}
    wrong = {name: size for name, size in wrong.items() if not size <= tolerance}
    assert not wrong, wrong


def arranged(kind: str, recipe: str, distribute: str = "none") -> None:
    """Ten steps from gradients that every rank has whole equal those of one process."""
    plain, model, expected, optimizer = pair(kind, recipe)
    optimizer.distribute = distribute
    for seed in range(10):
        for weight, other, grad in zip(
            model.parameters(), plain.parameters(), random(plain.parameters(), seed), strict=True
        ):
            other.grad = grad
            give(weight, grad)
        expected.step()
        optimizer.step()
    check(model, plain)


def trained(kind: str, recipe: str) -> None:
    """Gradients of torch's own backward: the losses of one process, to what another order of sums makes of them."""
    plain, model, expected, optimizer = pair(kind, recipe)
    for seed in range(5):
        tokens, targets = torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(seed))
        losses = []
        for network, own in ((plain, expected), (model, optimizer)):
            logits = network(tokens)
            losses.append(nn.functional.cross_entropy(logits, targets))
            losses[-1].backward()
            own.step()
            own.zero_grad()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=0)


def missing(recipe: str) -> None:
    """Gradients that only rank 0 has: the other shards count as zeros, and rest. Nobody waits."""
    plain, model, expected, optimizer = pair("fsdp", recipe, weight_decay=0.0)
    for seed in range(3):
        grads = random(plain.parameters(), seed)
        for weight, other, grad in zip(model.parameters(), plain.parameters(), grads, strict=True):
            kept = torch.zeros_like(grad)
            kept[: weight.to_local().shape[0] if dist.get_rank() == 0 else -(-len(grad) // dist.get_world_size())] = 1
            other.grad = grad * kept
            give(weight, grad * kept)
            if dist.get_rank():
                weight.grad = None
        expected.step()
        optimizer.step()
    check(model, plain)


def nowhere(recipe: str) -> None:
    """A parameter without a gradient on any rank stays as it is, also where the others of its group step."""
    _, model, _, optimizer = pair("fsdp", recipe)
    before = model.middle.weight.full_tensor().clone()
    for weight, grad in zip(model.parameters(), random(model.parameters(), 0), strict=True):
        give(weight, grad)
    model.middle.weight.grad = None
    optimizer.step()
    assert torch.equal(model.middle.weight.full_tensor(), before)
    assert optimizer.state[model.middle.weight]  # and has a state for checkpoints


def partial_gradients() -> None:
    """Sums over ranks that are still open are closed: the gradient of a copy that every rank has."""
    from torch.distributed.tensor import Partial, Replicate

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weight = nn.Parameter(distribute_tensor(torch.ones(3, 2), mesh, [Replicate()], src_data_rank=None))
    sign = moga.optimizer([("w", weight)], "signsgd", lr=1.0, roles={"w": "hidden"})
    own = torch.full((3, 2), -1.0 if dist.get_rank() else dist.get_world_size() + 1.0)
    weight.grad = DTensor.from_local(own, mesh, [Partial()])
    sign.step()
    assert torch.equal(weight.full_tensor(), torch.zeros(3, 2))
