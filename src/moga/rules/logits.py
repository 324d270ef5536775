"""The multiplier of the logits, which a matrix that is input and output in one needs, and where a model keeps it.

The multiplier has to be in the model's forward pass, not in a tensor: a tied matrix has one set of numbers for two
uses. Families with a field for it in their config keep it there. All others get a hook on the input of the module that
makes the logits, which survives copying and pickling, leaves names and ``state_dict`` as they are, is traced by
torch.compile, and is lost by ``from_pretrained``, which makes a new module. Therefore the config remembers it under
:data:`KEY`, and :func:`check_logits` refuses a model whose config has it and whose forward pass has not.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from moga.rules.hooks import config_of, is_compiled
from moga.rules.places import divides_logits
from moga.rules.roles import Assignment, find_roles
from moga.rules.started import check_not_started
from moga.rules.stated import Roles
from moga.rules.transfer import follows_width, logit_multiplier

KEY = "moga_logit_scale"
OUTPUTS = {"tied": ("tied",), "all": ("tied", "output")}


class Field(NamedTuple):
    """Where a family keeps a multiplier: a setting of its config, which the model reads, or copied when it was made."""

    family: str  # transformers.models.<family>.modeling_<family>
    model: str
    setting: str
    copy: str  # attribute of the model, or of a part of it; "" if the config is read at every forward pass
    power: int  # the logits are multiplied by setting ** power


FIELDS = (
    Field("cohere", "CohereForCausalLM", "logit_scale", "logit_scale", 1),
    Field("cohere2", "Cohere2ForCausalLM", "logit_scale", "logit_scale", 1),
    Field("cohere2_moe", "Cohere2MoeForCausalLM", "logit_scale", "logit_scale", 1),
    Field("cohere_compass", "CohereCompassForCausalLM", "logit_scale", "logit_scale", 1),
    Field("falcon_h1", "FalconH1ForCausalLM", "lm_head_multiplier", "model.lm_head_multiplier", 1),
    Field("hyperclovax", "HyperCLOVAXForCausalLM", "logits_scaling", "", 1),
    Field("granite", "GraniteForCausalLM", "logits_scaling", "", -1),
    Field("granite_swa", "GraniteSWAForCausalLM", "logits_scaling", "", -1),
    Field("granitemoe", "GraniteMoeForCausalLM", "logits_scaling", "", -1),
    Field("granitemoe_swa", "GraniteMoeSWAForCausalLM", "logits_scaling", "", -1),
    Field("granitemoehybrid", "GraniteMoeHybridForCausalLM", "logits_scaling", "", -1),
    Field("granitemoeshared", "GraniteMoeSharedForCausalLM", "logits_scaling", "", -1),
)


class LogitScale:
    """A hook that multiplies what a module is given. A class, so that it can be copied, pickled and recognised.

    The input and not the output, so that a bias, which moves by lr at every width, is not multiplied.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        (features,) = args
        return (features * self.factor,)


