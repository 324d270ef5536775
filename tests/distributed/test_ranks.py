"""Everything that ranks do together, on 1 to 4 of them: one launch for each number runs all cases.

Every case has a time of its own, after which each rank shows its stack and ends; see ``worker.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed.launch import launch
from distributed.messages import formulas

import moga

DOCS = Path(__file__).parents[2] / "docs" / "distributed.md"

STEPS = [
    *(f"cases.steps[{recipe}]" for recipe in moga.RECIPES),
    *(f"cases.exponent[{norm},{e}]" for norm, e in [("row", 1.5), ("row", 8), ("row", "inf"), ("column", 3)]),
    *(f"cases.precision[float64,{recipe}]" for recipe in ("moga-row", "moga-column")),
    *(f"cases.precision[bfloat16,{recipe}]" for recipe in ("moga-row", "muon")),
]
FAULTS = (
    "skip",
    "raises",
    "propagate",
    "local_fan",
    "missing_sum",
    "disagreement",
    "rates",
    "fewer",
    "placements",
    "replicas",
)
ALWAYS = [
    *STEPS,
    *(f"cases_models.arranged[{kind},{recipe}]" for kind in ("fsdp", "tied") for recipe in ("moga-row", "muon")),
    "cases.replaced",
    "cases_models.trained[fsdp,moga-row]",
    *(f"cases_models.missing[{recipe}]" for recipe in ("moga-row", "muon", "spel")),
    *(f"cases_models.nowhere[{recipe}]" for recipe in ("moga-column", "spel")),
    "cases_models.partial_gradients",
    *(f"cases_faults.{name}" for name in FAULTS),
    *(f"cases_spread.alike[{words}]" for words in ("moga-row,owners", "muon,owners", "muown,owners", "muon,teams")),
    *(f"cases_spread.teams[{polar}]" for polar in ("quintic", "quintic,as settled", "cubic", "exact")),
    *(f"cases_spread.{name}" for name in ("narrow", "wrong_rows", "words", "memory")),
    "cases_spread.once",
    *(f"cases_messages.buckets[{recipe}]" for recipe in ("muon", "spel")),
    "cases_messages.one_by_one",
    *(f"cases_starts.started[fsdp,{recipe}]" for recipe in ("moga-row", "spel")),
    "cases_saved.moved",
    "cases_saved.imported",
]
EVEN = [  # torch's tensor parallelism and cuts along `in` need sizes that the ranks divide
    "cases_messages.table",
    "cases_messages.teams",
    "cases_messages.nonfinite",
    "cases_messages.under_way",
    "cases_messages.agreed",
    *(f"cases_models.arranged[fsdp along in,{recipe}]" for recipe in ("moga-row", "muown")),
    *(f"cases_models.arranged[tensor,{recipe}]" for recipe in ("moga-row", "moga-column", "muon")),
]
SQUARE = [
    *(f"cases_models.arranged[fsdp and tensor,{recipe}]" for recipe in ("moga-row", "moga-column", "muon", "muown")),
    *(f"cases_models.arranged[hybrid,{recipe}]" for recipe in ("moga-row", "moga-column", "orscale-lm")),
    *(f"cases_models.arranged[{kind},muon,teams]" for kind in ("fsdp and tensor", "hybrid")),
    "cases_models.trained[hybrid,muon]",
    *(f"cases_starts.started[{kind},moga-row]" for kind in ("fsdp and tensor", "hybrid")),
    "cases_messages.hybrid",
    "cases_messages.both",
]
CASES = {1: ALWAYS + EVEN, 2: ALWAYS + EVEN, 3: [*ALWAYS, "cases_faults.part_of_the_ranks"], 4: ALWAYS + EVEN + SQUARE}


def shown(found: dict[str, str]) -> str:
    return "\n".join(f"{name}\n{text}" for name, text in found.items() if text)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", CASES, ids="{}-ranks".format)
def test_ranks(ranks: int, tmp_path: Path):
    found = launch(ranks, tmp_path, CASES[ranks], limit=800)
    assert not any(found.values()), shown(found)


SAVED = ("moga-row", "muon", "adamw", "muown", "orscale-lm", "shampoo-accumulated")
# A launch saves on its number of ranks and loads what is there by then; the last two load what was saved on more.
LAUNCHES = [(1, True, [1]), (2, True, [1, 2]), (4, True, [1, 2, 4]), (1, False, [2, 4]), (2, False, [4])]


@pytest.mark.timeout(600)
def test_a_checkpoint_is_loaded_on_another_number_of_ranks(tmp_path: Path):
    for i, (ranks, saves, others) in enumerate(LAUNCHES):
        names = [f"cases_saved.save[{tmp_path},{recipe}]" for recipe in SAVED if saves]
        names += [f"cases_saved.load[{tmp_path},{recipe},{saved}]" for recipe in SAVED for saved in others]
        found = launch(ranks, tmp_path / str(i), names)
        assert not any(found.values()), shown(found)


def test_a_rank_that_waits_for_ever_shows_where_it_does(tmp_path: Path):
    found = launch(2, tmp_path, ["cases_faults.hang"], case_limit=15)
    for rank in (0, 1):
        assert f"rank {rank} did not finish it" in found["cases_faults.hang"]
    assert found["cases_faults.hang"].count("cases_faults.py") == 2


def test_a_rank_that_aborts_at_its_end_is_seen(tmp_path: Path):
    found = launch(1, tmp_path, ["cases_faults.abort"])
    assert not found["cases_faults.abort"] and "rank 0 ended with -6" in found["end"]


def test_the_documented_table_is_the_counted_one():
    assert formulas.table() in DOCS.read_text(encoding="utf-8")
