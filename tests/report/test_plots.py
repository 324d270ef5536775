"""The interactive figures: valid plotly, and they show what the records say."""

import math

import plotly.graph_objects as go
import pytest

from moga.report.curves import curve_views
from moga.report.plots import drift_figure, transfer_panel
from moga.report.results import load_results

STUDIES = {
    "two recipes": ({"moga-row": {}, "adamw": {"drift": -0.9}}, {}),
    "six recipes": ({f"r{i}": {"drift": -0.1 * i} for i in range(6)}, {}),
    "one width": ({"moga-row": {}}, {"widths": (64,)}),
    "one seed": ({"moga-row": {}}, {"seeds": (0,)}),
    "no regret run": ({"moga-row": {}}, {"regret": False}),
    "edge": ({"moga-row": {"optimum": -9.0}}, {}),
    "one rate": ({"moga-row": {"exponents": (-4,)}}, {}),
    "all diverged": ({"moga-row": {"diverges": -99.0}}, {}),
}


@pytest.fixture(params=STUDIES.values(), ids=STUDIES.keys())
def results(request, make_study):
    recipes, options = request.param
    return load_results(make_study(recipes, **options))


def test_every_figure_is_valid(results):
    figures = [transfer_panel(results, summary) for summary in results.summaries]
    figures += [drift_figure(results)]
    figures += [panel for view in curve_views(results) for panel in view["panels"].values()]
    for figure in figures:
        go.Figure(data=figure["data"], layout=figure["layout"])  # plotly refuses what it does not know
        assert {trace["legendgroup"] for trace in figure["data"]} == {one["group"] for one in figure["legend"]}


def of_symbol(figure, symbol):
    return [trace for trace in figure["data"] if trace.get("marker", {}).get("symbol") == symbol]


def test_each_width_has_its_optimum_with_the_error_over_seeds(make_study):
    results = load_results(make_study({"moga-row": {"optimum": -4.3}}))
    marks = of_symbol(transfer_panel(results, results.summaries[0]), "diamond")
    assert [mark["legendgroup"] for mark in marks] == ["32", "64", "128"]
    for mark in marks:
        assert mark["x"] == pytest.approx([-4.35], abs=1e-6)  # seeds at -0.1 and 0
        assert mark["error_x"]["visible"]
        assert mark["error_x"]["array"] == pytest.approx([0.05], abs=1e-6)


def test_one_seed_has_no_error_bar(make_study):
    results = load_results(make_study({"moga-row": {}}, seeds=(1,)))
    marks = of_symbol(transfer_panel(results, results.summaries[0]), "diamond")
    assert not any(mark["error_x"]["visible"] for mark in marks)
    assert "one seed: no uncertainty" in marks[0]["text"][0]


@pytest.mark.parametrize(("optimum", "side"), [(-9.0, "left"), (1.0, "right")])
def test_an_optimum_at_the_edge_is_shown_as_unknown(make_study, optimum, side):
    results = load_results(make_study({"moga-row": {"optimum": optimum, "diverges": 99.0}}))
    figure = transfer_panel(results, results.summaries[0])
    assert len(of_symbol(figure, f"triangle-{side}-open")) == 3
    assert not of_symbol(figure, "diamond")
    note = figure["layout"]["annotations"][0]
    assert (note["text"], note["xanchor"]) == ("edge of the grid: optimum unknown", side)
    assert drift_figure(results)["data"] == []


def test_diverged_runs_are_marked_at_the_top(make_study):
    results = load_results(make_study({"moga-row": {"diverges": 2.05}}))
    figure = transfer_panel(results, results.summaries[0])
    marks = of_symbol(figure, "x")
    assert len(marks) == 3
    assert all(y > results.loss_range[1] for mark in marks for y in mark["y"])
    assert "1 of 2 runs diverged" in " ".join(marks[0]["text"])  # the seeds' optima differ, so do their limits
    assert "2 of 2 runs diverged" in " ".join(marks[0]["text"])


def test_the_regret_run_is_marked_apart_from_the_grid(make_study):
    results = load_results(make_study({"adamw": {"drift": -0.9, "optimum": -3.3}}))
    (mark,) = of_symbol(transfer_panel(results, results.summaries[0]), "circle-open")
    assert mark["legendgroup"] == "128"
    assert mark["x"] == pytest.approx([math.log2(results.summaries[0].regret_lr)] * 2)


