"""Fresh weights by role, with sizes that do not change with width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from moga.geometry.layout import from_matrices, to_matrices
from moga.geometry.polar import polar_factor
from moga.rules.families import Packed, expert_layout
from moga.rules.logits import logit_scales
from moga.rules.patterns import match_patterns
from moga.rules.recipes import Update, resolve_recipe
from moga.rules.roles import Assignment, find_roles
from moga.rules.stated import Roles
from moga.rules.transfer import initial_std

TORCH_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


def initialize_(
    model: nn.Module,
    recipe: str | Mapping[str, str | Update],
    *,
    roles: Roles | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Give every trainable parameter of the model its starting value, in place, and return the model.

    Matrices get independent normal entries of :func:`moga.rules.transfer.initial_std`, block by block where one tensor
    holds several; the output starts at zero. A tied matrix whose logits :func:`moga.scale_logits_` multiplies starts as
    at the base. A map inside the model that only has the role of an output (a router, a projection to a fixed rank)
    starts as a hidden one: from zeros it would choose nothing, or pass nothing on. The tables that a model adds to the
    inputs that it declares (positions, token types) start at zero: a random code of a token's size would be noise on
    every token. Gains start at the value at which they do nothing, biases (those of stacked experts too) and the rows
    of padding tokens at zero. Any other vector or scalar (a temperature, a layer's scale) has no known start: state its
    role, ``roles={"*.temperature": "vector"}``, to keep the value that it has.

    The rule is the same for every ``recipe``: what stays constant over width is the spectral size, because random
    entries are not aligned; the norm of the recipe measures updates, which are. Only where the recipe holds matrices
    on the Stiefel manifold do they start there, as the polar factors of the same random ones.

    Raises ValueError for what ``find_roles`` refuses, an unknown recipe, and a vector without a known start, before
    anything is written; TypeError for anything but a module.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 9))
    >>> _ = initialize_(model, "moga-row", roles={"2.weight": "output"})
    >>> bool(model[2].weight.any()), model[1].weight.tolist()
    (False, [1.0, 1.0, 1.0, 1.0])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"initialize_ needs a model, an nn.Module; got {type(model).__name__}")
    updates = resolve_recipe(recipe)
    assignments = find_roles(model, roles)
    starts = _vector_starts(model, assignments, roles)
    multiplied = logit_scales(model)
    with torch.no_grad():
        for one in assignments:
            if one.role != "vector":
                constraint = updates.get(one.role, {}).get("constraint")
                _fill_matrix(one, constraint, multiplied.get(id(one.parameter), 1.0), generator)
            elif (start := starts[id(one.parameter)]) is not None:
                one.parameter.fill_(start)
        _zero_padding(model)
    return model


def _fill_matrix(
    one: Assignment, constraint: str | None, logit_scale: float, generator: torch.Generator | None
) -> None:
    role = "hidden" if one.role == "output" and one.part else one.role
    matrices = to_matrices(one.parameter, one.layout, one.blocks, one.interleave)
    for matrix in matrices:
        out, in_ = matrix.shape[-2:]
        std = 0.0 if one.added else initial_std(role, out, in_, one.lookup, logit_scale)
        if std == 0:
            matrix.zero_()
        else:
            matrix.normal_(0, std, generator=generator)
        if constraint == "stiefel":
            matrix.copy_(polar_factor(matrix))
    one.parameter.copy_(from_matrices(matrices, one.layout, one.parameter.shape, one.interleave))  # not all are views


def _zero_padding(model: nn.Module) -> None:
    """The row of an embedding's ``padding_idx`` gets no gradient: what it starts with is what it keeps."""
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and module.weight.requires_grad:
            module.weight[module.padding_idx].zero_()


def _vector_starts(model: nn.Module, assignments: list[Assignment], roles: Roles | None) -> dict[int, float | None]:
    """The starting value of each vector by identity; None keeps what it holds."""
    starts = {id(tensor): start for module in model.modules() for tensor, start in _known_starts(module)}
    stated = {
        index
        for _, role, hits in match_patterns("roles", roles, [one.aliases for one in assignments])
        for index in hits
        if (role.get("role") if isinstance(role, Mapping) else role) == "vector"
    }
    kept: dict[int, float | None] = {}
    unknown: list[Assignment] = []
    for index, one in enumerate(assignments):
        if one.role != "vector":
            continue
        if id(one.parameter) not in starts and index not in stated:
            unknown.append(one)
        kept[id(one.parameter)] = starts.get(id(one.parameter))
    if unknown:
        others = [one.name for one in assignments if one not in unknown]
        patterns = {_pattern(one.name, others): one for one in unknown}
        found = [f"{key} ({one.module_type}, shape {tuple(one.parameter.shape)})" for key, one in patterns.items()]
        how = dict.fromkeys(patterns, "vector")
        raise ValueError(f"no known start for {', '.join(found)}; state roles={how} to keep the value that it has")
    return kept


def _pattern(name: str, others: Sequence[str]) -> str:
    """A pattern that this parameter has in common with those of other layers, if it matches none of the others.

    >>> _pattern("layers.12.mixer.A_log", ["head.weight"]), _pattern("1.weight", ["2.weight"])
    ('layers.*.mixer.A_log', '1.weight')
    """
    pattern = ".".join("*" if part.isdecimal() else part for part in name.split("."))
    return name if any(fnmatchcase(other, pattern) for other in others) else pattern


def _known_starts(module: nn.Module) -> Iterator[tuple[Tensor, float]]:
    own = dict(module.named_parameters(recurse=False))
    if "bias" in own:
        yield own["bias"], 0.0
    for name, tensor in own.items():
        if expert_layout(module, name) == ("vector", Packed()):
            yield tensor, 0.0
    if "weight" in own and own["weight"].ndim == 1 and (start := _neutral_gain(module)) is not None:
        yield own["weight"], start


def _neutral_gain(module: nn.Module) -> float | None:
    """The stored value at which a normalisation layer's gain does nothing, or None if the module is no such layer.

    Libraries bring classes of their own, and some store the gain minus 1 (Gemma), so they are asked what they do:
    at a gain of nothing the output has root-mean-square 1.

    >>> _neutral_gain(nn.LayerNorm(4)), _neutral_gain(nn.PReLU(4))
    (1.0, None)
    """
    if isinstance(module, TORCH_NORMS):
        return 1.0
    own = dict(module.named_parameters(recurse=False))
    size = own["weight"].numel()
    x = torch.linspace(-2, 3, size).reshape(1, 1, size)
    for start in (1.0, 0.0):
        values = {name: torch.full((size,), start if name == "weight" else 0.0) for name in own}
        try:
            y = torch.func.functional_call(module, values, (x,))
        except (TypeError, ValueError, RuntimeError):
            return None
        if isinstance(y, Tensor) and abs(float(y.square().mean()) - 1) < 1e-2:
            return start
    return None
