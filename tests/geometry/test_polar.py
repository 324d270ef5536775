"""The polar factor: exact, and the bands of the iterations in float32 and bfloat16."""

import itertools
import math

import pytest
import torch

from moga.geometry.polar import POLAR, polar_factor

SHAPES = [(8, 5), (5, 8), (6, 6), (7, 1), (1, 7), (3, 8, 5), (64, 256), (40, 16)]
ITERATIONS = [method for method in POLAR if method != "exact"]
RUNS = [(method, torch.float32) for method in POLAR] + [(method, torch.bfloat16) for method in ITERATIONS]
every_run = pytest.mark.parametrize("method,dtype", RUNS, ids=lambda x: str(x).removeprefix("torch."))


def with_singular_values(shape, S, seed=0):
    """A matrix of these singular values, scaled to the Frobenius norm 1, in float64."""
    generator = torch.Generator().manual_seed(seed)
    U, _, Vh = torch.linalg.svd(torch.randn(shape, generator=generator, dtype=torch.float64), full_matrices=False)
    return (U * (S / S.norm())) @ Vh


def conditioned(shape, least, seed=0, dtype=torch.float64):
    """Singular values evenly spread in the logarithm, from ``least`` of the Frobenius norm."""
    low, high = 0.0, 40.0  # the range in the logarithm, by bisection
    grid = torch.linspace(0, 1, min(shape[-2:]), dtype=torch.float64)
    for _ in range(60):
        middle = (low + high) / 2
        S = torch.exp(-middle * grid)
        low, high = (middle, high) if S[-1] / S.norm() > least else (low, middle)
    return with_singular_values(shape, torch.exp(-low * grid), seed).to(dtype)


def spiked(shape, least, seed=0):
    """One large singular value, all others at ``least`` of the Frobenius norm."""
    S = torch.full((min(shape[-2:]),), least, dtype=torch.float64)
    S[0] = math.sqrt(1 - (len(S) - 1) * least**2)
    return with_singular_values(shape, S, seed)


def band(method, dtype):
    return POLAR[method].bfloat16 if dtype == torch.bfloat16 else POLAR[method].float32


def flat(shape, least, seed=0):
    return with_singular_values(shape, torch.ones(min(shape[-2:]), dtype=torch.float64), seed)


@every_run
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("spectrum", [conditioned, spiked, flat])
@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_singular_values_end_in_the_band(method, dtype, shape, spectrum, size):
    stated = band(method, dtype)
    for seed in range(3):
        G = (spectrum(shape, stated.least, seed) * size).float()
        S = torch.linalg.svdvals(polar_factor(G, method, dtype=dtype))
        assert S.min() >= stated.low and S.max() <= stated.high, (S.min(), S.max())


def kinds(shape, count, seed=0):
    """Random matrices (count, out, in): dense, non-negative, sparse, of rank 1 and 2, close to these, badly scaled."""
    generator = torch.Generator().manual_seed(seed)
    out, in_ = shape

    def draw(*sizes):
        return torch.randn(count, *sizes, generator=generator)

    def kept(share):
        return torch.rand(count, out, in_, generator=generator) < share

    return {
        "dense": draw(out, in_),
        "non-negative": torch.rand(count, out, in_, generator=generator),
        "absolute": draw(out, in_).abs(),
        "sign": draw(out, in_).sign(),
        "heavy": draw(out, in_) ** 5,
        "sparse": draw(out, in_) * kept(0.2),
        "sparser": draw(out, in_) * kept(0.02),
        "sparse non-negative": draw(out, in_).abs() * kept(0.1),
        "rank 1": draw(out, 1) @ draw(1, in_),
        "rank 2": draw(out, 2) @ draw(2, in_),
        "close to rank 1": draw(out, 1) @ draw(1, in_) + 0.03 * draw(out, in_),
        "close to constant": 1 + 0.03 * draw(out, in_),
        "scaled rows": draw(out, in_) * (3 * draw(out, 1)).exp(),
        "scaled columns": draw(out, in_) * (3 * draw(1, in_)).exp(),
    }


@every_run
@pytest.mark.parametrize("shape", [(2, 4), (3, 8), (8, 5), (8, 16), (16, 40), (64, 104)], ids=str)
def test_every_kind_of_matrix_ends_in_the_band(method, dtype, shape):
    """Nothing diverges, whatever the matrix, and what starts at ``least`` or more ends at ``low`` or more."""
    stated = band(method, dtype)
    for kind, G in kinds(shape, 200 if max(shape) < 64 else 6).items():
        before = torch.linalg.svdvals(G.double())
        before = before / torch.linalg.vector_norm(before, dim=-1, keepdim=True).clamp(min=1e-300)
        S = torch.linalg.svdvals(polar_factor(G, method, dtype=dtype).double())
        assert S.max() <= stated.high, (kind, S.max())
        assert S[before >= stated.start(shape)].min() >= stated.low, kind


def positive(generator):
    return torch.rand(5000, 2, 4, generator=generator)


def sparse(generator):
    return torch.randn(8, 96, 192, generator=generator) * (torch.rand(8, 96, 192, generator=generator) < 0.01)


