"""Checkpoints of torch.distributed.checkpoint: saved on some ranks, loaded on others, going on to the same losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from distributed.cases import SOME, decayed, line, relative
from distributed.cases_models import Network, on_line
from distributed.tensors import gradients, groups_of, shard, weights
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import Shard
from torch.optim.lr_scheduler import LambdaLR

import moga


class WithSpare(Network):
    """With a layer that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(5, 6, bias=False)
        nn.init.orthogonal_(self.spare.weight, generator=torch.Generator().manual_seed(2))


def made(recipe: str, seed: int = 0) -> tuple[nn.Module, moga.SteepestDescent, LambdaLR]:
    model = WithSpare()
    if seed:  # another start, so that what is not loaded is seen
        for weight in model.parameters():
            nn.init.normal_(weight)
    on_line(model)
    roles = {"head.weight": "output"}
    optimizer = moga.optimizer(model, recipe, lr=0.05, roles=roles, **decayed(recipe))
    return model, optimizer, LambdaLR(optimizer, lambda step: 1 / (1 + step))


def train(model: nn.Module, optimizer: Any, scheduler: Any, seeds: Any) -> list[float]:
    losses = []
    for seed in seeds:
        tokens, targets = torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(seed))
        loss: Tensor = nn.functional.cross_entropy(model(tokens), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def save(directory: str, recipe: str) -> None:
    model, optimizer, scheduler = made(recipe)
    train(model, optimizer, scheduler, range(3))
    weights, state = get_state_dict(model, optimizer)
    names = {name for name, _ in model.named_parameters()}
    assert set(state["state"]) == names and all(state["state"].values())
    assert {name for group in state["param_groups"] for name in group["params"]} == names
    path = Path(directory) / f"{recipe}-{dist.get_world_size()}"
    dcp.save({"model": weights, "optimizer": state, "scheduler": scheduler.state_dict()}, checkpoint_id=path)
    losses = train(model, optimizer, scheduler, range(3, 6))
    if dist.get_rank() == 0:
        (path / "losses").write_text(json.dumps(losses))


def load(directory: str, recipe: str, ranks: str) -> None:
    """A checkpoint of ``ranks`` ranks, on as many as there are here."""
    path = Path(directory) / f"{recipe}-{ranks}"
    model, optimizer, scheduler = made(recipe, seed=1)
    weights, state = get_state_dict(model, optimizer)
    saved = {"model": weights, "optimizer": state, "scheduler": scheduler.state_dict()}
    dcp.load(saved, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    scheduler.load_state_dict(saved["scheduler"])
    assert all(group["initial_lr"] == 0.05 and group["lr"] == 0.05 / 4 for group in optimizer.param_groups)
    losses = train(model, optimizer, scheduler, range(3, 6))
    torch.testing.assert_close(losses, json.loads((path / "losses").read_text()), rtol=1e-5, atol=0)


def moved() -> None:
    """A state saved by one process, loaded by ``load_state_dict`` itself, and averages of torch's AdamW by name."""
    for recipe in ("moga-row", "muon", "shampoo-accumulated", "muown"):
        values = weights(SOME)
        plain = {name: nn.Parameter(value.clone()) for name, value in values.items()}
        sharded = {name: nn.Parameter(shard(value, line(), [Shard(0)])) for name, value in values.items()}
        one = moga.SteepestDescent(groups_of(recipe, plain), lr=0.02)
        many = moga.SteepestDescent(groups_of(recipe, sharded), lr=0.02)
        step(one, plain, 0)
        for name, weight in sharded.items():
            weight.data.copy_(shard(plain[name].detach(), line(), [Shard(0)]))
        many.load_state_dict(one.state_dict())
        step(one, plain, 1)
        step(many, sharded, 1)
        assert all(relative(sharded[name], weight) <= 1e-6 for name, weight in plain.items())


def imported() -> None:
    """AdamW's averages, of shards, by name: the step goes on as that of one process does."""
    values = weights(SOME)
    plain = {name: nn.Parameter(value.clone()) for name, value in values.items()}
    sharded = {name: nn.Parameter(shard(value, line(), [Shard(0)])) for name, value in values.items()}
    for recipe in ("adamw", "moga-row", "muown"):
        for parameters in (plain, sharded):
            adamw = torch.optim.AdamW(parameters.values(), lr=0.01, foreach=False)
            step(adamw, parameters, 0)
            other = moga.SteepestDescent(groups_of(recipe, parameters), lr=0.02)
            moga.import_state(other, {name: adamw.state[weight] for name, weight in parameters.items()})
            step(other, parameters, 1)
        assert all(relative(sharded[name], weight) <= 2e-6 for name, weight in plain.items()), recipe


def step(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], seed: int) -> None:
    for name, grad in gradients(list(parameters), seed).items():
        weight = parameters[name]
        weight.grad = shard(grad, line(), [Shard(0)]) if hasattr(weight, "device_mesh") else grad
    optimizer.step()
