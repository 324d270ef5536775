"""What a model itself declares of its weights: its inputs, its outputs, its routers. Tensors are told by identity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

INPUT_GETTERS = ("get_input_embeddings",)
OUTPUT_GETTERS = ("get_output_embeddings", "get_classifier")


def declared_inputs(model: nn.Module) -> set[int]:
    """Identities of the weights that the model, or a model inside it, names as its inputs."""
    return {id(layer.weight) for module in model.modules() for layer in _got(module, INPUT_GETTERS)}


def declared_outputs(model: nn.Module) -> set[int]:
    """Identities of the weights that the model, or a model inside it, names as its outputs.

    A transformers model for classification names none. Its head is the one linear map beside the base model that has
    ``config.num_labels`` outputs.
    """
    named = {id(layer.weight) for module in model.modules() for layer in _got(module, OUTPUT_GETTERS)}
    return named | {id(head.weight) for module in model.modules() if (head := _label_head(module)) is not None}


def _got(module: nn.Module, getters: tuple[str, ...]) -> Iterator[Any]:
    for getter in getters:
        if not callable(getattr(module, getter, None)):
            continue
        try:
            declared = getattr(module, getter)()
        except NotImplementedError:  # transformers' answer of a model that has no such layer
            continue
        for layer in declared if isinstance(declared, (tuple, list)) else (declared,):
            if getattr(layer, "weight", None) is not None:
                yield layer


def is_base_model(model: nn.Module) -> bool:
    """Whether the whole model, inside of wrappers, is what transformers calls a base model: one without an output."""
    everything = {id(parameter) for parameter in model.parameters()}
    bases = (getattr(module, "base_model", None) for module in model.modules())
    inside = ({id(parameter) for parameter in base.parameters()} for base in bases if isinstance(base, nn.Module))
    return everything in inside and not declared_outputs(model)


def _label_head(module: nn.Module) -> nn.Linear | None:
    base = getattr(module, "base_model", None)
    labels = getattr(getattr(module, "config", None), "num_labels", None)
    if not isinstance(base, nn.Module) or base is module or next(_got(module, OUTPUT_GETTERS), None) is not None:
        return None
    heads = [one for one in module.children() if isinstance(one, nn.Linear) and one.out_features == labels]
    return heads[0] if len(heads) == 1 else None


def declared_routers(model: nn.Module) -> set[int]:
    """Identities of the weights from which a model records the scores of its experts, its ``router_logits``.

    The classes are those that transformers' models list under that name. The router is the one matrix that such a
    module holds itself, or else the only one inside of it; a mixture, which may record its scores too, holds more.
    """
    kinds = {kind for module in model.modules() for kind in _recorded(module)}
    found = set()
    for module in model.modules():
        if isinstance(module, tuple(kinds)):
            own = [parameter for parameter in module.parameters(recurse=False) if parameter.ndim == 2]
            matrices = own or [parameter for parameter in module.parameters() if parameter.ndim > 1]
            found |= {id(matrices[0])} if len(matrices) == 1 else set()
    return found


def _recorded(module: nn.Module) -> Iterator[type]:
    recorded = getattr(module, "_can_record_outputs", None)
    listed = recorded.get("router_logits") if isinstance(recorded, dict) else None
    for one in listed if isinstance(listed, (tuple, list)) else (listed,):
        kind = getattr(one, "target_class", one)
        if isinstance(kind, type):
            yield kind
