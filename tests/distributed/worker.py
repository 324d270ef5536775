"""One rank of a launch: runs cases one after another and writes what became of each.

    python worker.py RANK WORLD DIRECTORY MODULE.CASE MODULE.CASE ...

A case that does not end in time prints the stacks of this rank and ends the process; so does every other rank's.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import threading
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

LIMIT = float(os.environ.get("MOGA_CASE_LIMIT", "100"))  # seconds for a case, on a machine that others use too


def main(rank: int, world: int, directory: Path, names: list[str]) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    faulthandler.dump_traceback_later(100, exit=True)
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=LIMIT + 20), rank=rank, world_size=world)
    with open(directory / f"results.{rank}", "w", encoding="utf-8") as results:
        for name in names:
            print(f"case {name}", file=sys.stderr, flush=True)
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            began, error = time.monotonic(), ""
            try:
                module, _, function = name.partition("[")[0].partition(".")
                getattr(importlib.import_module(f"distributed.{module}"), function)(*arguments(name))
            except Exception:
                error = traceback.format_exc()
            results.write(json.dumps([name, error, round(time.monotonic() - began, 2)]) + "\n")
            results.flush()
            dist.barrier()
    faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()
    rest()


def rest() -> None:
    """Wait until all other threads of this process sleep.

    torch keeps gloo's threads beyond the end of their group, and one that lets go of a tensor while Python ends aborts
    the process (pytorch/pytorch#190489).
    """
    for _ in range(3):  # as one that waits for Python's lock sleeps, too
        while any(_runs(thread) for thread in Path("/proc/self/task").iterdir()):
            time.sleep(0.01)
        time.sleep(0.01)


def _runs(thread: Path) -> bool:
    if int(thread.name) == threading.get_native_id():
        return False
    try:
        return (thread / "stat").read_text().rpartition(") ")[2].startswith("R")
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False


def arguments(name: str) -> list[str]:
    """The words in brackets: ``steps[muon,0]``."""
    inside = name.partition("[")[2].removesuffix("]")
    return inside.split(",") if inside else []


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
