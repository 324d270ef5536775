"""The measured part of docs/depth.md: what the records say, and what it is there to show."""

import pytest
from scripts import load_script

from moga.study.verdicts import TRANSFERS_REGRET


@pytest.fixture(scope="module")
def maker():
    return load_script("docs/make_depth.py")


def test_the_page_has_the_tables_that_the_records_give(maker):
    assert maker.page() == maker.PAGE.read_text(), "run: python docs/make_depth.py"


def test_with_branches_by_1_over_k_the_rate_stays_and_the_loss_does_not_rise_and_without_it_does(maker):
    for model in maker.MODELS:
        found = dict(maker.studies(model))
        for one in found["1/K"].verdicts.values():
            assert one.transfers and abs(one.drift) <= 0.15
            assert one.widths[-1].best_loss <= one.widths[0].best_loss + TRANSFERS_REGRET
        for one in found["none"].verdicts.values():
            assert one.widths[-1].best_loss > one.widths[0].best_loss + TRANSFERS_REGRET


def test_the_page_of_studies_has_all_records_and_what_they_give():
    maker = load_script("docs/make_evidence.py")
    assert maker.page() == maker.PAGE.read_text(), "run: python docs/make_evidence.py"
    assert set(maker.STUDIES) == {place.name for place in (maker.ROOT / "records").iterdir() if place.is_dir()}


def test_the_first_page_has_the_table_of_the_records():
    maker = load_script("docs/make_evidence.py")
    rows = [line for line in maker.section("gpt2-width", "") if "| `moga-row` |" in line]
    assert rows and all(row in (maker.ROOT / "README.md").read_text() for row in rows[0].strip().splitlines())
