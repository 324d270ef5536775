"""Fresh weights by role, with sizes that do not change with width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from moga.geometry.layout import from_matrices, to_matrices
from moga.geometry.polar import polar_factor
from moga.rules.logits import logit_scales
from moga.rules.patterns import match_patterns
from moga.rules.places import divides_logits
from moga.rules.recipes import Update, resolve_recipe
from moga.rules.roles import Assignment, find_roles
from moga.rules.started import remember_start
from moga.rules.starts import Start, starts_of
from moga.rules.stated import Roles
from moga.rules.transfer import initial_std

LOADED = ("refuse", "overwrite")
ADAPTERS = ("adapter down", "adapter up")


def initialize_(
    model: nn.Module,
    recipe: str | Mapping[str, str | Update],
    *,
    roles: Roles | None = None,
    exclude: Iterable[str] = (),
    loaded: str = "refuse",
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Give every trainable parameter of the model its starting value, in place, and return the model.

    Matrices get independent normal entries of :func:`moga.rules.transfer.initial_std`, block by block where one tensor
    holds several; the output starts at zero. A lookup whose rows the model multiplies (Gemma: by sqrt(width)) starts
    smaller by that factor. A tied matrix whose logits :func:`moga.scale_logits_` multiplies starts as
    at the base, and one whose model divides the features by sqrt(width) itself (T5) as a lookup. A map inside the model
    that only has the role of an output (a router, a projection to a fixed rank) starts as a hidden one: from zeros it
    would choose nothing, or pass nothing on. The tables that a model adds to the inputs that it declares (positions,
    token types) start at zero: a random code of a token's size would be noise on every token. Gains start at the value
    at which they do nothing, biases (those of stacked experts and of all gates of a recurrent layer too), relative
    positions and the rows of padding tokens at zero.

    Three kinds keep the value that they have: what ``exclude`` matches; an adapter's two maps, one of which is zero, so
    that the model starts as what it adapts; and numbers per head, channel or layer of the classes in the table
    ``STARTS`` of ``rules/places.py``, whose start is their authors' (sinks, A_log, D, dt_bias, layer scales). Any other
    vector or scalar has no known start: state its role, ``roles={"*.temperature": "vector"}``, to keep its value.

    Of a sharded model call it on every rank, with the same random state: they then hold the parts of what one process
    draws, whatever their number. The shards of one parameter come from the first rank of its mesh in any case.

    The rule is the same for every ``recipe``: what stays constant over width is the spectral size, because random
    entries are not aligned; the norm of the recipe measures updates, which are. Only where the recipe holds matrices
    on the Stiefel manifold do they start there, as the polar factors of the same random ones.

    Args:
        roles: roles by pattern, as in :func:`find_roles`.
        exclude: patterns of the names of parameters that are not to be touched.
        loaded: "refuse" to write where transformers' ``from_pretrained`` has loaded weights, or "overwrite" them. A
            model made from a config is new, also if the config was loaded. What ``load_state_dict`` wrote, or a copy of
            a loaded model holds, cannot be told from new weights: exclude it.

    Raises ValueError for what ``find_roles`` refuses, an unknown recipe or word, a pattern that matches nothing, loaded
    weights, and a vector without a known start, before anything is written; TypeError for anything but a module, and
    for patterns that are no list of strings.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 9))
    >>> _ = initialize_(model, "moga-row", roles={"2.weight": "output"})
    >>> bool(model[2].weight.any()), model[1].weight.tolist()
    (False, [1.0, 1.0, 1.0, 1.0])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"initialize_ needs a model, an nn.Module; got {type(model).__name__}")
    updates = resolve_recipe(recipe)
    assignments = find_roles(model, roles)
    written = _written(assignments, exclude)
    _check_loaded(written, loaded)
    starts = _vector_starts(model, assignments, written, roles)
    multiplied, divided = logit_scales(model), divides_logits(model)
    with torch.no_grad():
        for one in written:
            if one.role != "vector":
                constraint = updates.get(one.role, {}).get("constraint")
                role = _start_role(one, divided)
                _fill_matrix(one, role, constraint, multiplied.get(id(one.parameter), 1.0), generator)
            else:
                _fill_vector(one, starts[id(one.parameter)], generator)
        _zero_padding(model, written)
    for one in written:
        if _start_role(one, divided) == "tied":
            remember_start(one.parameter)
    return model


def _written(assignments: list[Assignment], exclude: Iterable[str]) -> list[Assignment]:
    """What is written: all but adapters and what the user excludes."""
    if isinstance(exclude, (str, Mapping)) or not isinstance(exclude, Iterable):
        raise TypeError(f"exclude must be a list of patterns of parameter names; got {exclude!r}")
    patterns = dict.fromkeys(exclude, "")
    hits = match_patterns("exclude", patterns, [one.aliases for one in assignments])
    left = {index for _, _, matched in hits for index in matched}
    return [one for index, one in enumerate(assignments) if index not in left and one.part not in ADAPTERS]


def _check_loaded(written: Sequence[Assignment], loaded: str) -> None:
    """Raises ValueError if a parameter that would be written was loaded.

    transformers marks the tensors that it loads (``_is_hf_initialized``), so that its own initialisation leaves them
    alone. The name of the checkpoint, ``config.name_or_path``, also stays with a config of which a new model is made.
    """
    if loaded not in LOADED:
        raise ValueError(f"unknown word loaded={loaded!r}; the words are {', '.join(LOADED)}")
    names = [one.name for one in written if getattr(one.parameter, "_is_hf_initialized", False)]
    if names and loaded == "refuse":
        new = [one.name for one in written if one.name not in names]
        patterns = list(dict.fromkeys(_pattern(name, new) for name in names))
        raise ValueError(
            f"from_pretrained has loaded {len(names)} of these {len(written)} parameters. To train from new weights "
            'make the model from its config, or say loaded="overwrite"; to start the others only, say exclude='
            f"{patterns}"
        )


def _start_role(one: Assignment, divided: bool) -> str:
    """The role as which a matrix starts."""
    if one.role == "tied" and divided:
        return "input"
    return "hidden" if one.role == "output" and one.part else one.role


def _fill_vector(one: Assignment, start: Start | None, generator: torch.Generator | None) -> None:
    if start == "token":
        _write(one.parameter, _whole_like(one.parameter).normal_(generator=generator))
    elif isinstance(start, float):
        one.parameter.fill_(start)


def _fill_matrix(
    one: Assignment, role: str, constraint: str | None, logit_scale: float, generator: torch.Generator | None
) -> None:
    value = _whole_like(one.parameter)
    matrices = to_matrices(value, one.layout, one.blocks, one.interleave)
    for matrix in matrices:
        out, in_ = matrix.shape[-2:]
        std = 0.0 if one.added else initial_std(role, out, in_, one.lookup, logit_scale, one.multiplier)
        if std == 0:
            matrix.zero_()
        else:
            matrix.normal_(0, std, generator=generator)
        if constraint == "stiefel":
            matrix.copy_(polar_factor(matrix))
    _write(one.parameter, from_matrices(matrices, one.layout, value.shape, one.interleave))  # not all are views


def _whole_like(parameter: Tensor) -> Tensor:
    """Where to draw: in the parameter; of a sharded one in a plain tensor, so that no shard repeats another."""
    if not hasattr(parameter, "device_mesh"):
        return parameter
    return torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)


def _write(parameter: Any, value: Tensor) -> None:
    """Shards get their part of what the first rank of their mesh has drawn: the same on any number of ranks."""
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
    parameter.copy_(value)


def _zero_padding(model: nn.Module, written: Sequence[Assignment]) -> None:
    """The row of a lookup's ``padding_idx`` gets no gradient: what it starts with is what it keeps."""
    tables = {id(one.parameter) for one in written}
    for module in model.modules():
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or module.padding_idx is None:
            continue
        weight: Any = module.weight
        if id(weight) in tables:
            value = weight.full_tensor() if hasattr(weight, "device_mesh") else weight  # a row of shards is a copy
            value[module.padding_idx].zero_()
            _write(weight, value)


