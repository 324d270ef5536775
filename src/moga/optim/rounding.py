"""How a float32 result becomes a bfloat16 or float16 tensor: to the nearest, or up or down at random without bias.

A weight of bfloat16 has eight significant bits: an update below 1/512 of the weight is lost by rounding to the nearest,
at every step. Rounding up with the probability of the lost fraction keeps it on average: ``E[round(x)] == x``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

ROUNDINGS = ("nearest", "stochastic")

# Bits of float32's 23-bit fraction that the dtype does not have.
DROPPED = {torch.bfloat16: 16, torch.float16: 13}
SMALLEST_NORMAL_HALF = 2.0**-14
HALF_STEP = 2.0**-24  # the distance of float16's numbers below that


class Noise:
    """Random bits that depend on a number and on a tensor's name alone: equal on every rank, after a resume, and in
    whatever order and company tensors are rounded.

    ``names`` has the name of a tensor by its identity; tensors without one are counted in the order of their use.

    >>> x = torch.zeros(4)
    >>> a, b = (torch.randint(9, (4,), generator=Noise(7, {id(x): "w"}).of(x)) for _ in range(2))
    >>> torch.equal(a, b)
    True
    """

    def __init__(self, seed: int, names: Mapping[int, str] | None = None) -> None:
        self.seed = seed
        self._names = dict(names or {})
        self._unnamed = 0
        self._generators: dict[torch.device, torch.Generator] = {}

    def alias(self, target: Tensor, named: Tensor, part: str = "") -> None:
        """Give a tensor the name of another one, of which it is the whole or the ``part`` of that name."""
        if id(named) in self._names:
            self._names[id(target)] = self._names[id(named)] + part

    def of(self, target: Tensor) -> torch.Generator:
        """The generator for a tensor, on its device and at the beginning of its sequence."""
        name = self._names.get(id(target))
        if name is None:
            name, self._unnamed = str(self._unnamed), self._unnamed + 1
        if target.device not in self._generators:
            self._generators[target.device] = torch.Generator(target.device)
        digest = hashlib.blake2b(f"{self.seed} {name}".encode(), digest_size=7).digest()
        return self._generators[target.device].manual_seed(int.from_bytes(digest, "big"))


def stochastic(x: Tensor, dtype: torch.dtype, generator: torch.Generator | None = None) -> Tensor:
    """One of the two neighbours of the float32 tensor ``x`` in ``dtype``, the nearer one more often: unbiased.

    Numbers of ``dtype``, NaN and Inf stay as they are.

    >>> x = torch.full((10000,), 1 + 2**-9)  # a quarter of the way from 1 to 1.0078
    >>> rounded = stochastic(x, torch.bfloat16, torch.Generator().manual_seed(0))
    >>> rounded.unique().tolist(), abs(rounded.double().mean().item() - x[0].item()) < 1e-4
    ([1.0, 1.0078125], True)
    """
    dropped = DROPPED[dtype]
    noise = torch.randint(1 << dropped, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    bits = (x.contiguous().view(torch.int32) + noise) & -(1 << dropped)
    rounded = bits.view(torch.float32)
    if dtype == torch.float16:
        lifted = torch.floor(x / HALF_STEP + noise / (1 << dropped)) * HALF_STEP
        rounded = torch.where(x.abs() < SMALLEST_NORMAL_HALF, lifted, rounded)
    return torch.where(torch.isfinite(x), rounded, x).to(dtype)


def write_(targets: Sequence[Tensor], values: Sequence[Tensor], rounding: str, noise: Noise | None) -> None:
    """Copy ``values`` (float32 or wider) into ``targets``, rounded as the word says where the dtypes differ.

    >>> x = [torch.zeros(2, dtype=torch.bfloat16)]
    >>> write_(x, [torch.tensor([1.0, 1.001])], "nearest", None); x[0]
    tensor([1., 1.], dtype=torch.bfloat16)
    """
    if rounding == "stochastic" and targets[0].dtype in DROPPED:
        values = [
            stochastic(value.float(), target.dtype, None if noise is None else noise.of(target))
            for target, value in zip(targets, values, strict=True)
        ]
    torch._foreach_copy_(list(targets), list(values))
