"""Where runs are made: what a word means, what is refused, and that model and batches get there."""

from __future__ import annotations

import pytest
import torch

from moga.study import workers
from moga.study.devices import check_device, devices_of, kind_of, name_of
from moga.study.settings import Plan, Run, Settings
from moga.study.sweep import run_sweep
from moga.study.train import train

NETS = "tests.study.own_nets"
SETTINGS = Settings(f"{NETS}:net", data=f"{NETS}:data", steps=2, warmup=0)


def test_a_kind_of_accelerator_is_all_of_them(monkeypatch):
    monkeypatch.setattr("moga.study.devices.check_device", lambda word: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices_of("cuda") == ("cuda:0", "cuda:1", "cuda:2")
    assert devices_of("cuda:1") == ("cuda:1",)
    assert devices_of("cpu") == ("cpu",)
    assert [kind_of(word) for word in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cuda"]
    assert name_of("cpu:0") == "cpu"


@pytest.mark.parametrize("word", ["abacus", "meta", "cuda:99"])
def test_what_torch_has_not_is_refused_by_name(word):
    with pytest.raises(ValueError, match=f"no device '{word}' here \\(.*\\); give cpu, or one that this torch can use"):
        check_device(word)


def test_model_and_batches_go_to_the_device():
    """On "meta" nothing has numbers: the first loss says so, and would speak of two devices were one left behind."""
    with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta tensors"):
        train(Run(f"{NETS}:adamw", 16, 0.1, 0, SETTINGS), None, device="meta")


def test_a_sweep_trains_on_the_device_and_keeps_its_kind(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(workers, "train", lambda *given: seen.append(given[-1]) or train(*given))
    plan = Plan({f"{NETS}:adamw": (0.01,)}, sizes=(16,), settings=SETTINGS)
    outcome = run_sweep(plan, tmp_path / "out", data=f"{NETS}:data", device="cpu:0", workers=1)
    assert outcome.ran == 1 and seen == ["cpu:0"]
    again = run_sweep(plan, tmp_path / "out", data=f"{NETS}:data", workers=1)
    assert again.reused == 1
