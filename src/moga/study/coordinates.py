"""The coordinate check: the size of what every module gives, and of its change over a few steps, at several sizes.

If initialisation and steps are right, neither grows nor shrinks with the width: the report takes slopes of log2(size).
All steps see one and the same small batch. Few tokens are what makes small widths enough: gradients of many tokens
average, and how well they do depends on the width until that is larger than the number of tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moga.geometry.vectors import INF, mean_scale, vector_norm
from moga.rules.init import initialize_
from moga.rules.roles import Assignment, OpenRoles, find_roles
from moga.rules.updates import operator_norm
from moga.study.batches import moved
from moga.study.coordinates_models import build, make_optimizer, roles_of
from moga.study.coordinates_plan import MEASURE, Case, CheckPlan, CheckSettings
from moga.study.data import Corpus, load_corpus, training_windows
from moga.study.factories import Built, batch_loss, is_path, text_loss
from moga.study.lock import hold_study
from moga.study.plants import plant_in_weights
from moga.study.probes import Pass, Probe
from moga.study.records import RECORDS_FILE, StudyError, append_record, run_record
from moga.study.settings import counted
from moga.study.sweep import environment
from moga.study.tasks import code_of, first_batch
from moga.study.train import threads as with_threads

EXPONENTS = (1.0, 2.0, INF)  # of the mean norms in a record, in this order
DIGITS = 4  # significant digits of a number in a record
ROUNDING = 16  # a change below so many units in the last place of the output is none

Record = dict[str, Any]
Progress = Callable[[Record, int, int], None]  # a record that was just written, how many are done, of how many


def run_check(
    plan: CheckPlan,
    directory: str | Path,
    *,
    data: str | Path | None = None,
    threads: int = 1,
    command: str = "",
    progress: Progress | None = None,
) -> int:
    """Run a plan, write a record for each run, and return how many there are.

    A check is short and is made anew each time: records of an earlier one are replaced, because the code of a model
    that they were made with may have changed since.

    data: a text file or directory, or ``package.module:function`` (see :mod:`moga.study.tasks`), whose first batch of
    "train" every seed trains on; None is the source of Python's library.

    Raises:
        StudyError: a directory that holds something else; a loss that is not finite.
        ValueError: fewer than one thread; what the model, its function, its roles or the recipe refuse.
    """
    threads = counted("threads", threads)
    path = str(data) if data is not None and is_path(str(data)) and not Path(data).exists() else ""
    corpus = None if path else load_corpus(data, context=plan.settings.context)
    plan = replace(plan, settings=replace(plan.settings, corpus=corpus.fingerprint if corpus else path))
    source = corpus.describe() if corpus else {"name": path, "sha256": code_of(path)}
    roles = roles_of(plan)
    batches = {
        seed: _windows(corpus, plan.settings, seed) if corpus else first_batch(path, seed) for seed in plan.seeds
    }
    settings = {"measure": MEASURE} | asdict(plan.settings)
    total, done = len(plan.cases) * len(plan.sizes) * len(plan.seeds), 0
    with hold_study(directory, settings, source, command), with_threads(threads):
        (Path(directory) / RECORDS_FILE).unlink(missing_ok=True)
        for case in plan.cases:
            for size in plan.sizes:
                for seed in plan.seeds:
                    result = measure(plan.settings, case, size, seed, batches[seed], roles, text=not path)
                    record = run_record(plan.config(case, size, seed), result, environment(threads, 1))
                    append_record(directory, record)
                    done += 1
                    if progress is not None:
                        progress(record, done, total)
    return done


def _windows(corpus: Corpus, settings: CheckSettings, seed: int) -> Tensor:
    return torch.from_numpy(training_windows(corpus, settings.batch, settings.context, seed, 0))


def measure(
    settings: CheckSettings,
    case: Case,
    size: int,
    seed: int,
    batch: Any,
    roles: Mapping[str, Any],
    *,
    text: bool = True,
) -> Record:
    """The "result" of a record: what one model gives before and after each step.

    batch: windows of text (batch, context + 1), for a model that comes without a batch; without ``text`` one of
    one's own data, for every model.

    - loss: before every step and after the last.
    - modules, in the order in which they finish: mean norms (p = 1, 2, inf) of the ``start``, of the ``change`` from
      there after each step (None where the shape differs), and of the part ``own`` of the last change that comes from
      the module's own matrices (see :class:`Pass`); the size (p = 2) of its ``input`` at the start and at the end.
    - parameters: role, shape, fan, scale, and what the norm of the update would scale it by (``rule``); mean norms of
      the ``weight`` at the start and of its whole ``update``.
    """
    begin = time.perf_counter()
    built = build(settings, size, seed)
    if is_path(settings.model) and settings.start == "moga":
        initialize_(built.model, "moga-row", roles=roles, generator=torch.Generator().manual_seed(seed))
    plant_in_weights(built.model, case.plant, seed)
    model = built.model.to(settings.device).train()
    optimizer = make_optimizer(model, case, roles)
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    loss = text_loss if text and built.batch is None else batch_loss
    now = moved(built.batch if text and built.batch is not None else batch, settings.device)
    what = f"{settings.model if is_path(settings.model) else f'the family {settings.model}'} at {size}"
    losses, modules = _watched(built, optimizer, lambda: loss(built, model, now, what), settings.steps, seed)
    if not all(map(math.isfinite, losses)):
        raise StudyError(
            f"the loss of {settings.model} at {settings.over} {size} is not finite after {len(losses) - 1} steps with "
            f"lr {case.lr:g}; a check needs a smaller one (--lr)"
        )
    return {
        "loss": losses,
        "modules": modules,
        "parameters": _parameters(model, weights, optimizer, roles),
        "seconds": _rounded(time.perf_counter() - begin),
    }


def _watched(
    built: Built, optimizer: torch.optim.Optimizer, loss_now: Callable[[], Tensor], steps: int, seed: int
) -> tuple[list[float], dict[str, Record]]:
    """Train, and measure at every pass; ends early at a loss that is not finite."""
    losses: list[float] = []
    changes: list[dict[str, list[float]]] = []
    with Probe(built.model, seed) as probe:
        loss, first = probe.forward(loss_now)
        now = first
        losses.append(_rounded(loss.item()))
        while len(losses) <= steps and math.isfinite(losses[-1]):
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            loss, now = probe.forward(loss_now)
            losses.append(_rounded(loss.item()))
            changes.append(_changes(first, now))
    return losses, _modules(built.model, first, changes, now)


def _changes(first: Pass, now: Pass) -> dict[str, list[float]]:
    """Mean norms of every module's change since the first pass; a module whose shape is another one has no entry."""
    found = {}
    for key, before in first.outputs.items():
        after = now.outputs.get(key, [])
        if [one.shape for one in before] == [one.shape for one in after]:
            found[key] = _above_rounding([b - a for a, b in zip(before, after, strict=True)], before)
    return found


