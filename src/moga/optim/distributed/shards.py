"""One step of the parameters that are sharded or have an owner, in a fixed number of messages.

Every rank takes part in the same messages whatever gradients it has, so none waits for another. A rank that has no
gradient of a parameter counts as zeros for the others; its own shard stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from moga.geometry.layout import from_matrices, to_matrices
from moga.geometry.polar import work_dtype
from moga.optim.averages import State, Step, step_input
from moga.optim.distributed.exchange import group_of, reduce_
from moga.optim.distributed.owners import Job, run
from moga.optim.distributed.pieces import Grid, local
from moga.optim.distributed.plan import Place
from moga.optim.distributed.routes import exponent, local_group, moves_by_direction, row_blocks
from moga.optim.distributed.vectors import Vectors
from moga.optim.distributed.whole import direction_jobs, update_job
from moga.optim.matrices import Group, row_scale
from moga.optim.replaced import follow_weights
from moga.optim.rounding import Noise, write_
from moga.optim.update import batched, decay, descend, rate

Grads = Mapping[Tensor, Tensor]
States = Mapping[Tensor, State]


class Half:
    """A step up to its input L; :meth:`end` is the rest, when all directions D are there. One dtype, any shapes."""

    def __init__(
        self,
        targets: list[Tensor],
        grads: list[Tensor],
        states: list[State],
        group: Group,
        finite: Tensor | None,
        noise: Noise | None,
    ) -> None:
        dtype, device = work_dtype(targets[0].dtype), targets[0].device
        mask = None if finite is None else finite.to(device, non_blocking=True)
        self._targets, self._group, self._noise = targets, group, noise
        self._lr = rate(group, dtype, device, mask)
        self.L = step_input([grad.to(dtype) for grad in grads], states, Step(group, dtype, mask, noise))
        self.D: list[Tensor] = list(self.L)

    def end(self) -> None:
        """``W <- (1 - lr decay) W - lr D``."""
        targets = self._targets
        W = [target.to(self.L[0].dtype) for target in targets]
        moved = descend(W, self.D, self._lr, decay(self._group))
        if moved[0] is not targets[0]:
            write_(targets, moved, self._group["rounding"], self._noise)


class ShardedStep:
    """One step: take in every group, then :meth:`finish`, which talks to the other ranks."""

    def __init__(self, places: Mapping[Tensor, Place], finite: Tensor | None, noise: Noise | None) -> None:
        self._places, self._finite, self._noise = places, finite, noise
        self._halves: list[Half] = []
        self._vectors: dict[Any, list[tuple[Vectors, Half, int, Group, Place]]] = {}
        self._jobs: dict[Grid, list[Job]] = {}

    def take(self, group: Group, grads: Grads, states: States) -> None:
        """Take in the parameters of a group that have a place; ``grads`` are the shards of those that have one."""
        halved: dict[Any, list[Place]] = {}
        alone: list[Place] = []
        for weight in group["params"]:
            place = self._places.get(weight)
            if place is None:
                continue
            if place.route == "local":
                alone += [place] if weight in grads else []
            elif place.route == "owner" and not moves_by_direction(group):
                job = update_job(place, group, grads.get(weight), states[weight], self._finite, self._noise)
                self._jobs.setdefault(place.grid, []).append(job)
            else:
                halved.setdefault((weight.dtype, weight.device), []).append(place)
        self._local(alone, group, grads, states)
        for places in halved.values():
            self._half(places, group, grads, states)

    def _local(self, places: Sequence[Place], group: Group, grads: Grads, states: States) -> None:
        together: dict[Any, list[tuple[Tensor, Tensor, State]]] = {}
        for place in places:
            weight, own = self._parts(place, states[place.weight])
            if place.piece.size:
                shard = local_group(group, place.weight, place.piece, place.reach)
                together.setdefault(_said(shard), []).append((weight, grads[place.weight], own))
            elif "step" in own:  # the other ranks count: a checkpoint has one count for all
                own["step"] += 1 if self._finite is None else self._finite.to(own["step"])
        for (layout, blocks, interleave, scale), members in together.items():
            shard = {**group, "layout": layout, "blocks": blocks, "interleave": interleave, "scale": scale}
            weights, gradients, own_states = (list(column) for column in zip(*members, strict=True))
            follow_weights(shard, dict(zip(weights, own_states, strict=True)), weights)
            batched(weights, gradients, own_states, shard, self._finite, self._noise)

    def _parts(self, place: Place, state: State) -> tuple[Tensor, State]:
        """The shards of a weight and its state; random bits for them depend on the name and where the shard begins."""
        weight, own = local(place.weight), {key: local(value) for key, value in state.items()}
        if self._noise is not None:
            part = f" from {place.piece.start}" if place.piece.shape != tuple(place.weight.shape) else ""
            for target, tensor in [(weight, place.weight), *((own[key], state[key]) for key in state)]:
                if target is not tensor:
                    self._noise.alias(target, tensor, part)
        return weight, own

    def _half(self, places: Sequence[Place], group: Group, grads: Grads, states: States) -> None:
        targets, gradients, own = [], [], []
        for place in places:
            target, state = self._parts(place, states[place.weight])
            if place.weight not in grads:  # for the others alone: on copies
                target, state = target.clone(), {key: value.clone() for key, value in state.items()}
            targets.append(target)
            gradients.append(grads[place.weight] if place.weight in grads else torch.zeros_like(target))
            own.append(state)
        half = Half(targets, gradients, own, group, self._finite, self._noise)
        self._halves.append(half)
        for i, place in enumerate(places):
            if place.route == "owner":
                self._jobs.setdefault(place.grid, []).extend(direction_jobs(place, group, half.L[i], half.D, i))
            else:
                vectors = vectors_of(half.L[i], place, group)
                key = (place.weight.device_mesh, place.joined(group))
                self._vectors.setdefault(key, []).append((vectors, half, i, group, place))

    def finish(self) -> None:
        """Talk to the other ranks and end every step."""
        for (mesh, axes), found in self._vectors.items():
            self._reduce([mesh.get_group(axis) for axis in axes], found)
        for grid, jobs in self._jobs.items():
            run(jobs, grid, group_of(grid.ranks))
        for half in self._halves:
            half.end()

    def _reduce(self, groups: Sequence[Any], found: Sequence[tuple[Vectors, Half, int, Group, Place]]) -> None:
        twice = [vectors for vectors, *_ in found if vectors.rounds == 2]
        if twice:
            for vectors, peaks in zip(twice, _over(groups, [one.peaks() for one in twice], largest=True), strict=True):
                vectors.divide(peaks)
        sums = _over(groups, [vectors.sums() for vectors, *_ in found])
        for (vectors, half, i, group, place), total in zip(found, sums, strict=True):
            own = local_group(group, place.weight, place.piece, "row")
            D = vectors.direction(total) * row_scale(own, vectors.X)
            half.D[i] = from_matrices([D], own["layout"], half.L[i].shape)


def _said(shard: Group) -> tuple[Any, ...]:
    scale = shard["scale"]
    scale = tuple(scale) if isinstance(scale, list) else scale
    return shard["layout"], tuple(shard["blocks"]), shard["interleave"], scale


def _over(groups: Sequence[Any], tensors: list[Tensor], largest: bool = False) -> list[Tensor]:
    for group in groups:
        tensors = reduce_(tensors, group, largest)
    return tensors


def vectors_of(L: Tensor, place: Place, group: Group) -> Vectors:
    """The rows or columns of a shard that other ranks hold the rest of."""
    own = local_group(group, place.weight, place.piece, "row")
    [X] = to_matrices(L, own["layout"])
    if place.reach == "row":
        return Vectors(X, -1, [], 1, exponent(group))
    blocks = [] if own["layout"] == "vector" else row_blocks(group, place.piece)
    return Vectors(X, -2, blocks, max(1, len(group["blocks"])), exponent(group))