def almost_constant(generator):
    return 1 + 0.02 * torch.randn(5000, 2, 2, generator=generator)


@pytest.mark.parametrize(
    "method,draw,seed",
    [("polar-express", positive, 193), ("quintic", sparse, 302), ("cubic", almost_constant, 0)],
)
def test_the_bands_of_bfloat16_hold_for_the_worst_of_a_search(method, draw, seed):
    """The worst of 200 and more seeds: 0.909 from below, 1.275 from above, and one of 0.01 that cubic steps lose."""
    G, stated = draw(torch.Generator().manual_seed(seed)), POLAR[method].bfloat16
    start = torch.linalg.svdvals(G.double()) / torch.linalg.matrix_norm(G.double()).unsqueeze(-1)
    S = torch.linalg.svdvals(polar_factor(G, method, dtype=torch.bfloat16).double())
    assert S[start >= stated.least].min() >= stated.low and S.max() <= stated.high


@pytest.mark.parametrize("method", ["gram", "quintic"])
def test_tall_sparse_matrices_in_bfloat16_take_the_steps_of_their_transposes(method):
    """Pairs of steps on matrices whose singular values cluster, in either order in memory: one reaches 9 if ``Z R Z``
    is computed as ``R Z Z``."""
    torch.manual_seed(767)
    torch.randn(6, 112, 64), torch.rand(6, 112, 64)  # as in the search that found it
    G = torch.randn(6, 128, 64) * (torch.rand(6, 128, 64) < 0.02)
    tall, wide = (polar_factor(H, method, dtype=torch.bfloat16) for H in (G, G.mT.contiguous()))
    strided = polar_factor(G.mT.contiguous().mT, method, dtype=torch.bfloat16)
    assert torch.linalg.svdvals(tall).max() <= POLAR[method].bfloat16.high
    for other in (wide.mT, strided):
        torch.testing.assert_close(tall, other, rtol=0, atol=0.02)


def test_the_exact_one_holds_its_band_from_a_size_that_grows_with_the_side():
    stated = POLAR["exact"].float32
    assert stated.start((839, 2)) > 1e-4 == stated.start((833, 2)) and stated.start((2, 1024)) == 1024 * 1.2e-7
    for least, dtype, second in ((1.3e-4, None, 1.0), (1.1e-4, None, 0.0), (1.1e-4, torch.float64, 1.0)):
        G = with_singular_values((1024, 2), torch.tensor([1.0, least], dtype=torch.float64)).float()
        S = torch.linalg.svdvals(polar_factor(G, dtype=dtype).double())
        torch.testing.assert_close(S, torch.tensor([1.0, second], dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(1000, 8), (8, 1000), (300, 1000), (2, 4096)], ids=str)
def test_the_exact_one_of_a_constant_matrix_has_rank_1(shape):
    """Rounding errors of the decomposition reach a third of an epsilon times the longer side; none is a direction."""
    Q = polar_factor(torch.ones(shape))
    torch.testing.assert_close(Q, torch.full(shape, 1 / math.sqrt(shape[0] * shape[1])), rtol=0.01, atol=0)


@every_run
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (3, 5, 5)], ids=str)
def test_rows_and_columns_of_zeros_stay_exactly_zero(method, dtype, shape):
    for seed in range(20):
        G = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        G[..., 1, :] = 0
        G[..., 2] = 0
        Q = polar_factor(G, method, dtype=dtype)
        assert not Q[..., 1, :].any() and not Q[..., 2].any() and Q[..., 0, 0].all()


@pytest.mark.parametrize("method", POLAR)
def test_float64_is_computed_in_float64(method):
    G = conditioned((5, 12), POLAR[method].float32.least)
    S = torch.linalg.svdvals(polar_factor(G, method))
    assert S.dtype == torch.float64 and POLAR[method].float32.low <= S.min() <= S.max() <= POLAR[method].float32.high
    wide = polar_factor(G.float(), method, dtype=torch.float64)
    torch.testing.assert_close(wide, polar_factor(G.float().double(), method).float())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exact_is_the_orthogonal_matrix_of_the_polar_decomposition(shape):
    G = conditioned(shape, 0.1)
    Q = polar_factor(G)
    short = Q @ Q.mT if shape[-2] <= shape[-1] else Q.mT @ Q
    torch.testing.assert_close(short, torch.eye(short.shape[-1], dtype=Q.dtype).expand_as(short))
    H = Q.mT @ G  # the other factor is symmetric and positive
    torch.testing.assert_close(H, H.mT)
    assert torch.linalg.eigvalsh(H).min() > -1e-12


@every_run
def test_rank_deficient_and_zero_matrices(method, dtype):
    u, v = torch.tensor([[1.0], [2.0], [0.0]]), torch.tensor([[3.0, 0.0, 4.0, 0.0, 0.0]])
    for G in (u @ v, (u @ v).mT, 1e-25 * (u @ v)):
        Q = polar_factor(G, method, dtype=dtype)
        S = torch.linalg.svdvals(Q)
        # bfloat16 leaves 0.001 of a product of rank 1, which the iterations may make as large as the rest
        noise = band(method, dtype).high if dtype == torch.bfloat16 else 2e-3
        assert band(method, dtype).low <= S[0] <= band(method, dtype).high and S[1:].max() <= noise
        assert not Q[G == 0].any()
    assert not polar_factor(torch.zeros(2, 3, 4), method, dtype=dtype).any()


