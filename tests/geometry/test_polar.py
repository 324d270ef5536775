"""The polar factor: exact, and the band of the quintic iteration."""

import pytest
import torch

from moga.geometry.polar import POLAR, polar_factor

SHAPES = [(8, 5), (5, 8), (6, 6), (7, 1), (1, 7), (3, 8, 5), (64, 256)]
BAND = {"exact": (1 - 1e-4, 1 + 1e-4), "quintic": (0.68, 1.21)}


def conditioned(shape, least, seed=0, dtype=torch.float64):
    """A matrix whose singular values lie evenly (in the logarithm) between ``least`` and 1 of its Frobenius norm."""
    generator = torch.Generator().manual_seed(seed)
    U, _, Vh = torch.linalg.svd(torch.randn(shape, generator=generator, dtype=torch.float64), full_matrices=False)
    S = torch.logspace(0, torch.log10(torch.tensor(least)).item(), U.shape[-1], dtype=torch.float64)
    return ((U * (S / S.norm())) @ Vh).to(dtype)


def test_every_method_has_a_band():
    assert set(BAND) == set(POLAR)


@pytest.mark.parametrize("method", POLAR)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_singular_values_end_in_the_band(method, shape, dtype, size):
    least = 0.01 if min(shape[-2:]) < 32 else 0.05  # each at least 0.002 of the Frobenius norm
    S = torch.linalg.svdvals(polar_factor(conditioned(shape, least, dtype=dtype) * size, method))
    low, high = BAND[method]
    assert S.min() >= low and S.max() <= high, (S.min(), S.max())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exact_is_the_orthogonal_matrix_of_the_polar_decomposition(shape):
    G = conditioned(shape, 0.1)
    Q = polar_factor(G)
    short = Q @ Q.mT if shape[-2] <= shape[-1] else Q.mT @ Q
    torch.testing.assert_close(short, torch.eye(short.shape[-1], dtype=Q.dtype).expand_as(short))
    H = Q.mT @ G  # the other factor is symmetric and positive
    torch.testing.assert_close(H, H.mT)
    assert torch.linalg.eigvalsh(H).min() > -1e-12


@pytest.mark.parametrize("method", POLAR)
def test_rank_deficient_and_zero_matrices(method):
    u, v = torch.tensor([[1.0], [2.0], [0.0]]), torch.tensor([[3.0, 0.0, 4.0, 0.0]])
    Q = polar_factor(u @ v, method)
    S = torch.linalg.svdvals(Q)
    assert BAND[method][0] <= S[0] <= BAND[method][1] and S[1:].max() < 1e-4
    assert not Q[2].any() and not Q[:, 1].any()
    assert not polar_factor(torch.zeros(2, 3, 4), method).any()


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


def test_more_quintic_steps_reach_smaller_singular_values():
    G = torch.diag(torch.tensor([1.0, 1e-4]))
    five, ten = (torch.linalg.svdvals(polar_factor(G, "quintic", steps=steps)).min() for steps in (5, 10))
    assert five < 0.1 and ten > 0.68


def test_errors():
    with pytest.raises(ValueError, match="unknown polar factor method 'svd'; the methods are exact, quintic"):
        polar_factor(torch.eye(2), "svd")
    with pytest.raises(ValueError, match=r"a matrix \(\.\.\., out, in\) is needed; got shape \(2,\)"):
        polar_factor(torch.ones(2))


def test_empty():
    assert polar_factor(torch.zeros(0, 3)).shape == (0, 3)
