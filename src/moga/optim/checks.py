"""What a parameter group must say, and what its tensors must be: every error arrives when the group is added."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from moga.geometry.layout import check_layout, parse_layout, to_matrices
from moga.geometry.polar import POLAR, POLAR_DTYPES, check_dtype
from moga.optim.constraints import off_manifold, row_lengths
from moga.optim.distributed.pieces import whole
from moga.optim.kernels.compiled import IMPLEMENTATIONS
from moga.optim.matrices import Group
from moga.optim.rounding import ROUNDINGS
from moga.rules.flattened import WHY, refuse_flattened
from moga.rules.logits import user_level
from moga.rules.torch_words import in_our_words
from moga.rules.updates import (
    AVERAGES,
    CALIBRATIONS,
    CONSTRAINTS,
    HELD,
    STEPS,
    UPDATES,
    check_combination,
    operator_norm,
)

STATE_DTYPES = ("float32", "bfloat16")
NEEDED = ("norm", "layout", "scale")
# What a group may say besides: what it describes, and what torch's schedulers write into it.
DESCRIBED = ("params", "param_names", "role", "fan", "shape", "radius", "base_fan", "betas")
SCHEDULED = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr")

# What a group says where it is silent; also what a group saved by an older version lacks.
PLAIN: dict[str, Any] = {
    "p": None,
    "q": None,
    "polar": "exact",
    "polar_dtype": "float32",
    "step": "fixed",
    "constraint": "decay",
    "average": "mean",
    "blocks": (),
    "interleave": 1,
    "logit_scale": 1.0,
    "decays": True,
    "lr_scale": 1.0,
    "decay_scale": 1.0,
    "alpha": 0.99,
    "damping": 1e-4,
    "trust_clip": [0.5, 1.5],
    "calibration": "none",
    "state_dtype": "float32",
    "rounding": "nearest",
    "implementation": "auto",
    "skipped": 0,
    "rounded_steps": 0,
}

WORDS = {
    "norm": UPDATES,
    "step": STEPS,
    "constraint": CONSTRAINTS,
    "average": AVERAGES,
    "calibration": CALIBRATIONS,
    "state_dtype": STATE_DTYPES,
    "polar_dtype": tuple(POLAR_DTYPES),
    "rounding": ROUNDINGS,
    "implementation": IMPLEMENTATIONS,
}

# key -> (least, a bound that it stays below, whether the least itself is allowed)
RANGES = {
    "lr": (0, math.inf),
    "weight_decay": (0, math.inf),
    "eps": (0, math.inf),
    "damping": (0, math.inf),
    "lr_scale": (0, math.inf),
    "scale": (0, math.inf),
    "decay_scale": (0, math.inf),
    "momentum": (0, 1),
    "alpha": (0, 1),
}
PAIRS = {"betas": (0, 1), "trust_clip": (0, math.inf)}
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


HOW = "make groups with moga.param_groups(model, recipe) or an optimizer with moga.optimizer(model, recipe, lr=...)"


def check_params(params: object) -> None:
    """Raises TypeError for what holds no parameter groups: nothing, or a whole model."""
    if isinstance(params, nn.Module) or not isinstance(params, Iterable):
        raise TypeError(f"SteepestDescent needs parameter groups; got {type(params).__name__}: {HOW}")


def check_keys(group: object, defaults: Group) -> None:
    """Raises TypeError for what is no dict, ValueError for one without tensors, and for a key that nothing reads."""
    if not isinstance(group, dict):
        raise TypeError(f"a parameter group is a dict; got {type(group).__name__}: {HOW}")
    if "params" not in group:
        raise ValueError("a parameter group lacks 'params', its tensors or (name, tensor) pairs")
    if not isinstance(group["params"], Iterable):
        raise TypeError(f"'params' of a group are tensors or (name, tensor) pairs; got {group['params']!r}")
    check_words({**defaults, **group})
    known = dict.fromkeys((*DESCRIBED, *NEEDED, *PLAIN, *defaults, *SCHEDULED))
    if unknown := [key for key in group if key not in known]:
        said = in_our_words(unknown[0])
        raise ValueError(f"a parameter group has the unknown key {unknown[0]!r}; the keys are {', '.join(known)}{said}")


def check_words(group: Group) -> None:
    """Raises ValueError for missing keys, unknown words and combinations that do not exist."""
    missing = [key for key in NEEDED if key not in group]
    if missing:
        raise ValueError(f"a parameter group lacks {', '.join(map(repr, missing))}; {HOW}")
    for key, words in {**WORDS, "polar": tuple(POLAR)}.items():
        if group.get(key, words[0]) not in words:
            raise ValueError(f"unknown {key} {group[key]!r} in a parameter group; the words are {', '.join(words)}")
    if group["norm"] == "spectral" and group.get("polar_dtype") == "bfloat16":
        check_dtype(group.get("polar", "exact"), torch.bfloat16)
    parse_layout(group["layout"])
    check_combination(group)


def check_numbers(group: Group) -> None:
    """Raises TypeError for no number, ValueError for one out of range and for a decay that a constraint would undo."""
    operator_norm(group)  # checks the exponents
    _check_kinds(group)
    scale = group["scale"]
    numbers = {f"scale[{i}]": one for i, one in enumerate(scale if isinstance(scale, (list, tuple)) else [scale])}
    numbers |= {key: group[key] for key in RANGES if key != "scale"}
    if group["lookahead"] not in (None, "momentum"):
        numbers["lookahead"] = group["lookahead"]
    numbers |= {f"{key}[{i}]": value for key in PAIRS for i, value in enumerate(group[key])}
    for key, value in numbers.items():
        low, high = {**RANGES, **PAIRS}.get(key.split("[")[0], (0, 1))
        try:
            inside = bool(low <= value < high)
        except (TypeError, RuntimeError):
            raise TypeError(f"{key} must be a number; got {value!r}") from None
        if not inside:
            allowed = f"0 <= {key}" + ("" if high == math.inf else f" < {high}")
            raise ValueError(f"{key} = {value} is out of range; allowed is a finite {allowed}")
    least, most = group["trust_clip"]
    if least > most:
        raise ValueError(f"trust_clip = {group['trust_clip']} is out of range; allowed is 0 <= least <= most")
    if group["constraint"] in HELD and group["decays"] and group["weight_decay"]:
        raise ValueError(
            f"weight_decay = {group['weight_decay']} would be undone by the constraint {group['constraint']!r}, which "
            "fixes the size of a weight; say decays=False in the group, or weight_decay=0"
        )


def _check_kinds(group: Group) -> None:
    """Raises TypeError for pairs, lists, whole numbers and answers that are none."""
    for key in PAIRS:
        if not (isinstance(group[key], (list, tuple)) and len(group[key]) == 2):
            raise TypeError(f"{key} must be two numbers; got {group[key]!r}")
    if not isinstance(group["blocks"], (list, tuple)):
        raise TypeError(f"blocks must be a list of whole numbers; got {group['blocks']!r}")
    whole = {key: group[key] for key in ("interleave", "skipped", "rounded_steps")}
    whole |= {f"blocks[{i}]": size for i, size in enumerate(group["blocks"])}
    for key, value in whole.items():
        if not isinstance(value, int):
            raise TypeError(f"{key} must be a whole number; got {value!r}")
    if not isinstance(group["decays"], bool):
        raise TypeError(f"decays must be True or False; got {group['decays']!r}")


def check_names(group: Group, others: Iterable[Group]) -> None:
    """Raises ValueError unless ``param_names``, where there are any, name each tensor of all groups once."""
    if "param_names" not in group:
        return
    names, weights = group["param_names"], group["params"]
    if not (isinstance(names, (list, tuple)) and len(names) == len(weights) and all(isinstance(n, str) for n in names)):
        raise ValueError(f"param_names must be a list with one name per tensor, here {len(weights)}; got {names!r}")
    taken = {name for other in others for name in other.get("param_names", ())}
    for i, name in enumerate(names):
        if name in taken or name in names[:i]:
            raise ValueError(f"the name {name!r} is given twice; a saved state is matched to parameters by their names")


def check_tensors(group: Group) -> None:
    """Raises ValueError or TypeError for tensors that cannot be updated as the group says."""
    if not group["params"]:
        raise ValueError("a parameter group is empty; give it at least one tensor")
    blocks, scale = max(1, len(group["blocks"])), group["scale"]
    if isinstance(scale, (list, tuple)) and len(scale) != blocks:
        raise ValueError(f"scale has {len(scale)} numbers for {blocks} blocks; give one number, or one per block")
    seen: set[Tensor] = set()
    for name, weight in named(group):
        if weight in seen:
            raise ValueError(f"parameter {name!r} is given twice; every parameter is updated once")
        seen.add(weight)
        if not weight.is_floating_point():
            raise TypeError(f"parameter {name!r} is {weight.dtype}; a real floating-point tensor is needed")
        refuse_flattened(name, weight)
        try:
            check_layout(weight.shape, group["layout"], group["blocks"], group["interleave"])
        except ValueError as error:
            raise ValueError(f"parameter {name!r}: {error}") from None


def check_memory(groups: Iterable[Group]) -> None:
    """Raises ValueError for two tensors over one memory: each would be updated as if it were alone."""
    seen: dict[tuple[torch.device, int], tuple[str | int, Tensor]] = {}
    for name, weight in [pair for group in groups for pair in named(group)]:
        if type(weight) in (Tensor, nn.Parameter) and not weight.is_meta and (address := weight.data_ptr()):
            other, first = seen.setdefault((weight.device, address), (name, weight))
            if first is not weight:
                raise ValueError(
                    f"parameters {other!r} and {name!r} are two tensors over one memory; make them one, as in "
                    "module.weight = other.weight"
                )


def check_still_whole(group: Group) -> None:
    """Raises ValueError where a wrapper has since put flat tensors in the place of the weights of a group.

    DeepSpeed (ZeRO stages 1 to 3) and FSDP1 do this to an optimizer that was made before them, and mark nothing.
    """
    weights, names = group["params"], group.get("param_names")
    flat = [weight for weight in weights if weight.ndim < 2] if group["layout"] != "vector" else []
    if flat or (names is not None and len(names) != len(weights)):
        shown = ", ".join(map(str, (names or range(len(weights)))[:3]))
        shapes = ", ".join(str(tuple(weight.shape)) for weight in (flat or weights)[:3])
        raise ValueError(
            f"in the place of the weights of a parameter group ({shown}, ...) stand tensors of shape {shapes}, put "
            f"there after the optimizer was made, as DeepSpeed ZeRO and FSDP1 do. {WHY}"
        )


def named(group: Group) -> Iterator[tuple[str | int, Tensor]]:
    """The tensors of a group with their names, or with their places where it has none.

    >>> [name for name, _ in named({"params": [torch.ones(1), torch.ones(1)]})]
    [0, 1]
    """
    names = group.get("param_names", range(len(group["params"])))
    return zip(names, group["params"], strict=True)


def warn_if_nothing_decays(groups: Iterable[Group], weight_decay: float) -> None:
    """Warn that a weight decay which somebody asked for reaches no parameter, and why."""
    groups = list(groups)
    if not weight_decay or any(group["decays"] and group["decay_scale"] for group in groups):
        return
    held = sorted({group["constraint"] for group in groups} & set(HELD))
    reasons = [f"the constraint {word!r} holds the size of the weights" for word in held]
    if any(group["layout"] == "vector" for group in groups):
        reasons.append("vectors decay only with decay_vectors=True")
    why = "; ".join(reasons) or "all groups say decays=False or decay_scale=0"
    warnings.warn(f"weight_decay = {weight_decay} decays no parameter: {why}", stacklevel=user_level())


@torch.no_grad()
def warn_of_starts(group: Group) -> None:
    """Warn of weights that the group's constraint cannot work with: off the manifold, or zero where a size is kept."""
    if group["constraint"] == "decay":
        return
    for name, weight in named(group):
        if weight.is_meta or weight.numel() == 0:
            continue
        for matrix in to_matrices(whole(weight), group["layout"], group["blocks"], group["interleave"]):
            if text := _STARTS[group["constraint"]](matrix):
                warnings.warn(f"parameter {name!r} {text}", stacklevel=user_level())
                break


def _stiefel_start(matrix: Tensor) -> str:
    off = max(off_manifold(one) for one in matrix.reshape(-1, *matrix.shape[-2:]))
    if off <= TOLERANCE[matrix.dtype]:
        return ""
    return (
        f"is not on the Stiefel manifold: its Gram matrix differs from the identity by {off:.2g}. The first step moves "
        "it there, however small lr is. Give it orthonormal rows or columns first: torch.nn.init.orthogonal_(weight)"
    )


def _sphere_start(matrix: Tensor) -> str:
    if bool(matrix.any(-1).any(-1).all()):
        return ""
    return "is zero, and the constraint 'sphere' keeps its size: it can never move. Initialise it, or exempt it"


def _row_start(matrix: Tensor) -> str:
    if bool((row_lengths(matrix.float()) > 0).all()):
        return ""
    return "has rows of zeros, which 'row_magnitude' gives no direction: they can never move. Initialise them"


_STARTS = {"stiefel": _stiefel_start, "sphere": _sphere_start, "row_magnitude": _row_start}
