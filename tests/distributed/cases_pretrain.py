"""examples/pretrain.py on the ranks that are there: its losses, from every kind of data, and where it goes on from."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

EXAMPLE = Path(__file__).parents[2] / "examples" / "pretrain.py"
SMALL = ["--width", "32", "--depth", "2", "--context", "16", "--batch", "8"]
SMALL += ["--warmup", "2", "--steps", "8", "--save-every", "2"]
STEP = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)


def losses_of(output: str) -> dict[int, float]:
    """The loss of every step that a run has printed; a step that was taken again must have the same one."""
    losses: dict[int, float] = {}
    for step, loss in STEP.findall(output):
        assert losses.setdefault(int(step), float(loss)) == float(loss), f"step {step} has two losses:\n{output}"
    return losses


def write_data(directory: Path) -> None:
    """The same text in every form, as bytes."""
    text = EXAMPLE.read_text(encoding="utf-8")
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.uint16)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(tokens)
    (directory / "code.txt").write_text(text)
    (directory / "bare.bin").write_bytes(tokens.tobytes())
    (directory / "headed.bin").write_bytes(header.tobytes() + tokens.tobytes())
    (directory / "lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in text.splitlines()))


def run(out: Path, *words: str | Path) -> str:
    """What the example prints, on this rank."""
    spec = importlib.util.spec_from_file_location("pretrain", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        example.main(example.parser.parse_args([*SMALL, "--out", str(out), *map(str, words)]))
    return printed.getvalue()


def forget(checkpoint: Path) -> None:
    """Take a checkpoint away, on all ranks."""
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(checkpoint)
    dist.barrier()


def text(directory: str) -> None:
    """From the beginning, for the test to compare with another number of ranks and with a run that was killed."""
    here = Path(directory)
    printed = run(here / "ranks", "--data", here / "code.txt")
    if dist.get_rank() == 0:
        assert sorted(path.name for path in (here / "ranks").iterdir()) == ["step-0000006", "step-0000008"]
        (here / "ranks.losses").write_text(json.dumps(losses_of(printed)))
    else:
        assert printed == ""


def other_ranks(directory: str) -> None:
    """A checkpoint of one process."""
    here = Path(directory)
    forget(here / "one" / "step-0000008")
    printed = run(here / "one", "--data", here / "code.txt")
    if dist.get_rank() == 0:
        assert f"going on from {here / 'one' / 'step-0000006'}\n" in printed
        expected = json.loads((here / "one.losses").read_text())
        assert losses_of(printed) == {step: pytest.approx(expected[str(step)], abs=1e-5) for step in (7, 8)}


def accumulated(directory: str) -> None:
    """Token files of both kinds; parts of a batch are the whole batch."""
    here = Path(directory)
    words = ("--data", here / "bare.bin", here / "headed.bin", "--steps", "4")
    whole = run(here / "whole", *words)
    parts = run(here / "parts", *words, "--accumulate", "2")
    assert losses_of(parts) == {step: pytest.approx(loss, abs=1e-5) for step, loss in losses_of(whole).items()}
    with pytest.raises(SystemExit, match="--batch 8 is not 2 processes x 3 parts x whole sequences"):
        run(here / "uneven", *words, "--accumulate", "3")


def streamed(directory: str) -> None:
    """A dataset, and all that is not the default: goes on in the middle of a document's batch to the same losses."""
    here = Path(directory)
    words = ("--dataset", "json", "--data", here / "lines.jsonl", "--model", "llama", "--recompute")
    words += ("--recipe", "muon", "--lr", "0.02", "--width", "128", "--base-width", "64", "--base-depth", "1")
    words += ("--precision", "bfloat16", "--schedule", "warmup_stable_decay", "--steps", "6")
    whole = losses_of(run(here / "streamed", *words))
    forget(here / "streamed" / "step-0000006")
    again = losses_of(run(here / "streamed", *words))
    if dist.get_rank() == 0:
        assert again == {step: whole[step] for step in (5, 6)}
        assert len(set(whole.values())) > 4 and whole[6] < whole[1]
