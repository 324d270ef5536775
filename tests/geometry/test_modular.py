"""The modular norm: compositions, concatenations, masses and sensitivities."""

import pytest
import torch

from moga.geometry.modular import Atom, Bond, compose, concatenate, modular_norm
from moga.geometry.names import norm


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def atom(name, **options):
    return Atom(name, norm("spectral"), **options)


def coefficients(tree):
    return {layer.name: layer.coefficient for layer in modular_norm(tree).layers}


def inner(G, D):
    return sum((G[name] * D[name]).sum() for name in G)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_chain_of_equal_layers_gives_depth_times_the_largest(depth):
    names = [f"w{k}" for k in range(depth)]
    chain = modular_norm(compose(*map(atom, names)))
    W = {name: draw(4, 3, seed=k) for k, name in enumerate(names)}
    largest = max(norm("spectral").measure(w) for w in W.values())
    torch.testing.assert_close(chain.measure(W), depth * largest)
    for name, step in chain.direction(W).items():
        torch.testing.assert_close(step, norm("spectral").direction(W[name]) / depth)
    torch.testing.assert_close(chain.dual(W), sum(norm("spectral").dual(w) for w in W.values()) / depth)


def test_a_step_moves_the_output_of_a_chain_of_linear_layers_by_its_size():
    """To first order, at weights of size 1: |sum_k W_L .. D_k .. W_1 x| <= |(D_1, .., D_L)|, and it can be reached."""
    names = ["a", "b", "c"]
    chain, identity = modular_norm(compose(*map(atom, names))), torch.eye(3, dtype=torch.float64)
    D = {name: draw(3, 3, seed=k) for k, name in enumerate(names)}
    moved = sum(D.values())
    assert norm("spectral").measure(moved) <= chain.measure(D)
    torch.testing.assert_close(chain.measure(dict.fromkeys(names, identity)), norm("spectral").measure(3 * identity))


TREE = compose(
    atom("embed", mass=1.0),
    compose(
        concatenate(compose(atom("q", mass=2.0), Bond(0.5)), atom("k", sensitivity=2.0)),
        Bond(3.0),
        mass=5.0,
    ),
    atom("head", mass=1.0, sensitivity=0.25),
)


def test_masses_and_sensitivities_by_hand():
    assert TREE.mass == 7 and TREE.sensitivity == pytest.approx((0.5 + 2.0) * 3.0 * 0.25)
    assert coefficients(TREE) == pytest.approx(
        {
            "embed": 7 / 1 * (2.5 * 3.0) * 0.25,
            "q": 7 / 5 * 0.25 * 3.0 * (3 / 2) * 0.5,  # of its block's 5 it has the share 2 of 3
            "k": 7 / 5 * 0.25 * 3.0 * (3 / 1),
            "head": 7 / 1,
        }
    )


def test_laws():
    whole = modular_norm(TREE)
    names = [layer.name for layer in whole.layers]
    G = {name: draw(4, 3, seed=k) for k, name in enumerate(names)}
    D = whole.direction(G)
    assert whole.measure(D) == pytest.approx(1) and inner(G, D) == pytest.approx(whole.dual(G).item())
    for seed in range(20):
        other = {name: draw(4, 3, seed=100 * seed + k) for k, name in enumerate(names)}
        assert inner(G, other) <= whole.dual(G) * whole.measure(other) * (1 + 1e-9)


def test_composition_is_associative():
    a, b, c = atom("a", sensitivity=2.0), atom("b", mass=3.0, sensitivity=0.5), atom("c", mass=0.5, sensitivity=7.0)
    flat = coefficients(compose(a, b, c))
    assert coefficients(compose(compose(a, b), c)) == pytest.approx(flat)
    assert coefficients(compose(a, compose(b, c))) == pytest.approx(flat)
    side = coefficients(concatenate(a, b, c))
    assert coefficients(concatenate(concatenate(a, b), c)) == pytest.approx(side)


def test_residual_blocks_keep_their_sensitivity_at_any_depth():
    for depth in (2, 4, 32):
        block = [
            compose(concatenate(Bond(1 - 1 / depth), compose(atom(f"w{k}"), Bond(1 / depth))), Bond())
            for k in range(depth)
        ]
        assert compose(*block).sensitivity == pytest.approx(1)
        # depth from its share of the mass, 1 / depth from the bond behind it
        assert list(coefficients(compose(*block)).values()) == pytest.approx([1.0] * depth)


def test_no_mass_takes_no_step():
    frozen = compose(atom("a"), compose(atom("b"), atom("c"), mass=0.0), atom("d", mass=0.0))
    assert coefficients(frozen) == {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}
    G = {name: draw(2, 2) for name in "abcd"}
    step = modular_norm(frozen).direction(G)
    assert step["a"].any() and not any(step[name].any() for name in "bcd")
    torch.testing.assert_close(modular_norm(frozen).measure(G), norm("spectral").measure(G["a"]))
    torch.testing.assert_close(modular_norm(frozen).dual(G), norm("spectral").dual(G["a"]))


def test_atoms_carry_layouts_and_fans():
    tree = Atom("embed", norm("column"), layout="in,out", fan=((4, 1),))
    W = draw(9, 4)  # nine tokens of four entries
    torch.testing.assert_close(modular_norm(tree).measure([W]), W.norm(dim=1).max() / 2)


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: atom("a", mass=-1.0), "mass must be a finite number of at least 0; got -1.0"),
        (lambda: atom("a", sensitivity=0.0), "sensitivity must be a finite number above 0; got 0.0"),
        (lambda: Bond(float("inf")), "sensitivity must be a finite number above 0; got inf"),
        (lambda: compose(), "compose needs at least one module"),
        (lambda: concatenate(), "concatenate needs at least one module"),
        (lambda: compose(atom("a"), mass=-2.0), "mass must be a finite number of at least 0, and 0 where no part has"),
        (lambda: compose(Bond(), mass=2.0), "and 0 where no part has any; got 2.0"),
        (
            lambda: modular_norm(compose(Bond(), atom("a", mass=0.0))),
            "the tree has no mass: no weight of it is trained",
        ),
        (lambda: modular_norm(compose(atom("a"), atom("a"))), "the name 'a' occurs twice"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: Atom("a", "spectral"), r"layer 'a' needs a norm of matrices .* moga.norm\('row'\); got 'spectral'"),
        (lambda: Atom("a", norm(p=3, q=2)), r"needs a norm of matrices that has a direction, .* got PairNorm\(p=3.0, "),
        (lambda: Atom("a", norm("l2")), r"layer 'a' needs a norm of matrices .* got VectorNorm\(name='l2'"),
        (lambda: compose(atom("a"), "x"), "compose takes modules: Atom, Bond, or what compose and .* make; got 'x'"),
        (lambda: concatenate([atom("a")]), r"concatenate takes modules: .* got \[Atom"),
        (lambda: modular_norm("x"), "modular_norm takes modules: .* got 'x'"),
    ],
)
def test_what_is_no_module_and_no_norm_of_a_weight(call, text):
    with pytest.raises(TypeError, match=text):
        call()


def test_a_wrong_number_of_fans_is_said_where_it_is_given():
    with pytest.raises(ValueError, match="layer 'a' has 2 fans for 1 blocks"):
        atom("a", fan=((1, 2), (3, 4)))
