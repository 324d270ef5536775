"""What is remembered of a base, the model at whose width somebody tuned: sizes and roles by name, as plain data.

A base is another model, the config of one, or the JSON that :func:`save_base` wrote. Frozen parameters count: a base
needs shapes, not gradients. Parameters are found by their names without what wrappers put in (DistributedDataParallel,
FSDP, torch.compile, activation checkpointing, a module that holds the model). A layer that the base lacks takes the
sizes of the base's layers: of those whose name differs in nothing but numbers, if they all agree.
"""

from __future__ import annotations

import copy
import fnmatch
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moga.geometry.layout import logical_matrices
from moga.rules.heads import heads_of
from moga.rules.hooks import config_of
from moga.rules.logits import KEY, logit_scale
from moga.rules.patterns import checked_patterns
from moga.rules.roles import Assignment, OpenRoles, find_roles
from moga.rules.stated import Roles
from moga.rules.storage import WRAPPERS as HOLDERS
from moga.rules.storage import model_or_pairs, stored_tensors

VERSION = 1  # of the saved form
WRAPPERS = frozenset(attribute for _, _, attribute in HOLDERS)  # what they put into names

Sizes = tuple[tuple[int, int, int], ...]  # (number of matrices, out, in) of each logical block
Base = Any  # a model, (name, tensor) pairs, a config, the dict or the path of what save_base wrote


@dataclass(frozen=True)
class Matrix:
    """A matrix of a base. ``role`` is "" where the base's modules leave it open."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    layout: str
    blocks: tuple[int, ...]
    interleave: int
    lookup: bool
    role: str
    multiplier: float = 1.0  # by which the model itself multiplies the rows of a lookup

    @property
    def sizes(self) -> Sizes:
        """(number, out, in) of each block: ``number`` matrices of that size, side by side.

        >>> Matrix(("w",), (6, 4), "out,in", (4, 1, 1), 1, False, "hidden").sizes
        ((1, 4, 4), (1, 1, 4), (1, 1, 4))
        """
        empty = torch.empty(self.shape, device="meta")
        found = logical_matrices(empty, self.layout, self.blocks, self.interleave)
        return tuple((one.shape[:-2].numel(), one.shape[-2], one.shape[-1]) for one in found)


def as_matrix(one: Assignment, role: str) -> Matrix:
    """What is remembered of an assignment."""
    names, shape = plain_names(one.aliases), tuple(one.parameter.shape)
    return Matrix(names, shape, one.layout, one.blocks, one.interleave, one.lookup, role, one.multiplier)


@dataclass(frozen=True)
class Record:
    """A base as data: its matrices, and (features, scale or 0 if unknown) of its attention heads by module."""

    model: str
    matrices: tuple[Matrix, ...]
    heads: dict[str, tuple[int, float]]
    logit_scale: float = 1.0


def plain_name(name: str) -> str:
    """A parameter's name without the parts that wrappers put in.

    >>> plain_name("module._orig_mod.h.0._checkpoint_wrapped_module.mlp.weight")
    'h.0.mlp.weight'
    """
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def plain_names(names: Sequence[str]) -> tuple[str, ...]:
    """All names of one parameter without what wrappers put in, where ``module`` may be an attribute of the model's own.

    A wrapper's ``module`` is told by a shorter name of the same parameter, which is the one inside of the wrapper.

    >>> plain_names(["h.module.weight"]), plain_names(["h.weight", "module.h.weight"])
    (('h.module.weight',), ('h.weight',))
    """
    shortest: dict[str, str] = {}
    for name in sorted(names, key=len):
        shortest.setdefault(plain_name(name), name)
    inside = (name for name in names if name in shortest.values())
    return tuple(
        ".".join(part for part in name.split(".") if part == "module" or part not in WRAPPERS) for name in inside
    )


def any_layer(name: str) -> str:
    """The name with a star for each number.

    >>> any_layer("h.11.experts.3.w1.weight")
    'h.*.experts.*.w1.weight'
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def assignments(
    model: nn.Module | Iterable[tuple[str, Tensor]], roles: Roles | None
) -> tuple[list[Assignment], OpenRoles | None]:
    """As :func:`find_roles`, but where it is open which linear maps are hidden all are, and the error comes with them.

    >>> found, still_open = assignments(nn.Sequential(nn.Linear(3, 2)), None)
    >>> found[0].role, still_open.names
    ('hidden', ['0.weight'])
    """
    pairs = model_or_pairs(model)
    try:
        return find_roles(pairs, roles), None
    except OpenRoles as error:
        return find_roles(pairs, {**dict.fromkeys(error.names, "hidden"), **(roles or {})}), error


def record_of(model: nn.Module | Iterable[tuple[str, Tensor]], roles: Roles | None = None) -> Record:
    """What is remembered of a model; of weights on the meta device too, of which there are only the shapes.

    The multiplier of the logits is that of the model, or the one that its config remembers: a base is not run.
    """
    with _thawed(model, checked_patterns("roles", roles)):
        found, still_open = assignments(model, roles)
    unsettled = still_open.names if still_open else []
    matrices = tuple(
        as_matrix(one, "" if one.name in unsettled else one.role) for one in found if one.layout != "vector"
    )
    if not isinstance(model, nn.Module):
        return Record("list", matrices, {})
    multiplier = logit_scale(model) or getattr(config_of(model), KEY, None) or 1.0
    heads = {plain_name(name): head for name, head in heads_of(model).items()}
    return Record(type(model).__name__, matrices, heads, float(multiplier))


