"""What a step allocates besides the state: the most bytes of tensors that are alive at one time, counted."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import moga
from moga.optim import update


class Live(TorchDispatchMode):
    """Counts the bytes of storages that operations make, as long as they live; ``peak`` is the most at one time."""

    def __init__(self):
        super().__init__()
        self.seen, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self.seen:
                    self.seen[storage._cdata] = size = storage.nbytes()
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self.gone, storage._cdata)
        return out

    def gone(self, key):
        self.now -= self.seen.pop(key)


def peak(shapes, norm, **words):
    """Bytes beyond weights, gradients and state that the second step of these weights has alive at most."""
    weights = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    polar = {"polar": "quintic"} if norm == "spectral" else {}
    optimizer = moga.SteepestDescent(
        [{"params": weights, "norm": norm, "layout": "out,in", "scale": 1.0, **polar}], 0.1, **words
    )
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    with Live() as live:
        optimizer.step()
    return live.peak


def test_the_counter_counts_what_lives():
    with Live() as live:
        a = torch.ones(10)
        b = a + 1
        del a
        c = b.view(2, 5).mul_(2)[0]
        d = c + 1
    assert (live.peak, live.now) == (80, 60) and d.shape == (5,)


STACK = [(96, 64)] * 12
BYTES = 4 * 96 * 64


@pytest.mark.parametrize("norm", ["sign", "row", "column", "adam"])
@pytest.mark.parametrize("nonfinite", ["skip", "propagate"])
def test_the_compiled_step_needs_no_tensor(norm, nonfinite):
    assert peak(STACK, norm, nonfinite=nonfinite) <= 40 * len(STACK)  # whether gradients are finite


@pytest.mark.parametrize("words", [{}, {"polar_dtype": "bfloat16"}], ids=["float32", "bfloat16"])
def test_a_spectral_step_needs_less_than_the_stack(monkeypatch, words):
    """Of the 12 matrices of one shape one at a time is worked on, in at most six times its memory."""
    monkeypatch.setitem(update.TOGETHER, "cpu", 96 * 64)
    assert BYTES <= peak(STACK, "spectral", **words) <= 6 * BYTES
    monkeypatch.setitem(update.TOGETHER, "cpu", 12 * 96 * 64)
    assert peak(STACK, "spectral", **words) > 24 * BYTES  # what the counter has to see: all of them together


def test_steps_in_parts_are_the_step(monkeypatch):
    results = []
    for most in (1, 3 * 96 * 64, 1 << 30):
        monkeypatch.setitem(update.TOGETHER, "cpu", most)
        generator = torch.Generator().manual_seed(0)
        weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in [*STACK, (0, 3), (3,)]]
        kinds = ((2, "out,in"), (1, "vector"))
        groups = [
            {"params": [w for w in weights if w.ndim == n], "norm": "row", "layout": layout, "scale": 1.0}
            for n, layout in kinds
        ]
        optimizer = moga.SteepestDescent(groups, 0.1, implementation="plain")
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
        results.append(weights)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0)


def test_the_precision_of_the_iteration_is_a_word():
    steps, G = {}, torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    for word in ("float32", "bfloat16"):
        weight = nn.Parameter(torch.zeros(64, 96))
        optimizer = moga.optimizer([("w", weight)], "muon", lr=1.0, roles={"w": "hidden"}, polar_dtype=word)
        weight.grad = G.clone()
        optimizer.step()
        scale = optimizer.param_groups[0]["scale"]
        steps[word] = -weight.detach() / scale
        S, band = torch.linalg.svdvals(steps[word]), getattr(moga.geometry.polar.POLAR["quintic"], word)
        assert band.low <= S.min() <= S.max() <= band.high
    assert 1e-3 < (steps["float32"] - steps["bfloat16"]).norm() / steps["float32"].norm() < 0.1


def test_precisions_that_do_not_exist():
    group = {"params": [nn.Parameter(torch.ones(2, 3))], "norm": "spectral", "layout": "out,in", "scale": 1.0}
    with pytest.raises(ValueError, match="unknown polar_dtype 'half' in a parameter group; the words are float32, b"):
        moga.SteepestDescent([group], 0.1, polar_dtype="half")
    with pytest.raises(ValueError, match="'exact' runs in float32 or wider; got torch.bfloat16, in which quintic"):
        moga.SteepestDescent([group], 0.1, polar_dtype="bfloat16")
    moga.SteepestDescent([{**group, "norm": "row"}], 0.1, polar_dtype="bfloat16")  # has no polar factor
