"""Rows or columns of which this rank holds a part: their sizes need the other parts, and nothing else does.

The direction along a vector x is ``sign(x) |x|^(e-1) / |x|_e^(e-1)``, with ``|x|_e^e`` a sum over ranks. Sums are taken
in float64, where the squares of float32 numbers neither overflow nor vanish: one round of communication. Larger
exponents and float64 entries are divided by their largest entry first: another round. e = inf counts largest entries
instead.
"""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from moga.geometry.vectors import from_power_sum, nonzero

ONE_ROUND = 6  # the largest exponent at which no power of a float32 number leaves float64: 1e-45^6, 3e38^6


class Vectors:
    """The vectors along ``dim`` of matrices (..., out, in), all matrices of a shard.

    ``blocks`` says for every row to which of several matrices along ``out`` it belongs: where columns end (dim = -2).

    >>> both = torch.tensor([[3.0], [4.0]])  # a column, its rows on two ranks
    >>> halves = [Vectors(part, -2, [0], 1, 2.0) for part in both.split(1)]
    >>> sums = halves[0].sums() + halves[1].sums()
    >>> [half.direction(sums).item() for half in halves]
    [0.6000000238418579, 0.800000011920929]
    """

    def __init__(self, X: Tensor, dim: int, blocks: list[int], count: int, e: float) -> None:
        self.X, self.dim, self.e = X, dim, e
        self.rounds = 1 if e <= ONE_ROUND and X.dtype == torch.float32 else 2
        self._count = count if dim == -2 else 1
        self._rows = torch.tensor(blocks, device=X.device) if self._count > 1 else None
        self._unit: Tensor = X.double()

    def peaks(self) -> Tensor:
        """The largest absolute entry of the part of each vector that is here; 0 of none."""
        return self._joined(self.X.abs().double(), "amax")

    def divide(self, peaks: Tensor) -> None:
        """Go on with entries over the largest one of their whole vector."""
        self._unit = self._unit / nonzero(self._spread(peaks))

    def sums(self) -> Tensor:
        """The sum of ``|x|^e`` over the part that is here; at e = inf the number of entries of size 1."""
        size = self._unit.abs()
        return self._joined((size == 1).double() if self.e == inf else size**self.e, "sum")

    def direction(self, sums: Tensor) -> Tensor:
        """The direction, unscaled, from the sums over all ranks."""
        unit, total = self._unit, self._spread(sums)
        if self.e == inf:
            D = torch.where(unit.abs() == 1, unit, 0 * unit) / nonzero(total)
        else:
            total = torch.where(total.isinf(), torch.nan, total)  # as of a whole vector: no step hides an Inf
            D = unit / nonzero(total.sqrt()) if self.e == 2 else from_power_sum(unit, total, self.e)
        return D.to(self.X.dtype)

    def _joined(self, values: Tensor, how: str) -> Tensor:
        """(..., 1) for rows, (..., blocks, in) for columns."""
        shape = list(values.shape)
        shape[self.dim] = self._count
        joined = values.new_zeros(shape)
        if self._rows is None:
            index = torch.zeros((), dtype=torch.long, device=values.device).expand(values.shape)
        else:
            index = self._rows.unsqueeze(-1).expand(values.shape)
        return joined.scatter_reduce_(self.dim, index, values, how)

    def _spread(self, joined: Tensor) -> Tensor:
        return joined if self._rows is None else joined.index_select(-2, self._rows)
