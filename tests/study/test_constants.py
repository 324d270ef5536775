"""Smoothness constants: known answers, explicit Hessians, and what the iteration can and cannot do."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import moga
from moga.geometry.network import Layer, NetworkNorm
from moga.geometry.norms import norm
from moga.study.constants import smoothness, width_exponent
from moga.study.curvature import climb, hessian
from moga.study.models import build_model, next_token_loss

NORMS = ("sign", "row", "column", "spectral")
ENTRY = 0.7698  # max |tanh''|: 4 / (3 sqrt 3), at tanh z = 1 / sqrt 3


def hidden_norm(word: str, name: str = "W") -> NetworkNorm:
    return NetworkNorm((Layer(name, norm(word)),))


def worst_case(n: int, v: Tensor):
    """f(W) = v^T tanh(W x) at W = z 1 1^T / n with x = 1, and the point."""
    z = math.atanh(1 / math.sqrt(3))
    x = torch.ones(n, dtype=torch.float64)
    return lambda at: v @ torch.tanh(at["W"] @ x), {"W": torch.full((n, n), z / n, dtype=torch.float64)}


def peaked(n: int, word: str) -> Tensor:
    v = torch.zeros(n, dtype=torch.float64)
    v[0] = n ** -(1 / norm(word).p)
    return v


# The exact values are 0.7698 n^(2/q - 1/p): H D = v_1 tanh''(z) (D x)_1 e_1 x^T, and |(D x)_1| <= n^(1/q) for |D| <= 1.
WORST = [("spectral", 16, 3.079), ("spectral", 64, 6.158), ("spectral", 256, 12.317), ("spectral", 1024, 24.634)]
WORST += [("column", n, ENTRY) for n in (16, 64, 256, 1024)]


@pytest.mark.parametrize(("word", "n", "exact"), WORST)
def test_the_worst_case_is_found(word: str, n: int, exact: float):
    loss, point = worst_case(n, peaked(n, word))
    starts = ("gradient",) if n == 1024 else ("gradient", "random")  # one decomposition takes a second there
    found = smoothness(loss, point, hidden_norm(word), starts=starts)
    assert found.smoothness.value == pytest.approx(exact, rel=0.01)
    assert found.smoothness.settled
    assert found.lipschitz == pytest.approx(2 / 3 * n ** (1 / norm(word).q - 1 / norm(word).p), rel=1e-6)  # tanh' = 2/3


@pytest.mark.parametrize("n", [16, 64, 256, 1024])
@pytest.mark.parametrize("word", ["row", "sign"])
def test_the_spread_worst_case_is_found(word: str, n: int):
    loss, point = worst_case(n, torch.full((n,), 1 / n, dtype=torch.float64))
    found = smoothness(loss, point, hidden_norm(word))
    assert found.smoothness.value == pytest.approx(ENTRY, rel=0.01)
    assert found.lipschitz == pytest.approx(2 / 3, rel=1e-6)


def test_the_theory_says_how_the_worst_case_grows():
    assert width_exponent(2, 2) == pytest.approx(math.log2(24.634 / 3.079) / math.log2(1024 / 16), abs=1e-3)
    assert [width_exponent(norm(word).p, norm(word).q) for word in NORMS] == [0, 0, 0, 0.5]
    assert width_exponent(2, 1) == 1.5


def test_quadratics_of_single_entries():
    """f = 1/2 sum h_ij W_ij^2: by rows max |h| each, by columns max |h| each, by entries their sum, times scale^2."""
    h = torch.tensor([[3.0, -1.0, 0.5], [0.2, -4.0, 1.0]], dtype=torch.float64)
    exact = {"row": (3 + 4) / 3, "column": (3 + 4 + 1) * 2 / 9, "sign": 9.7 / 9}
    W = {"W": torch.tensor([[0.3, 0.4, -0.5], [0.6, 0.7, 0.8]], dtype=torch.float64)}
    for word, value in exact.items():
        found = smoothness(lambda at: (h * at["W"] ** 2).sum() / 2, W, hidden_norm(word))
        assert found.smoothness.value == pytest.approx(value, rel=0.01)
        assert found.smoothness.value <= value * (1 + 1e-12)
        assert found.lipschitz == pytest.approx(float(norm(word).dual(h * W["W"])), rel=1e-12)


def test_quadratics_of_whole_matrices():
    """f = 1/2 tr W^T A W: the nuclear norm of A D over orthonormal D is largest at the largest eigenvalues of A."""
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator))
    A = basis @ torch.diag(torch.tensor([5.0, 3.0, -1.0, 0.5], dtype=torch.float64)) @ basis.T
    W = {"W": torch.randn(4, 2, dtype=torch.float64, generator=generator)}
    found = smoothness(lambda at: (at["W"] * (A @ at["W"])).sum() / 2, W, hidden_norm("spectral"))
    assert found.smoothness.value == pytest.approx((5 + 3) * 4 / 2, rel=0.01)


def largest_of_corners(H: Tensor) -> float:
    """max |H d|_1 over sign vectors d: a convex function is largest at a corner."""
    return max(
        float((H @ torch.tensor(d, dtype=H.dtype)).abs().sum()) for d in itertools.product((-1, 1), repeat=len(H))
    )


VECTORS = NetworkNorm(tuple(Layer(name, norm("sign"), "vector", fan=((1, 1),)) for name in "ab"))


def test_the_block_norm_sees_what_no_layer_has_alone():
    """f = a^T C b: no layer has curvature of its own, the network twice the largest a^T C b over signs."""
    C = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    point = {"a": torch.ones(4, dtype=torch.float64), "b": torch.ones(3, dtype=torch.float64)}
    found = smoothness(lambda at: at["a"] @ C @ at["b"], point, VECTORS, random=4)
    H = torch.zeros(7, 7, dtype=torch.float64)
    H[:4, 4:], H[4:, :4] = C, C.T
    assert [one.value for one in found.layer_smoothness.values()] == [0, 0]
    assert found.smoothness.value == pytest.approx(largest_of_corners(H), rel=0.01)
    assert found.layer_lipschitz == pytest.approx({"a": C.sum(1).abs().sum().item(), "b": C.sum(0).abs().sum().item()})
    assert found.lipschitz == pytest.approx(sum(found.layer_lipschitz.values()))


@pytest.mark.parametrize("seed", range(5))
def test_random_quadratics_against_every_corner(seed: int):
    A = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    H = A + A.T
    point = {"a": torch.ones(5, dtype=torch.float64), "b": torch.ones(3, dtype=torch.float64)}

    def loss(at):
        w = torch.cat([at["a"], at["b"]])
        return w @ H @ w / 2

    few, many = smoothness(loss, point, VECTORS), smoothness(loss, point, VECTORS, random=64)
    exact = largest_of_corners(H)
    assert few.smoothness.value <= many.smoothness.value <= exact * (1 + 1e-12)
    assert few.smoothness.value >= 0.9 * exact  # a problem as hard as the largest cut of a graph: many local maxima
    assert many.smoothness.value == pytest.approx(exact, rel=0.01)
    assert many.layer_smoothness["a"].value == pytest.approx(largest_of_corners(H[:5, :5]), rel=0.01)
    assert many.layer_smoothness["b"].value == pytest.approx(largest_of_corners(H[5:, 5:]), rel=0.01)


def quadratic(H: Tensor, gradient: Tensor):
    return (lambda at: at["w"] @ H @ at["w"] / 2 + gradient @ at["w"]), {"w": torch.zeros(len(H), dtype=H.dtype)}


def one_vector() -> NetworkNorm:
    return NetworkNorm((Layer("w", norm("sign"), "vector", fan=((1, 1),)),))


def test_a_2_cycle_ends_with_its_value():
    """H = diag(1, -1): (1, 1) and (1, -1) take turns, D1 H D2 = 2, while no D has D H D above 1."""
    loss, point = quadratic(torch.tensor([[1.0, 0.0], [0.0, -1.0]]), torch.tensor([1.0, 1.0]))
    found = smoothness(loss, point, one_vector(), starts=("gradient",))
    assert (found.smoothness.value, found.smoothness.settled, found.smoothness.products) == (2, True, 3)


def test_a_local_maximum_is_left_by_other_starts():
    """H = (2, -1; -1, 2): (1, 1) maps to itself with 2; (1, -1) has 6."""
    loss, point = quadratic(torch.tensor([[2.0, -1.0], [-1.0, 2.0]]), torch.tensor([1.0, 1.0]))
    stuck = smoothness(loss, point, one_vector(), starts=("gradient",)).smoothness
    assert (stuck.value, stuck.start, stuck.settled) == (2, "gradient", True)
    free = smoothness(loss, point, one_vector(), random=8).smoothness
    assert free.value == 6
    assert free.start.startswith("random")
    assert free.starts == 9
    assert 1 <= free.agreeing < 9


def test_steps_that_run_out_are_said():
    h = torch.linspace(0.9, 1.0, 8, dtype=torch.float64)  # a power method that takes long
    point = {"W": torch.ones(1, 8, dtype=torch.float64)}
    loss = lambda at: (h * at["W"].square()).sum() / 2  # noqa: E731
    assert not smoothness(loss, point, hidden_norm("row"), steps=5, tolerance=1e-9).smoothness.settled
    whole = smoothness(loss, point, hidden_norm("row"), steps=2000, tolerance=1e-9).smoothness
    assert whole.settled
    assert whole.value == pytest.approx(1 / 8, rel=1e-4)


def test_starts_at_the_layers_keep_the_whole_above_every_layer():
    """H = (1, -0.9; -0.9, 1), each coordinate a layer: (1, 1) maps to itself with 0.2; (1, 0) leads to (1, -1), 3.8."""
    point = {name: torch.zeros(1, dtype=torch.float64) for name in "ab"}

    def loss(at):
        a, b = at["a"], at["b"]
        return (0.45 * (a - b).square() + 0.05 * (a.square() + b.square()) + a + b).sum()

    alone = smoothness(loss, point, VECTORS, starts=("gradient",))
    assert alone.smoothness.value == pytest.approx(0.2)
    assert [one.value for one in alone.layer_smoothness.values()] == pytest.approx([1, 1])
    found = smoothness(loss, point, VECTORS, starts=("gradient", "layers"))
    assert found.smoothness.value == pytest.approx(3.8)
    assert found.smoothness.start in ("a", "b")


def small_network():
    """A two-layer tanh network with a fused tensor and a bias, its norm, and its loss as a function of its tensors."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False)).double()
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    groups = moga.param_groups(model, "moga-row", roles={"0.weight": "input", "2.weight": "output"})
    point = {name: tensor.detach() for name, tensor in model.named_parameters()}
    return point, moga.block_norm(groups), lambda at: nn.functional.cross_entropy(functional_call(model, at, (x,)), y)


