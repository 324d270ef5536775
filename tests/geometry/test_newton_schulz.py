"""The published coefficients, recomputed from their definition; the plain and the Gram form; the scalar maps."""

import math

import pytest
import torch

from moga.geometry import newton_schulz
from moga.geometry.newton_schulz import (
    BLOCK,
    CUBIC,
    GRAM_RATIO,
    POLAR_EXPRESS,
    QUINTIC,
    fewest_products,
    gram_iteration,
    plain_iteration,
    runs_of,
    safety,
    schedule,
    symmetric_product,
)

CUSHION = 0.02407327424182761  # arXiv 2505.16932, Appendix G


def value(row, x):
    a, b, c = row
    return a * x + b * x**3 + c * x**5


def closest_to_one(low, high):
    """The odd quintic with the least largest deviation from 1 on [low, high], by exchange (Remez).

    It is the one that deviates by E with alternating signs at four points: the two ends and two extrema between them.
    """
    points = [low, (3 * low + high) / 4, (low + 3 * high) / 4, high]
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    for _ in range(60):
        x = torch.tensor(points, dtype=torch.float64)
        a, b, c, _ = torch.linalg.solve(torch.stack([x, x**3, x**5, signs], 1), torch.ones_like(x)).tolist()
        root = math.sqrt(9 * b * b - 20 * a * c)  # of p'(x) = a + 3 b x^2 + 5 c x^4
        points[1:3] = [math.sqrt((-3 * b - root) / (10 * c)), math.sqrt((-3 * b + root) / (10 * c))]
    return a, b, c


def polar_express(least, steps):
    """Each step's best polynomial for what the steps before it leave."""
    low, high, rows = least, 1.0, []
    for _ in range(steps):
        row = closest_to_one(max(low, CUSHION * high), high)
        centre = 2 / (value(row, low) + value(row, high))
        row = tuple(coefficient * centre for coefficient in row)
        rows.append(row)
        low = value(row, low)
        high = 2 - low
    return rows


def test_the_table_is_the_greedy_composition_of_best_polynomials():
    for found, published in zip(polar_express(1e-3, 6), POLAR_EXPRESS, strict=False):
        assert found == pytest.approx(published, rel=1e-9)


def test_the_last_rows_are_the_limit():
    """x (15 - 10 x^2 + 3 x^4) / 8: the odd quintic with p(1) = 1, p'(1) = p''(1) = 0."""
    a, b, c = POLAR_EXPRESS[-1]
    assert (a + b + c, a + 3 * b + 5 * c, 6 * b + 20 * c) == (1, 0, 0)
    assert POLAR_EXPRESS[-2] == pytest.approx(POLAR_EXPRESS[-1], rel=3e-6)


def test_the_first_step_keeps_clear_of_zero():
    x = torch.linspace(1e-3, 1, 100_001, dtype=torch.float64)
    assert (value(POLAR_EXPRESS[0], x) / x).min() > 0.2


@pytest.mark.parametrize("dtype,factor", [(torch.float64, 1.01), (torch.float32, 1.01), (torch.float16, 1.1)])
def test_the_safety_factor_enters_all_rows_but_the_last(dtype, factor):
    assert safety(dtype) == factor
    rows = schedule(POLAR_EXPRESS, 10, safety(dtype))
    assert len(rows) == 10 and rows[-3:] == [POLAR_EXPRESS[-1]] * 3
    for row, published in zip(rows, POLAR_EXPRESS[:-1], strict=False):
        assert value(row, 0.7) == pytest.approx(value(published, 0.7 / factor))
    assert schedule(POLAR_EXPRESS, 5, factor) == rows[:5]


def run(rows, x):
    for row in rows:
        x = value(row, x)
    return x


def test_scalar_maps():
    """What the iterations do to one singular value, as the docstrings say."""
    x = torch.logspace(-3, 0, 50_001, dtype=torch.float64)
    quintic = run([QUINTIC] * 5, x)
    assert 0.681 < quintic[x >= 0.002].min() < 0.683 and 1.202 < quintic.max() < 1.203
    five, six = (run(schedule(POLAR_EXPRESS, steps, 1.01), x) for steps in (5, 6))
    assert 0.84 < five.min() < 0.85 and 1.12 < five.max() < 1.13
    assert 0.994 < six.min() < 0.995 and 1.001 < six.max() < 1.002
    assert run([CUBIC] * 20, x).min() > 0.9999
    assert run([CUBIC] * 15, x[:1]) < 0.5 < run([CUBIC] * 16, x[:1])


@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize("shape", [(4, 4), (4, 9), (2, 3, 8), (1, 5)], ids=str)
def test_the_gram_form_is_the_plain_form(steps, shape):
    X = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X = X / torch.linalg.matrix_norm(X, keepdim=True)
    for rows in ([QUINTIC] * steps, [CUBIC] * steps, schedule(POLAR_EXPRESS, steps, 1.01)):
        torch.testing.assert_close(gram_iteration(X, rows), plain_iteration(X, rows), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(400, 500), (2, 300, 400), (2, 2, 260, 700)], ids=str)
@pytest.mark.parametrize("order", ["wide", "tall"])
def test_the_gram_form_of_large_and_stacked_matrices(shape, order):
    """From the diagonal on, one after another, and in either order in memory."""
    X = normal(shape).double() / 100
    X = X.mT.contiguous().mT if order == "tall" else X
    for runs in (None, [1] * 5):
        moved = gram_iteration(X, [QUINTIC] * 5, runs)
        torch.testing.assert_close(moved, plain_iteration(X, [QUINTIC] * 5), rtol=1e-9, atol=1e-11)
        assert moved.shape == X.shape


# Of 2000 matrices close to rank 1 for each of these seeds, one whose pairs of steps overflow with (R Z) Z
HARDEST = {14: 1656, 46: 1749, 150: 1055, 370: 769}


