"""The laws of every norm, on every shape and dtype, and the reference values."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moga.geometry import norms
from moga.geometry.names import norm
from moga.geometry.norms import NORMS
from moga.geometry.vectors import conjugate

INF = math.inf
ROWS = [
    norm("sign"),
    *(norm("row", p=p) for p in (1, 1.001, 1.5, 2, 3, 10, 100, INF)),
    *(norm("column", q=q) for q in (2, 2.5, 3, 4, 50, INF)),
    *(norm(p=1, q=q) for q in (1, 1.2, 1.9)),  # an update refuses them, the pair of exponents does not
    norm("spectral"),
]
SHAPES = [(3, 5), (5, 3), (4, 4), (6, 1), (1, 6), (2, 3, 5), (2, 2, 5, 3), (1, 1)]
IDS = [f"{row.name}-{row.p:g}-{row.q:g}" for row in ROWS]
every_norm = pytest.mark.parametrize("rule", ROWS, ids=IDS)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def draw(shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inner(G, D):
    return (G * D).sum((-2, -1))


def test_the_table_holds_every_norm_that_the_laws_are_tested_on():
    assert {row.name for row in ROWS} == set(NORMS)


@every_norm
@every_shape
@pytest.mark.parametrize("seed", range(3))
def test_direction_has_size_one_and_reaches_the_dual_norm(rule, shape, seed):
    G = draw(shape, seed)
    D = rule.direction(G)
    torch.testing.assert_close(rule.measure(D), torch.ones(shape[:-2], dtype=G.dtype), rtol=1e-9, atol=0)
    torch.testing.assert_close(inner(G, D), rule.dual(G), rtol=1e-9, atol=0)


@every_norm
@every_shape
def test_no_matrix_of_size_one_does_better(rule, shape):
    G = draw(shape)
    for seed in range(20):
        other = draw(shape, 100 + seed)
        for D in (other, rule.direction(other), other.sign(), rule.direction(G) + 0.1 * other):
            D = D / rule.measure(D)[..., None, None]
            assert (inner(G, D) <= rule.dual(G) * (1 + 1e-9)).all()


@every_norm
@every_shape
def test_zero_stays_zero(rule, shape):
    assert torch.equal(rule.direction(torch.zeros(shape)), torch.zeros(shape))
    assert not rule.measure(torch.zeros(shape)).any() and not rule.dual(torch.zeros(shape)).any()


@every_norm
def test_a_zero_row_and_column_stay_zero(rule):
    G = draw((2, 5, 6))
    G[:, 2] = 0
    G[..., 4] = 0
    D = rule.direction(G)
    assert torch.isfinite(D).all() and D.any()
    torch.testing.assert_close(D[:, 2], torch.zeros(2, 6, dtype=D.dtype), atol=1e-12, rtol=0)
    torch.testing.assert_close(D[..., 4], torch.zeros(2, 5, dtype=D.dtype), atol=1e-12, rtol=0)


@every_norm
@every_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-30, 1e-25, 1.0, 1e25, 1e30])
def test_direction_does_not_depend_on_the_size_of_the_gradient(rule, shape, dtype, size):
    G = draw(shape, dtype=dtype)
    scaled = (G.double() * size).to(dtype)
    torch.testing.assert_close(
        rule.direction(scaled).float(),
        rule.direction(G).float(),
        rtol=0,
        atol=2e-2 if dtype == torch.bfloat16 else 2e-4,
    )


@every_norm
@pytest.mark.parametrize("a,b", [(2, 3), (3, 2), (1, 4), (4, 1)])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 4, 4)], ids=str)
def test_width_does_not_change_size(rule, a, b, shape):
    W = draw(shape)
    wide = torch.kron(torch.ones(a, b, dtype=W.dtype) / b, W)
    torch.testing.assert_close(rule.measure(wide), rule.measure(W), rtol=1e-9, atol=0)


@pytest.mark.parametrize("a,b", [(2, 3), (3, 2)])
def test_the_width_law_catches_a_norm_without_its_scale(a, b):
    W = draw((3, 5))
    wide = torch.kron(torch.ones(a, b, dtype=W.dtype) / b, W)
    for rule in (norm("sign"), norm("row"), norm("row", p=1.5), norm("column"), norm("column", q=3), norm("spectral")):
        plain_wide, plain = NORMS[rule.name].size(wide, rule.p, rule.q), NORMS[rule.name].size(W, rule.p, rule.q)
        assert abs(plain_wide / plain - 1) > 0.1, rule


@every_norm
def test_measure_is_the_largest_output_over_input(rule):
    """Against the definition: no input does better, and some input comes close."""
    W = draw((3, 4))
    x = draw((200_000, 4), 1)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4).double()
    x = x / x.abs().amax(-1, keepdim=True)
    x = torch.cat([x, x**5, torch.eye(4, dtype=x.dtype), corners])

    def mean_norm(y, p):
        return y.abs().amax(-1) if p == INF else torch.linalg.vector_norm(y, p, dim=-1) / y.shape[-1] ** (1 / p)

    ratio = mean_norm(x @ W.mT, rule.q) / mean_norm(x, rule.p)
    assert 0.97 * rule.measure(W) < ratio.max() <= rule.measure(W) * (1 + 1e-9)


@every_norm
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_computed_in_float32(rule, dtype):
    G = draw((7, 33), dtype=dtype)
    assert rule.measure(G).dtype == rule.dual(G).dtype == torch.float32
    assert rule.direction(G).dtype == dtype
    torch.testing.assert_close(rule.direction(G), rule.direction(G.float()).to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(rule.dual(G), rule.dual(G.float()), rtol=0, atol=0)


@every_norm
def test_batches_are_independent(rule):
    G = draw((3, 4, 5))
    torch.testing.assert_close(rule.direction(G), torch.stack([rule.direction(g) for g in G]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(rule.dual(G), torch.stack([rule.dual(g) for g in G]), rtol=1e-9, atol=0)


@every_norm
def test_nan_and_inf_are_not_hidden(rule):
    for bad in (math.nan, INF):
        G = draw((2, 3, 4))
        G[0, 1, 2] = bad
        D = rule.direction(G)
        assert torch.isfinite(D[1]).all()
        assert not torch.isfinite(D[0]).all()


@every_norm
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3), (0, 2, 3)], ids=str)
def test_empty_matrices(rule, shape):
    W = torch.zeros(shape)
    assert rule.direction(W).shape == shape
    assert rule.measure(W).shape == rule.dual(W).shape == shape[:-2]


@every_norm
def test_fan_replaces_the_sizes_of_the_scale(rule):
    W = draw((4, 6))
    ratio = rule.scale(4, 6) / rule.scale(4, 1)
    torch.testing.assert_close(rule.measure(W, fan=(4, 1)), rule.measure(W) * ratio)
    torch.testing.assert_close(rule.direction(W, fan=(4, 1)), rule.direction(W) / ratio)
    torch.testing.assert_close(rule.dual(W, fan=(4, 1)), rule.dual(W) / ratio)


def test_row_p1_and_column_qinf_are_sign():
    G = draw((4, 7))
    for other in (norm("row", p=1), norm("column", q=INF)):
        for function in ("direction", "dual", "measure"):
            torch.testing.assert_close(getattr(other, function)(G), getattr(norm("sign"), function)(G))


def test_row_p_infinite_shares_ties():
    D = norm("row", p=INF).direction(torch.tensor([[2.0, -2.0, 1.0], [0.0, 3.0, 0.0]]))
    torch.testing.assert_close(D, torch.tensor([[0.5, -0.5, 0.0], [0.0, 1.0, 0.0]]))


@given(p=st.floats(1, 200), seed=st.integers(0, 10**6), rows=st.integers(1, 6), columns=st.integers(1, 6))
@settings(max_examples=150)
def test_laws_hold_for_any_exponent(p, seed, rows, columns):
    G = draw((rows, columns), seed)
    for rule in (norm("row", p=p), norm("column", q=max(2.0, p))):
        D = rule.direction(G)
        torch.testing.assert_close(rule.measure(D).item(), 1.0, rtol=1e-6, atol=0)
        torch.testing.assert_close(inner(G, D), rule.dual(G), rtol=1e-6, atol=0)


@given(
    decades=st.floats(-16, 300),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["normal", "ties", "almost ties"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=200)
def test_size_and_duality_hold_up_to_the_largest_exponents(decades, seed, kind, dtype):
    """Rounding is not raised to the power p: to a few units of it, for every p from 1 to 1e300."""
    p = min(1 + 10**decades, 1e300)
    G = draw((3, 7), seed)
    G = {"normal": G, "ties": G.sign(), "almost ties": 1 + 1e-6 * G}[kind].to(dtype)
    tolerance = 30 * torch.finfo(dtype).eps
    for rule in (norm(p=p, q=INF), norm(p=1, q=p)):
        D = rule.direction(G)
        assert rule.measure(D).item() == pytest.approx(1, abs=tolerance)
        assert inner(G, D).item() == pytest.approx(rule.dual(G).item(), rel=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_huge_exponent_shares_ties_as_inf_does(dtype):
    G = torch.tensor([[1.0, 2.0, -2.0], [3.0, 1.0, 0.0]], dtype=dtype)
    for p, tolerance in ((1e5, 2e-5), (1e300, 0)):  # the scale 3^(-1/p) differs by log(3) / p
        torch.testing.assert_close(
            norm("row", p=p).direction(G), norm("row", p=INF).direction(G), rtol=tolerance, atol=0
        )


def test_conjugate_is_an_involution():
    for p in (1.0, 1.5, 2.0, 7.0, INF):
        assert conjugate(conjugate(p)) == pytest.approx(p)


CASES = json.loads((Path(__file__).parents[1] / "cases" / "norms.json").read_text())["norms"]


def rule_of(case):
    p, q = float(case["p"]), float(case["q"])
    name = {(2, 2): "spectral", (1, INF): "sign"}.get((p, q), "row" if q == INF else "column")
    return norm(name, p=p, q=q)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['p']}-{c['q']}-{c['shape']}")
def test_reference_values(case):
    rule, G = rule_of(case), torch.tensor(case["G"], dtype=torch.float64)
    expected = {key: torch.tensor(case[key], dtype=torch.float64) for key in ("measure", "dual", "direction")}
    torch.testing.assert_close(rule.measure(G), expected["measure"], rtol=1e-6, atol=0)
    torch.testing.assert_close(rule.dual(G), expected["dual"], rtol=1e-6, atol=0)
    assert case["direction_unique"]
    torch.testing.assert_close(rule.direction(G), expected["direction"], rtol=case["rtol"], atol=case["atol"])


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: norms.norm("rows"), "unknown norm 'rows'; the norms are column, row, sign, spectral"),
        (lambda: norm("row", p=0.5), r"norm 'row' needs p >= 1, inf included; got p = 0.5"),
        (lambda: norm("row", p=math.nan), r"norm 'row' needs p >= 1, inf included; got p = nan"),
        (lambda: norm("column", q=1.5), r"norm 'column' needs q >= 2, inf included; got q = 1.5"),
        (lambda: norm("row", q=2), r"norm 'row' has q = inf and takes p; got q = 2"),
        (lambda: norm("sign", p=2), r"norm 'sign' has p = 1 and takes no exponent; got p = 2"),
        (lambda: norm("spectral", q=3), r"norm 'spectral' has q = 2 and takes no exponent; got q = 3"),
        (lambda: norm("row").scale(0, 3), r"a scale needs sizes of at least 1; got out = 0"),
        (lambda: norm("row").measure(torch.ones(3)), r"a matrix \(\.\.\., out, in\) is needed; got shape \(3,\)"),
        (lambda: norm("row").direction(torch.ones(())), r"a matrix \(\.\.\., out, in\) is needed; got shape \(\)"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize("word", ["measure", "dual", "direction"])
@pytest.mark.parametrize(
    "given,text",
    [
        (torch.ones(2, 2, dtype=torch.int64), "a real floating-point matrix is needed; got torch.int64"),
        (torch.ones(0, 2, dtype=torch.int64), "a real floating-point matrix is needed; got torch.int64"),
        ([1.0, 2.0], r"a matrix is a tensor \(..., out, in\); got list"),
    ],
)
def test_what_is_no_real_matrix_is_refused(word, given, text):
    with pytest.raises(TypeError, match=text):
        getattr(norm("row"), word)(given)
