"""A study's products: the faster library's, but not attention's, and nothing is left behind."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import pytest
import torch
from torch.nn import functional

from moga.optim.kernels import onednn
from moga.study import products
from moga.study.products import NAME, faster_products
from moga.study.settings import Run, Settings

RUN = Run("moga-row", 32, 0.1, 0, Settings())


class Attention(torch.autograd.Function):
    """A stand-in that notes how products are made while it computes."""

    seen: ClassVar[list[str]] = []

    @staticmethod
    def forward(context, x):
        Attention.seen.append(onednn.setting())
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        Attention.seen.append(onednn.setting())
        return 2 * gradient


@pytest.fixture
def attention(monkeypatch):
    monkeypatch.setattr(functional, NAME, Attention.apply)
    monkeypatch.setattr(Attention, "seen", [])
    for module in (onednn, products):
        monkeypatch.setattr(module, "available", lambda: True)
    return functional.scaled_dot_product_attention


def trained():
    """The gradient of a small network with attention in it, and the setting between its parts."""
    between = []
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda _: between.append(onednn.setting()))
    y = functional.scaled_dot_product_attention(3 * x)
    between.append(onednn.setting())
    y.sum().backward()
    return x.grad, between


def test_attention_has_its_own_products_forward_and_backward(attention):
    with faster_products(RUN) as changed:
        gradient, between = trained()
    assert changed and Attention.seen == ["ieee", "ieee"] and between == ["bf16", "bf16"]
    assert gradient.tolist() == [6.0, 6.0, 6.0]


def test_nothing_is_left_behind(attention):
    before = onednn.setting()
    with contextlib.suppress(KeyError), faster_products(RUN):
        kept = functional.scaled_dot_product_attention
        raise KeyError
    assert onednn.setting() == before and functional.scaled_dot_product_attention is attention
    kept(torch.ones(2, requires_grad=True)).sum().backward()
    assert onednn.setting() == before


def test_an_attention_that_fails_puts_the_setting_back(attention, monkeypatch):
    def fails(*_):
        raise KeyError

    monkeypatch.setattr(functional, NAME, fails)
    with faster_products(RUN):
        with pytest.raises(KeyError):
            functional.scaled_dot_product_attention(torch.ones(2))
        assert onednn.setting() == "bf16"


def test_one_inside_another_changes_nothing(attention):
    with faster_products(RUN):
        outer = functional.scaled_dot_product_attention
        with faster_products(RUN) as changed:
            assert not changed and functional.scaled_dot_product_attention is outer
        assert functional.scaled_dot_product_attention is outer and onednn.setting() == "bf16"


def test_elsewhere_attention_is_torchs_own(attention, monkeypatch):
    monkeypatch.setattr(products, "available", lambda: False)
    before = onednn.setting()
    with faster_products(RUN) as changed:
        assert not changed and functional.scaled_dot_product_attention is attention and onednn.setting() == before


@pytest.mark.parametrize(
    "run",
    [Run("moga-row", 32, 0.1, 0, Settings(family="own:model")), Run("own:optimizer", 32, 0.1, 0, Settings())],
    ids=["model", "optimizer"],
)
def test_code_of_ones_own_is_left_alone(attention, run):
    before = onednn.setting()
    with faster_products(run) as changed:
        assert not changed and functional.scaled_dot_product_attention is attention and onednn.setting() == before


def test_real_attention_has_the_same_gradients():
    torch.manual_seed(0)
    q = torch.randn(2, 4, 16, 8, requires_grad=True)

    def gradient():
        out = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return torch.autograd.grad(out.square().sum(), q)[0]

    usual = gradient()
    with faster_products(RUN):
        assert torch.equal(gradient(), usual)
