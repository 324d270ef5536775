"""The numbers of the page as text."""

import pytest

from moga.report.html import environments, settings_of
from moga.report.results import load_results
from moga.report.tables import cards, headline, spans, width_rows
from moga.study.records import StudyError


def numbers(card):
    return {label: number for label, number, _ in card.numbers}


def test_a_card_per_recipe_says_drift_regret_and_verdict(make_study):
    results = load_results(make_study({"moga-row": {}, "adamw": {"drift": -0.9, "optimum": -3.0}}))
    flat, falling = cards(results)
    assert (flat.kind, flat.word, flat.sign) == ("yes", "transfers", "✓")
    assert (falling.kind, falling.word, falling.sign) == ("no", "does not transfer", "✗")
    assert numbers(falling)["drift"].startswith("−0.90 ± ")
    assert float(numbers(falling)["regret"]) > 0.1
    assert numbers(flat)["best learning rate"] == "0.0604"
    assert numbers(falling)["best learning rate"] == "0.121"  # at the smallest width, a quarter of it at the largest
    assert flat.numbers[1][2] == "nats per token, at width 128, 2 seeds"
    assert f"adamw: {falling.text}".lower() == results.summaries[1].verdict.lower()
    assert flat.numbers[-1] == ("lowest loss", "1.965", "measured, at width 128")
    assert headline(results) == "moga-row: the learning rate transfers; adamw: it does not."


def test_unknown_is_said_as_unknown(make_study):
    results = load_results(
        make_study({"low": {"optimum": -9.0}, "high": {"optimum": 2.0}, "lost": {"diverges": -99.0}})
    )
    assert headline(results) == "low, high and lost: unknown whether the learning rate transfers."
    found = cards(results)
    assert {(card.word, numbers(card)["drift"], numbers(card)["regret"]) for card in found} == {("unknown",) * 3}
    assert {numbers(card)["best learning rate"] for card in found} == {"unknown"}
    rows = {row.recipe: row for row in width_rows(results)}
    assert all(row.unknown for row in rows.values())
    assert rows["low"].optimum == "unknown: at the edge of the grid, try below 0.00781 (2<sup>−7</sup>)"
    assert rows["high"].optimum == "unknown: at the edge of the grid, try above 0.5 (2<sup>−1</sup>)"
    assert rows["lost"].optimum == "unknown: every run diverged"
    assert rows["lost"].tokens_per_second == "–"
    assert (rows["lost"].best_loss, rows["lost"].best_rate, rows["lost"].fitted_loss) == ("diverged", "–", "–")
    assert (rows["low"].fitted_loss, rows["low"].best_rate) == ("–", "0.00781")


def test_headline_when_nothing_transfers(make_study):
    results = load_results(make_study({"adamw": {"drift": -0.9, "optimum": -3.0}}))
    assert headline(results) == "adamw: the learning rate does not transfer."


def test_too_few_rates_are_named(make_study):
    rows = width_rows(load_results(make_study({"a": {"exponents": (-4, -3)}})))
    assert rows[0].optimum == "unknown: 2 of the 3 rates that a minimum takes"


def test_width_rows_count_runs_tokens_and_speed(make_study):
    rows = width_rows(load_results(make_study({"a": {"diverges": 3.05}}, widths=(32,))))
    (row,) = rows
    assert row.runs == "14, 1 diverged"
    assert row.tokens == f"{1024 * (200 * 13 + 50):,}"
    assert row.tokens_per_second == "62,500"
    assert row.optimum == "0.0604 (2<sup>−4.05</sup>) ± 0.05 octaves"
    assert (row.fitted_loss, row.best_loss, row.best_rate, row.grid) == ("2.205", "2.205", "0.0625", "7 × 2")


def test_the_methods_say_which_runs_there_are(make_study):
    results = load_results(make_study({"a": {}}, widths=(32, 64)))
    assert spans(results) == "a: 30 at width 32 and 64, 8 learning rates from 0.00781 to 0.5, seeds 0 and 1."


def test_settings_and_machine_are_told_once(make_study):
    results = load_results(make_study({"a": {}}))
    settings = settings_of(results.study)
    assert settings["weight decay"] == "0"
    assert settings["betas"] == "0.9, 0.95"
    assert settings["clip"] == "none"
    assert settings["corpus train bytes"] == "9,000,000"
    assert environments(results.records) == [
        {
            "moga": "0.1.0",
            "torch": "2.13.0",
            "transformers": "5.24.0",
            "python": "3.11.7",
            "machine": "x86_64",
            "cpus": "2",
            "threads": "1",
        }
    ]


def test_no_study_and_no_finished_run_are_errors(make_study, tmp_path):
    with pytest.raises(StudyError, match="holds no study"):
        load_results(tmp_path / "nothing")
    directory = make_study({"a": {}})
    (directory / "records.jsonl").unlink()
    with pytest.raises(StudyError, match="no finished run in .*: run `moga transfer --out"):
        load_results(directory)
