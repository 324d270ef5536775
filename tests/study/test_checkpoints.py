"""Checkpoints of a run: which one is the last, what is pruned, and which words may be others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from moga.study import checkpoints

WORDS = {"lr": 0.1, "steps": 8}


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made() -> tuple[torch.nn.Linear, torch.optim.SGD]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_what_is_not_a_checkpoint_is_the_users_own(one_rank, tmp_path: Path):
    """Copies, notes and a file that is called as a checkpoint are neither pruned nor gone on from."""
    model, optimizer = made()
    own = ["step-0000009", "step-00000003", "step-best", "step-final", "step-notes.txt"]
    for name in own:
        (tmp_path / name).mkdir() if name not in (own[0], own[-1]) else (tmp_path / name).write_text("mine")
    for step in (1, 2, 3):
        checkpoints.save(tmp_path, step, WORDS, model, optimizer)
    kept = ["step-0000002", "step-0000003"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*own, *kept])
    path, text = checkpoints.last(tmp_path, WORDS, ())
    assert path == tmp_path / "step-0000003" and text == f"going on from {path}"


def test_what_was_saved_is_loaded(one_rank, tmp_path: Path):
    model, optimizer = made()
    checkpoints.save(tmp_path, 1, WORDS, model, optimizer, place=torch.tensor(5))
    other, others = made()
    place = torch.tensor(0)
    assert not torch.equal(other.weight, model.weight)
    others.state[other.weight]["momentum_buffer"].zero_()
    checkpoints.load(tmp_path / "step-0000001", other, others, place=place)
    assert torch.equal(other.weight, model.weight) and place == 5
    averages = [o.state[m.weight]["momentum_buffer"] for m, o in ((model, optimizer), (other, others))]
    assert torch.equal(*averages)


def test_words_that_differ(one_rank, tmp_path: Path):
    assert checkpoints.last(tmp_path / "new", WORDS, ()) == (
        None,
        f"from the beginning: no checkpoint in {tmp_path / 'new'}",
    )
    checkpoints.save(tmp_path, 1, WORDS, *made())
    path, text = checkpoints.last(tmp_path, {"lr": 0.1, "steps": 9}, ["steps"])
    assert text == f"going on from {path}; steps is 9, and was 8"
    with pytest.raises(
        ValueError, match="0001 is of another run: lr is 0.2, and was 0.1; steps is None, and was 8. Give"
    ):
        checkpoints.last(tmp_path, {"lr": 0.2}, ())
    with pytest.raises(NotADirectoryError, match="words.json is a file, and checkpoints want a directory"):
        checkpoints.last(path / checkpoints.WORDS, WORDS, ())
