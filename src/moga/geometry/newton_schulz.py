"""Iterations that carry singular values to 1 with matrix products alone: coefficients as data, two ways to run them.

An odd polynomial ``x -> a x + b x^3 + c x^5`` of ``X = U S V^T``, which is ``(a I + b A + c A^2) X`` with
``A = X X^T``, acts on the singular values and leaves ``U`` and ``V`` alone. A schedule is one (a, b, c) per step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Coefficients = tuple[float, float, float]

# Newton-Schulz: the one cubic with p(1) = 1 and p'(1) = 0. It converges to 1 from all of (0, sqrt 3), by a factor of
# 1.5 a step at first: 16 steps from 0.001 to 0.5.
CUBIC: Coefficients = (1.5, -0.5, 0.0)

# Chosen for a steep slope at 0 (Keller Jordan et al., "Muon", 2024). The map does not converge to 1: its fixed points
# are 0.868 and 1.264, and the first of them repels.
QUINTIC: Coefficients = (3.4445, -4.7750, 2.0315)

# arXiv 2505.16932, Algorithm 1 and Appendix G. Step t has the odd quintic that is closest to 1, in the largest
# deviation, on the interval [l, u] in which the earlier steps leave the singular values; the first interval is
# [0.001, 1]. Then l becomes p(l) and u becomes 2 - p(l). Two refinements belong to the table: where l < 0.0240733 u
# the polynomial is fitted on [0.0240733 u, u] (so that p(x) / x stays well above 0), and then multiplied by the number
# that centres p(l) and p(u) around 1. tests/geometry/test_newton_schulz.py recomputes all rows from this definition.
# These are the polynomials BEFORE the safety factor.
POLAR_EXPRESS: tuple[Coefficients, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),  # the limit, which every later step repeats
)
# Rounding can push a singular value above u, where the polynomial grows fast. The paper therefore evaluates p(x / 1.01)
# in every row but the last (the limit), whatever the number of steps; published lists differ in whether their numbers
# have this division in them already. Here it enters in `schedule` and nowhere else.
#
# 1.01 is not enough where a rounding error is 2^-9 (bfloat16). The first step subtracts numbers of up to 24 to get 2,
# so it may be off by 24 / 2^9 / 2 = 2 %; in the Gram form the product of the first two steps has size 34 where the
# small singular values are and 2 where the large ones are, so it may be off by 34 / 2^9 / 2 = 3 %. Of 2000 random
# non-negative 2 x 4 matrices the worst ends at 1e36 with 1.01, in the plain form too. 1.1 covers both three times, and
# costs 10 % of the growth of small singular values per step.
SAFETY = {"wide": 1.01, "narrow": 1.1}

# A pair of steps in the Gram form costs 2 long and 5 short products, in the plain form 4 long and 2 short; a long
# product costs long / short times a short one. So the Gram form has less to compute from this ratio on.
GRAM_RATIO = 1.5


def schedule(rows: Sequence[Coefficients], steps: int, divisor: float = 1.0) -> list[Coefficients]:
    """The coefficients of ``steps`` steps; the last row is repeated, and every other row is of ``p(x / divisor)``.

    >>> schedule([(2.0, 8.0, 32.0), (1.875, -1.25, 0.375)], steps=3, divisor=2.0)
    [(1.0, 1.0, 1.0), (1.875, -1.25, 0.375), (1.875, -1.25, 0.375)]
    """
    safe = [(a / divisor, b / divisor**3, c / divisor**5) for a, b, c in rows[:-1]]
    return [*safe, *[rows[-1]] * max(0, steps - len(safe))][:steps]


def safety(dtype: torch.dtype) -> float:
    """The factor for arithmetic of that dtype: the paper's in float32 or wider.

    >>> safety(torch.float32), safety(torch.bfloat16)
    (1.01, 1.1)
    """
    return SAFETY["wide" if torch.finfo(dtype).bits >= 32 else "narrow"]


def plain_iteration(X: Tensor, rows: Sequence[Coefficients]) -> Tensor:
    """One step per row on ``X`` (..., short, long): two long products and one short.

    >>> plain_iteration(torch.tensor([[0.5, 0.0]]), [CUBIC])  # 1.5 / 2 - 0.5 / 8
    tensor([[0.6875, 0.0000]])
    """
    for a, b, c in rows:
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A if c else b * A) @ X
    return X


def gram_iteration(X: Tensor, rows: Sequence[Coefficients]) -> Tensor:
    """The same map as :func:`plain_iteration`, two steps at a time in the Gram matrix ``R = X X^T`` of the short side.

    The first step of a pair is ``X -> Z1 X``, so ``R -> Z1 R Z1``; the second is then found from ``R`` alone, and
    ``X -> Z2 Z1 X`` is applied once. The pair ends with a restart, ``R`` anew from ``X``: rounding makes ``R``
    indefinite by a multiple of the precision, each ``Z R Z`` multiplies that by up to ``a^2`` (68 in the first step of
    polar-express, 16 in the next two), and a negative eigenvalue of order 1 makes the next step diverge. One pair is
    what bfloat16 can bear: three steps without a restart end at 1e19 for some 16 x 16 matrices.

    Source: Dao AI Lab, "Gram Newton-Schulz", 2026, where one restart does for five steps in float16.

    >>> X = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.2, 0.1]])
    >>> bool((gram_iteration(X, [QUINTIC] * 5) - plain_iteration(X, [QUINTIC] * 5)).abs().max() < 1e-5)
    True
    """
    eye = torch.eye(X.shape[-2], dtype=X.dtype, device=X.device)
    for start in range(0, len(rows) - 1, 2):
        R = X @ X.mT
        (a, b, c), second = rows[start], rows[start + 1]
        Z = a * eye + b * R + c * R @ R
        R = Z @ R @ Z
        a, b, c = second
        X = ((a * eye + b * R + c * R @ R) @ Z) @ X
    return plain_iteration(X, rows[-1:]) if len(rows) % 2 else X


def gram_where_cheaper(X: Tensor, rows: Sequence[Coefficients]) -> Tensor:
    """The Gram form of ``X`` (..., short, long) where it computes less, from ``long > 1.5 short``; else the plain form.

    >>> X = torch.tensor([[0.5, 0.0], [0.0, 0.25]])
    >>> torch.equal(gram_where_cheaper(X, [CUBIC] * 2), plain_iteration(X, [CUBIC] * 2))
    True
    """
    short, long = X.shape[-2:]
    return gram_iteration(X, rows) if long > GRAM_RATIO * short else plain_iteration(X, rows)
