"""The models of timm, in a process of their own: what stands for torchvision there must not be seen by other tests."""

import re
import subprocess
import sys
from pathlib import Path

from models.vision import need_timm

CASES = Path(__file__).with_name("timm_cases.py")


def test_the_models_of_timm():
    need_timm()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-2000:]
    written = len(re.findall(r"^def test_", CASES.read_text(encoding="utf-8"), re.MULTILINE))
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) > written, done.stdout
    assert "torchvision" not in sys.modules and "timm" not in sys.modules