def _vector_starts(
    model: nn.Module, assignments: Sequence[Assignment], written: Sequence[Assignment], roles: Roles | None
) -> dict[int, Start | None]:
    """The start of each vector by identity; None keeps what it holds.

    Raises ValueError for vectors without a known start.
    """
    starts = starts_of(model)
    stated = {
        id(assignments[index].parameter)
        for _, role, hits in match_patterns("roles", roles, [one.aliases for one in assignments])
        for index in hits
        if (role.get("role") if isinstance(role, Mapping) else role) == "vector"
    }
    vectors = [one for one in written if one.role == "vector"]
    unknown = [one for one in vectors if id(one.parameter) not in starts and id(one.parameter) not in stated]
    if unknown:
        others = [one.name for one in assignments if one not in unknown]
        patterns = {_pattern(one.name, others): one for one in unknown}
        found = [f"{key} ({one.module_type}, shape {tuple(one.parameter.shape)})" for key, one in patterns.items()]
        how = dict.fromkeys(patterns, "vector")
        raise ValueError(f"no known start for {', '.join(found)}; state roles={how} to keep the value that it has")
    return {id(one.parameter): starts.get(id(one.parameter)) for one in vectors}


def _pattern(name: str, others: Sequence[str]) -> str:
    """A pattern that this parameter has in common with those of other layers, if it matches none of the others.

    >>> _pattern("layers.12.mixer.A_log", ["head.weight"]), _pattern("1.weight", ["2.weight"])
    ('layers.*.mixer.A_log', '1.weight')
    """
    pattern = ".".join("*" if part.isdecimal() else part for part in name.split("."))
    return name if any(fnmatchcase(other, pattern) for other in others) else pattern
