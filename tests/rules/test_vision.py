"""The models of timm, in a process of their own: what stands for torchvision there must not be seen by other tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from models.vision import TIMM

CASES = Path(__file__).with_name("timm_cases.py")
HOW = f"pip install --no-deps --target {TIMM} timm==1.0.31"


@pytest.mark.skipif(
    not TIMM.is_dir() and os.environ.get("MOGA_REQUIRE_TIMM") != "1", reason=f"timm is not there; {HOW}"
)
def test_the_models_of_timm():
    assert TIMM.is_dir(), f"timm is not there, and MOGA_REQUIRE_TIMM = 1; {HOW}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-2000:]
    written = len(re.findall(r"^def test_", CASES.read_text(encoding="utf-8"), re.MULTILINE))
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) > written, done.stdout
    assert "torchvision" not in sys.modules and "timm" not in sys.modules