def scale_logits_(
    model: nn.Module,
    *,
    base_width: int | None = None,
    width: int | None = None,
    outputs: str = "tied",
    roles: Roles | None = None,
) -> nn.Module:
    """Multiply the logits by ``base_width / width``, in place, and return the model.

    Where the model itself multiplies the tied table by sqrt(width) (Gemma), or divides the features of its output by it
    (T5), that has done half of it, and the multiplier is ``sqrt(base_width / width)``; see
    :func:`moga.rules.transfer.logit_multiplier`.

    Call it on a new model, before :func:`moga.initialize_` (which gives a tied matrix the base's standard deviation)
    and :func:`moga.optimizer`. At the base the model is as it was. Without ``base_width`` the multiplier is the one
    that the config remembers: for a model that was saved with it and loaded by ``from_pretrained``.

    Args:
        base_width: the width at which the learning rate was tuned.
        width: the number of features that the output maps; the model's own unless given.
        outputs: "tied", a matrix that is input and output in one; or "all", outputs of their own as well: their steps
            are then divided by the multiplier, because the step of the map is what has size lr.
        roles: as in :func:`find_roles`, for a model that needs them.

    Raises ValueError for a model without such an output, one whose logits no module makes, one that is multiplied
    already or compiled, a tied matrix that :func:`moga.initialize_` has started without the multiplier, and a
    ``base_width`` that contradicts the config.

    >>> from moga.rules.logits import logit_scale
    >>> head = nn.Linear(8, 9, bias=False)
    >>> model = nn.Sequential(nn.Embedding(9, 8), head)
    >>> head.weight = model[0].weight
    >>> before = model[1](model[0].weight)
    >>> bool((scale_logits_(model, base_width=2)[1](model[0].weight) == before / 4).all()), logit_scale(model)
    (True, 0.25)
    """
    if outputs not in OUTPUTS:
        raise ValueError(f"unknown word outputs={outputs!r}; the words are {', '.join(OUTPUTS)}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"scale_logits_ needs a model, an nn.Module; got {type(model).__name__}")
    if logit_scale(model) is not None:
        raise ValueError(f"the logits are multiplied by {logit_scale(model):g} already; call scale_logits_ once")
    if is_compiled(model):
        raise ValueError("the model is compiled, and would not see the multiplier; call scale_logits_ before compiling")
    found = [one for one in find_roles(model, roles) if one.role in OUTPUTS[outputs] and not one.part]
    if not found:
        raise ValueError(
            "no output to multiply: no trainable matrix of this model is input and output in one. The step of an "
            'output of its own is scaled by the recipe; outputs="all" multiplies its logits too'
        )
    factor = _factor(model, found[0], base_width, width)
    for one in found:
        check_not_started(one, factor)
    _apply(model, found, factor)
    return model


def fold_logits_(model: nn.Module) -> nn.Module:
    """Write the multiplier into the output matrix, in place, and return the model: a plain one with the same logits.

    A tied matrix becomes two tensors by that, so do it when training is over, before the model is saved for programs
    that know nothing of this library.

    Raises ValueError for a model whose logits are not multiplied, and where the config says so in a field of its own.

    >>> model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9, bias=False))
    >>> model[1].weight = model[0].weight
    >>> before = scale_logits_(model, base_width=2)(Tensor(range(9)).long())
    >>> bool((fold_logits_(model)(Tensor(range(9)).long()) == before).all()), model[1].weight is model[0].weight
    (True, False)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fold_logits_ needs a model, an nn.Module; got {type(model).__name__}")
    if (place := _field(model)) is not None:
        raise ValueError(
            f"the multiplier is in config.{place[1].setting}, which is saved with the model: nothing to fold"
        )
    folded = 0
    for module in model.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, LogitScale):
                weight: Any = module.weight
                module.weight = nn.Parameter(weight.detach() * hook.factor, requires_grad=weight.requires_grad)
                del module._forward_pre_hooks[key]
                folded += 1
    if not folded:
        raise ValueError("the logits of this model are not multiplied: there is nothing to fold")
    if (config := config_of(model)) is not None:
        vars(config).pop(KEY, None)  # another model of the same config may have been folded
        config.tie_word_embeddings = False
    return model


def logit_scales(model: nn.Module) -> dict[int, float]:
    """What :func:`scale_logits_` made this model multiply its logits by, by the identity of the weights.

    >>> logit_scales(nn.Linear(3, 2))
    {}
    """
    if (place := _field(model)) is not None:
        remembered = _remembered(model)
        return {} if remembered is None else {id(place[0].get_output_embeddings().weight): remembered}
    return {
        id(weight): hook.factor
        for module in model.modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, LogitScale) and (weight := module._parameters.get("weight")) is not None
    }


def logit_scale(model: nn.Module) -> float | None:
    """The one multiplier of a model, or None where :func:`scale_logits_` has not been called.

    >>> logit_scale(nn.Linear(3, 2))
    """
    return next(iter(logit_scales(model).values()), None)


def check_logits(model: nn.Module) -> None:
    """Raises ValueError if the config says that the logits are multiplied and the forward pass does not do it.

    >>> check_logits(nn.Linear(3, 2))
    """
    remembered = _remembered(model)
    if remembered is not None and logit_scale(model) is None:
        raise ValueError(
            f"the config says that the logits are multiplied by {remembered:g} ({KEY}), but this model does not do it: "
            "from_pretrained makes a new one. Call moga.scale_logits_(model) first, or delete "
            f"model.config.{KEY} if the model was not trained so"
        )


def warn_if_tied(groups: Iterable[Mapping[str, Any]]) -> None:
    """Warn of a matrix that is input and output in one, under a width-aware step and without a multiplier."""
    for group in groups:
        fine = "logit_scale" in group or group["shape"] == "none" or group.get("base_fan") == group["fan"]
        if group["role"] == "tied" and not fine:
            width = group["base_fan"][0][0] if "base_fan" in group else "the width at which lr was tuned"
            warnings.warn(
                f"{group['param_names'][0]} is input and output in one: one step moves the logits by an amount that "
                "grows with width unless they are multiplied by base_width / width (or its square root, where the "
                "model itself has a sqrt(width) there). Do so before making the optimizer, or untie the two:\n"
                f"  moga.scale_logits_(model, base_width={width})",
                stacklevel=user_level(),
            )


def user_level() -> int:
    """The ``stacklevel`` at which a warning of the caller names the line outside of this library and torch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("moga", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def _factor(model: nn.Module, one: Assignment, base_width: int | None, width: int | None) -> float:
    remembered = _remembered(model)
    if base_width is None:
        if remembered is None:
            raise ValueError(
                "base_width is needed, the width at which lr was tuned: the config remembers no multiplier"
            )
        return remembered
    own = one.fan[0][0 if one.role == "tied" else 1]
    factor = logit_multiplier(base_width, own if width is None else width, own_roots(model, one))
    if remembered not in (None, factor):
        raise ValueError(
            f"the config says that the logits are multiplied by {remembered:g} ({KEY}), and with this base_width "
            f"it is {factor:g}; leave out base_width to apply the former, or delete model.config.{KEY} if it is "
            "another model's"
        )
    return factor


def own_roots(model: nn.Module, one: Assignment) -> int:
    """How many factors sqrt(width) the model itself has for an output; see :func:`logit_multiplier`."""
    return divides_logits(model) + (one.role == "tied" and follows_width(one.multiplier, one.fan[0][0]))


def _apply(model: nn.Module, found: Sequence[Assignment], factor: float) -> None:
    if (place := _field(model)) is not None:
        owner, row = place
        value = getattr(owner.config, row.setting)
        changed = (1.0 if value is None else value) * factor**row.power
        setattr(owner.config, row.setting, changed)
        if row.copy:
            path, _, attribute = row.copy.rpartition(".")
            setattr(owner.get_submodule(path), attribute, changed)
    else:
        for module in [module for one in found for module in _makers(model, one)]:
            module.register_forward_pre_hook(LogitScale(factor))
    if (config := config_of(model)) is not None:
        setattr(config, KEY, factor)


def _makers(model: nn.Module, one: Assignment) -> list[nn.Module]:
    """The modules that multiply by a matrix. Raises ValueError if there is none."""
    holders = [module for module in model.modules() if any(own is one.parameter for own in module._parameters.values())]
    makers = [module for module in holders if not isinstance(module, nn.Embedding)]
    if not makers:
        raise ValueError(
            f"no module makes logits with {one.name}, only a forward pass of the model's own does; multiply them there "
            "by base_width / width"
        )
    return makers


def _remembered(model: nn.Module) -> float | None:
    value = getattr(config_of(model), KEY, None)
    return None if value is None else float(value)


def _field(model: nn.Module) -> tuple[Any, Field] | None:
    """The part of the model that has a setting for the multiplier, with where it is."""
    for module in model.modules():
        for row in FIELDS:
            path = f"transformers.models.{row.family}.modeling_{row.family}"
            kind = getattr(sys.modules.get(path), row.model, None)
            if isinstance(kind, type) and isinstance(module, kind):
                return module, row
    return None
