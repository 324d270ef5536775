"""Losses, names and seeds that are not those of the built-in models: units, long names, one seed beside two."""

import json
from dataclasses import replace

import pytest

from moga.report.curves import curve_views
from moga.report.figures import drift_png, transfer_png, write_figures
from moga.report.page import render_page
from moga.report.plots import drift_figure, transfer_panel
from moga.report.results import load_results
from moga.report.tables import cards, width_rows
from moga.study.records import config_key

LONG = "a_company.language_models.experimental.regressions"


def rewritten(directory, change):
    """The directory with the records for which ``change``, which may edit one, is true."""
    path = directory / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(one) + "\n" for one in records if change(one)))
    return directory


@pytest.mark.parametrize(("factor", "lowest"), [(1e-4, "0.0001967"), (3e7, "59017500")])
def test_a_loss_of_ones_own_has_its_own_units(make_study, factor, lowest):
    def own(record):
        record["config"]["family"] = "net:make"
        record["key"] = config_key(record["config"])
        result = record["result"]
        result["loss"] = result["loss"] and factor * result["loss"]
        result["curve"] = [[step, factor * loss] for step, loss in result["curve"]]
        return True

    directory = rewritten(make_study({"a": {"drift": -0.9, "optimum": -3.0}}), own)
    study = json.loads((directory / "study.json").read_text())
    study["settings"]["family"] = "net:make"
    (directory / "study.json").write_text(json.dumps(study))
    results = load_results(directory)
    panels = [transfer_panel(results, results.summaries[0]), curve_views(results)[0]["panels"]["a"]]
    titles = [panel["layout"]["yaxis"]["title"]["text"] for panel in panels]
    assert titles == ["validation loss (units of your loss)", "training loss (units of your loss)"]
    assert transfer_png(results).axes[0].get_ylabel() == titles[0]
    [card] = cards(results)
    assert card.numbers[-1][1] == width_rows(results)[-1].best_loss == lowest
    assert card.numbers[1][2].startswith("units of your loss")
    page = render_page(results)
    assert "nats" not in page.partition("<script>")[0] and "256 values" not in page


def test_long_names_are_short_in_pictures(make_study):
    names = [f"{LONG}.{part}:descent" for part in ("first", "second")] + [r"$\frac{$"]
    results = load_results(make_study({name: {} for name in names}))
    short = ["…:descent", "…:descent (2)", r"$\frac{$"]
    assert [one["name"] for one in drift_figure(results)["legend"]] == short
    assert [one["group"] for one in drift_figure(results)["legend"]] == names
    panels = [panel.get_title(loc="left") for panel in transfer_png(results).axes if panel.get_visible()]
    legend = [text.get_text() for text in drift_png(results).axes[0].get_legend().get_texts()]
    assert panels == legend == [*short[:2], r"\$\frac{\$"]
    write_figures(results)  # would raise where the last were taken for mathematics


def test_one_seed_beside_two_is_said(make_study):
    directory = make_study({"a": {}})
    assert "averaged over 2 seeds" in render_page(load_results(directory))
    rewritten(directory, lambda one: (one["config"]["width"], one["config"]["seed"]) != (128, 1))
    results = load_results(directory)
    assert "averaged over 1 to 2 seeds" in render_page(results)
    assert cards(results)[0].numbers[1] == ("regret", "−0.001", "nats per token, at width 128, 1 seed")


def test_error_bars_stay_inside_the_figure(make_study):
    results = load_results(make_study({"a": {"drift": -0.9, "optimum": -3.0}}))
    [summary] = results.summaries
    fits = tuple(replace(fit, optimum=replace(fit.optimum, stderr_log2=3.0)) for fit in summary.widths)
    figure = drift_figure(replace(results, summaries=[replace(summary, widths=fits)]))
    low, high = figure["layout"]["yaxis"]["range"]
    assert low < min(figure["data"][0]["y"]) - 3 and high > 3


def test_a_regret_that_diverged_has_no_unit(make_study):
    results = load_results(make_study({"a": {"drift": -2.0, "optimum": -2.5, "diverges": 1.5}}))
    assert cards(results)[0].numbers[1] == ("regret", "diverged", "at width 128")


def test_a_function_inside_a_function_keeps_its_name_in_labels(make_study):
    """Plotly takes what stands in angles for a tag and leaves it out."""
    recipe = "own:outer.<locals>.descent"
    drift = drift_figure(load_results(make_study({recipe: {"optimum": -3.0}})))
    assert drift["data"][0]["text"][0].startswith("<b>own:outer.&lt;locals&gt;.descent</b>, width")
