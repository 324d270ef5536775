"""The modular norm of Large et al.: the norm of a network's weights, built up as the network is.

A module has a ``mass``, its share of the learning, a ``sensitivity``, the Lipschitz constant of its output in its
input, and a norm of its weights. Two of them, of masses m1, m2 (m = m1 + m2) and sensitivities s1, s2, make

    composition, M2 after M1:    mass m, sensitivity s1 s2,   |(w1, w2)| = max(s2 (m / m1) |w1|, (m / m2) |w2|)
    concatenation, (M1, M2):     mass m, sensitivity s1 + s2, |(w1, w2)| = max((m / m1) |w1|, (m / m2) |w2|)

and a term of mass 0 is left out. So a weight's size has the coefficient ``(total mass / own mass) * (sensitivities of
what follows it)``. To first order, where inputs and weights have size at most 1, a step of size lr changes the output
of the network by at most lr, and a module of mass m_k causes at most the share m_k / total of that.

Source: Large, Liu, Huh, Bahng, Isola and Bernstein, "Scalable optimization in the modular norm", arXiv 2405.14813.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from moga.geometry.network import Layer, NetworkNorm, unique
from moga.geometry.norms import OperatorNorm


@dataclass(frozen=True)
class Atom:
    """A module with one weight: its name, its norm, and how it is stored (as in :class:`Layer`).

    ``mass`` 0 is a weight that is not trained: it has no size and takes no step. ``sensitivity`` is 1 for a weight of
    size 1 in the norm, since that is what the norm measures.

    Raises ValueError for a mass that is negative, a sensitivity that is not positive, and as :class:`Layer` does.
    """

    name: str
    norm: OperatorNorm
    mass: float = 1.0
    sensitivity: float = 1.0
    layout: str = "out,in"
    blocks: tuple[int, ...] = ()
    fan: tuple[tuple[int, int], ...] = ()
    interleave: int = 1

    def __post_init__(self) -> None:
        _check(self.mass, self.sensitivity)
        self.layer(1.0)  # raises here, where the norm and the fans are given

    def layer(self, coefficient: float) -> Layer:
        """The weight as a layer of a network.

        >>> from moga.geometry.norms import norm
        >>> Atom("w", norm("row")).layer(2.0).coefficient
        2.0
        """
        stored = (self.layout, self.blocks, self.fan)
        return Layer(self.name, self.norm, *stored, coefficient, self.interleave)


@dataclass(frozen=True)
class Bond:
    """A module without weights, such as an activation (1), an addition (1), a multiplication by a (its size).

    Raises ValueError for a sensitivity that is not positive.

    >>> Bond(sensitivity=0.5).mass
    0.0
    """

    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        _check(self.mass, self.sensitivity)

    @property
    def mass(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Composition:
    """Modules one after the other, the first one first. Made by :func:`compose`."""

    parts: tuple[Module, ...]
    mass: float

    @property
    def sensitivity(self) -> float:
        return math.prod(part.sensitivity for part in self.parts)


@dataclass(frozen=True)
class Concatenation:
    """Modules side by side on the same input. Made by :func:`concatenate`."""

    parts: tuple[Module, ...]
    mass: float

    @property
    def sensitivity(self) -> float:
        return sum(part.sensitivity for part in self.parts)


Module = Atom | Bond | Composition | Concatenation


def compose(*parts: Module, mass: float | None = None) -> Composition:
    """The parts one after the other; ``mass`` replaces the sum of their masses, without a change among them.

    Raises ValueError for no parts and a negative mass, TypeError for a part that is no module.

    >>> from moga.geometry.norms import norm
    >>> layer = Atom("w", norm("spectral"))
    >>> compose(layer, Bond(0.5), mass=3.0).sensitivity
    0.5
    """
    return Composition(parts, _total("compose", parts, mass))


def concatenate(*parts: Module, mass: float | None = None) -> Concatenation:
    """The parts side by side on one input; ``mass`` replaces the sum of their masses, without a change among them.

    A residual block x + f(x) / L, where f has sensitivity 1, has sensitivity 1 + 1/L:

    >>> compose(concatenate(Bond(), Bond(0.25)), Bond()).sensitivity
    1.25
    """
    return Concatenation(parts, _total("concatenate", parts, mass))


def modular_norm(tree: Module) -> NetworkNorm:
    """The modular norm of the weights of a tree of modules: by layer, and of the whole.

    The steepest step of a chain of L equal layers moves every layer by its own unit step over L:

    >>> import torch
    >>> from moga.geometry.norms import norm
    >>> chain = modular_norm(compose(*(Atom(name, norm("spectral")) for name in "abc")))
    >>> weights = {name: size * torch.eye(2) for name, size in (("a", 0.1), ("b", 0.3), ("c", 0.2))}
    >>> chain.measure(weights)  # three times the largest
    tensor(0.9000)
    >>> chain.direction(weights)["b"]
    tensor([[0.3333, 0.0000],
            [0.0000, 0.3333]])

    Raises ValueError for a tree without mass and a name that occurs twice, TypeError for what is no module.
    """
    _check_modules("modular_norm", tree)
    if tree.mass == 0:
        raise ValueError("the tree has no mass: no weight of it is trained. Give an Atom a mass above 0")
    return NetworkNorm(unique(list(_layers(tree, 1.0))))


def _layers(module: Module, coefficient: float) -> Iterator[Layer]:
    """The weights below a module whose own norm has that coefficient in the whole; mass 0 has coefficient 0."""
    if isinstance(module, Atom):
        yield module.layer(coefficient)
    elif not isinstance(module, Bond):
        total = sum(part.mass for part in module.parts)  # without the mass that was given: shares stay as they were
        for i, part in enumerate(module.parts):
            after = module.parts[i + 1 :] if isinstance(module, Composition) else ()
            share = total / part.mass if part.mass else 0.0
            yield from _layers(part, coefficient * share * math.prod(other.sensitivity for other in after))


def _total(what: str, parts: tuple[Module, ...], mass: float | None) -> float:
    if not parts:
        raise ValueError(f"{what} needs at least one module")
    _check_modules(what, *parts)
    total = sum(part.mass for part in parts)
    if mass is not None and not (math.isfinite(mass) and mass >= 0 and (total or not mass)):
        raise ValueError(f"mass must be a finite number of at least 0, and 0 where no part has any; got {mass}")
    return total if mass is None else mass


def _check_modules(what: str, *parts: object) -> None:
    for part in parts:
        if not isinstance(part, Module):
            raise TypeError(f"{what} takes modules: Atom, Bond, or what compose and concatenate make; got {part!r}")


def _check(mass: float, sensitivity: float) -> None:
    if not (math.isfinite(mass) and mass >= 0):
        raise ValueError(f"mass must be a finite number of at least 0; got {mass}")
    if not (math.isfinite(sensitivity) and sensitivity > 0):
        raise ValueError(f"sensitivity must be a finite number above 0; got {sensitivity}")
