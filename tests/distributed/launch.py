"""Ranks on this machine: one launch runs many cases; what went wrong on any rank is shown with the stacks of all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")


def launch(
    world: int, directory: Path, names: Sequence[str], limit: float = 400, case_limit: float = 100
) -> dict[str, str]:
    """Run cases (``module.function[word,word]``) on ``world`` ranks; what went wrong with each, "" if nothing.

    Under the name "end": what became of ranks that ended with an error after their last case.
    """
    directory.mkdir(parents=True, exist_ok=True)
    logs = [directory / f"log.{rank}" for rank in range(world)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MOGA_CASE_LIMIT": str(case_limit)}
    ranks = []
    for rank in range(world):
        command = [sys.executable, str(WORKER), str(rank), str(world), str(directory), *names]
        with open(logs[rank], "w", encoding="utf-8") as log:
            ranks.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    try:
        for process in ranks:
            process.wait(limit)
    except subprocess.TimeoutExpired:
        logs[0].open("a").write(f"not done after {limit} s\n")
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    found = {name: _wrong(name, directory, logs) for name in names}
    failed = [rank for rank, process in enumerate(ranks) if process.returncode]
    texts = [f"rank {rank} ended with {ranks[rank].returncode}:\n{logs[rank].read_text()[-3000:]}" for rank in failed]
    return found | {"end": "\n".join(texts)}


def _wrong(name: str, directory: Path, logs: Sequence[Path]) -> str:
    texts = []
    for rank, log in enumerate(logs):
        results = directory / f"results.{rank}"
        lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        found = [error for case, error, _ in lines if case == name]
        if not found:
            texts.append(f"rank {rank} did not finish it:\n{log.read_text()[-3000:]}")
        elif found[0]:
            texts.append(f"rank {rank}:\n{found[0]}")
    return "\n".join(texts)
