"""How torch's own modules store their matrices: attention, recurrent gates, bilinear forms, convolutions, tables.

A row is a class with a rule for its parameters, written down from its documentation. A subclass is what its base class
is. Biases need no row: tensors of fewer than two dimensions are vectors wherever they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.conv import _ConvNd

# Gates that one tensor holds, one after another along `out`.
GATES = {
    nn.LSTM: 4,  # input, forget, cell, output
    nn.LSTMCell: 4,
    nn.GRU: 3,  # reset, update, new
    nn.GRUCell: 3,
    nn.RNN: 1,
    nn.RNNCell: 1,
}


class Stored(NamedTuple):
    """How a module uses a parameter: the fields of :class:`moga.rules.storage.Storage`."""

    kind: str
    layout: str
    blocks: tuple[int, ...] = ()
    part: str = ""


def _linear(module: Any, name: str) -> Stored | None:
    return Stored("linear", "out,in") if name == "weight" else None


def _lookup(module: Any, name: str) -> Stored | None:
    return Stored("lookup", "in,out") if name == "weight" else None


def _bilinear(module: Any, name: str) -> Stored | None:
    """y_o = sum_ij W_oij a_i b_j: a linear map of all products of two entries, in1 * in2 of them."""
    return Stored("linear", "out,in,k") if name == "weight" else None


def _convolution(module: _ConvNd, name: str) -> Stored | None:
    if name != "weight":
        return None
    groups = f"{module.groups}*" if module.groups > 1 else ""
    depthwise = module.groups > 1 and module.groups == module.in_channels
    order = "in,out" if module.transposed else "out,in"
    return Stored("linear", f"{groups}{order},k", part="depthwise" if depthwise else "")


def _attention(module: nn.MultiheadAttention, name: str) -> Stored | None:
    """Query, key and value in one tensor, or in three where keys or values have other sizes.

    ``bias_k`` and ``bias_v`` are a key and a value of their own, put after those of the tokens: numbers.
    """
    if name == "in_proj_weight":
        return Stored("linear", "out,in", (module.embed_dim,) * 3)
    if name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        return Stored("linear", "out,in")
    return Stored("numbers", "vector") if name in ("bias_k", "bias_v") else None


def _recurrent(module: nn.RNNBase | nn.RNNCellBase, name: str) -> Stored | None:
    """From the input and from the state before to all gates; ``weight_hr``, the projection of the state, is one map."""
    gates = next((number for kind, number in GATES.items() if isinstance(module, kind)), 0)
    if not gates or not name.startswith(("weight_ih", "weight_hh", "weight_hr")):
        return None
    cut = gates > 1 and not name.startswith("weight_hr")
    return Stored("linear", "out,in", (module.hidden_size,) * gates if cut else ())


RULES: dict[type[nn.Module], Callable[[Any, str], Stored | None]] = {
    nn.Embedding: _lookup,
    nn.EmbeddingBag: _lookup,
    nn.Linear: _linear,
    nn.Bilinear: _bilinear,
    _ConvNd: _convolution,
    nn.MultiheadAttention: _attention,
    nn.RNNBase: _recurrent,
    nn.RNNCellBase: _recurrent,
}


def torch_storage(module: nn.Module, name: str) -> Stored | None:
    """How one of torch's own modules uses its parameter ``name``; None if it is none of them, or does not say.

    >>> torch_storage(nn.LSTM(5, 8), "weight_hh_l0")
    Stored(kind='linear', layout='out,in', blocks=(8, 8, 8, 8), part='')
    >>> torch_storage(nn.Bilinear(3, 4, 5), "weight").layout, torch_storage(nn.PReLU(), "weight")
    ('out,in,k', None)
    """
    rule = next((rule for kind, rule in RULES.items() if isinstance(module, kind)), None)
    return None if rule is None else rule(module, name)
