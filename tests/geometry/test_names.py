"""Words and exponents to norms."""

import math

import pytest
import torch

from moga.geometry.bounds import PairNorm
from moga.geometry.mahalanobis import Mahalanobis
from moga.geometry.names import norm
from moga.geometry.norms import NORMS, OperatorNorm
from moga.geometry.vectors import VECTORS

INF = math.inf


@pytest.mark.parametrize("word", NORMS)
def test_matrix_words(word):
    assert isinstance(norm(word), OperatorNorm) and norm(word).name == word


@pytest.mark.parametrize("word", VECTORS)
def test_vector_words(word):
    assert norm(word) is VECTORS[word] and VECTORS[word].name == word


def test_mahalanobis():
    assert isinstance(norm("mahalanobis", M=torch.eye(2)), Mahalanobis)


@pytest.mark.parametrize(
    "p,q,expected",
    [
        (1, INF, OperatorNorm("sign", 1.0, INF)),
        (1, 3, OperatorNorm("column", 1.0, 3.0)),
        (1, 1, OperatorNorm("column", 1.0, 1.0)),
        (1.5, INF, OperatorNorm("row", 1.5, INF)),
        (INF, INF, OperatorNorm("row", INF, INF)),
        (2, 2, OperatorNorm("spectral", 2.0, 2.0)),
        (3, 2, PairNorm(3.0, 2.0)),
        (INF, 1, PairNorm(INF, 1.0)),
        (2, 1, PairNorm(2.0, 1.0)),
    ],
)
def test_pairs_are_rows_where_they_have_a_closed_form(p, q, expected):
    assert norm(p=p, q=q) == expected


@pytest.mark.parametrize("given", [True, "2"])
@pytest.mark.parametrize("call", [lambda x: norm(p=x, q=2), lambda x: norm("row", p=x), lambda x: norm("column", q=x)])
def test_an_exponent_is_a_number(call, given):
    with pytest.raises(TypeError, match=f"must be a number, inf included; got {given!r}"):
        call(given)


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: norm("rows"), "unknown norm 'rows'; the norms of matrices are column, row, sign, spectral, or p= and"),
        (lambda: norm("rows"), "of vectors l1, l2, linf, l1-mean, l2-mean, linf-mean, mahalanobis"),
        (lambda: norm("l2", p=3), "norm 'l2' does not take p"),
        (lambda: norm("linf", M=torch.eye(2)), "norm 'linf' does not take M"),
        (lambda: norm("row", M=torch.eye(2)), "norm 'row' does not take M"),
        (lambda: norm("mahalanobis", q=2, M=torch.eye(2)), "norm 'mahalanobis' does not take q"),
        (lambda: norm("mahalanobis"), r"norm 'mahalanobis' needs M, a positive definite \(n, n\), or \(n,\)"),
        (lambda: norm(p=3, q=2, M=torch.eye(2)), "a pair of exponents does not take M"),
        (lambda: norm(p=3), "a norm without a name needs both exponents; got p = 3, q = None"),
        (lambda: norm(), "a norm without a name needs both exponents; got p = None, q = None"),
        (lambda: norm(p=0.5, q=2), "the operator norm p -> q needs p >= 1, inf included; got p = 0.5"),
        (lambda: norm(p=2, q=math.nan), "the operator norm p -> q needs q >= 1, inf included; got q = nan"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()
