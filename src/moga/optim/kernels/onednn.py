"""float32 products on the CPU by oneDNN, where that is faster than MKL and as accurate.

torch carries both libraries and gives float32 products to MKL. On AMD's processors MKL leaves AVX-512 unused and oneDNN
does not: on a core of a Zen 5, 103 against 223 GFLOP/s (benchmarks/README.md). The way to oneDNN is a setting that
allows it to compute in bfloat16. It makes use of that only where the processor has instructions for tiles (AMX), which
AMD's do not have; :func:`available` measures the error before anything relies on it.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

CPU_INFO = Path("/proc/cpuinfo")
_matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)
MOST = 2.0  # times MKL's error, which is what every fast path may have


@functools.cache
def available() -> bool:
    """Whether products by oneDNN are faster here at float32's accuracy.

    The answer depends on the machine and on torch (2.9 or newer) alone, so it is the same in every process.
    """
    mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if not (_matmul and mkl and _wide_amd()):
        return False
    generator = torch.Generator().manual_seed(0)
    A, B = torch.randn(2, 256, 256, generator=generator)
    exact = A.double() @ B.double()

    def error(precision: str) -> float:
        with _set(precision):
            return float(torch.linalg.norm(A @ B - exact))

    return error("bf16") <= MOST * error("ieee")


@contextmanager
def by_onednn(wanted: bool = True) -> Iterator[bool]:
    """Products inside are oneDNN's where that is :func:`available` and nobody chose otherwise; yields whether so."""
    if not wanted or torch.compiler.is_compiling() or not available() or setting() not in ("none", "ieee"):
        yield False
        return
    with _set("bf16"):
        yield True


def setting() -> str:
    """How torch may compute float32 products on the CPU now, in torch's words."""
    return str(_matmul.fp32_precision)


def choose(word: str) -> None:
    """Change :func:`setting`."""
    _matmul.fp32_precision = word


@contextmanager
def _set(word: str) -> Iterator[None]:
    before = setting()
    choose(word)
    try:
        yield
    finally:
        choose(before)


def _wide_amd() -> bool:
    """Whether the processor is AMD's and has AVX-512."""
    about = CPU_INFO.read_text(errors="replace") if CPU_INFO.exists() else platform.processor()
    return "AuthenticAMD" in about and torch.backends.cpu.get_cpu_capability() == "AVX512"
