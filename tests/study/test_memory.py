"""What a worker does with memory, seen from outside: pages that it is given anew."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNT = """
import resource, sys
from moga.study.memory import keep_memory
if sys.argv[1] == "keep":
    assert keep_memory()
def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    bytearray(1 << 20)  # less than a huge page
use()
before = pages()
for _ in range(50):
    use()
print(pages() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="another C library")
def test_memory_is_had_again_without_new_pages():
    # A fixed threshold, so that glibc gives back every piece above it, as it may decide to by itself.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 17)}

    def pages(word: str) -> int:
        command = [sys.executable, "-c", COUNT, word]
        return int(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)

    assert pages("keep") < 1000 < 10_000 <= pages("leave")
