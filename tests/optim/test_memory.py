"""What a step allocates besides the state: the most bytes of tensors that are alive at one time, counted."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import moga


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
