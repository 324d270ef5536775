"""A training with its float32 products by oneDNN, where moga.optim.kernels.onednn finds that faster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from moga.optim.kernels.onednn import available, by_onednn, choose, setting
from moga.study.factories import is_path
from moga.study.settings import Run

NAME = "scaled_dot_product_attention"


def has_faster_products(run: Run) -> bool:
    """Whether oneDNN is faster here and the run a recipe's on a built-in family.

    Somebody else's code may have small products, for which oneDNN is slower, or be compiled.
    """
    return available() and not (is_path(run.settings.family) or is_path(run.recipe))


@contextmanager
def faster_products(run: Run) -> Iterator[bool]:
    """Products inside are the faster library's, forward and backward; yields whether that is oneDNN.

    Attention's are left alone: its kernel makes thousands of a few kFLOP in a step, for which oneDNN takes ten times as
    long. So ``torch.nn.functional.scaled_dot_product_attention`` is wrapped meanwhile.
    """
    with by_onednn(has_faster_products(run)) as changed:
        if not changed:
            yield False
            return
        attend = getattr(torch.nn.functional, NAME)
        setattr(torch.nn.functional, NAME, _left_alone(attend))
        try:
            yield True
        finally:
            setattr(torch.nn.functional, NAME, attend)


def _left_alone(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function with torch's own products, forward and backward."""

    @functools.wraps(attend)
    def attention(*args: Any, **options: Any) -> Tensor:
        before = [setting()]
        choose("ieee")
        try:
            out = attend(*args, **options)
        finally:
            choose(before.pop())
        if out.grad_fn is not None:

            def begin(gradients: Any) -> None:
                before.append(setting())
                choose("ieee")

            out.grad_fn.register_prehook(begin)
            out.grad_fn.register_hook(lambda *_: choose(before.pop()))
        return out

    return attention
