"""Measured Lipschitz and smoothness constants of a loss in the norm of its network, whole and layer by layer.

At a point W of parameters, with the size ``|D|`` of an update in :func:`moga.block_norm` or another network norm:

    Lipschitz    max <G, D>         over |D| <= 1          = dual(G), exact
    smoothness   max <D1, H D2>     over |D1|, |D2| <= 1   a bound from below (:mod:`moga.study.curvature`)

If S bounds the smoothness on the way, the steepest step gives ``loss(W - lr D) <= loss(W) - lr dual(G) + lr^2 S / 2``.
Both constants are local; those of a theory are the largest over all W.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moga.geometry.network import NetworkNorm
from moga.study.curvature import Loss, Peak, Tensors, climb, hessian, unit

STARTS = ("gradient", "layers", "random")
AGREE = 0.99  # of the best: climbs that end there are counted as agreeing with it


def width_exponent(p: float, q: float) -> float:
    """``max(0, 2/q - 1/p)``: smoothness in the block norm of p -> q grows at most as this power of the width.

    Source: arXiv 2603.09952.

    >>> inf = float("inf")
    >>> [width_exponent(p, q) for p, q in ((1, inf), (2, inf), (1, 2), (2, 2))]  # sign, row, column, spectral
    [0.0, 0.0, 0.0, 0.5]
    """
    return max(0.0, 2 / q - 1 / p)


@dataclass(frozen=True)
class Estimate:
    """A smoothness constant from below: ``value`` is reached by a pair of updates of size 1.

    ``start``: where the best climb began, "gradient", "random 0", ... or the name of a layer. ``settled``: whether it
    ended because it no longer grew. ``starts``: how many climbs there were, ``agreeing``: how many of them ended
    within 1 % of the best. ``products``: with the Hessian, over all climbs.
    """

    value: float
    start: str
    settled: bool
    starts: int
    agreeing: int
    products: int


@dataclass(frozen=True)
class Constants:
    """What :func:`smoothness` measures: of the whole network, and by layer with the other layers held fixed."""

    loss: float
    lipschitz: float
    smoothness: Estimate
    layer_lipschitz: dict[str, float]
    layer_smoothness: dict[str, Estimate]


def smoothness(
    loss: Loss,
    parameters: Mapping[str, Tensor],
    norm: NetworkNorm,
    *,
    starts: Sequence[str] = STARTS,
    random: int = 2,
    seed: int = 0,
    steps: int = 40,
    tolerance: float = 1e-4,
) -> Constants:
    """The Lipschitz and smoothness constants of ``loss`` at ``parameters``, in ``norm``.

    Args:
        loss: from a dict of tensors by name to a tensor without dimensions, by operations that torch can
            differentiate twice, and without randomness: ``lambda values: f(torch.func.functional_call(model, values,
            inputs))``. transformers need ``attn_implementation="eager"``: fused attention has no second derivative.
        parameters: the point, one tensor per layer of the norm, by name: ``dict(model.named_parameters())``.
        norm: ``moga.block_norm(groups)`` of ``moga.param_groups``, or a modular norm.
        starts: where climbs begin. "gradient": at the direction of the gradient; "random": at ``random`` directions
            of normal entries; "layers": for the whole network, at the maximiser of each layer (a random update where
            it has no curvature of its own), so that its constant is never below a layer's.
        steps: the most products with the Hessian of one climb. tolerance: relative growth that counts as none.

    Raises ValueError for a norm without layers, names that are not its layers, unknown starts or none, fewer than one
    step, a negative tolerance or number of random starts, and a gradient or curvature that is not finite; TypeError
    for a loss that is not a scalar tensor.

    >>> import moga
    >>> W = torch.tensor([[3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> groups = moga.param_groups([("W", W)], {"hidden": "spectral"}, roles={"W": "hidden"})
    >>> found = smoothness(lambda at: at["W"].square().sum() / 2, {"W": W}, moga.block_norm(groups))
    >>> round(found.lipschitz, 9), round(found.smoothness.value, 9)  # 3 + 1, and |D|_F^2 = 2 of an orthogonal D
    (4.0, 2.0)
    """
    _check(norm, starts, random, steps, tolerance)
    point = {name: tensor.detach() for name, tensor in parameters.items()}
    gradient, product = hessian(loss, point)
    duals = {name: float(value.sum()) for name, value in norm.duals(gradient).items()}
    peaks: dict[str, tuple[Estimate, Tensors]] = {}
    for layer in norm.layers:
        own = NetworkNorm((layer,))
        own_gradient, own_product = hessian(_of_layer(loss, point), {layer.name: point[layer.name]})
        begin = _starts(own, own_gradient, starts, random, seed)
        peaks[layer.name] = _best([(word, climb(own_product, own, D, steps, tolerance)) for word, D in begin])
    layers = {name: estimate for name, (estimate, _) in peaks.items()}
    whole = next(iter(layers.values()))
    if len(layers) > 1:
        begin = _starts(norm, gradient, starts, random, seed)
        if "layers" in starts:
            begin += [(name, _padded(D, point)) for name, (_, D) in peaks.items()]
        whole, _ = _best([(word, climb(product, norm, D, steps, tolerance)) for word, D in begin])
    return Constants(float(loss(dict(point))), sum(duals.values()), whole, duals, layers)


def _of_layer(loss: Loss, point: Tensors) -> Loss:
    """The loss as a function of the tensors of one layer, the others held at the point."""
    return lambda own: loss({**point, **own})


def _starts(
    norm: NetworkNorm, gradient: Tensors, starts: Sequence[str], random: int, seed: int
) -> list[tuple[str, Tensors]]:
    """Updates of size 1 by word; a zero gradient gives a zero update, from which no climb rises."""
    found = [("gradient", gradient)] if "gradient" in starts else []
    generator = torch.Generator().manual_seed(seed)
    for index in range(random if "random" in starts else 0):
        noise = {name: torch.randn(G.shape, generator=generator).to(G) for name, G in gradient.items()}
        found.append((f"random {index}", noise))
    return [(word, unit(norm, values)) for word, values in found]


def _padded(D: Tensors, point: Tensors) -> Tensors:
    return {name: D[name] if name in D else torch.zeros_like(tensor) for name, tensor in point.items()}


def _best(climbs: Sequence[tuple[str, Peak]]) -> tuple[Estimate, Tensors]:
    word, peak = max(reversed(climbs), key=lambda one: one[1].value)  # of equal ones a random one, whose D is not 0
    agreeing = sum(one.value >= AGREE * peak.value for _, one in climbs)
    products = sum(one.steps for _, one in climbs)
    return Estimate(peak.value, word, peak.settled, len(climbs), agreeing, products), peak.D


def _check(norm: NetworkNorm, starts: Sequence[str], random: int, steps: int, tolerance: float) -> None:
    if not norm.layers:
        raise ValueError("the norm has no layer, so there is nothing to measure")
    if unknown := [word for word in starts if word not in STARTS]:
        raise ValueError(f"unknown start {unknown[0]!r}; the starts are {', '.join(STARTS)}")
    if "gradient" not in starts and ("random" not in starts or random < 1):
        raise ValueError("no climb has a start: give the start gradient, or random with at least one of them")
    for name, value, least in (("random", random, 0), ("steps", steps, 1), ("tolerance", tolerance, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}")
