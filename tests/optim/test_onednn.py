"""float32 products by another library: as accurate, only where they are faster, and with nothing left behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import moga
from moga.geometry.polar import polar_factor
from moga.optim.kernels import onednn

INPUTS = {
    "square": lambda: (torch.randn(128, 128), torch.randn(128, 128)),
    "ragged": lambda: (torch.randn(67, 131), torch.randn(131, 29)),
    "tiny": lambda: (torch.randn(1, 3), torch.randn(3, 2)),
    "stacked": lambda: (torch.randn(3, 40, 70), torch.randn(3, 70, 50)),
    "not contiguous": lambda: (torch.randn(90, 60).mT, torch.randn(90, 140)[:, ::2]),
    "zero": lambda: (torch.zeros(64, 64), torch.randn(64, 64)),
    "long sums": lambda: (torch.randn(128, 3000), torch.randn(3000, 128)),
    "long sums of one sign": lambda: (torch.rand(128, 3000), torch.rand(3000, 128)),
    "of size 1e-25": lambda: (1e-25 * torch.randn(64, 64), torch.randn(64, 64)),
}


@pytest.mark.parametrize("name", INPUTS)
def test_errors_are_of_the_size_of_the_usual_products(name):
    torch.manual_seed(0)
    A, B = INPUTS[name]()
    exact = A.double() @ B.double()
    with onednn.by_onednn():
        fast = torch.linalg.norm(A @ B - exact)
    assert fast <= onednn.MOST * torch.linalg.norm(A @ B - exact) + 1e-7 * torch.linalg.norm(exact)


@pytest.mark.parametrize("method", ["quintic", "gram", "cubic"])
@pytest.mark.parametrize("shape", [(256, 256), (300, 131), (128, 1500), (3, 128, 160)], ids=str)
def test_polar_factors_have_errors_of_at_most_twice_those_of_the_usual_products(shape, method):
    G = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    exact = polar_factor(G.double(), method)
    with onednn.by_onednn():
        fast = torch.linalg.norm(polar_factor(G, method) - exact)
    assert fast <= 2 * torch.linalg.norm(polar_factor(G, method) - exact)


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
    assert onednn._found.__wrapped__()
    return monkeypatch


def test_another_processor_keeps_its_products(machine):
    onednn.CPU_INFO.write_text("vendor_id\t: GenuineIntel\n")
    assert not onednn._found.__wrapped__()


def test_one_without_wide_instructions_keeps_its_products(machine):
    machine.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not onednn._found.__wrapped__()


def test_a_torch_without_mkl_keeps_its_products(machine):
    machine.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not onednn._found.__wrapped__()


def test_less_accurate_products_are_not_taken(machine):
    machine.setattr(onednn, "MOST", 0.1)
    assert not onednn._found.__wrapped__()


@pytest.fixture
def forced(monkeypatch):
    monkeypatch.setattr(onednn, "available", lambda: True)


def test_the_setting_is_put_back(forced):
    before = onednn.setting()
    with contextlib.suppress(KeyError), onednn.by_onednn() as changed:
        assert changed and onednn.setting() == "bf16"
        raise KeyError
    assert onednn.setting() == before


def test_threads_that_ask_at_once_leave_the_setting_as_it_was():
    """In a new process, where none has asked before."""
    command = "import test_onednn; test_onednn.ask_at_once()"
    subprocess.run([sys.executable, "-c", command], cwd=Path(__file__).parent, check=True)


def ask_at_once():
    before = onednn.setting()
    sys.setswitchinterval(1e-6)

    def ask():
        for _ in range(200):
            with onednn.by_onednn():
                pass

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert onednn.setting() == before


@pytest.mark.parametrize("word", ["bf16", "tf32", "ieee"])
def test_a_setting_that_somebody_has_chosen_stays(forced, word):
    before = onednn.setting()
    onednn.choose(word)
    try:
        with onednn.by_onednn() as changed:
            assert not changed and onednn.setting() == word
    finally:
        onednn.choose(before)


@pytest.mark.parametrize("implementation", ["plain", "auto"])
@pytest.mark.parametrize("side", [127, 128])
def test_the_products_of_a_spectral_step(monkeypatch, implementation, side):
    """By oneDNN but in the readable twin and of small matrices, and the setting is put back behind the step."""
    seen = []

    def factor(L, **words):
        seen.append(onednn.setting())
        return L

    monkeypatch.setattr(onednn, "available", lambda: True)
    monkeypatch.setattr("moga.optim.steps.polar_factor", factor)
    W, before = torch.nn.Parameter(torch.randn(200, side)), onednn.setting()
    W.grad = torch.randn(200, side)
    moga.optimizer([("w", W)], "muon", lr=0.1, roles={"*": "hidden"}, implementation=implementation).step()
    fast = implementation == "auto" and side == 128
    assert set(seen) == {"bf16" if fast else before} and onednn.setting() == before
