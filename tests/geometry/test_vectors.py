"""The laws of every norm of vectors, Mahalanobis included."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moga.geometry.mahalanobis import Mahalanobis
from moga.geometry.vectors import VECTORS, as_vector, mean_scale

INF = math.inf


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def positive_definite(n, seed=0):
    A = draw(n, n, seed=seed)
    return A @ A.mT + 0.1 * torch.eye(n, dtype=A.dtype)


def diagonal(n, seed=0):
    return draw(n, seed=seed).abs() + 0.1


FACTORIES = {
    **{name: lambda n, seed=0, row=row: row for name, row in VECTORS.items()},
    "mahalanobis": lambda n, seed=0: Mahalanobis(positive_definite(n, seed)),
    "mahalanobis, diagonal": lambda n, seed=0: Mahalanobis(diagonal(n, seed)),
}
every_norm = pytest.mark.parametrize("word", FACTORIES)
every_shape = pytest.mark.parametrize("shape", [(1,), (4,), (7,), (3, 4), (2, 3, 5)], ids=str)


def inner(g, d):
    return (g * d).sum(-1)


@every_norm
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9), batch=st.integers(1, 3), size=st.floats(-30, 30))
@settings(max_examples=40, deadline=None)
def test_size_one_duality_and_scale_invariance(word, seed, n, batch, size):
    rule, g = FACTORIES[word](n, seed), draw(batch, n, seed=seed + 1)
    d = rule.direction(g)
    torch.testing.assert_close(rule.measure(d), torch.ones(batch, dtype=g.dtype), rtol=1e-8, atol=0)
    torch.testing.assert_close(inner(g, d), rule.dual(g), rtol=1e-8, atol=0)
    torch.testing.assert_close(rule.direction(g * 10**size), d, rtol=1e-8, atol=1e-12)
    other = draw(batch, n, seed=seed + 2)
    for x in (other, other.sign(), rule.direction(other), d + 0.1 * other):
        assert (inner(g, x) <= rule.dual(g) * rule.measure(x) * (1 + 1e-9)).all()


@every_norm
@every_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_low_precision_and_extreme_sizes(word, shape, dtype, size):
    rule, g = FACTORIES[word](shape[-1]), draw(*shape, dtype=dtype)
    d = rule.direction((g.double() * size).to(dtype))
    assert d.dtype == dtype
    tolerance = 0.1 if dtype == torch.bfloat16 else 2e-4
    torch.testing.assert_close(d.float(), rule.direction(g).float(), rtol=0, atol=tolerance)
    assert torch.isfinite(rule.measure((g.double() * size).to(dtype))).all()


@every_norm
@every_shape
def test_zero_stays_zero_and_leaves_its_neighbours_alone(word, shape):
    rule, g = FACTORIES[word](shape[-1]), draw(2, *shape)
    g[0] = 0
    assert not rule.direction(g)[0].any() and not rule.measure(g)[0].any() and not rule.dual(g)[0].any()
    torch.testing.assert_close(rule.direction(g)[1], rule.direction(g[1]))


@every_norm
def test_nan_and_inf_are_not_hidden(word):
    for bad in (math.nan, INF):
        g = draw(2, 4)
        g[0, 1] = bad
        d = FACTORIES[word](4).direction(g)
        assert torch.isfinite(d[1]).all() and not torch.isfinite(d[0]).all()


@every_norm
def test_the_dual_of_the_dual_is_the_norm(word):
    """The largest <x, g> over dual(g) <= 1 is the size of x: no g does better, and the best of many comes close."""
    rule, x = FACTORIES[word](3), draw(3)
    g = torch.cat([draw(20_000, 3), draw(20_000, 3) ** 7, torch.eye(3).double(), draw(2_000, 3).sign()])
    ratio = (g @ x).abs() / rule.dual(g)
    assert 0.97 * rule.measure(x) < ratio.max() <= rule.measure(x) * (1 + 1e-9)


@pytest.mark.parametrize("name", VECTORS)
def test_repeating_a_vector_changes_plain_norms_alone(name):
    rule, x = VECTORS[name], draw(2, 5)
    longer = x.repeat(1, 3)
    growth = 1.0 if name.endswith("-mean") else mean_scale(3, rule.p)
    torch.testing.assert_close(rule.measure(longer), rule.measure(x) * growth)


@pytest.mark.parametrize("name", VECTORS)
def test_empty(name):
    rule, x = VECTORS[name], torch.zeros(2, 0)
    assert rule.direction(x).shape == (2, 0) and rule.measure(x).shape == rule.dual(x).shape == (2,)


def test_l1_shares_ties_and_linf_moves_every_entry():
    g = torch.tensor([2.0, -2.0, 0.0, 1.0])
    assert VECTORS["l1"].direction(g).tolist() == [0.5, -0.5, 0.0, 0.0]
    assert VECTORS["linf"].direction(g).tolist() == [1.0, -1.0, 0.0, 1.0]


def test_mahalanobis_is_its_formula_and_the_diagonal_is_a_dense_one():
    M, x = positive_definite(4), draw(3, 4)
    torch.testing.assert_close(Mahalanobis(M).measure(x) ** 2, torch.einsum("bi,ij,bj->b", x, M, x))
    solved = torch.linalg.solve(M, x.mT).mT
    torch.testing.assert_close(Mahalanobis(M).dual(x).unsqueeze(-1) * Mahalanobis(M).direction(x), solved)
    m = diagonal(4)
    for function in ("measure", "dual", "direction"):
        dense, diag = getattr(Mahalanobis(torch.diag(m)), function)(x), getattr(Mahalanobis(m), function)(x)
        torch.testing.assert_close(dense, diag)
    torch.testing.assert_close(Mahalanobis(torch.ones(4).double()).dual(x), VECTORS["l2"].dual(x))


@pytest.mark.parametrize("m", [torch.float32, torch.float64])
@pytest.mark.parametrize("v", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["dense", "diagonal"])
def test_mahalanobis_of_other_dtypes_than_its_matrix(m, v, form):
    """In the wider dtype of M and x, and as exact as that: also where M is the narrower one."""
    M, x = (positive_definite(4) if form == "dense" else diagonal(4)).to(m), draw(3, 4, dtype=v)
    exact = M.double() if form == "dense" else torch.diag(M.double())
    wide, solved = x.double(), torch.linalg.solve(exact, x.double().mT).mT
    rule, dtype = Mahalanobis(M), torch.float64 if torch.float64 in (m, v) else torch.float32
    size, dual, d = rule.measure(x), rule.dual(x), rule.direction(x)
    assert size.dtype == dual.dtype == dtype and d.dtype == v
    tolerance = 1e-11 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(size.double() ** 2, inner(wide @ exact, wide), rtol=tolerance, atol=0)
    torch.testing.assert_close(dual.double() ** 2, inner(wide, solved), rtol=tolerance, atol=0)
    expected = (solved / inner(wide, solved).sqrt().unsqueeze(-1)).to(v)
    torch.testing.assert_close(d, expected, rtol=max(tolerance, 2 * torch.finfo(v).eps), atol=1e-5)


def test_mahalanobis_does_not_follow_a_change_of_the_matrix():
    M, x = positive_definite(3), draw(3)
    rule, kept = Mahalanobis(M), M.clone()
    size = rule.measure(x)
    M.mul_(100)
    assert torch.equal(rule.M, kept) and torch.equal(rule.measure(x), size)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30])
def test_mahalanobis_of_tiny_and_huge_matrices(scale):
    for M in (scale * torch.eye(3), torch.full((3,), scale)):
        rule, g = Mahalanobis(M), torch.tensor([3.0, 0.0, -4.0])
        torch.testing.assert_close(rule.measure(rule.direction(g)), torch.tensor(1.0))
        torch.testing.assert_close(inner(g, rule.direction(g)), rule.dual(g))
    tiny = Mahalanobis(1e-310 * torch.eye(2, dtype=torch.float64))
    assert tiny.dual(torch.tensor([3.0, 4.0])).item() == pytest.approx(5e155, rel=1e-6)


@pytest.mark.parametrize(
    "call,error,text",
    [
        (lambda: VECTORS["l1"].scale(0), ValueError, "a scale needs a size of at least 1; got n = 0"),
        (lambda: as_vector(torch.tensor(1.0)), ValueError, r"a vector \(..., n\) is needed; got a tensor without dim"),
        (lambda: as_vector(torch.ones(2).int()), TypeError, "a real floating-point vector is needed; got torch.int32"),
        (lambda: Mahalanobis(torch.eye(2).int()), TypeError, "M must be real and floating-point; got torch.int32"),
        (lambda: Mahalanobis(torch.ones(2, 3)), ValueError, r"M must have shape \(n, n\), or \(n,\) .* got \(2, 3\)"),
        (lambda: Mahalanobis(torch.eye(2) * INF), ValueError, "M must be finite; it holds NaN or Inf"),
        (lambda: Mahalanobis(torch.tensor([1.0, -2.0])), ValueError, "positive definite; its smallest diagonal .* -2"),
        (lambda: Mahalanobis(torch.tensor([[1.0, 1.0], [0.0, 1.0]])), ValueError, "M must be symmetric; M and its tra"),
        (lambda: Mahalanobis(torch.diag(torch.tensor([1.0, -3.0]))), ValueError, "its smallest eigenvalue is -3. Add"),
        (lambda: Mahalanobis(torch.eye(2)).dual(torch.ones(3)), ValueError, r"vectors of 2 entries; got shape \(3,\)"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()
