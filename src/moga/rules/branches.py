"""The multiplier of residual branches, which keeps a deep model's changes from adding up, and its way out again.

The multiplier is a hook on the output of each module that makes a branch (:mod:`moga.rules.blocks`): it survives
copying and pickling, leaves names and ``state_dict`` as they are, is traced by torch.compile, and is lost by
``from_pretrained``, which makes a new module. Therefore the config remembers it under :data:`KEY`, and
:func:`check_branches` refuses a model whose config has it and whose forward pass has not. Weights are trained so, with
the multiplier outside: a step of lr on the last map moves the branch by lr times the multiplier. Folding is for export.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from moga.rules.blocks import known_stacks
from moga.rules.folding import Target, fold_changes
from moga.rules.hooks import config_of, is_compiled
from moga.rules.stated_branches import Patterns, stated_stack
from moga.rules.transfer import branch_multiplier

KEY = "moga_branches"


class BranchScale:
    """A hook that multiplies what a module returns, with the names of the last affine maps inside of that module.

    A class, so that it can be copied, pickled and recognised. Of a plain tuple, the first element is the branch.
    """

    def __init__(self, factor: float, maps: tuple[str, ...]) -> None:
        self.factor = factor
        self.maps = maps

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, Tensor):
            return output * self.factor
        if type(output) is tuple and output and isinstance(output[0], Tensor):
            return (output[0] * self.factor, *output[1:])
        raise TypeError(
            f"a residual branch returns a tensor, or a tuple that begins with one; {type(module).__name__} returned "
            f"{type(output).__name__}"
        )


def scale_branches_(
    model: nn.Module,
    rule: str | None = None,
    *,
    base_depth: int | None = None,
    depth: int | None = None,
    branches: Patterns | None = None,
) -> nn.Module:
    """Multiply each residual branch as the rule for depth says, in place, and return the model.

    Call it on a new model, before or after :func:`moga.initialize_`, before compiling. With ``base_depth`` the model is
    as it was at that depth, and the multiplier is ``base_depth / depth`` (rule "1/K") or the square root of that
    ("1/sqrt(2K)"). Without, it is what the rule's name says: K blocks, or 2K branches (as many as there are, where a
    block has another number than two). A model that was saved with a rule and loaded by ``from_pretrained`` needs no
    argument: its config remembers.

    Args:
        rule: "1/K" (unless the config remembers another), "1/sqrt(2K)", or "none", which does nothing.
        base_depth: the number of blocks at which the learning rate was tuned.
        depth: the number of blocks, counted for each stack (an encoder, a decoder) unless given.
        branches: for models whose blocks are not known: the modules whose output is added to the residual stream, as
            patterns of module names, one for each branch of a block; or a dict from such a pattern to the names, inside
            of that module, of its last affine maps.

    Raises ValueError for an unknown rule, a model whose blocks are post-LN or not known, patterns that match no module
    or not one per block, branches without a known last map, a model that is multiplied already or compiled, and
    arguments that contradict the config; TypeError for anything but a module.

    >>> class Residual(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.branch = nn.Sequential(nn.ReLU(), nn.Linear(3, 3))
    ...     def forward(self, x):
    ...         return x + self.branch(x)
    >>> model, x = nn.Sequential(*[Residual() for _ in range(4)]), torch.ones(3)
    >>> before = model[0](x) - x
    >>> _ = scale_branches_(model, base_depth=2, branches=["*.branch"])
    >>> bool(torch.allclose(model[0](x) - x, before / 2)), branch_scales(model)["0.branch"]
    (True, 0.5)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"scale_branches_ needs a model, an nn.Module; got {type(model).__name__}")
    if scales := branch_scales(model):
        name, factor = next(iter(scales.items()))
        raise ValueError(f"{name} is multiplied by {factor:g} already; call scale_branches_ once")
    if is_compiled(model):
        raise ValueError("the model is compiled, and would not see the multiplier; call scale_branches_ before that")
    settings = _settings(model, {"rule": rule, "base_depth": base_depth, "depth": depth})
    stacks = known_stacks(model) if branches is None else [stated_stack(model, branches, settings["depth"])]
    for stack in stacks:
        blocks = stack.depth if settings["depth"] is None else settings["depth"]
        per_block = len(stack.branches) / stack.depth
        factor = branch_multiplier(settings["rule"], blocks, settings["base_depth"], per_block)
        for branch in stack.branches if settings["rule"] != "none" else ():
            branch.module.register_forward_hook(BranchScale(factor, branch.maps))
    config = config_of(model)
    if config is not None and settings["rule"] != "none":
        setattr(config, KEY, settings)
    return model


