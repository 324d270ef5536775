"""A sweep that is killed at random moments ends with the records of one that was left alone."""

import json
import subprocess
import sys
from pathlib import Path

from moga.study.records import read_records

KILLS = 20

# One process that has loaded torch but not used it forks every sweep: loading it twenty times would take a minute.
# Sweep 0 is left alone. Sweep 1 is killed, begun again and killed until it ends or all kills are spent, when it is left
# alone; then sweep 2, and so on. usage: script DIRECTORY TEXT KILLS
# prints, for each sweep, how many runs were finished after each kill.
SCRIPT = """
import json, os, random, signal, sys, time, traceback
import accelerate, torch
from transformers import GPT2LMHeadModel
from moga.study.records import read_records
from moga.study.settings import Plan, Settings
from moga.study.sweep import run_sweep

torch.set_num_threads(1)
out, text, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
settings = Settings(layers=1, head_size=8, context=16, batch=4, steps=8, warmup=2)
plan = Plan({"moga-row": (0.0625, 0.25, 1.0, 4.0)}, (16, 32), settings=settings)

def start(directory):
    child = os.fork()
    if child:
        return child
    try:
        run_sweep(plan, directory, data=text, workers=1)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

def sweep(directory, kills):
    finished = []
    while True:
        child = start(directory)
        if len(finished) < kills:
            time.sleep(random.uniform(0.0, 0.4))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0, status
            return finished
        finished.append(len(read_records(directory)))

random.seed(0)
sweeps = [sweep(f"{out}/0", 0)]
while sum(map(len, sweeps)) < kills:
    sweeps.append(sweep(f"{out}/{len(sweeps)}", kills - sum(map(len, sweeps))))
print(json.dumps(sweeps))
"""


def results(out: Path) -> dict[str, tuple[float, list[list[float]]]]:
    return {one["key"]: (one["result"]["loss"], one["result"]["curve"]) for one in read_records(out)}


def test_killed_twenty_times_it_ends_with_the_same_records(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path, text_file, str(KILLS)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    alone, *killed = json.loads(run.stdout.splitlines()[-1])
    assert (alone, sum(map(len, killed))) == ([], KILLS)
    assert any(0 < count < 9 for counts in killed for count in counts)  # in the middle of it, not only at its ends
    for number, finished in enumerate(killed, start=1):
        assert finished == sorted(finished)  # what is finished stays
        assert results(tmp_path / str(number)) == results(tmp_path / "0")
        lines = (tmp_path / str(number) / "records.jsonl").read_bytes().splitlines()
        assert len(lines) == len(results(tmp_path / "0")) == 9  # no run twice, no line in pieces
