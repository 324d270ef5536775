"""Iterations that carry singular values to 1 with matrix products alone: coefficients as data, two ways to run them.

An odd polynomial ``x -> a x + b x^3 + c x^5`` of ``X = U S V^T``, which is ``(a I + b A + c A^2) X`` with
``A = X X^T``, acts on the singular values and leaves ``U`` and ``V`` alone. A schedule is one (a, b, c) per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Coefficients = tuple[float, float, float]
Product = Callable[..., Tensor]  # as symmetric_product

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

# A symmetric product on the CPU is computed in as many rows at a time, from the diagonal on: of n blocks, n (n + 1) / 2
# instead of n^2. Fewer rows, and the product of a block runs below the machine's speed.
BLOCK = 256

# Below that many rows there is little to save, and no averaging of rounding errors: pairs in bfloat16 leave some 16 x
# 16 matrices at 1.25 that end below 1.21 in the plain form.
PAIRED = 64


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


def gram_iteration(
    X: Tensor, rows: Sequence[Coefficients], runs: Sequence[int] | None = None, product: Product | None = None
) -> Tensor:
    """The same map as :func:`plain_iteration` of (..., short, long), with fewer products, and half of most of these.

    ``runs`` says how many steps are taken at a time, 1 or 2; by default two, and where the number of steps is odd the
    second turn is a single step: 2, 1, 2, ... Two steps are taken in the Gram matrix ``R = X X^T`` of the short side.
    The first is ``X -> Z1 X``, so ``R -> Z1 R Z1``, with one factor from either side: ``(R Z1) Z1`` lets both multiply
    the rounding error of ``R Z1`` from the right, and some matrices then diverge. The second is found from ``R`` alone,
    and ``X -> Z2 Z1 X`` is applied once. All short products are polynomials of one matrix: symmetric. Multiples of the
    identity are left out of ``Z = a I + P`` and meet their factor within a product, with one rounding.

    Each run ends with a restart, ``R`` anew from ``X``: rounding makes ``R`` indefinite by a multiple of the precision,
    each ``Z R Z`` multiplies that by up to ``a^2`` (68 in the first step of polar-express, 16 in the next two), and a
    negative eigenvalue of order 1 makes the next step diverge. Two steps are what bfloat16 can bear: three steps
    without a restart end at 1e19 for some 16 x 16 matrices.

    Source: Dao AI Lab, "Gram Newton-Schulz", 2026, where one restart does for five steps in float16.

    >>> X = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.2, 0.1]])
    >>> bool((gram_iteration(X, [QUINTIC] * 5) - plain_iteration(X, [QUINTIC] * 5)).abs().max() < 1e-5)
    True
    """
    product = product or symmetric_product
    if X.ndim > 2 and _blockwise(X):  # one after another: as fast, and in the memory of one
        moved = [gram_iteration(one, rows, runs, product) for one in X.flatten(0, -3)]
        return (torch.stack(moved) if len(moved) > 1 else moved[0]).reshape(X.shape)
    if X.ndim > 3:
        return gram_iteration(X.flatten(0, -3), rows, runs, product).reshape(X.shape)
    start, stands = 0, X.mT.is_contiguous()
    for run in runs_of(len(rows)) if runs is None else runs:
        R = product(X, X.mT)
        a, b, c = rows[start]
        P = product(R, R, R, b, c) if c else b * R
        if run == 2:
            second, b, c = rows[start + 1]
            R = product(R, P, R, a)
            R = product(P, R, R, a)  # Z (R Z), not (R Z) Z
            P2 = product(R, R, R, b, c) if c else b * R
            P = product(P2, P, P2, a).add_(P, alpha=second)  # (a2 I + P2)(a I + P) less the identity
            a *= second
        X = _product(X.mT, P.mT, X.mT, a).mT if stands else _product(P, X, X, a)  # in the memory order of X
        start += run
    return X


def runs_of(steps: int) -> list[int]:
    """Two steps at a time; an odd one between the first pair and the others, where its rounding matters least.

    >>> runs_of(6), runs_of(5), runs_of(1)
    ([2, 2, 2], [2, 1, 2], [1])
    """
    pairs = [2] * (steps // 2)
    return pairs[:1] + [1] * (steps % 2) + pairs[1:]


def fewest_products(X: Tensor, rows: Sequence[Coefficients], product: Product | None = None) -> Tensor:
    """:func:`plain_iteration` of ``X`` (..., short, long), from ``short = 64`` on in fewer products.

    Steps are taken in pairs where ``long > 1.5 short``; in float32 or wider the first two alone, as later pairs more
    than double the error of the plain form (which in bfloat16 rounds three times as often). ``product`` stands in for
    :func:`symmetric_product`.

    >>> X = torch.tensor([[0.5, 0.0], [0.0, 0.25]])
    >>> torch.allclose(fewest_products(X, [CUBIC] * 2), plain_iteration(X, [CUBIC] * 2))
    True
    """
    steps, (short, long) = len(rows), X.shape[-2:]
    if short < PAIRED:
        return plain_iteration(X, rows)
    if long <= GRAM_RATIO * short or steps < 2:
        return gram_iteration(X, rows, [1] * steps, product)
    narrow = torch.finfo(X.dtype).bits < 32
    return gram_iteration(X, rows, runs_of(steps) if narrow else [2, *[1] * (steps - 2)], product)


def symmetric_product(
    A: Tensor, B: Tensor, C: Tensor | None = None, beta: float = 1.0, alpha: float = 1.0, derivatives: bool = True
) -> Tensor:
    """``beta C + alpha A B`` of (n, k), (k, n) or batches of them, where ``C`` and ``A B`` are symmetric.

    A large one on the CPU is computed from the diagonal on and mirrored. Without ``C`` it is ``A B``. One that needs no
    ``derivatives``, nor any other transformation of torch.func, is spared some copies.

    >>> A = torch.randn(300, 20)
    >>> torch.allclose(symmetric_product(A, A.mT), A @ A.mT, atol=1e-4)
    True
    """
    if not _blockwise(A) or A.ndim > 2:
        return _product(A, B, C, beta, alpha)
    size = len(A)
    product = A.new_empty(size, size)
    for top in range(0, size, BLOCK):
        rows = slice(top, top + BLOCK)
        part = product[rows, top:]
        factors = A[rows], B[:, top:], None if C is None else C[rows, top:], beta, alpha
        if derivatives or torch.compiler.is_compiling():  # out= has no derivative and no graph
            part.copy_(_product(*factors))
        else:
            _product(*factors, out=part)
        if top + BLOCK < size:
            product[top + BLOCK :, rows] = part[:, BLOCK:].mT
    return product


def _blockwise(X: Tensor) -> bool:
    return X.is_cpu and 2 * X.shape[-2] >= 3 * BLOCK


def _product(
    A: Tensor, B: Tensor, C: Tensor | None, beta: float, alpha: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """``beta C + alpha A B``, rounded once."""
    if C is None:
        return torch.matmul(A, B, out=out)
    return (torch.addmm if A.ndim == 2 else torch.baddbmm)(C, A, B, beta=beta, alpha=alpha, out=out)
