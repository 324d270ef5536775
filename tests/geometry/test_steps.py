"""The two forms of a step, for norms of vectors and of matrices, and the classical methods."""

import pytest
import torch

from moga.geometry.names import norm
from moga.geometry.steps import METHODS, STEPS, method_step, steepest_step


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


M = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 4.0]], dtype=torch.float64)
RULES = {
    **{word: (norm(word), draw(2, 3), 1) for word in ("l1", "l2", "linf", "l1-mean", "l2-mean", "linf-mean")},
    "mahalanobis": (norm("mahalanobis", M=M), draw(2, 3), 1),
    **{word: (norm(word), draw(2, 3, 5), 2) for word in ("sign", "row", "column", "spectral")},
}
every_rule = pytest.mark.parametrize("rule,G,dims", RULES.values(), ids=RULES)


@every_rule
def test_fixed_forgets_the_size_and_dual_is_proportional_to_it(rule, G, dims):
    torch.testing.assert_close(steepest_step(rule, 3 * G), steepest_step(rule, G))
    torch.testing.assert_close(steepest_step(rule, 3 * G, "dual"), 3 * steepest_step(rule, G, "dual"))
    torch.testing.assert_close(rule.measure(steepest_step(rule, G)), torch.ones(2, dtype=G.dtype))
    torch.testing.assert_close(rule.measure(steepest_step(rule, G, "dual")), rule.dual(G))


@every_rule
def test_dual_is_the_best_of_the_penalised_problem(rule, G, dims):
    def gain(D):
        return (G * D).sum(tuple(range(-dims, 0))) - rule.measure(D) ** 2 / 2

    best = steepest_step(rule, G, "dual")
    torch.testing.assert_close(gain(best), rule.dual(G) ** 2 / 2)
    for seed in range(20):
        other = draw(*G.shape, seed=seed)
        assert (gain(best + 0.1 * other) <= gain(best) + 1e-12).all() and (gain(other) <= gain(best) + 1e-12).all()


@every_rule
def test_a_batch_of_steps_and_zero(rule, G, dims):
    for step in STEPS:
        torch.testing.assert_close(steepest_step(rule, G, step)[1], steepest_step(rule, G[1], step))
        assert not steepest_step(rule, 0 * G, step).any()
        assert steepest_step(rule, G.bfloat16(), step).dtype == torch.bfloat16


g = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
EXPECTED = {
    "gradient descent": lambda: g,
    "normalised gradient descent": lambda: g / g.norm(),
    "sign descent": lambda: g.sign(),
    "scaled sign descent": lambda: g.abs().sum() * g.sign(),
    "greedy coordinate descent": lambda: torch.tensor([3.0, 0.0, 0.0], dtype=g.dtype),
    "preconditioned gradient descent": lambda: torch.linalg.solve(M, g),
    "Newton": lambda: torch.linalg.solve(M, g),
    "natural gradient": lambda: torch.linalg.solve(M, g),
}


@pytest.mark.parametrize("method", METHODS)
def test_classical_methods_are_what_textbooks_say(method):
    step = method_step(method, g, M if METHODS[method].M else None)
    torch.testing.assert_close(step, EXPECTED[method]())


def test_newton_reaches_the_minimum_of_a_quadratic_in_one_step():
    x = draw(3)
    assert (x - method_step("Newton", M @ x, M)).abs().max() < 1e-14


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: steepest_step(norm("l2"), g, "trust"), "unknown step 'trust'; the words are fixed, dual"),
        (lambda: method_step("newton", g), "unknown method 'newton'; the methods are gradient descent, normalised"),
        (lambda: method_step("Newton", g), "norm 'mahalanobis' needs M"),
        (lambda: method_step("Newton", g, -M), "M must be positive definite; its smallest eigenvalue is"),
        (lambda: method_step("sign descent", g, M), "norm 'linf' does not take M"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()
