"""Stored tensors and their matrices are inverses, and views where a view can do."""

import pytest
import torch

from moga.geometry.layout import LAYOUTS, from_matrices, to_matrices
from moga.geometry.norms import norm
from moga.geometry.shapes import SHAPES, shape_factor

CASES = [
    ("out,in", (6, 4), ()),
    ("in,out", (6, 4), ()),
    ("out,in", (6, 4), (2, 2, 2)),
    ("in,out", (4, 6), (2, 2, 2)),
    ("out,in", (6, 4), (1, 3, 2)),
    ("in,out", (4, 6), (4, 1, 1)),
    ("vector", (5,), ()),
    ("vector", (), ()),
]


@pytest.mark.parametrize("layout,shape,blocks", CASES)
def test_inverse_and_views(layout, shape, blocks):
    tensor = torch.randn(shape)
    matrices = to_matrices(tensor, layout, blocks)
    assert torch.equal(from_matrices(matrices, layout, shape), tensor)
    assert all(matrix.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for matrix in matrices)
    assert sum(matrix.numel() for matrix in matrices) == tensor.numel()


def test_every_layout_is_tested():
    assert {layout for layout, _, _ in CASES} == set(LAYOUTS)


@pytest.mark.parametrize("blocks", [(2, 2, 2), (1, 3, 2)])
def test_blocks_lie_along_out_in_both_storage_orders(blocks):
    fused = torch.randn(6, 4)
    expected = fused.split(list(blocks))
    for layout, stored in (("out,in", fused), ("in,out", fused.mT.contiguous())):
        found = [m for stack in to_matrices(stored, layout, blocks) for m in stack.reshape(-1, stack.shape[-2], 4)]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_shape_words():
    spectral = norm("spectral")
    assert {word: shape_factor(word, spectral, 16, 4) for word in SHAPES} == pytest.approx(
        {"rms": 2.0, "original": 2.0, "moonlight": 0.8, "none": 1.0}
    )
    assert shape_factor("rms", spectral, 4, 16) == 0.5 and shape_factor("original", spectral, 4, 16) == 1.0


@pytest.mark.parametrize(
    "call,text",
    [
        (
            lambda: to_matrices(torch.ones(2, 2), "io"),
            "unknown layout 'io'; the layouts are 'out,in', 'in,out', 'vector'",
        ),
        (
            lambda: to_matrices(torch.ones(2, 2, 2), "out,in"),
            r"needs a tensor of two dimensions; got shape \(2, 2, 2\)",
        ),
        (lambda: to_matrices(torch.ones(4, 2), "out,in", (1, 2)), r"blocks \[1, 2\] do not add up to the 4 outputs"),
        (lambda: shape_factor("muon", norm("row"), 1, 1), "unknown shape word 'muon'; the words are rms, original"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()
