"""What a run trains: a model, its batches and its loss; of a family or of one's own.

Data of one's own is a function, ``package.module:function``, called as ``function(split, seed)`` with "train" or
"held-out". It returns an iterable of batches (see :mod:`moga.study.factories`) that depends on these two alone. What
is used up during training is called for again.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moga.optim.build import optimizer as build_optimizer
from moga.rules.branches import scale_branches_
from moga.rules.init import initialize_
from moga.study.batches import forward_of, takes
from moga.study.coordinates_models import roles_of
from moga.study.coordinates_plan import Case, CheckPlan, CheckSettings
from moga.study.data import Corpus, training_windows, validation_windows
from moga.study.factories import Built, batch_loss, call_factory, is_path, load_function, text_loss
from moga.study.functions import find_given
from moga.study.models import build_model, next_token_loss
from moga.study.settings import Plan, Run, Settings
from moga.study.sources import source_bytes

VALIDATION_BATCH = 64  # windows
HELD_OUT_SEED = 0
MOST_HELD_OUT = 10_000  # batches: data that never end are no held-out data


@dataclass(frozen=True)
class Task:
    """model; loss(model, batch), a tensor without dimensions; batch(step), in order from step 0.

    held_out: batches with their weights in the mean. count: tokens (of integers) or rows that a batch trains on.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    batch: Callable[[int], Any]
    held_out: Callable[[], Iterable[tuple[Any, int]]]
    count: Callable[[Any], int]


def make_task(run: Run, corpus: Corpus | None) -> Task:
    """The task of a run; corpus: None where the data are one's own.

    Raises:
        ValueError: a function that does not do what it should; a batch from a model's function but no data.
    """
    settings, built = run.settings, _build(run)
    what = f"{settings.family} at {settings.over} {run.size}"
    if settings.data:
        stream = _stream(settings.data, run.seed)
        return Task(
            built.model,
            lambda model, batch: batch_loss(built, model, batch, what),
            lambda step: next(stream),
            lambda: _held_out(settings.data),
            count_of,
        )
    if built.batch is not None:
        raise ValueError(
            f"{settings.family} returns a batch, and a study trains on a new one at each step; give a function of data "
            "(--data package.module:function), or leave the batch out (None) for a model of text"
        )

    def own_text_loss(model: nn.Module, windows: Tensor) -> Tensor:
        return text_loss(built, model, windows, what)

    assert corpus is not None, "a study of text has a corpus"
    return Task(
        built.model,
        own_text_loss if is_path(settings.family) else next_token_loss,
        lambda step: torch.from_numpy(training_windows(corpus, settings.batch, settings.context, run.seed, step)),
        lambda: text_held_out(corpus, settings.context),
        lambda windows: windows.numel() - len(windows),
    )


def _build(run: Run) -> Built:
    settings = run.settings
    known = "moga-row" if is_path(run.recipe) else run.recipe
    if is_path(settings.family):
        with torch.random.fork_rng():
            torch.manual_seed(run.seed)
            built = call_factory(settings.family, settings.over, run.size)
        if settings.start == "moga":
            generator = torch.Generator().manual_seed(run.seed)
            initialize_(built.model, known, roles=dict(settings.roles), generator=generator)
        return built
    shape = {"width": settings.width, "depth": settings.layers, settings.over: run.size}
    model = build_model(
        settings.family,
        shape["width"],
        layers=shape["depth"],
        head_size=settings.head_size,
        context=settings.context,
        seed=run.seed,
        recipe=known,
    )
    return Built(model if settings.branches == "none" else scale_branches_(model, settings.branches))


