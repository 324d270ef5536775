"""What a model declares of its weights: inputs, outputs, routers, adapters. Tensors are told by identity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from moga.rules.families import kinds
from moga.rules.places import placed_outputs, placed_routers

INPUT_GETTERS = ("get_input_embeddings",)
OUTPUT_GETTERS = ("get_output_embeddings", "get_classifier")


LORA = "peft.tuners.lora.layer.LoraLayer"
SAVED = "peft.utils.other.ModulesToSaveWrapper"  # holds the module as it was, and a copy of it that trains


def declared_inputs(model: nn.Module) -> set[int]:
    """Identities of the weights that the model, or a model inside it, names as its inputs.

    Models of timm name their first convolution in ``pretrained_cfg``, whether or not weights were loaded.
    """
    named = {id(weight) for module in model.modules() for weight in _got(module, INPUT_GETTERS)}
    return named | {id(weight) for module in model.modules() for weight in _first_layers(module)}


def declared_outputs(model: nn.Module) -> set[int]:
    """Identities of the weights that the model, or a model inside it, names as its outputs.

    A transformers model for classification names none. Its head is the one linear map beside the base model that has
    ``config.num_labels`` outputs.
    """
    named = {id(weight) for module in model.modules() for weight in _got(module, OUTPUT_GETTERS)}
    heads = {id(head.weight) for module in model.modules() for head in _label_heads(module)}
    return named | heads | placed_outputs(model)


def _got(module: nn.Module, getters: tuple[str, ...]) -> Iterator[Tensor]:
    for getter in getters:
        if not callable(getattr(module, getter, None)):
            continue
        try:
            declared = getattr(module, getter)()
        except NotImplementedError:  # transformers' answer of a model that has no such layer
            continue
        for layer in declared if isinstance(declared, (tuple, list)) else (declared,):
            if (weight := _weight(layer)) is not None:
                yield weight


def _weight(layer: Any) -> Tensor | None:
    """A layer's own weight, or the one matrix inside of it (of patches, for example); None if it has neither."""
    if (own := getattr(layer, "weight", None)) is not None:
        return own  # type: ignore[no-any-return]
    matrices = [one for one in layer.parameters() if one.ndim > 1] if isinstance(layer, nn.Module) else []
    return matrices[0] if len(matrices) == 1 else None


def _first_layers(module: nn.Module) -> Iterator[Tensor]:
    declared = vars(module).get("pretrained_cfg")
    first = declared.get("first_conv") if isinstance(declared, Mapping) else None
    for name in (first,) if isinstance(first, str) else first or ():
        try:
            weight = _weight(module.get_submodule(name))
        except AttributeError:  # another stem than the one of the pretrained weights
            continue
        if weight is not None:
            yield weight


def is_base_model(model: nn.Module) -> bool:
    """Whether the whole model, inside of wrappers, is what transformers calls a base model: one without an output."""
    everything = {id(parameter) for parameter in model.parameters()}
    bases = (getattr(module, "base_model", None) for module in model.modules())
    inside = ({id(parameter) for parameter in base.parameters()} for base in bases if isinstance(base, nn.Module))
    return everything in inside and not declared_outputs(model)


def _label_heads(module: nn.Module) -> list[nn.Linear]:
    """The head, and the copy of it that PEFT trains; none where it is not clear which one is the head."""
    base = getattr(module, "base_model", None)
    labels = getattr(getattr(module, "config", None), "num_labels", None)
    if not isinstance(base, nn.Module) or next(_got(module, OUTPUT_GETTERS), None) is not None:
        return []
    inside = {id(one) for one in base.modules()} if base is not module else {id(module)}
    beside = module.named_modules() if base is not module else module.named_children()
    saved = [f"{name}.original_module" for name, one in module.named_modules() if SAVED in kinds(one)]
    heads = {
        name: one
        for name, one in beside
        if isinstance(one, nn.Linear) and one.out_features == labels and id(one) not in inside
    }
    return list(heads.values()) if len([name for name in heads if name not in saved]) == 1 else []


def declared_adapters(model: nn.Module) -> dict[int, str]:
    """The part of each weight of PEFT's LoRA layers, by identity: "adapter down" to the rank, "adapter up" from it."""
    return {
        id(weight): part
        for module in model.modules()
        if LORA in kinds(module)
        for name, part in (("lora_A", "adapter down"), ("lora_B", "adapter up"))
        for one in getattr(module, name).children()
        if (weight := one._parameters.get("weight")) is not None
    }


def declared_routers(model: nn.Module) -> tuple[set[int], set[int]]:
    """Identities of the weights from which a model records the scores of its experts, its ``router_logits``.

    The classes are those that transformers' models list under that name. The router is what the table ``ROUTERS`` of
    ``rules/places.py`` names, or the one matrix that such a module holds itself, or the only one inside of it. The
    second set has the matrices of the modules that hold more, none of which is known to be the router.
    """
    recorded = tuple({kind for module in model.modules() for kind in _recorded(module)})
    modules, adapters = [module for module in model.modules() if isinstance(module, recorded)], declared_adapters(model)
    inside = [{id(one) for one in module.parameters() if one.ndim > 1} - set(adapters) for module in modules]
    found = {router for pair in zip(modules, inside, strict=True) for router in _routers(*pair)}
    return found, {one for matrices in inside if not matrices & found for one in matrices}


def _routers(module: nn.Module, matrices: set[int]) -> set[int]:
    own = {id(parameter) for parameter in module.parameters(recurse=False) if parameter.ndim == 2} or matrices
    return placed_routers(module) or (own if len(own) == 1 else set())


def _recorded(module: nn.Module) -> Iterator[type]:
    recorded = getattr(module, "_can_record_outputs", None)
    listed = recorded.get("router_logits") if isinstance(recorded, dict) else None
    for one in listed if isinstance(listed, (tuple, list)) else (listed,):
        kind = getattr(one, "target_class", one)
        if isinstance(kind, type):
            yield kind