def test_all_recipes_share_the_loss_axis_and_the_number_of_octaves(make_study):
    results = load_results(make_study({"a": {}, "b": {"exponents": range(-12, -1), "floor": 3.0}}))
    layouts = [transfer_panel(results, summary)["layout"] for summary in results.summaries]
    assert layouts[0]["yaxis"]["range"] == layouts[1]["yaxis"]["range"]
    spans = [layout["xaxis"]["range"][1] - layout["xaxis"]["range"][0] for layout in layouts]
    assert spans[0] == pytest.approx(spans[1])


def test_drift_is_measured_from_the_smallest_width(make_study):
    results = load_results(make_study({"a": {}, "b": {"drift": -0.5, "optimum": -3.0}}))
    flat, falling = drift_figure(results)["data"]
    assert flat["y"] == pytest.approx([0, 0, 0], abs=1e-6)
    assert falling["y"] == pytest.approx([0, -0.5, -1], abs=1e-6)


def test_widths_differ_in_dashes_and_recipes_in_symbols(make_study):
    results = load_results(make_study({"a": {}, "b": {"drift": -0.5, "optimum": -3.0}}))
    figure = transfer_panel(results, results.summaries[0])
    lines = {trace["legendgroup"]: trace["line"] for trace in figure["data"] if trace["mode"] == "lines"}
    assert [one["group"] for one in figure["legend"]] == list(lines) == ["32", "64", "128"]
    assert [(one["colour"], one["dash"]) for one in figure["legend"]] == [
        (line["color"], line["dash"]) for line in lines.values()
    ]
    assert len({line["dash"] for line in lines.values()}) == 3
    assert [one["symbol"] for one in drift_figure(results)["legend"]] == ["circle", "square"]


def test_tables_are_the_records_in_full(make_study):
    results = load_results(make_study({"moga-row": {"diverges": 2.05}, "adamw": {"drift": -0.5}}))
    table = transfer_panel(results, results.summaries[0])["table"]
    assert table["columns"] == ["recipe", "width", "learning_rate", "seed", "validation_loss", "diverged"]
    runs = {tuple(row[:4]): row[4:] for row in table["rows"]}
    own = [record for record in results.records if record["config"]["recipe"] == "moga-row"]
    assert len(runs) == len(own) == 44
    for record in own:
        config, result = record["config"], record["result"]
        key = ("moga-row", config["width"], config["lr"], config["seed"])
        assert runs[key] == [result["loss"], result["diverged"]]
    moves = drift_figure(results)["table"]["rows"]
    optima = [(summary.recipe, fit) for summary in results.summaries for fit in summary.widths if fit.known]
    first = {recipe: fit.optimum.lr for recipe, fit in reversed(optima)}
    assert moves == [
        [recipe, fit.width, fit.optimum.lr, fit.optimum.stderr_log2, math.log2(fit.optimum.lr / first[recipe])]
        for recipe, fit in optima
    ]


def test_training_curves_can_be_chosen_and_diverged_ones_end_in_a_cross(make_study):
    results = load_results(make_study({"a": {"diverges": 2.0}, "lost": {"diverges": -99.0}}, widths=(32, 64)))
    views = curve_views(results)
    assert [view["label"] for view in views] == [
        "Each width at its best learning rate",
        "Width 32: every learning rate",
        "Width 64: every learning rate",
    ]
    best = views[0]["panels"]["a"]["data"]
    assert {trace["mode"] for trace in best} == {"lines"}
    assert len(best) == 4  # two widths, two seeds
    assert views[0]["panels"]["lost"]["layout"]["annotations"][0]["text"] == "every run diverged"
    rates = views[1]["panels"]["a"]
    assert {trace["line"]["dash"] for trace in rates["data"]} >= {"solid", "dot", "dash"}
    lost = [trace for trace in rates["data"] if trace["meta"]["row"][4]]
    assert {(trace["marker"]["symbol"], trace["marker"]["size"][-1]) for trace in lost} == {("x", 9)}
    assert {sum(trace["marker"]["size"]) for trace in lost} == {9}
    assert rates["table"]["columns"][-2:] == ["step", "training_loss"]
    assert rates["layout"]["yaxis"]["range"] == views[1]["panels"]["lost"]["layout"]["yaxis"]["range"]
