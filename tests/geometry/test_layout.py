"""Stored tensors and their matrices are inverses, views where a view can do, and the maps that modules compute."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from moga.geometry.layout import check_layout, from_matrices, logical_matrices, parse_layout, to_matrices
from moga.geometry.norms import norm
from moga.geometry.shapes import SHAPES, shape_factor


@st.composite
def stored_tensors(draw):
    """What a layout means, as numbers: experts, N, order, kernel sizes, rows of a unit by block, units, in."""
    stack, number = draw(st.sampled_from([0, 1, 3])), draw(st.sampled_from([1, 2, 3]))
    order = draw(st.sampled_from(["out,in", "in,out"]))
    kernel = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    rows = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3) | st.just([2, 2, 2]))
    interleave = draw(st.integers(1, 3)) if len(rows) > 1 else 1
    blocks = tuple(row * interleave for row in rows)
    out, in_ = sum(blocks), draw(st.integers(1, 4))
    first, second = (out, in_) if order == "out,in" else (in_, out)
    shape = (*([stack] * bool(stack)), number * first, second, *kernel)
    layout = "stack," * bool(stack) + f"{number}*" * (number > 1) + order + ",k" * bool(kernel)
    tensor = (
        torch.randn(shape) if draw(st.booleans()) else torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    )
    return tensor, layout, blocks, interleave


def by_index(tensor, layout, blocks, interleave):
    """The logical matrices in the words of the documentation: each entry looked up by the meaning of its indices."""
    stack, kernel = layout.startswith("stack,"), layout.endswith(",k")
    number = int(layout.removeprefix("stack,").partition("*")[0]) if "*" in layout else 1
    experts = list(tensor) if stack else [tensor]
    out_first, unit = "out,in" in layout, sum(blocks) // interleave
    first, second, *sizes = experts[0].shape
    assert bool(sizes) == kernel
    in_ = second if out_first else first // number
    columns = [(i, *k) for i in range(in_) for k in itertools.product(*map(range, sizes))]

    def entry(expert, n, o, i, *k):
        return expert[(n * (first // number) + (o if out_first else i), i if out_first else o, *k)].item()

    found = []
    for b, block in enumerate(blocks):
        share, before = block // interleave, sum(blocks[:b]) // interleave
        outs = [u * unit + before + r for u in range(interleave) for r in range(share)]
        each = [[[[entry(e, n, o, *c) for c in columns] for o in outs] for n in range(number)] for e in experts]
        matrix = torch.tensor(each)
        matrix = matrix if number > 1 else matrix[:, 0]
        found.append(matrix if stack else matrix[0])
    return found


@given(stored_tensors())
def test_every_layout_means_what_is_documented(case):
    tensor, layout, blocks, interleave = case
    expected = by_index(*case)
    found = logical_matrices(tensor, layout, blocks, interleave)
    assert [one.shape for one in found] == [one.shape for one in expected]
    assert all(map(torch.equal, found, expected))
    stacks = to_matrices(tensor, layout, blocks, interleave)
    if len(blocks) > 1 and len(set(blocks)) == 1:
        assert len(stacks) == 1 and torch.equal(stacks[0], torch.stack(expected, -3))
    else:
        assert all(map(torch.equal, stacks, expected)) and len(stacks) == len(blocks)


@given(stored_tensors())
def test_the_two_directions_are_inverses(case):
    tensor, layout, blocks, interleave = case
    for cut in (to_matrices, logical_matrices):
        matrices = cut(tensor, layout, blocks, interleave)
        joined = from_matrices(matrices, layout, tensor.shape, interleave)
        assert torch.equal(joined, tensor)
        again = cut(joined, layout, blocks, interleave)
        assert all(map(torch.equal, again, matrices)) and len(again) == len(matrices)


@given(stored_tensors())
def test_views_wherever_a_view_can_do(case):
    """Only units of several rows, and kernels that do not lie next to ``in``, need a copy."""
    tensor, layout, blocks, interleave = case
    tensor = tensor.contiguous()
    by_rows = interleave == 1 or len(blocks) < 2 or max(blocks) == interleave
    matrices = to_matrices(tensor, layout, blocks, interleave)
    if by_rows and not ("in,out" in layout and layout.endswith(",k")):
        for i, matrix in enumerate(matrices):
            assert matrix.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            matrix.fill_(1000.0 + i)
        assert bool((tensor >= 1000).all())  # what is written to the matrices arrives in the tensor
        assert all(bool((matrix == 1000 + i).all()) for i, matrix in enumerate(matrices))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4), (0,)])
def test_a_vector_has_any_shape_and_is_one_column(shape):
    tensor = torch.randn(shape)
    [column] = to_matrices(tensor, "vector")
    assert column.shape == (tensor.numel(), 1) and column.data_ptr() == tensor.data_ptr()
    assert torch.equal(from_matrices([column], "vector", shape), tensor)


@pytest.mark.parametrize(
    "layout,shape,blocks",
    [("out,in", (0, 4), ()), ("2*in,out,k", (0, 3, 2), ()), ("stack,out,in,k", (2, 6, 4, 0), (2, 4))],
)
def test_empty_tensors_keep_their_shape(layout, shape, blocks):
    matrices = to_matrices(torch.ones(shape), layout, blocks)
    assert from_matrices(matrices, layout, shape).shape == shape


# A module, its input, and the layout of its weight: the matrix is the map from patches to outputs.
CONVOLUTIONS = {
    "plain": (torch.nn.Conv2d(4, 6, (2, 3)), "out,in,k"),
    "strided": (torch.nn.Conv2d(4, 6, (2, 3), stride=2, dilation=2), "out,in,k"),
    "one axis": (torch.nn.Conv1d(4, 6, 3), "out,in,k"),
    "grouped": (torch.nn.Conv2d(4, 6, (2, 3), groups=2), "2*out,in,k"),
    "depthwise": (torch.nn.Conv1d(4, 4, 3, groups=4), "4*out,in,k"),
    "multiplied": (torch.nn.Conv2d(4, 8, 2, groups=4), "4*out,in,k"),
    "transposed": (torch.nn.ConvTranspose2d(4, 6, (2, 3)), "in,out,k"),
    "transposed grouped": (torch.nn.ConvTranspose2d(4, 6, (2, 3), groups=2), "2*in,out,k"),
    "transposed depthwise": (torch.nn.ConvTranspose1d(4, 4, 3, groups=4), "4*in,out,k"),
}


def patches(x, module):
    """The numbers that each output position sees, (N, in * positions, outputs), of x (channels, height, width)."""
    kernel = module.kernel_size if x.ndim == 3 and len(module.kernel_size) == 2 else (1, *module.kernel_size)
    options = {}
    if module.transposed:  # output p sees x[p - k]: a padded convolution with the kernel turned round
        x = F.pad(x, [kernel[1] - 1] * 2 + [kernel[0] - 1] * 2)
    else:
        pair = lambda value: value if len(value) == 2 else (1, *value)  # noqa: E731
        options = {"stride": pair(module.stride), "dilation": pair(module.dilation)}
    seen = F.unfold(x[None], kernel, **options)[0].reshape(x.shape[0], *kernel, -1)
    seen = seen.flip(1, 2) if module.transposed else seen
    return seen.reshape(module.groups, -1, seen.shape[-1])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_matrix_of_a_convolution_is_its_map(name):
    module, layout = CONVOLUTIONS[name]
    spatial = (5, 7) if module.weight.ndim == 4 else (7,)
    x = torch.randn(4, *spatial)
    expected = module(x[None])[0] - module.bias.reshape(-1, *[1] * len(spatial))
    [matrix] = to_matrices(module.weight, layout)
    seen = patches(x if len(spatial) == 2 else x[:, None], module)
    y = matrix.reshape(module.groups, *matrix.shape[-2:]) @ seen
    torch.testing.assert_close(y.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


def test_shape_words():
    spectral = norm("spectral")
    assert {word: shape_factor(word, spectral, 16, 4) for word in SHAPES} == pytest.approx(
        {"rms": 2.0, "original": 2.0, "moonlight": 0.8, "none": 1.0}
    )
    assert shape_factor("rms", spectral, 4, 16) == 0.5 and shape_factor("original", spectral, 4, 16) == 1.0


UNKNOWN = ["io", "", "out,in,", "in", "k", "out,in,k,k", "stack", "stack,vector", "vector,k", "stack,stack,out,in"]
UNKNOWN += [
    "1*out,in",
    "0*out,in",
    "02*out,in",
    "-2*out,in",
    "2*",
    "*out,in",
    "2*stack,out,in",
    "2*2*out,in",
    "²*out,in",
]


@pytest.mark.parametrize("word", [*UNKNOWN, None, 3])
def test_unknown_words(word):
    text = r"unknown layout .*; a layout is 'vector', '\[stack,\]\[N\*\]out,in\[,k\]' or "
    with pytest.raises(ValueError, match=text):
        parse_layout(word)


@pytest.mark.parametrize(
    "shape,layout,blocks,interleave,text",
    [
        ((2, 2, 2), "out,in", (), 1, r"layout 'out,in' needs a tensor of 2 dimensions; got shape \(2, 2, 2\)"),
        ((2,), "in,out", (), 1, "needs a tensor of 2 dimensions"),
        ((2, 2), "stack,out,in", (), 1, "needs a tensor of 3 dimensions; got"),
        ((2, 2), "out,in,k", (), 1, "needs a tensor of 3 dimensions or more; got"),
        ((2, 2, 2), "stack,out,in,k", (), 1, "needs a tensor of 4 dimensions or more"),
        ((5, 2), "2*out,in", (), 1, r"needs an axis that 2 divides; got 5 in shape \(5, 2\)"),
        ((3, 5, 2), "stack,2*in,out", (), 1, "needs an axis that 2 divides; got 5"),
        ((4, 2), "out,in", (1, 2), 1, r"blocks \[1, 2\] do not add up to the 4 outputs of a tensor of shape \(4, 2\)"),
        ((4, 2), "out,in", (3,), 1, "do not add up to the 4 outputs"),
        ((4, 2), "out,in", (5, -1), 1, "do not add up"),
        ((4, 2), "2*out,in", (2, 2), 1, "do not add up to the 2 outputs"),
        ((6, 2), "out,in", (4, 2), 4, r"interleave = 4 does not divide every block of \[4, 2\]"),
        ((4, 2), "out,in", (2, 2), 0, "interleave = 0 does not divide"),
        ((4, 2), "out,in", (), 2, "interleave = 2 needs the sizes of two or more blocks"),
        ((4, 2), "vector", (4, 4), 1, r"a vector has no blocks; got blocks \[4, 4\], interleave 1"),
        ((4, 2), "vector", (), 2, "a vector has no blocks"),
    ],
)
def test_errors(shape, layout, blocks, interleave, text):
    for call in (check_layout, lambda shape, *words: to_matrices(torch.ones(shape), *words)):
        with pytest.raises(ValueError, match=text):
            call(shape, layout, blocks, interleave)


def test_matrices_that_do_not_fill_the_tensor():
    with pytest.raises(ValueError, match=r"shapes \[\(2, 3\), \(1, 3\)\] do not fill a tensor of shape \(4, 3\) with"):
        from_matrices([torch.ones(2, 3), torch.ones(1, 3)], "out,in", (4, 3))
    with pytest.raises(ValueError, match="unknown shape word 'muon'; the words are rms, original"):
        shape_factor("muon", norm("row"), 1, 1)