def explicit_hessian(loss, point) -> Tensor:
    sizes = [tensor.numel() for tensor in point.values()]

    def flat(w: Tensor) -> Tensor:
        parts = zip(point.items(), w.split(sizes), strict=True)
        return loss({name: part.reshape(tensor.shape) for (name, tensor), part in parts})

    return torch.autograd.functional.hessian(flat, torch.cat([tensor.flatten() for tensor in point.values()]))


def flattened(values) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in values.values()])


def test_products_are_those_of_the_explicit_hessian():
    """The reference is ``torch.autograd.functional.hessian``, entry by entry."""
    point, _, loss = small_network()
    H = explicit_hessian(loss, point)
    gradient, product = hessian(loss, point)
    plain = torch.autograd.grad(
        loss(leaves := {k: t.clone().requires_grad_() for k, t in point.items()}), [*leaves.values()]
    )
    assert torch.allclose(flattened(gradient), torch.cat([g.flatten() for g in plain]), atol=1e-14)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        D = {name: torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator) for name, tensor in point.items()}
        shuffled = dict(reversed(D.items()))  # names count, not their order
        assert torch.allclose(flattened(product(shuffled)), H @ flattened(D), atol=1e-13)


def test_products_are_those_of_curvlinops():
    """It needs BackPACK, which asks for torchvision, so it is no dependency: ``pip install --no-deps`` brings both."""
    curvlinops = pytest.importorskip(
        "curvlinops", reason="curvlinops is not installed; the explicit Hessian is checked"
    )
    torch.manual_seed(0)
    model, criterion = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double(), nn.CrossEntropyLoss()
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    parameters = dict(model.named_parameters())
    H = curvlinops.HessianLinearOperator(model, criterion, [*parameters.values()], [(x, y)], check_deterministic=False)
    point = {name: tensor.detach() for name, tensor in parameters.items()}
    _, product = hessian(lambda at: criterion(functional_call(model, at, (x,)), y), point)
    D = {name: torch.randn_like(tensor) for name, tensor in point.items()}
    assert torch.allclose(flattened(product(D)), H @ flattened(D), rtol=1e-12, atol=1e-14)