@contextmanager
def _thawed(model: nn.Module | Iterable[tuple[str, Tensor]], roles: Roles) -> Iterator[None]:
    """Have the frozen parameters count as trainable for a while, if their modules or ``roles`` say what they are."""
    frozen = [
        one.tensor
        for one in (stored_tensors(model) if isinstance(model, nn.Module) else ())
        if not one.tensor.requires_grad and one.tensor.is_floating_point()
        if (one.certain and one.kind != "unknown") or any(fnmatch.filter(one.names, pattern) for pattern in roles)
    ]
    try:
        for tensor in frozen:
            tensor.requires_grad_(True)
        yield
    finally:
        for tensor in frozen:
            tensor.requires_grad_(False)


def save_base(
    model: nn.Module | Iterable[tuple[str, Tensor]],
    path: str | os.PathLike[str],
    *,
    roles: Roles | None = None,
) -> dict[str, Any]:
    """Write what ``base=`` needs of a model to a JSON file of a few kB, and return it: names, shapes, blocks, roles.

    ``roles`` states roles as in :func:`find_roles`. Where nothing states them they may stay open: widths settle them.

    >>> import tempfile
    >>> small, large = (nn.Sequential(nn.Linear(3, n), nn.Linear(n, n), nn.Linear(n, 5)) for n in (8, 32))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = save_base(small, f"{folder}/base.json")
    >>> from moga import param_groups
    >>> [(g["role"], g["scale"]) for g in param_groups(large, "mup-adamw", base=saved)]
    [('input', 1.0), ('vector', 1.0), ('hidden', 0.25), ('output', 0.25)]
    """
    record = record_of(model, roles)
    saved = {
        "moga_base": VERSION,
        "model": record.model,
        "logit_scale": record.logit_scale,
        "heads": {name: list(head) for name, head in record.heads.items()},
        "matrices": _rows(record.matrices),
    }
    lines = json.dumps(saved, indent=1)
    Path(path).write_text(re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), lines) + "\n", "utf-8")
    return saved


FIELDS = ("shape", "layout", "blocks", "interleave", "lookup", "role", "multiplier")


def _rows(matrices: Iterable[Matrix]) -> list[dict[str, Any]]:
    """One row for all matrices that differ in nothing but their names."""
    rows: dict[str, dict[str, Any]] = {}
    for one in matrices:
        values = {key: list(value) if isinstance(value := getattr(one, key), tuple) else value for key in FIELDS}
        rows.setdefault(repr(values), {"names": [], **values})["names"].append(list(one.names))
    return list(rows.values())


def read_base(base: Base, model: nn.Module | Iterable[tuple[str, Tensor]], roles: Roles | None = None) -> Record:
    """A base in any of its forms; a config is that of the class of ``model``, and builds no weights.

    ``roles`` are those stated for ``model``. A base that is a model takes those that match its names; where the two
    need different ones, save the base with its own.

    Raises TypeError for what is no base, ValueError for a file that is missing or not one that :func:`save_base` wrote.
    """
    if isinstance(base, Record):
        return base
    if isinstance(base, (str, os.PathLike)):
        return _loaded(_json(Path(base)), str(base))
    if isinstance(base, Mapping):
        return _loaded(base, "the dict")
    if hasattr(base, "model_type") and hasattr(base, "to_dict"):
        base = _from_config(base, model)
    if isinstance(base, (nn.Module, list, tuple)):
        pairs = base.named_parameters(remove_duplicate=False) if isinstance(base, nn.Module) else base
        names = [name for name, _ in pairs]
        stated = checked_patterns("roles", roles).items()
        own = {pattern: role for pattern, role in stated if fnmatch.filter(names, pattern)}
        return record_of(base, own)
    raise TypeError(
        f"base must be a model, a list of (name, tensor) pairs, a config, or what moga.save_base wrote (its path or "
        f"its dict); got {type(base).__name__}"
    )


def _json(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"base = {str(path)!r} is no file; write one with moga.save_base(model, path)")
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(
            f"base = {str(path)!r} is not JSON ({error}); moga.save_base(model, path) writes one"
        ) from None


def _loaded(saved: Any, where: str) -> Record:
    version = saved.get("moga_base") if isinstance(saved, Mapping) else None
    if version != VERSION:
        what = "is not one that moga.save_base wrote" if version is None else f"has version {version!r}"
        raise ValueError(
            f"base: {where} {what}; version {VERSION} is needed: write it with moga.save_base(model, path)"
        )
    try:
        matrices = [_matrix(row, names) for row in saved["matrices"] for names in row["names"]]
        heads = {name: (int(size), float(scale)) for name, (size, scale) in saved["heads"].items()}
        return Record(saved["model"], tuple(matrices), heads, float(saved["logit_scale"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"base: {where} is damaged ({error!r}); write it anew with moga.save_base") from None


def _matrix(row: Mapping[str, Any], names: list[str]) -> Matrix:
    values: dict[str, Any] = {key: tuple(row[key]) if isinstance(row[key], list) else row[key] for key in FIELDS}
    matrix = Matrix(tuple(names), **values)
    _ = matrix.sizes  # checks that the layout and the blocks fit the shape
    return matrix


def _from_config(config: Any, model: Any) -> nn.Module:
    """A model of the class that has a config of the same class, on the meta device."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    for module in modules:
        if type(vars(module).get("config")) is type(config):  # torch.compile's wrapper forwards the attribute
            with torch.device("meta"):
                built: nn.Module = type(module)(copy.deepcopy(config))
            return built
    raise TypeError(
        f"base is a {type(config).__name__}, but the model ({type(model).__name__}) has no part with such a config; "
        "give the config of a smaller model of the same class, or that model"
    )