@pytest.mark.parametrize("order", ["wide", "tall", "blocks"])
def test_pairs_in_bfloat16_do_not_diverge_in_any_order(order, monkeypatch):
    """``(R Z) Z`` in place of ``Z (R Z)`` ends above 1e30 in tall order and in blocks."""
    if order == "blocks":  # computed from the diagonal on and mirrored, as large ones are
        monkeypatch.setattr(newton_schulz, "BLOCK", 2)
    for seed, worst in HARDEST.items():
        generator = torch.Generator().manual_seed(seed)
        column, row, noise = (torch.randn(2000, *size, generator=generator) for size in ((5, 1), (1, 8), (5, 8)))
        G = column @ row + 0.03 * noise
        X = (G / torch.linalg.matrix_norm(G, keepdim=True)).bfloat16()
        X = {"wide": X, "tall": X.mT.contiguous().mT, "blocks": X[worst]}[order]
        for rows, high in ((schedule(POLAR_EXPRESS, 6, safety(X.dtype)), 1.03), ([QUINTIC] * 5, 1.35)):
            assert torch.linalg.matrix_norm(gram_iteration(X, rows).double(), 2).max() < high


@pytest.mark.parametrize("size", [1, 3 * BLOCK // 2 - 1, 3 * BLOCK // 2, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize("graded", [True, False])
def test_a_symmetric_product_is_its_upper_half_mirrored(size, graded):
    A = normal((size, 30)).double()
    R = A @ A.mT
    with torch.set_grad_enabled(graded):
        pairs = (symmetric_product(A, A.mT), R), (symmetric_product(R, R, R, 2.0, 3.0), 2 * R + 3 * R @ R)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected)
        assert size < 3 * BLOCK // 2 or torch.equal(found[:BLOCK, BLOCK:], found[BLOCK:, :BLOCK].mT)


def normal(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def spread(shape, power):
    """Singular values 1, 1 / 2^power, 1 / 3^power, ..."""
    U, _, Vh = torch.linalg.svd(normal(shape), full_matrices=False)
    return (U * (torch.arange(1.0, min(shape[-2:]) + 1) ** -power)) @ Vh


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(4, 64, 64), (4, 64, 128), (2, 128, 512), (300, 320), (256, 1024)], ids=str)
@pytest.mark.parametrize("name", ["quintic", "polar-express"])
def test_the_error_of_the_fast_form_is_at_most_twice_that_of_the_plain_form(name, shape, dtype):
    rows = [QUINTIC] * 5 if name == "quintic" else schedule(POLAR_EXPRESS, 6, safety(dtype))
    for G in (normal(shape), spread(shape, 1), spread(shape, 2), spread(shape, 9)):
        X = G / torch.linalg.matrix_norm(G, keepdim=True)
        exact = plain_iteration(X.double(), rows)
        fast, plain = (function(X.to(dtype), rows).double() for function in (fewest_products, plain_iteration))
        assert (fast - exact).square().mean() <= 4 * (plain - exact).square().mean()


def test_pairs_everywhere_would_break_that_bound():
    X = normal((256, 400)) / normal((256, 400)).norm()
    exact = plain_iteration(X.double(), [QUINTIC] * 5)
    pairs, plain = (f(X, [QUINTIC] * 5).double() for f in (gram_iteration, plain_iteration))
    assert (pairs - exact).square().mean() > 4 * (plain - exact).square().mean()


def products(function, short, long, dtype, monkeypatch):
    """Multiplications of a short x short matrix that the matrix products of ``function`` amount to."""
    counted = []
    multiply = newton_schulz._product

    def counting(A, B, *rest, **words):
        counted.append(A.shape[-2] * A.shape[-1] * B.shape[-1] / short**3)
        return multiply(A, B, *rest, **words)

    with monkeypatch.context() as patch:
        patch.setattr(newton_schulz, "_product", counting)
        function(torch.zeros(short, long, dtype=dtype), [QUINTIC] * 5)
    return sum(counted)


def test_the_form_with_fewer_products_is_taken(monkeypatch):
    def forms(short, long, dtype):
        runs = ([1] * 5, [2, 1, 2], [2, 1, 1, 1])
        made = [lambda X, rows, run=run: gram_iteration(X, rows, run) for run in runs]
        return [products(form, short, long, dtype, monkeypatch) for form in (*made, fewest_products)]

    for short, long in ((64, 64), (64, 88), (64, 96), (64, 104), (64, 256)):
        plain, pairs, first, taken = forms(short, long, torch.bfloat16)
        assert taken == min(plain, pairs), (short, long)
        assert (pairs < plain) == (first < plain) == (long > GRAM_RATIO * short)
        assert forms(short, long, torch.float32)[3] == min(plain, first)
    assert (plain, pairs, first) == (45, 35, 40)  # 5 (2 * 4 + 1); a pair has 2 * 4 + 5 in place of 2 (2 * 4 + 1)
    plain, _, first, taken = forms(768, 768, torch.float32)  # three blocks of 256 rows: 6 of 9 are computed
    assert taken == plain == 5 * (2 * 6 / 9 + 1) < first


def test_small_matrices_take_the_plain_form():
    X = normal((2, 63, 200)).bfloat16() / 200
    assert torch.equal(fewest_products(X, [QUINTIC] * 5), plain_iteration(X, [QUINTIC] * 5))


def test_a_single_step_has_no_pair():
    X = normal((64, 200)) / 200
    torch.testing.assert_close(fewest_products(X, [QUINTIC]), plain_iteration(X, [QUINTIC]))
    assert [runs_of(steps) for steps in (0, 1, 2, 7)] == [[], [1], [2], [2, 1, 2, 2]]
