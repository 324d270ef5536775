"""The norm of a whole network: the largest of its layers' sizes, so that one step has one size.

    |(W_1, ..., W_L)| = max_k c_k |W_k|_k        size
    dual              = sum_k |G_k|*_k / c_k     of a gradient
    steepest step     = D_k / c_k                for each layer's own unit step D_k

With every ``c_k = 1`` it is the block norm: each layer takes its own unit step with the same learning rate. In the
modular norm (:mod:`moga.geometry.modular`) ``c_k`` comes from masses and sensitivities.

Laws, as of every norm: ``measure(direction(G)) == 1``, ``<G, direction(G)> == dual(G) >= <G, D>`` for every ``D`` with
``measure(D) <= 1``, and ``direction(c G) == direction(G)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moga.geometry.layout import from_matrices, logical_matrices
from moga.geometry.norms import OperatorNorm, norm
from moga.geometry.vectors import VECTORS, VectorNorm

MEASURED = {"adam": "sign", "rmsprop": "sign", "shampoo": "spectral"}  # updates that are no direction of a norm
Values = Mapping[str, Tensor | None] | Sequence[Tensor | None]


@dataclass(frozen=True)
class Flattened:
    """A norm of vectors, taken of all entries of a matrix; with "l2" it is the Frobenius norm.

    >>> frobenius, G = Flattened(VECTORS["l2"]), torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    >>> frobenius.measure(G), frobenius.dual(G), frobenius.direction(G)
    (tensor(5.), tensor(5.), tensor([[0.6000, 0.0000],
            [0.0000, 0.8000]]))
    """

    rule: VectorNorm

    def measure(self, W: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        return self.rule.measure(W.flatten(-2))

    def dual(self, G: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        return self.rule.dual(G.flatten(-2))

    def direction(self, G: Tensor, fan: tuple[int, int] | None = None) -> Tensor:
        return self.rule.direction(G.flatten(-2)).reshape(G.shape)


@dataclass(frozen=True)
class Layer:
    """One stored tensor of a network: the norm of its logical matrices, how they are stored, and its coefficient.

    Raises ValueError for a number of fans that fits neither one block nor all, TypeError for what is no norm of
    matrices, or one without a direction.
    """

    name: str
    norm: OperatorNorm | Flattened
    layout: str = "out,in"
    blocks: tuple[int, ...] = ()  # sizes along out of the matrices that share the tensor; none means one matrix
    fan: tuple[tuple[int, int], ...] = ()  # one per block, or one for all; none: the matrix's own (out, in)
    coefficient: float = 1.0  # 0 for a layer that is not trained: it has no size and takes no step
    interleave: int = 1  # units along out in which the blocks are interleaved, as in geometry/layout.py

    def __post_init__(self) -> None:
        if not isinstance(self.norm, OperatorNorm | Flattened):
            raise TypeError(
                f"layer {self.name!r} needs a norm of matrices that has a direction, such as moga.norm('row'); got "
                f"{self.norm!r}"
            )
        if len(self.fan) not in (0, 1, max(1, len(self.blocks))):
            raise ValueError(
                f"layer {self.name!r} has {len(self.fan)} fans for {max(1, len(self.blocks))} blocks; give one per "
                "block, or one for all"
            )

    def each(self, tensor: Tensor, function: Callable[..., Tensor]) -> list[Tensor]:
        """``function(matrices, fan)`` of every block (*stack, out, in) of the stored tensor."""
        matrices = logical_matrices(tensor, self.layout, self.blocks, self.interleave)
        fans = self.fan * len(matrices) if len(self.fan) == 1 else self.fan or (None,) * len(matrices)
        return [function(matrix, fan) for matrix, fan in zip(matrices, fans, strict=True)]


@dataclass(frozen=True)
class NetworkNorm:
    """The norm ``max_k c_k |W_k|_k`` of the tensors of a network, given by name or in the order of the layers.

    A None among them (a parameter without a gradient) stands for zero. Made by :func:`block_norm` and
    :func:`moga.modular_norm`.
    """

    layers: tuple[Layer, ...]

    def sizes(self, update: Values) -> dict[str, Tensor]:
        """``c_k |W_k|_k`` by layer, as a tensor with one number per logical matrix.

        Raises ValueError for names or a number of tensors that are not the layers'.
        """
        return {
            layer.name: torch.stack(layer.each(tensor, layer.norm.measure)) * layer.coefficient
            for layer, tensor in self._pairs(update)
            if tensor is not None
        }

    def duals(self, grads: Values) -> dict[str, Tensor]:
        """``|G_k|*_k / c_k`` by layer, as a tensor with one number per logical matrix; raises as :meth:`sizes`."""
        return {
            layer.name: torch.stack(layer.each(tensor, layer.norm.dual)) * _inverse(layer)
            for layer, tensor in self._pairs(grads)
            if tensor is not None
        }

    def measure(self, update: Values) -> Tensor:
        """The size of an update: the largest of :meth:`sizes`.

        >>> both = NetworkNorm((Layer("a", norm("sign"), fan=((1, 1),)), Layer("b", norm("spectral"))))
        >>> both.measure([torch.tensor([[1.0, -3.0]]), 2 * torch.eye(2)])
        tensor(3.)
        """
        return _joined(self.sizes(update)).amax()

    def dual(self, grads: Values) -> Tensor:
        """The largest ``<G, D>`` over updates of size 1: the sum of :meth:`duals`.

        >>> both = NetworkNorm((Layer("a", norm("sign"), fan=((1, 1),)), Layer("b", norm("spectral"))))
        >>> both.dual({"a": torch.tensor([[1.0, -3.0]]), "b": 2 * torch.eye(2)})  # 1 + 3 and 2 + 2
        tensor(8.)
        """
        return _joined(self.duals(grads)).sum()

    def direction(self, grads: Values) -> dict[str, Tensor | None]:
        """The update of size 1 with the largest ``<G, D>``, by name, in the shapes and dtypes of the gradients.

        >>> both = NetworkNorm((Layer("a", norm("sign"), fan=((1, 1),)), Layer("b", norm("spectral"), coefficient=2)))
        >>> both.direction([torch.tensor([[1.0, -3.0]]), 2 * torch.eye(2)])
        {'a': tensor([[ 1., -1.]]), 'b': tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])}
        """
        return {layer.name: _direction(layer, tensor) for layer, tensor in self._pairs(grads)}

    def _pairs(self, values: Values) -> Iterator[tuple[Layer, Tensor | None]]:
        names = [layer.name for layer in self.layers]
        if isinstance(values, Mapping):
            missing, unknown = [n for n in names if n not in values], [n for n in values if n not in names]
            if missing or unknown:
                what = f"lack {', '.join(missing)}" if missing else f"have {', '.join(unknown)}, which no layer is"
                raise ValueError(f"the tensors {what}; the layers are {', '.join(names)}")
            values = [values[name] for name in names]
        if len(values) != len(names):
            raise ValueError(f"{len(names)} tensors are needed, one per layer, in order; got {len(values)}")
        return zip(self.layers, values, strict=True)


def _inverse(layer: Layer) -> float:
    return 1 / layer.coefficient if layer.coefficient else 0.0


def _direction(layer: Layer, tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    matrices = [D * _inverse(layer) for D in layer.each(tensor, layer.norm.direction)]
    return from_matrices(matrices, layer.layout, tensor.shape, layer.interleave)


def _joined(values: Mapping[str, Tensor]) -> Tensor:
    """All numbers in one tensor, on the first one's device; a single 0 where there are none."""
    numbers = [value.flatten() for value in values.values()]
    return torch.cat([number.to(numbers[0].device) for number in numbers]) if numbers else torch.zeros(1)


