"""A process of examples/pretrain.py. Of two under torchrun, one is killed: first in its fifth step, then in a save.

A process that torchrun has started anew knows from the environment how often that was.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # and not where pytest looks for doctests
    faulthandler.dump_traceback_later(float(os.environ["MOGA_CASE_LIMIT"]), exit=True)

import torch
from torch.distributed.checkpoint import FileSystemWriter

from moga.optim.distributed.shards import ShardedStep

EXAMPLE = Path(__file__).parents[2] / "examples" / "pretrain.py"
FIFTH = 5


def after(owner: Any, name: str, then: Any) -> None:
    """Call ``then`` whenever ``owner.name`` has been called."""
    original = getattr(owner, name)

    def both(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        then()
        return result

    setattr(owner, name, both)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_the_fifth_step() -> None:
    """When the first group of parameters has moved, and the others have not."""
    steps: list[int] = []
    after(torch.nn.utils, "clip_grad_norm_", lambda: steps.append(1))  # once before every step
    after(ShardedStep, "take", lambda: die() if len(steps) == FIFTH else None)


def in_the_first_save() -> None:
    """When this rank has written its part, and nobody knows it."""
    after(FileSystemWriter, "write_data", die)


KILLS = {"0": in_the_fifth_step, "1": in_the_first_save}  # by the number of restarts

if __name__ == "__main__":
    if os.environ.get("RANK") == "1" and (kill := KILLS.get(os.environ["TORCHELASTIC_RESTART_COUNT"])):
        kill()
    sys.argv[0] = str(EXAMPLE)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    sys.stdout.flush()
    # Not the usual end: a thread of gloo that still holds a tensor when Python ends aborts the process, now and then.
    os._exit(0)
