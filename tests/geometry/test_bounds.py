"""Operator norms of any pair: exact where they are known, and bounds that hold."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moga.geometry.bounds import Bounds, PairNorm
from moga.geometry.estimates import lower_bound, upper_bound
from moga.geometry.names import norm
from moga.geometry.norms import NORMS
from moga.geometry.vectors import conjugate, vector_norm

INF = math.inf
EXPONENTS = (1, 1.3, 2, 4, INF)
HARD = [(3, 2), (2, 4), (1.5, 3), (3, 3), (4, 1.2), (2, 1), (INF, 2), (INF, 1), (1.1, 1.1)]


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def corners(n):
    return torch.tensor(list(itertools.product([-1.0, 1.0], repeat=n)), dtype=torch.float64).mT


CASES = json.loads((Path(__file__).parents[1] / "cases" / "norms.json").read_text())["measures"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['p']}-{c['q']}-{c['shape']}")
def test_reference_values(case):
    rule, W = norm(p=float(case["p"]), q=float(case["q"])), torch.tensor(case["W"], dtype=torch.float64)
    size, expected = rule.measure(W), case["measure"]
    if isinstance(size, Bounds):
        assert size.lower == pytest.approx(expected, rel=1e-6) and size.upper >= expected * (1 - 1e-9)
        assert size.upper <= 1.35 * expected  # a bound that says something
    else:
        assert size == pytest.approx(expected, rel=1e-9 if case["measured_by"] == "exact" else 1e-6)
    if case["measured_by"] == "exact":
        assert not isinstance(size, Bounds)


def known(W, p, q):
    """The exact plain norm where theory gives it, from the definitions."""
    if p == 1:
        return vector_norm(W, q, -2).amax(-1)
    if q == INF:
        return vector_norm(W, conjugate(p), -1).amax(-1)
    if p == INF:
        return vector_norm(W @ corners(W.shape[-1]), q, -2).amax(-1)
    if q == 1:
        return vector_norm(W.mT @ corners(W.shape[-2]), conjugate(p), -2).amax(-1)
    return torch.linalg.matrix_norm(W, 2) if p == q == 2 else None


@pytest.mark.parametrize("p,q", list(itertools.product(EXPONENTS, EXPONENTS)))
@given(seed=st.integers(0, 10**6), out=st.integers(1, 6), in_=st.integers(1, 6))
@settings(max_examples=8, deadline=None)
def test_bounds_bracket_what_is_known(p, q, seed, out, in_):
    W = draw(out, in_, seed=seed)
    exact = known(W, p, q)
    lower, upper = lower_bound(W, p, q) if p > 1 else None, upper_bound(W, p, q)
    if exact is not None:
        assert upper >= exact * (1 - 1e-9)
        torch.testing.assert_close(norm(p=p, q=q).measure(W) * norm(p=p, q=q).scale(out, in_), exact)
    if lower is not None and q < INF:
        assert lower <= upper * (1 + 1e-9)
        assert exact is None or 0.95 * exact <= lower <= exact * (1 + 1e-9)


@pytest.mark.parametrize("p,q", HARD)
@pytest.mark.parametrize("shape", [(20, 18), (18, 40), (40, 17)], ids=str)
def test_no_input_exceeds_the_upper_bound_and_the_lower_is_not_beaten(p, q, shape):
    rule, W = norm(p=p, q=q), draw(*shape)
    size = rule.measure(W)
    assert isinstance(size, Bounds) and size.lower <= size.upper <= 3 * size.lower
    x = torch.cat([draw(shape[1], 2000, seed=1), draw(shape[1], 2000, seed=2).sign()], 1)
    ratio = vector_norm(W @ x, q, 0) / vector_norm(x, p, 0) / rule.scale(*shape)
    assert ratio.max() <= size.lower


@pytest.mark.parametrize("p,q", HARD)
def test_batches_dtypes_sizes_and_zero(p, q):
    rule, W = norm(p=p, q=q), draw(3, 18, 20)
    size = rule.measure(W)
    for i in range(3):
        torch.testing.assert_close(size.lower[i], rule.measure(W[i]).lower, rtol=1e-5, atol=0)
        torch.testing.assert_close(size.upper[i], rule.measure(W[i]).upper)
    half = rule.measure(W.bfloat16())
    assert half.lower.dtype == half.upper.dtype == torch.float32
    for scale in (1e-30, 1e30):
        scaled = rule.measure((W * scale).float())
        torch.testing.assert_close(scaled.lower.double() / scale, size.lower, rtol=0.02, atol=0)
        torch.testing.assert_close(scaled.upper.double() / scale, size.upper, rtol=1e-4, atol=0)
    nothing = rule.measure(torch.zeros(18, 20))
    assert nothing.lower == nothing.upper == 0
    W[0, 0, 0] = math.nan
    bad = rule.measure(W)
    assert bad.lower[0].isnan() and bad.upper[0].isnan() and torch.equal(bad.upper[1:], size.upper[1:])


@pytest.mark.parametrize("p,q", HARD)
def test_the_transpose_has_the_conjugate_pair(p, q):
    W = draw(18, 20)
    size, mirrored = PairNorm(p, q).measure(W), PairNorm(conjugate(q), conjugate(p)).measure(W.mT)
    plain, plain_mirrored = PairNorm(p, q).scale(18, 20), PairNorm(conjugate(q), conjugate(p)).scale(20, 18)
    torch.testing.assert_close(size.lower * plain, mirrored.lower * plain_mirrored, rtol=0.03, atol=0)
    torch.testing.assert_close(size.upper * plain, mirrored.upper * plain_mirrored)


@pytest.mark.parametrize("p,q", HARD)
def test_width_and_fan(p, q):
    rule, W = norm(p=p, q=q), draw(18, 17)
    wide = torch.kron(torch.ones(2, 3, dtype=W.dtype) / 3, W)
    torch.testing.assert_close(rule.measure(wide).lower, rule.measure(W).lower, rtol=0.03, atol=0)
    ratio = rule.scale(18, 17) / rule.scale(18, 1)
    torch.testing.assert_close(rule.measure(W, fan=(18, 1)).upper, rule.measure(W).upper * ratio)


@pytest.mark.parametrize("p,q", HARD)
@pytest.mark.parametrize("shape", [(1, 20), (20, 1), (1, 1)], ids=str)
def test_a_single_row_or_column_is_exact(p, q, shape):
    W, rule = draw(*shape), norm(p=p, q=q)
    expected = vector_norm(W.flatten(), q if shape[1] == 1 else conjugate(p), 0)
    torch.testing.assert_close(rule.measure(W) * rule.scale(*shape), expected)


def test_sixteen_is_exact_and_seventeen_is_not():
    assert isinstance(norm(p=INF, q=2).measure(draw(3, 16)), torch.Tensor)
    assert isinstance(norm(p=INF, q=2).measure(draw(3, 17)), Bounds)
    assert isinstance(norm(p=2, q=1).measure(draw(2, 16, 30)), torch.Tensor)
    assert isinstance(norm(p=2, q=1).measure(draw(2, 17, 30)), Bounds)


def test_empty():
    assert norm(p=3, q=2).measure(torch.zeros(2, 0, 3)).shape == (2,)


def test_the_closed_forms_are_the_rows_of_the_table():
    assert {norm(p=p, q=q).name for p, q in ((1, 2), (2, INF), (1, INF), (2, 2))} == set(NORMS)


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: norm(p=3, q=2).dual(draw(2, 2)), "the pair p = 3, q = 2 has no dual norm in closed form; the pairs"),
        (
            lambda: norm(p=INF, q=1).direction(draw(2, 2)),
            r"no direction .* are \(1, q\), \(p, inf\) and \(2, 2\)",
        ),
        (lambda: norm(p=3, q=2).measure(draw(2)), r"a matrix \(\.\.\., out, in\) is needed; got shape \(2,\)"),
        (lambda: norm(p=3, q=2).scale(3, 0), "a scale needs sizes of at least 1; got in = 0"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()