@every_run
def test_batches_are_independent(method, dtype):
    G = torch.stack([conditioned((4, 9), 0.05, seed).float() * size for seed, size in enumerate((1e-25, 1.0, 1e25))])
    G[1] = 0
    single = torch.stack([polar_factor(g, method, dtype=dtype) for g in G])
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(polar_factor(G, method, dtype=dtype), single, rtol=0, atol=tolerance)


@pytest.mark.parametrize("method", POLAR)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_computed_in_float32(method, dtype):
    G = conditioned((5, 9), 0.1).to(dtype)
    torch.testing.assert_close(polar_factor(G, method), polar_factor(G.float(), method).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("method", POLAR)
def test_a_non_finite_matrix_gives_nan_and_leaves_its_neighbours_alone(method):
    G = conditioned((2, 4, 5), 0.1)
    clean = polar_factor(G, method)
    G[0, 1, 1] = torch.inf
    Q = polar_factor(G, method)
    assert Q[0].isnan().all()
    torch.testing.assert_close(Q[1], clean[1])


def test_more_steps_reach_smaller_singular_values():
    G = torch.diag(torch.tensor([1.0, 1e-4]))
    for method in ITERATIONS:
        few, own, many = (
            torch.linalg.svdvals(polar_factor(G, method, steps)).min() for steps in (2, None, 2 * POLAR[method].steps)
        )
        assert few < own < many and many > 0.68
        assert torch.equal(polar_factor(G, method), polar_factor(G, method, POLAR[method].steps))


def test_the_number_of_steps_does_not_change_the_exact_one():
    G = conditioned((4, 6), 0.1)
    assert torch.equal(polar_factor(G, "exact", steps=5), polar_factor(G))


@pytest.mark.parametrize("method", ["gram", "polar-express"])
def test_five_steps_of_polar_express(method):
    S = torch.linalg.svdvals(polar_factor(conditioned((16, 64), 0.001), method, steps=5))
    assert S.min() > 0.84 and S.max() < 1.13


@pytest.mark.parametrize(
    "call,text",
    [
        (
            lambda: polar_factor(torch.eye(2), "svd"),
            "unknown polar factor method 'svd'; the methods are exact, quintic",
        ),
        (lambda: polar_factor(torch.ones(2)), r"a matrix \(\.\.\., out, in\) is needed; got shape \(2,\)"),
        (lambda: polar_factor(torch.eye(2), "cubic", 0), "a polar factor needs at least one step; got steps = 0"),
        (lambda: polar_factor(torch.eye(2), "cubic", dtype=torch.int8), "in a floating-point dtype; got torch.int8"),
        (
            lambda: polar_factor(torch.eye(2), "exact", dtype=torch.bfloat16),
            "method 'exact' runs in float32 or wider; got torch.bfloat16, in which quintic, cubic, polar-express, gram",
        ),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 4, 4), (0, 3)])
@pytest.mark.parametrize("method", POLAR)
def test_overwriting_gives_the_same_factor_in_the_memory_of_its_argument(method, shape, dtype):
    G = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = polar_factor(G, method)
    for given in (G.clone(), G.mT.contiguous().mT):
        found = polar_factor(given, method, overwrite=True)
        torch.testing.assert_close(found, expected)
        assert found.data_ptr() == given.data_ptr()


@pytest.mark.parametrize(
    ("method", "shape"),
    [*itertools.product(POLAR, [(4, 6), (6, 4)]), ("quintic", (400, 410)), ("gram", (400, 410))],
    ids=str,
)
def test_factors_are_differentiated_and_batched(method, shape):
    """Each transformation of torch.func, alone, under no_grad and within another one, against a loop."""
    generator = torch.Generator().manual_seed(0)
    G, V, C = (torch.randn(2, *shape, generator=generator, dtype=torch.float64) for _ in range(3))

    def factor(X):
        return polar_factor(X, method, steps=None if method == "exact" else 2)

    def weighed(X):
        return (torch.func.vmap(factor)(X) * C).sum()

    looped = torch.stack([factor(one) for one in G])
    slopes = torch.stack(
        [torch.func.grad(lambda X, c=c: (factor(X) * c).sum())(one) for one, c in zip(G, C, strict=True)]
    )
    moved = torch.func.jvp(factor, (G[0],), (V[0],))[1]
    torch.testing.assert_close((moved * C[0]).sum(), (slopes[0] * V[0]).sum())
    torch.testing.assert_close(torch.func.grad(weighed)(G), slopes)
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(factor)(G), looped)
        torch.testing.assert_close(torch.func.jvp(factor, (G[0],), (V[0],))[1], moved)
    torch.func.grad(lambda X: (torch.func.jvp(factor, (X,), (V[0],))[1] * C[0]).sum())(G[0])


def test_empty():
    assert polar_factor(torch.zeros(0, 3)).shape == (0, 3)
