"""examples/pretrain.py: the same losses on any number of ranks, from a checkpoint, and after a rank was killed."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from distributed.cases_pretrain import EXAMPLE, SMALL, losses_of, write_data
from distributed.launch import launch

LIMIT = 200  # seconds for a process, on a machine that others use too
RUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
PROCESS = Path(__file__).with_name("pretrain_process.py")
# torchrun keeps its store when it starts processes anew, and they may find the addresses of those that are dead.
NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def output(*command: str | Path) -> str:
    """What a command that succeeds prints. A process that is not done in time prints where it is, and ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MOGA_CASE_LIMIT": str(LIMIT), **NEW_STORE}
    made = subprocess.run(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=800
    )
    assert made.returncode == 0, made.stdout
    return made.stdout


@pytest.mark.timeout(1700)
def test_pretrain(tmp_path: Path):
    """One process by itself, two ranks on every kind of data, and two ranks of which one is killed twice."""
    write_data(tmp_path)
    data = ["--data", tmp_path / "code.txt"]

    printed = output(sys.executable, PROCESS, *SMALL, *data, "--out", tmp_path / "one")
    assert f"from the beginning: no checkpoint in {tmp_path / 'one'}\n" in printed
    one = losses_of(printed)
    assert list(one) == list(range(1, 9)) and one[8] < one[1] - 0.1
    (tmp_path / "one.losses").write_text(json.dumps(one))

    names = ("text", "other_ranks", "accumulated", "streamed", "by_hand", "recomputed", "refused")
    found = launch(2, tmp_path / "launch", [f"cases_pretrain.{name}[{tmp_path}]" for name in names])
    assert not any(found.values()), "\n".join(found.values())
    two = {int(step): loss for step, loss in json.loads((tmp_path / "ranks.losses").read_text()).items()}
    assert two == {step: pytest.approx(loss, abs=1e-5) for step, loss in one.items()}

    printed = output(*RUN, PROCESS, *SMALL, *data, "--out", tmp_path / "killed")
    assert printed.count("exitcode: -9") == 2, printed  # torchrun has noticed
    fourth = f"going on from {tmp_path / 'killed' / 'step-0000004'}\n"
    assert printed.count(fourth) == 2, printed
    assert losses_of(printed) == two
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["step-0000006", "step-0000008"]


@pytest.mark.parametrize("launched", [True, False])
def test_every_launcher_counts(monkeypatch: pytest.MonkeyPatch, launched: bool):
    """Ranks that another launcher than torchrun has started are a group, too."""

    def stop(**options: object) -> None:
        raise InterruptedError(sorted(options))

    monkeypatch.setattr(dist, "init_process_group", stop)
    monkeypatch.setenv("WORLD_SIZE", "2")
    if not launched:
        monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(InterruptedError) as found:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert found.value.args[0] == ([] if launched else ["rank", "store", "world_size"])