def test_products_with_a_transformer_are_forward_over_reverse_ones():
    """The same product the other way round: ``torch.func.jvp`` of ``torch.func.grad``."""
    model = build_model("gpt2", 16, layers=1, head_size=8, context=8, seed=0).double()
    model.set_attn_implementation("eager")
    model.lm_head.weight.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    windows = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    point = {name: tensor.detach() for name, tensor in model.named_parameters()}
    loss = lambda at: next_token_loss(lambda **inputs: functional_call(model, at, (), inputs), windows)  # noqa: E731
    D = {name: torch.randn_like(tensor) for name, tensor in point.items()}
    _, product = hessian(loss, point)
    _, forward = torch.func.jvp(torch.func.grad(loss), (point,), (D,))
    found = product(D)
    for name, expected in forward.items():
        assert torch.allclose(found[name], expected, rtol=1e-8, atol=1e-11), name


def test_no_pair_of_unit_updates_exceeds_the_estimate_and_one_reaches_it():
    point, block, loss = small_network()
    found = smoothness(loss, point, block).smoothness
    H = explicit_hessian(loss, point)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        D1, D2 = (
            flattened(block.direction({k: torch.randn(t.shape, generator=generator).to(t) for k, t in point.items()}))
            for _ in range(2)
        )
        assert float(D1 @ H @ D2) <= found.value
    gradient, product = hessian(loss, point)
    peak = climb(product, block, block.direction(gradient), 40, 1e-4)
    assert float(block.measure(peak.D)) == pytest.approx(1)
    assert float(block.dual(product(peak.D))) == pytest.approx(peak.value, rel=1e-12)