def make_optimizer(run: Run, model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """The recipe's optimizer with the options, or the one that a function of one's own makes, without.

    Raises:
        ValueError: a function that returns no optimizer.
    """
    if not is_path(run.recipe):
        roles = dict(run.settings.roles) or None
        return build_optimizer(model, run.recipe, run.lr, roles=roles, **options)
    made = load_function(run.recipe)(model, run.lr)
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(f"{run.recipe}(model, lr) must return a torch.optim.Optimizer; got {type(made).__name__}")
    return made


def code_of(*words: str) -> str:
    """sha256 of the source files of the functions among the words; "" if there is none.

    It tells that a function was changed, and not that something which it imports was.

    Raises:
        StudyError: a file that changed since this process imported it.

    >>> code_of("gpt2"), len(code_of("moga.study.models:build_model"))
    ('', 64)
    """
    digest = hashlib.sha256()
    paths = [word for word in words if is_path(word)]
    for path in paths:
        if (given := find_given(path)) is not None:
            digest.update(b"\0".join([path.encode(), given.code.encode()]))
            continue
        load_function(path)
        digest.update(b"\0".join([path.encode(), source_bytes(sys.modules[path.partition(":")[0]])]))
    return digest.hexdigest() if paths else ""


def source_of(settings: Settings) -> str:
    """`code_of` a study's model and data."""
    return code_of(settings.family, settings.data)


def settled_roles(plan: Plan) -> Mapping[str, str]:
    """The roles of a model of one's own: those stated, and those that two of its widths settle (as in a check).

    Raises:
        ValueError: roles stated for a family, whose roles are known; what `roles_of` raises.
    """
    settings, sizes = plan.settings, tuple(sorted(set(plan.sizes)))
    if not is_path(settings.family):
        if settings.roles:
            raise ValueError(f"roles are stated for a model of your own; those of {settings.family} are known")
        return {}
    if len(sizes) < 2:
        return settings.roles
    shared = CheckSettings(settings.family, settings.over, start=settings.start, roles=settings.roles)
    return roles_of(CheckPlan(tuple(Case(recipe, 1.0) for recipe in plan.rates), sizes, (0, 1), shared))


def text_held_out(corpus: Corpus, context: int) -> Iterator[tuple[Tensor, int]]:
    """The held-out windows of a text in batches, weighted by how many they are."""
    windows = torch.from_numpy(validation_windows(corpus, context))
    for part in torch.split(windows, VALIDATION_BATCH):
        yield part, len(part)


def count_of(batch: Any) -> int:
    """Entries of the first tensor of integers, or else rows of the first tensor.

    >>> count_of({"x": torch.zeros(8, 3), "labels": torch.zeros(8, dtype=torch.long)}), count_of(torch.zeros(8, 3))
    (8, 8)
    """
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else (batch,)
    tensors = [value for value in values if isinstance(value, Tensor) and value.ndim]
    whole = [value.numel() for value in tensors if not value.is_floating_point()]
    return whole[0] if whole else len(tensors[0]) if tensors else 1


def first_batch(path: str, seed: int) -> Any:
    """The first batch that a function of data gives for training.

    Raises ValueError if it gives none.
    """
    return next(_stream(path, seed))


def _stream(path: str, seed: int) -> Iterator[Any]:
    while True:
        yield from _batches(path, "train", seed)


def _held_out(path: str) -> Iterator[tuple[Any, int]]:
    total = 0
    for number, batch in enumerate(_batches(path, "held-out", HELD_OUT_SEED)):
        if number == MOST_HELD_OUT:
            raise ValueError(
                f'{path}("held-out", {HELD_OUT_SEED}) has not ended after {MOST_HELD_OUT:,} batches; the loss is a '
                "mean over all of them: only training data may go on for ever"
            )
        total += (weight := count_of(batch))
        yield batch, weight
    if not total:
        raise ValueError(f'the batches of {path}("held-out", {HELD_OUT_SEED}) have no rows')


def _batches(path: str, split: str, seed: int) -> Iterator[Any]:
    """The batches in what a function of data makes; ValueError where there is none."""
    function = load_function(path)
    if (arguments := forward_of(function)) is not None and not takes(arguments, (split, seed)):
        raise ValueError(f"{path} is called as function(split, seed) and takes {arguments}; give it these two")
    made = function(split, seed)
    must = "it must return an iterable of batches"
    try:
        batches = iter(made)
    except TypeError:
        raise ValueError(f'{path}("{split}", {seed}) gives {type(made).__name__}; {must}') from None
    count = 0
    for batch in batches:
        count += 1
        yield batch
    if not count:
        raise ValueError(f'{path}("{split}", {seed}) gives no batch; {must}')
