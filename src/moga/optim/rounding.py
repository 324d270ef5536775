"""How a float32 result becomes a bfloat16 or float16 tensor: to the nearest, or up or down at random without bias.

A weight of bfloat16 has eight significant bits: an update below 1/512 of the weight is lost by rounding to the nearest,
at every step. Rounding up with the probability of the lost fraction keeps it on average: ``E[round(x)] == x``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDINGS = ("nearest", "stochastic")

# Bits of float32's 23-bit fraction that the dtype does not have.
DROPPED = {torch.bfloat16: 16, torch.float16: 13}
SMALLEST_NORMAL_HALF = 2.0**-14
HALF_STEP = 2.0**-24  # the distance of float16's numbers below that


class Noise:
    """Random bits that depend on a number alone: equal on every rank and after a resume, whatever else was drawn.

    >>> a, b = (torch.randint(9, (4,), generator=Noise(7).of(torch.device("cpu"))) for _ in range(2))
    >>> torch.equal(a, b)
    True
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def of(self, device: torch.device) -> torch.Generator:
        """The generator of a device, made at its first use."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]


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
        generator = None if noise is None else noise.of(targets[0].device)
        values = [stochastic(value.float(), targets[0].dtype, generator) for value in values]
    torch._foreach_copy_(list(targets), list(values))
