"""The heads of attention: their size may differ from the base's only where the products are scaled by 1 / size."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

# An attention module's attributes: the features of one head, or else the number of heads and all features; and what
# multiplies the products of queries and keys. (Falcon's and BLOOM's inv_norm_factor is not one of them: Falcon reads it
# in only some of its paths.) A state-space model's heads are no such: nothing is summed over their features.
SIZES = ("qk_head_dim", "head_dim", "head_size", "attention_head_size", "key_value_proj_dim")
COUNTS = ("n_head", "n_heads", "num_heads", "num_attention_heads")
FEATURES = ("n_embd", "embed_dim", "hidden_size", "d_model", "d_model_size")
SCALES = ("scaling", "softmax_scale")
STATES = "ssm_state_size"

Head = tuple[int, float]  # its features, and the scale of its products or 0 if unknown


def heads_of(model: nn.Module) -> dict[str, Head]:
    """The heads of each attention module, by its name.

    Where a module has only the number of heads and all features, a head has their ratio; unless it holds the attention
    modules, whose own sizes count.

    >>> heads_of(nn.Sequential(nn.MultiheadAttention(12, 3)))
    {'0': (4, 0.0)}
    """
    found: dict[str, Head] = {}
    for name, module in reversed(list(model.named_modules())):  # what a module holds comes before it
        if hasattr(module, STATES):
            continue
        sizes, counts, features = (_integers(module, names) for names in (SIZES, COUNTS, FEATURES))
        if counts and features and not any(other.startswith(f"{name}.".lstrip(".")) for other in found):
            sizes = sizes or [features[0] // counts[0]]
        if sizes:
            found[name] = (sizes[0], _scale(module))
    return dict(reversed(found.items()))


def check_heads(model: nn.Module, at_base: Callable[[str], Head | None]) -> None:
    """Heads of another size: aligned queries and keys have products that grow as the size, so 1 / size must scale them.

    ``at_base`` gives the heads of a module by its name, None where the base has no such module.

    Raises ValueError where the scale is another one, or is not known.
    """
    for name, (size, scale) in heads_of(model).items():
        base_size, base_scale = at_base(name) or (size, scale)
        if size == base_size or (scale and math.isclose(scale * size, base_scale * base_size, rel_tol=1e-3)):
            continue
        kind = type(model.get_submodule(name)).__name__
        text = (
            f"{name or kind} has heads of {size} features, and of {base_size} at the base. The products of trained "
            "queries and keys grow as the number of features: keep it and add heads, or scale the products by "
            "1 / features from the base on"
        )
        if not (scale and base_scale):
            raise ValueError(
                f"{text}. Which scale it has is not known here. If both models do so, say it in both:\n"
                f"  for module in model.modules():\n    if type(module).__name__ == {kind!r}:\n"
                f"      module.scaling = 1 / {size}  # and 1 / {base_size} at the base"
            )
        right = base_scale * base_size / size
        key = next(key for key in SCALES if any(hasattr(module, key) for module in model.modules()))
        raise ValueError(
            f"{text}: it scales by {scale:.4g}, which should be {right:.4g}, for example\n"
            f"  for module in model.modules():\n    if hasattr(module, {key!r}):\n"
            f"      module.{key} *= {right / scale:.6g}"
        )


def _integers(module: nn.Module, names: tuple[str, ...]) -> list[int]:
    return [value for name in names if isinstance(value := getattr(module, name, None), int) and value > 0]


def _scale(module: nn.Module) -> float:
    return next((value for name in SCALES if isinstance(value := getattr(module, name, None), float)), 0.0)
