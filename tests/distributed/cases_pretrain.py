"""examples/pretrain.py on the ranks that are there: its losses, from every kind of data, and where it goes on from."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import moga
from moga.study.tokens import FileBatches

EXAMPLE = Path(__file__).parents[2] / "examples" / "pretrain.py"
SMALL = ["--width", "32", "--depth", "2", "--context", "16", "--batch", "8"]
SMALL += ["--warmup", "2", "--steps", "8", "--save-every", "2"]
STEP = re.compile(r"^step (\d+) loss (\S+) lr \S+ skipped 0$", re.MULTILINE)


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


def example_module():
    spec = importlib.util.spec_from_file_location("pretrain", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def run(out: Path, *words: str | Path) -> str:
    """What the example prints, on this rank."""
    example = example_module()
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


def plain_losses(file: Path, family: str, recipe: str, clip: float, schedule: str) -> dict[int, float]:
    """The loop by hand: whole batches, one process, no shards."""
    from transformers import AutoConfig, AutoModelForCausalLM, get_scheduler

    def config(width: int):
        size = {"hidden_size": width, "intermediate_size": 3 * width, "num_attention_heads": width // 64}
        shape = {"num_hidden_layers": 2, "max_position_embeddings": 16, "vocab_size": 256}
        plain = {"tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}
        return AutoConfig.for_model(family, **size, **shape, **plain, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)

    model = AutoModelForCausalLM.from_config(config(128)).train()
    moga.scale_branches_(model, base_depth=1)
    moga.initialize_(model, recipe, generator=torch.Generator().manual_seed(0))
    optimizer = moga.optimizer(model, recipe, lr=0.1, weight_decay=0.1, base=config(64))
    options = {"num_decay_steps": 1} if schedule == "warmup_stable_decay" else None
    scheduler = get_scheduler(schedule, optimizer, 2, 6, options)
    losses = {}
    for step, batch in enumerate(islice(FileBatches([file], batch=8, context=16), 6), 1):
        tokens = torch.from_numpy(batch)
        logits = model(input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses[step] = loss.item()
    return losses


def by_hand(directory: str) -> None:
    """Every word does what the plain loop does: a clip that binds, one that does not, both schedules and families."""
    here = Path(directory)
    words = ("--data", here / "code.txt", "--width", "128", "--base-width", "64", "--base-depth", "1", "--lr", "0.1")
    words += ("--accumulate", "2", "--steps", "6", "--save-every", "6")
    for family, recipe, clip, schedule in (
        ("gpt2", "moga-row", "0.1", "warmup_stable_decay"),
        ("llama", "heavy-ball", "inf", "cosine"),
    ):
        more = ("--model", family, "--recipe", recipe, "--clip", clip, "--schedule", schedule)
        expected = plain_losses(here / "code.txt", family, recipe, float(clip), schedule)
        found = losses_of(run(here / f"hand-{family}", *words, *more))
        if dist.get_rank() == 0:
            assert found == {step: pytest.approx(loss, abs=1e-5) for step, loss in expected.items()}
            assert expected[6] < expected[1] - 1e-3
    rough = losses_of(run(here / "rough", *words, *more, "--precision", "bfloat16"))
    if dist.get_rank() == 0:
        assert rough == {step: pytest.approx(loss, abs=0.1) for step, loss in expected.items()}
        assert rough[6] != pytest.approx(expected[6], abs=1e-5)


def recomputed(directory: str) -> None:
    """With --recompute every block runs twice in a step."""
    example = example_module()
    for words, times in ((["--recompute"], 2), ([], 1)):
        args = example.parser.parse_args([*SMALL, "--out", directory, *words])
        model, _ = example.build(args, 256, dist.init_device_mesh("cpu", (dist.get_world_size(),)))
        calls: list[str] = []
        for name, part in model.named_modules():
            if name.endswith(".mlp"):
                part.register_forward_pre_hook(lambda *_, name=name, calls=calls: calls.append(name))
        model(input_ids=torch.zeros(2, 8, dtype=torch.long)).logits.sum().backward()
        assert sorted(calls) == sorted(times * ["transformer.h.0.mlp", "transformer.h.1.mlp"])


def refused(directory: str) -> None:
    """Words that make no run, and those of another run than the checkpoint's."""
    here = Path(directory)
    for words, text in (
        (("--clip", "0"), "--clip 0.0 is not above 0"),
        (("--save-every", "0"), "--save-every 0 is not above 0"),
        (("--accumulate", "3"), "--batch 8 is not 2 processes x 3 parts x whole sequences"),
        (("--warmup", "9"), "--steps 8 is less than --warmup 9 and 0 steps of decay"),
        (
            ("--warmup", "8", "--schedule", "warmup_stable_decay"),
            "--steps 8 is less than --warmup 8 and 1 steps of decay",
        ),
        (("--width", "100"), "a width of 100 is no multiple of 64, the features of a head"),
    ):
        with pytest.raises(SystemExit, match=text):
            run(here / "refused", "--data", here / "code.txt", *words)
    with pytest.raises(ValueError, match="step-0000008 is of another run: lr is 0.5, and was 0.05; width is 64, and"):
        run(here / "one", "--data", here / "code.txt", "--lr", "0.5", "--width", "64")