def _above_rounding(change: Sequence[Tensor], output: Sequence[Tensor]) -> list[float]:
    sizes = mean_norms(change)
    least = ROUNDING * torch.finfo(output[0].dtype).eps * mean_norms(output)[1]
    return sizes if sizes[1] > least else [0.0] * len(sizes)


def mean_norms(values: Sequence[Tensor]) -> list[float]:
    """``(1/n sum |x|^p)^(1/p)`` over all entries, for p = 1, 2, inf.

    >>> mean_norms([torch.tensor([3.0, -4.0]), torch.tensor([0.0, 0.0])])
    [1.75, 2.5, 4.0]
    """
    x = torch.cat([one.detach().flatten() for one in values]).cpu().double()  # some devices have no float64
    if x.numel() == 0:
        return [0.0] * len(EXPONENTS)
    return [_rounded(float(vector_norm(x, p, 0)) / mean_scale(x.numel(), p)) for p in EXPONENTS]


def _modules(model: nn.Module, first: Pass, changes: Sequence[dict[str, Any]], last: Pass) -> dict[str, Record]:
    modules = dict(model.named_modules())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for key, output in first.outputs.items():
        name = first.modules[key]
        module = modules.get(name, model)
        own = last.own.get(key)
        found[key] = {
            "type": type(module).__name__,
            "parameters": [names[id(one)] for one in module.parameters(recurse=False)],
            "start": mean_norms(output),
            "input": [mean_norms(one.inputs[key])[1] for one in (first, last) if key in one.inputs],
            "change": [step.get(key) for step in changes],
            "own": None if own is None else _above_rounding(own, output),
        }
    return found


def _parameters(
    model: nn.Module, before: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, roles: Mapping[str, Any]
) -> dict[str, Record]:
    try:
        known = {one.name: one for one in find_roles(model, roles)}
    except OpenRoles:  # an optimizer of one's own needs no roles
        known = {}
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    found = {}
    for name, parameter in model.named_parameters():
        if name in before and parameter.requires_grad:
            found[name] = {
                "shape": list(parameter.shape),
                **_rule(known.get(name), groups.get(id(parameter), {})),
                "weight": mean_norms([before[name]]),
                "update": mean_norms([parameter - before[name]]),
            }
    return found


def _rule(one: Assignment | None, group: Mapping[str, Any]) -> Record:
    """Role, norm, fan and scale, and the scale that the norm has at the true fan; None where they are not known."""
    row: Record = dict.fromkeys(("role", "norm", "fan", "scale", "rule"))
    if one is not None:
        row["role"] = one.role
    if one is not None and "norm" in group:
        scale = group["scale"][0] if isinstance(group["scale"], list) else group["scale"]
        row |= {"norm": group["norm"], "fan": list(group["fan"][0]), "scale": _rounded(scale)}
        row["rule"] = _rounded(operator_norm(group).scale(*one.fan[0]))
    return row


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