@pytest.mark.parametrize("word", NORMS)
def test_a_climb_never_falls(word: str):
    point, _, loss = small_network()
    block = NetworkNorm((Layer("0.weight", norm(word)), Layer("0.bias", norm("sign"), "vector", fan=((1, 1),)),
                         Layer("2.weight", norm(word))))  # fmt: skip
    gradient, product = hessian(loss, point)
    values, D = [], block.direction(gradient)
    for _ in range(12):
        image = product(D)
        values.append(float(block.dual(image)))
        D = block.direction(image)
    assert all(after >= before * (1 - 1e-12) for before, after in itertools.pairwise(values))
    assert values[-1] > values[0]
    assert climb(product, block, block.direction(gradient), 12, 0.0).value == pytest.approx(max(values), rel=1e-12)


def test_measuring_changes_nothing():
    point, block, loss = small_network()
    before = flattened(point).clone()
    state = torch.get_rng_state()
    first, second = smoothness(loss, point, block), smoothness(loss, point, block)
    assert first == second
    assert torch.equal(flattened(point), before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"starts": ("top",)}, ValueError, "unknown start 'top'; the starts are gradient, layers, random"),
        ({"starts": ()}, ValueError, "no climb has a start: give the start gradient"),
        ({"starts": ("layers", "random"), "random": 0}, ValueError, "no climb has a start"),
        ({"norm": NetworkNorm(())}, ValueError, "the norm has no layer, so there is nothing to measure"),
        ({"random": -1}, ValueError, "random must be at least 0; got -1"),
        ({"steps": 0}, ValueError, "steps must be at least 1; got 0"),
        ({"tolerance": -0.1}, ValueError, "tolerance must be at least 0; got -0.1"),
        ({"loss": lambda at: at["w"] ** 2}, TypeError, r"a tensor without dimensions, .*; got shape \(2,\)"),
        ({"loss": lambda at: 1.0}, TypeError, "a tensor without dimensions, .*; got float"),
        ({"loss": lambda at: at["w"].sum() / 0}, ValueError, "the gradient of w is not finite at this point"),
        ({"loss": lambda at: (at["w"] - 1).abs().pow(1.5).sum()}, ValueError, "product with the Hessian is not finite"),
        ({"parameters": {"w": torch.ones(2), "v": torch.ones(2)}}, ValueError, "have v, which no layer is"),
    ],
)  # fmt: skip
def test_errors(changes, error, words):
    arguments = {"loss": lambda at: (at["w"] ** 2).sum(), "parameters": {"w": torch.ones(2)}, "norm": one_vector()}
    with pytest.raises(error, match=words):
        smoothness(**(arguments | changes))
