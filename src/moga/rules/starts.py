"""How parameters that are no matrices start: gains, biases, numbers per head, class tokens that are one vector."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from moga.rules.families import Packed, expert_layout
from moga.rules.places import placed_starts

TORCH_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
# Modules of torch whose biases have names of their own. All start at zero, forget gates as well.
BIASED = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)

Start = float | str  # a value, or "keep" or "token"


def known_starts(module: nn.Module) -> Iterator[tuple[Tensor, Start]]:
    """The start of each vector that this module knows: a value, "keep" or "token" (random, of unit size).

    What the module holding it says comes after, and wins: Mamba keeps the bias of its linear map to dt.

    >>> [start for _, start in known_starts(nn.LayerNorm(4))]
    [0.0, 1.0]
    """
    own = dict(module.named_parameters(recurse=False))
    for name, parameter in own.items():
        biased = name == "bias" or (isinstance(module, BIASED) and "bias" in name)
        if biased or expert_layout(module, name) == ("vector", Packed()):
            yield parameter, 0.0
    if "weight" in own and own["weight"].ndim == 1 and (start := _neutral_gain(module)) is not None:
        yield own["weight"], start
    for tensor, word in placed_starts(module):
        yield tensor, 0.0 if word == "zero" else word


def starts_of(model: nn.Module) -> dict[int, Start]:
    """The start of each vector of a model that is known, by identity."""
    inside_first = reversed(list(model.modules()))
    return {id(tensor): start for module in inside_first for tensor, start in known_starts(module)}


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
