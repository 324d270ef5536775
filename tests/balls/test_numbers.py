"""The numbers in the page's tables are those of `moga.norm`, for typed gradients and matrices M."""

import itertools
import random

import pytest
import torch

import moga

pytestmark = pytest.mark.browser

# Types the entries, then reads the full numbers that stand in the table's cells.
READ = """([table, letter, gradients]) => gradients.map((entries) => {
  entries.forEach((value, index) => {
    const input = document.querySelector(`[data-entry=${letter}${index}]`);
    input.value = value;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  });
  return Object.fromEntries([...document.querySelectorAll(`#${table} tbody tr`)].map((row) =>
    [row.dataset.norm, [...row.querySelectorAll("td")].map((cell) => cell.dataset.value.split(" ").map(Number))]));
})"""
SET = """([selector, value]) => {
  const input = document.querySelector(selector);
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}"""


def drawn(count, entries):
    """Random entries of either sign and of sizes from 1e-20 to 1e20, each gradient of one size."""
    source = random.Random(0)
    sizes = [10.0 ** source.choice((-20, -3, 0, 0, 0, 3, 20)) for _ in range(count)]
    return [[size * source.uniform(-2, 2) for _ in range(entries)] for size in sizes]


VECTORS = [
    *([x, y] for x, y in itertools.product((-1.5, 0.0, 0.25, 1.5), repeat=2)),  # zeros, ties, either sign
    *([1e30, -1e30], [-1e30, 1.0], [1e-30, 0.0], [1e-30, 1e30], [0.1, 0.1 + 1e-12]),
    *drawn(30, 2),
]
MATRICES = [
    [0.0, 0.0, 0.0, 0.0],
    *([1.0, 2.0, 2.0, 4.0], [0.1, 0.2, 0.3, 0.6], [1.0, 0.5, 0.6, 0.3], [-1.0, 1.0, 1.0, -1.0]),  # rank one
    *([1.0, 0.0, 0.6, 0.0], [0.0, -3.0, 0.0, 0.0], [0.0, 0.0, -2.0, 1.0]),  # a zero column, row, both
    *([2.0, 0.0, 0.0, 2.0], [0.0, -1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [-0.3, 0.0, 0.0, 1.2]),
    *([1.0, 1.0, 1.0, -1.0], [1e30, 1.0, -2e30, 1e30], [1e-30, 2e-30, -1e-30, 0.0]),
    *drawn(35, 4),
]


def close(found, expected):
    """Equal to 1e-6 of the largest entry, so that sizes of 1e30 and 1e-30 are held alike."""
    expected = torch.as_tensor(expected, dtype=torch.float64).reshape(-1)
    found = torch.tensor(found, dtype=torch.float64)
    size = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * size)


def eigen(first, second, degrees):
    """The M with these eigenvalues, the first axis at this angle."""
    turn = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    axes = torch.stack([torch.stack([turn.cos(), -turn.sin()]), torch.stack([turn.sin(), turn.cos()])])
    return axes @ torch.diag(torch.tensor([first, second], dtype=torch.float64)) @ axes.T


def check_vectors(page, gradients, M, lr):
    for g, rows in zip(gradients, page.evaluate(READ, ["vector-table", "g", gradients]), strict=True):
        check_vector(rows, torch.tensor(g, dtype=torch.float64), M, lr)


def check_vector(rows, g, M, lr):
    norms = {name: moga.norm(name) for name in ("l2", "linf", "l1")} | {"mahalanobis": moga.norm("mahalanobis", M=M)}
    assert set(rows) == set(norms)
    for name, norm in norms.items():
        dual, d = norm.dual(g), norm.direction(g)
        for found, expected in zip(rows[name], (dual, d, -lr * d, -lr * dual * d), strict=True):
            close(found, expected)


def check_matrices(page, gradients, lr):
    for G, rows in zip(gradients, page.evaluate(READ, ["matrix-table", "G", gradients]), strict=True):
        check_matrix(rows, torch.tensor(G, dtype=torch.float64).reshape(2, 2), lr)


def check_matrix(rows, G, lr):
    assert set(rows) == {"row", "column", "sign", "spectral"}
    for name, found in rows.items():
        norm = moga.norm(name)
        D = norm.direction(G)
        sizes = (norm.measure(lr * D), norm.measure(lr * norm.dual(G) * D))
        for number, expected in zip(found, (norm.scale(2, 2), norm.dual(G), D, *sizes), strict=True):
            close(number, expected)


START = eigen(0.5, 4.0, -20.0)  # the M that the page starts with


def check_all(page, vectors, matrices):
    """Against the library, at the page's own start: M and lr untouched."""
    check_vectors(page, vectors, START, lr=1.0)
    check_matrices(page, matrices, lr=1.0)


def test_gradients_of_every_kind(open_page):
    check_all(open_page(), VECTORS, MATRICES)


@pytest.mark.parametrize(("first", "second", "angle", "lr"), [(-2, 3, 90, 0.1), (3, -0.25, 35, 2.0), (0, 0, -90, 0.5)])
def test_every_M_and_every_rate(open_page, first, second, angle, lr):
    page = open_page()
    for selector, value in zip(
        ("[data-m=first]", "[data-m=second]", "[data-m=angle]", "[data-lr]"), (first, second, angle, lr), strict=True
    ):
        page.evaluate(SET, [selector, value])
    M = eigen(2.0**first, 2.0**second, float(angle))
    check_vectors(page, VECTORS[::4], M, lr)
    check_matrices(page, MATRICES[::4], lr)
    x = [0.3, -2.0]  # the balls are drawn with the sizes
    for name in ("l2", "linf", "l1"):
        close([page.evaluate(f"geometry.vectors.{name}.size({x})")], moga.norm(name).measure(torch.tensor(x)))
    entries = [M[0, 0].item(), M[0, 1].item(), M[1, 1].item()]
    size = moga.norm("mahalanobis", M=M).measure(torch.tensor(x))
    close([page.evaluate(f"geometry.mahalanobis({entries}).size({x})")], size)


@pytest.mark.parametrize(
    ("formula", "wrong"),
    [
        ("vectors.l1.direction", "vectors.linf.direction"),
        ("vectors.l2.dual", "vectors.l1.dual"),
        ("matrices.row.dual", "matrices.sign.dual"),
        ("matrices.spectral.direction", "matrices.column.direction"),
    ],
)
def test_the_comparison_sees_a_wrong_formula(open_page, formula, wrong):
    page = open_page()
    page.evaluate(f"geometry.{formula} = geometry.{wrong}; null")
    with pytest.raises(AssertionError, match="not close"):
        check_all(page, [[1.0, 0.5]], [[1.0, 2.0, 3.0, 5.0]])
