"""Residual branches that the user states, by patterns of module names, and the affine map with which each ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.conv import _ConvNd

from moga.rules.blocks import Branch, Stack
from moga.rules.families import kinds

Patterns = Sequence[str] | Mapping[str, str | Sequence[str]]

SHOWN = 20  # names in an error
COMMUTING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Identity)  # with a multiplier
AFFINE = (nn.Linear, _ConvNd, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
CONV1D = "transformers.pytorch_utils.Conv1D"


def stated_stack(model: nn.Module, patterns: Patterns, depth: int | None) -> Stack:
    """The branches that the patterns match, each pattern once per block.

    Raises TypeError for anything but a list or a dict of patterns; ValueError for a pattern that matches no module, a
    module inside another match, patterns that match different numbers of modules while ``depth`` is not given, and a
    branch whose last affine map is not known.

    >>> stated_stack(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), ["0"], depth=None).branches[0].maps
    ('',)
    """
    if isinstance(patterns, str) or not isinstance(patterns, (Sequence, Mapping)) or not patterns:
        raise TypeError(f"branches must be a list of patterns of module names, or a dict from them; got {patterns!r}")
    named = {name: module for name, module in model.named_modules() if name}
    counts: dict[str, int] = {}
    found: dict[str, Branch] = {}
    for pattern in patterns:
        hits = [name for name in named if fnmatchcase(name, pattern)]
        if not hits:
            known = ", ".join(list(named)[:SHOWN])
            raise ValueError(f"the pattern {pattern!r} in branches matches no module; the names begin with: {known}")
        counts[pattern] = len(hits)
        maps = patterns[pattern] if isinstance(patterns, Mapping) else None
        found |= {name: Branch(name, named[name], _maps(name, named[name], maps)) for name in hits}
    if nested := _nested(found):
        raise ValueError(f"branches match {nested[0]} and, inside of it, {nested[1]}, which would be multiplied twice")
    blocks = max(counts.values()) if len(set(counts.values())) == 1 else depth
    if blocks is None:
        raise ValueError(
            f"the patterns in branches match different numbers of modules, {counts}; state depth=, the number of blocks"
        )
    return Stack(blocks, list(found.values()))


def _nested(names: Iterable[str]) -> tuple[str, str] | None:
    """A name of a module and one inside of it, if there are.

    >>> _nested(["0.attn", "0.attn.out"]), _nested(["0.attn", "0.attn2"])
    (('0.attn', '0.attn.out'), None)
    """
    known = list(names)
    return next(((a, b) for a in known for b in known if b.startswith(f"{a}.")), None)


def _maps(name: str, branch: nn.Module, stated: str | Sequence[str] | None) -> tuple[str, ...]:
    if stated is None:
        return (last_map(name, branch),)
    known = {path for path, _ in [*branch.named_modules(), *branch.named_parameters()]}
    maps = (stated,) if isinstance(stated, str) else tuple(stated)
    for path in maps:
        if path not in known:
            raise ValueError(f"branches: {name} ({type(branch).__name__}) has nothing with the name {path!r}")
    return maps


def last_map(name: str, branch: nn.Module) -> str:
    """The name, inside of a branch, of the affine map with which it ends: "" for itself, or the last of a Sequential.

    Dropout commutes with a multiplier, and is passed over. Raises ValueError for any other end.

    >>> last_map("branch", nn.Sequential(nn.ReLU(), nn.Linear(2, 2), nn.Dropout()))
    '1'
    """
    path, inner = "", branch
    while isinstance(inner, nn.Sequential):
        steps = [(key, step) for key, step in inner.named_children() if not isinstance(step, COMMUTING)]
        if not steps:
            break
        path, inner = f"{path}.{steps[-1][0]}".removeprefix("."), steps[-1][1]
    if isinstance(inner, AFFINE) or CONV1D in kinds(inner):
        return path
    raise ValueError(
        f"the last affine map of the branch {name} is not known: it ends in {f'{name}.{path}'.rstrip('.')} "
        f"({type(inner).__name__}). State the map by its name inside of the branch: branches={{pattern: 'fc2'}}"
    )
