"""What is computed from a whole matrix: its direction alone, or the whole update of weight and state."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from moga.geometry.polar import POLAR, POLAR_DTYPES, start, work_dtype
from moga.optim.averages import State
from moga.optim.distributed.exchange import Like
from moga.optim.distributed.owners import Job
from moga.optim.distributed.pieces import local
from moga.optim.distributed.plan import Place
from moga.optim.distributed.teams import Iteration
from moga.optim.matrices import Group, scaled, stacks
from moga.optim.replaced import follow_weights
from moga.optim.rounding import Noise
from moga.optim.steps import sized_direction
from moga.optim.update import batched


def direction_jobs(place: Place, group: Group, L: Tensor, D: list[Tensor], i: int) -> list[Job]:
    """For each share its part of L to the owner, the scaled direction back, to ``D[i]``."""

    def compute(wholes: list[list[Tensor]]) -> list[tuple[list[Tensor], list[Tensor]]]:
        return [([one], []) for one in scaled(sized_direction(group), group, [whole for [whole] in wholes])]

    D[i] = torch.empty_like(L)
    jobs = []
    for share in place.shares:
        own = share.of_shard()
        done = partial(_copy, D[i][own])
        job = Job(share, [L[own]], (id(group), share.shape, L.dtype), compute, [L.dtype], [], done)
        job.iteration = iteration_of(group, L.dtype) if share.splits else None
        jobs.append(job)
    return jobs


def iteration_of(group: Group, dtype: torch.dtype) -> Iteration:
    """The direction of a spectral group as the steps of its iteration."""
    row, run = POLAR[group["polar"]], POLAR_DTYPES[group.get("polar_dtype", "float32")] or work_dtype(dtype)

    def begin(whole: Tensor) -> list[Tensor]:
        return [start(one, run) for one in stacks([whole], group)]

    def end(whole: Tensor, factors: list[Tensor]) -> Tensor:
        found = iter(factors)

        def direction(L: Tensor, scale: float | Tensor) -> Tensor:
            X = next(found)
            return (X.mT if L.shape[-2] > L.shape[-1] else X).to(L.dtype) * scale

        return scaled(direction, group, [whole])[0]

    return Iteration(begin, row.rows(row.steps, run), end)


def _copy(target: Tensor, back: list[Tensor], small: list[Tensor]) -> None:
    target.copy_(back[0])


def update_job(
    place: Place, group: Group, grad: Tensor | None, state: State, finite: Tensor | None, noise: Noise | None
) -> Job:
    """Weight, gradient and state to the owner; weight and state back. Small state tensors are the same everywhere.

    It is not taken if no rank has a gradient; one that has none counts as zeros and is moved like the others.
    """
    weight = local(place.weight)
    shape = tuple(place.weight.shape)
    full = [key for key in state if tuple(state[key].shape) == shape]
    small = [key for key in state if key not in full]
    has = torch.full((1,), grad is not None, dtype=torch.bool, device=weight.device)
    sent = [weight, torch.zeros_like(weight) if grad is None else grad, *(local(state[key]) for key in full)]

    def compute(wholes: list[list[Tensor]]) -> list[tuple[list[Tensor], list[Tensor]]]:
        [[W, G, *rest]] = wholes
        averages, notes = rest[: len(full)], rest[len(full) :]
        own = dict(zip(full, averages, strict=True)) | {key: state[key] for key in small}
        if noise is not None:
            for target, named in ((W, place.weight), *((own[key], state[key]) for key in full)):
                noise.alias(target, named)
        taken = torch.cat(notes).any()
        follow_weights(group, {W: own}, [W])
        batched([W], [G], [own], group, taken if finite is None else finite & taken, noise)
        return [([W, *averages], [own[key] for key in small])]

    def done(back: list[Tensor], notes: list[Tensor]) -> None:
        for target, value in zip([weight, *(local(state[key]) for key in full)], back, strict=True):
            target.copy_(value)
        for key, value in zip(small, notes, strict=True):
            state[key].copy_(value)

    likes = [Like(tuple(state[key].shape), state[key].dtype) for key in small]
    dtypes = [weight.dtype, *(state[key].dtype for key in full)]
    return Job(place.shares[0], sent, object(), compute, dtypes, likes, done, (has,))