def block_norm(groups: Sequence[Mapping[str, Any]]) -> NetworkNorm:
    """The block norm of the tensors of param groups, as :func:`moga.param_groups` makes them.

    Each logical matrix is measured in its group's norm with its effective fan: an input from a lookup has ``in`` = 1,
    an output ``out`` = 1, a vector (1, 1). "adam" and "rmsprop" are measured as "sign", "shampoo" as "spectral", and
    "euclidean" by the Frobenius norm. The layers have the names of the parameters
    (numbers where a group has no ``param_names``), in the order of the groups. A group's ``scale``, learning rate and
    decay do not enter: they say how large a step is taken, not how large it is.

    Raises ValueError for a group that lacks "norm" or "layout", an unknown norm, a name that occurs twice, and names
    of another number than the parameters.

    >>> groups = [
    ...     {"params": [torch.zeros(4, 2)], "param_names": ["up"], "norm": "row", "layout": "out,in"},
    ...     {"params": [torch.zeros(4)], "param_names": ["bias"], "norm": "sign", "layout": "vector", "fan": [[1, 1]]},
    ... ]
    >>> size = block_norm(groups)
    >>> update = {"up": torch.full((4, 2), 0.1), "bias": torch.full((4,), -0.3)}
    >>> size.measure(update), size.sizes(update)["up"]  # a row (0.1, 0.1) sends inputs of 1 to 0.2
    (tensor(0.3000), tensor([0.2000]))
    """
    layers: list[Layer] = []
    for group in groups:
        if missing := [key for key in ("norm", "layout") if key not in group]:
            raise ValueError(f"a parameter group lacks {', '.join(map(repr, missing))}; make groups with param_groups")
        rule = _rule(group)
        fan = tuple((int(out), int(in_)) for out, in_ in group.get("fan", ()))
        first = len(layers)
        names = group.get("param_names") or [str(first + i) for i in range(len(group["params"]))]
        if len(names) != len(group["params"]):
            raise ValueError(
                f"a parameter group has {len(group['params'])} params and {len(names)} param_names; give one name for "
                "each, or none"
            )
        words = {"interleave": group.get("interleave", 1), "blocks": tuple(group.get("blocks", ())), "fan": fan}
        layers += [Layer(name, rule, group["layout"], **words) for name in names]
    return NetworkNorm(unique(layers))


def _rule(group: Mapping[str, Any]) -> OperatorNorm | Flattened:
    if group["norm"] == "euclidean":
        return Flattened(VECTORS["l2"])
    return norm(MEASURED.get(group["norm"], group["norm"]), group.get("p"), group.get("q"))


def unique(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers, if their names differ.

    Raises ValueError otherwise.

    >>> [layer.name for layer in unique([Layer("a", norm("row")), Layer("b", norm("row"))])]
    ['a', 'b']
    """
    names = [layer.name for layer in layers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the name {twice[0]!r} occurs twice; every tensor is measured once, under a name of its own")
    return tuple(layers)
