"""float32 products by another library: as accurate, only where they are faster, and with nothing left behind."""

from __future__ import annotations

import contextlib

import pytest
import torch

import moga
from moga.optim.kernels import onednn

INPUTS = {
    "square": lambda: (torch.randn(128, 128), torch.randn(128, 128)),
    "ragged": lambda: (torch.randn(67, 131), torch.randn(131, 29)),
    "tiny": lambda: (torch.randn(1, 3), torch.randn(3, 2)),
    "stacked": lambda: (torch.randn(3, 40, 70), torch.randn(3, 70, 50)),
    "not contiguous": lambda: (torch.randn(90, 60).mT, torch.randn(90, 140)[:, ::2]),
    "zero": lambda: (torch.zeros(64, 64), torch.randn(64, 64)),
    "of size 1e-25": lambda: (1e-25 * torch.randn(64, 64), torch.randn(64, 64)),
}


@pytest.mark.parametrize("name", INPUTS)
def test_errors_are_at_most_twice_those_of_the_usual_products(name):
    torch.manual_seed(0)
    A, B = INPUTS[name]()
    exact = A.double() @ B.double()
    with onednn.by_onednn():
        fast = torch.linalg.norm(A @ B - exact)
    assert fast <= 2 * torch.linalg.norm(A @ B - exact) + 1e-7 * torch.linalg.norm(exact)


def test_products_that_round_to_bfloat16_would_be_seen():
    """The error above has the power to tell: the negative control of the last test."""
    torch.manual_seed(0)
    A, B = INPUTS["square"]()
    exact = A.double() @ B.double()
    assert torch.linalg.norm((A.bfloat16() @ B.bfloat16()).double() - exact) > 100 * torch.linalg.norm(A @ B - exact)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine on which oneDNN is the faster library."""
    monkeypatch.setattr(onednn, "CPU_INFO", tmp_path / "cpuinfo")
    onednn.CPU_INFO.write_text("vendor_id\t: AuthenticAMD\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(onednn, "MOST", 1e9)  # also where the setting rounds to bfloat16
    assert onednn.available.__wrapped__()
    return monkeypatch


def test_another_processor_keeps_its_products(machine):
    onednn.CPU_INFO.write_text("vendor_id\t: GenuineIntel\n")
    assert not onednn.available.__wrapped__()


def test_one_without_wide_instructions_keeps_its_products(machine):
    machine.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not onednn.available.__wrapped__()


def test_a_torch_without_mkl_keeps_its_products(machine):
    machine.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not onednn.available.__wrapped__()


def test_less_accurate_products_are_not_taken(machine):
    machine.setattr(onednn, "MOST", 0.1)
    assert not onednn.available.__wrapped__()


@pytest.fixture
def forced(monkeypatch):
    monkeypatch.setattr(onednn, "available", lambda: True)


def test_the_setting_is_put_back(forced):
    before = onednn.setting()
    with contextlib.suppress(KeyError), onednn.by_onednn() as changed:
        assert changed and onednn.setting() == "bf16"
        raise KeyError
    assert onednn.setting() == before


@pytest.mark.parametrize("word", ["bf16", "tf32"])
def test_a_setting_that_somebody_has_chosen_stays(forced, word):
    before = onednn.setting()
    onednn.choose(word)
    try:
        with onednn.by_onednn() as changed:
            assert not changed and onednn.setting() == word
    finally:
        onednn.choose(before)


@pytest.mark.parametrize("implementation", ["plain", "auto"])
def test_the_products_of_a_spectral_step(monkeypatch, implementation):
    """By oneDNN but in the readable twin, and the setting is put back behind the step."""
    seen = []

    def factor(L, **words):
        seen.append(onednn.setting())
        return L

    monkeypatch.setattr(onednn, "available", lambda: True)
    monkeypatch.setattr("moga.optim.steps.polar_factor", factor)
    W, before = torch.nn.Parameter(torch.randn(8, 6)), onednn.setting()
    W.grad = torch.randn(8, 6)
    moga.optimizer([("w", W)], "muon", lr=0.1, roles={"*": "hidden"}, implementation=implementation).step()
    assert set(seen) == {"bf16" if implementation == "auto" else before} and onednn.setting() == before