def fold_branches_(model: nn.Module) -> nn.Module:
    """Write each multiplier into the last affine maps of its branch, in place: a plain model with the same outputs.

    That is the weight and the bias of the map; of every expert; and the gain of a norm that comes last, also where it
    is stored minus 1. Do it when training is over, before the model is saved for programs that know nothing of this
    library: a step on folded weights would be a larger one.

    Raises ValueError, before anything is written, for a model whose branches are not multiplied (a folded one is not),
    a compiled one, a map that is replaced by an adapter, is quantised, shares its weight with something else, or holds
    its gain minus 1 in half precision.

    >>> layer, x = nn.TransformerEncoderLayer(4, 2, 8, norm_first=True).eval(), torch.ones(1, 3, 4)
    >>> before = scale_branches_(layer, base_depth=1, depth=8)(x)
    >>> bool(torch.allclose(fold_branches_(layer)(x), before)), branch_scales(layer)
    (True, {})
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fold_branches_ needs a model, an nn.Module; got {type(model).__name__}")
    check_branches(model)
    hooks = list(_hooks(model))
    if not hooks:
        raise ValueError("the branches of this model are not multiplied: there is nothing to fold")
    if is_compiled(model):
        raise ValueError("the model is compiled, and would still multiply; fold the one that was compiled")
    targets = [
        Target(f"{name}.{path}".strip("."), module, path, one.factor)
        for name, module, _, one in hooks
        for path in one.maps
    ]
    with torch.no_grad():
        for parameter, factor, offset in fold_changes(model, targets):
            parameter.add_(offset).mul_(factor).sub_(offset)
    for _, module, key, _ in hooks:
        del module._forward_hooks[key]
    if hasattr(config := config_of(model), KEY):  # models may share one
        delattr(config, KEY)
    return model


def branch_scales(model: nn.Module) -> dict[str, float]:
    """What :func:`scale_branches_` made this model multiply, by the name of the module whose output it is.

    >>> branch_scales(nn.Linear(3, 2))
    {}
    """
    return {name: one.factor for name, _, _, one in _hooks(model)}


def check_branches(model: nn.Module) -> None:
    """Raises ValueError if the config says that the branches are multiplied and the forward pass does not do it.

    >>> check_branches(nn.Linear(3, 2))
    """
    remembered = getattr(config_of(model), KEY, None)
    if remembered is not None and not branch_scales(model):
        raise ValueError(
            f"the config says that the residual branches are multiplied, rule {remembered['rule']!r} ({KEY}), but this "
            "model does not do it: from_pretrained makes a new one. Call moga.scale_branches_(model) first, or delete "
            f"model.config.{KEY} if the model was not trained so"
        )


def _hooks(model: nn.Module) -> Iterator[tuple[str, nn.Module, int, BranchScale]]:
    for name, module in model.named_modules():
        for key, hook in module._forward_hooks.items():
            if isinstance(hook, BranchScale):
                yield name, module, key, hook


def _settings(model: nn.Module, stated: Mapping[str, Any]) -> dict[str, Any]:
    """What the config remembers, or what is stated, checked. Raises ValueError if the two contradict each other."""
    remembered = getattr(config_of(model), KEY, None)
    if remembered is None:
        settings = {**stated, "rule": "1/K" if stated["rule"] is None else stated["rule"]}
        branch_multiplier(settings["rule"], 1 if stated["depth"] is None else stated["depth"], stated["base_depth"])
        return settings
    for word, value in stated.items():
        if value not in (None, remembered[word]):
            raise ValueError(
                f"the config says {word}={remembered[word]!r} ({KEY}), and {word}={value!r} is given; leave out the "
                f"arguments to apply the former, or delete model.config.{KEY} if it is another model's"
            )
    return dict(remembered)
