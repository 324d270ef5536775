"""float32 products on the CPU by oneDNN, where that is faster than MKL and still float32.

torch carries both libraries and gives float32 products to MKL. On AMD's processors MKL leaves AVX-512 unused and oneDNN
does not: on a core of a Zen 5, 103 against 223 GFLOP/s (benchmarks/README.md). The way to oneDNN is a setting that
allows it to round to bfloat16. It makes use of that only where the processor has instructions for tiles (AMX), which
AMD's do not have; :func:`available` measures the error before anything relies on it. The error of a product is up to
three times MKL's (sums of some thousand terms), that of a random matrix's polar factor at most one and a half times.

The setting holds for the whole process, so it is changed around our own code alone: products of a few kFLOP become
slower, torch's baddbmm and addmv then misread ``alpha=0``, and other code may ask for the setting or trace it.
"""

from __future__ import annotations

import functools
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

CPU_INFO = Path("/proc/cpuinfo")
MOST = 4.0  # times MKL's error; rounded to bfloat16 it would be thousands
UNSET = "none"  # torch's word where nobody has chosen
_matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)
_one_at_a_time = threading.Lock()


def available() -> bool:
    """Whether products by oneDNN are faster here at float32's accuracy.

    The answer depends on the machine and on torch (2.9 or newer) alone, so it is the same in every process.
    """
    with _one_at_a_time:
        return _found()


@functools.cache
def _found() -> bool:
    mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if not (_matmul and mkl and _wide_amd() and setting() == UNSET):
        return False
    generator = torch.Generator().manual_seed(0)
    A, B = torch.randn(2, 256, 256, generator=generator)
    exact = A.double() @ B.double()
    usual = torch.linalg.norm(A @ B - exact)
    with _bfloat16_allowed():
        return bool(torch.linalg.norm(A @ B - exact) <= MOST * usual)


@contextmanager
def by_onednn(wanted: bool = True) -> Iterator[bool]:
    """Products inside are oneDNN's where that is :func:`available` and nobody chose otherwise; yields whether so."""
    if not wanted or torch.compiler.is_compiling() or not available() or setting() != UNSET:
        yield False
        return
    with _bfloat16_allowed():
        yield True


def setting() -> str:
    """How torch may compute float32 products on the CPU now, in torch's words."""
    return str(_matmul.fp32_precision)


def choose(word: str) -> None:
    """Change :func:`setting`."""
    _matmul.fp32_precision = word


@contextmanager
def _bfloat16_allowed() -> Iterator[None]:
    """Nobody's choice before and behind, so that it does not matter how threads take turns."""
    choose("bf16")
    try:
        yield
    finally:
        choose(UNSET)


def _wide_amd() -> bool:
    """Whether the processor is AMD's and has AVX-512."""
    about = CPU_INFO.read_text(errors="replace") if CPU_INFO.exists() else platform.processor()
    return "AuthenticAMD" in about and torch.backends.cpu.get_cpu_capability() == "AVX512"
