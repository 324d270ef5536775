"""The report of a study of smoothness, from records of which every number is known."""

from __future__ import annotations

import json
from pathlib import Path

import plotly.graph_objects
import pytest
from matplotlib.figure import Figure

from moga.report.smoothness import Constants, Slope, load_constants, page_tables, power, tables, text
from moga.report.smoothness_page import cards, constants_figure, constants_png, write_smoothness_report
from moga.study.records import StudyError, append_record, config_key

EXPONENTS = {"row": 0.0, "spectral": 0.5}


def write(directory, widths=(16, 64, 256), layers=(2,), trained=(0, 10), seeds=(0,), settled=True, unit=3.0):
    """smoothness = unit (width/16)^exponent layers (1 + trained), Lipschitz = 7 in every record."""
    directory.mkdir(parents=True, exist_ok=True)
    study = {"format": 1, "settings": {"measure": "smoothness", "family": "gpt2"}, "corpus": {"name": "words"},
             "commands": ["moga smoothness --out <x>"]}  # fmt: skip
    (directory / "study.json").write_text(json.dumps(study))
    for width in widths:
        for depth in layers:
            for steps in trained:
                for seed in seeds:
                    for norm, exponent in EXPONENTS.items():
                        config = {"norm": norm, "width": width, "layers": depth, "trained": steps, "seed": seed}
                        config |= study["settings"]
                        value = unit * (width / 16) ** exponent * depth * (1 + steps)
                        own = {f"transformer.h.{i}.mlp.c_fc.weight": {"role": "hidden", "lipschitz": 1.0,
                               "smoothness": value / (i + 2), "settled": True} for i in range(7)}  # fmt: skip
                        result = {"smoothness": value, "lipschitz": 7.0, "exponent": exponent, "settled": settled,
                                  "layers": own}  # fmt: skip
                        append_record(directory, {"key": config_key(config), "config": config, "result": result})
    return directory


def test_the_exponent_of_a_power_law():
    assert power({16: [3.0], 64: [6.0], 256: [12.0]}) == Slope(pytest.approx(0.5), pytest.approx(0, abs=1e-7))
    assert power({16: [3.0], 64: [12.0]}) == Slope(1.0, None)
    assert power({16: [3.0, 3.0]}) is None
    assert power({16: [0.0], 64: [1.0]}) is None
    # By hand: x = -1, 0, 1 and y = 0, 1, 0 have the slope 0 and residuals -1/3, 2/3, -1/3, so sqrt(6/9 / 1 / 2).
    slope = power({1: [1.0], 2: [2.0], 4: [1.0]})
    assert slope == Slope(pytest.approx(0, abs=1e-12), pytest.approx((1 / 3) ** 0.5))


def test_tables_say_what_was_measured(tmp_path):
    found = load_constants(write(tmp_path))
    first, lipschitz, trained, *_ = tables(found)
    assert first.title == "gpt2, 2 layers, after 0 steps: smoothness, from below"
    assert first.header == ["norm", "width 16", "64", "256", "exponent", "theory"]
    assert first.rows == [
        ["row", "6", "6", "6", "+0.00 ± 0.00", "0"],
        ["spectral", "6", "12", "24", "+0.50 ± 0.00", "0.5"],
    ]
    assert lipschitz.rows[0] == ["row", "7", "7", "7", "+0.00 ± 0.00"]
    assert trained.rows[1][1:4] == ["66", "132", "264"]
    layers = tables(found)[-1]
    assert layers.title == "spectral: layers with the largest smoothness, 2 layers, after 10 steps"
    assert layers.header == ["layer", "role", "width 16", "256", "exponent"]
    assert layers.rows[0] == ["transformer.h.0.mlp.c_fc.weight", "hidden", "33", "132", "+0.50 ± 0.00"]
    assert len(layers.rows) == 5


def test_the_page_has_layers_at_every_size_and_time(tmp_path):
    found = load_constants(write(tmp_path, layers=(2, 4), seeds=(0, 1)))
    shown = {table.title: table for table in page_tables(found) if "layers with" in table.title}
    assert len(shown) == 2 * 2 * 2
    before = shown["spectral: layers with the largest smoothness, 4 layers, after 0 steps"]
    assert before.header == ["layer", "role", "width 16", "64", "256", "exponent"]
    assert before.rows[1][2:] == ["4", "8", "16", "+0.50 ± 0.00"]


def test_the_cards_say_how_smoothness_grows(tmp_path):
    row, spectral = cards(load_constants(write(tmp_path / "a")))
    assert [number for _, number, _ in row.numbers] == ["+0.00 ± 0.00", "0", "66"]
    assert spectral.numbers[0] == ("exponent of smoothness", "+0.50 ± 0.00", "octaves per doubling of the width")
    assert spectral.text == "Hidden matrices in the norm spectral; 2 layers, after 10 steps."
    deep = cards(load_constants(write(tmp_path / "b", widths=(32,), layers=(2, 4), trained=(0,))))[0]
    assert deep.numbers[0] == ("exponent of smoothness", "+1.00", "octaves per doubling of the layers")
    one = cards(load_constants(write(tmp_path / "c", widths=(32,), trained=(0,))))[0]
    assert [label for label, *_ in one.numbers] == ["theory", "smoothness at width 32"]


def test_depth_is_an_axis_too(tmp_path):
    found = load_constants(write(tmp_path, widths=(32,), layers=(2, 4, 8), trained=(0,), seeds=(0, 1)))
    first = tables(found)[0]
    assert first.title == "gpt2, width 32, after 0 steps: smoothness, from below"
    assert first.header == ["norm", "layers 2", "4", "8", "exponent"]
    assert first.rows[0] == ["row", "6", "12", "24", "+1.00 ± 0.00"]
    without = [one for one in found.records if one["config"]["norm"] == "row" or one["config"]["layers"] == 2]
    first, *_ = tables(Constants(found.directory, found.study, without))
    assert [row[0] for row in first.rows] == ["row"]  # spectral was measured at one depth: nothing about growth


def test_one_size_has_no_exponent(tmp_path):
    found = load_constants(write(tmp_path, widths=(16,), trained=(0,)))
    assert tables(found)[0].rows[0] == ["row", "6", "", "0"]
    path = write_smoothness_report(tmp_path)
    assert path.exists() and not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("unit", [3e-9, 3, 3e4, 3e9])
def test_text_fits_in_80_columns_and_says_from_below(tmp_path, unit):
    many = write(tmp_path, widths=(16, 32, 64, 128, 256, 512), seeds=(0, 1), settled=False, unit=unit)
    said = text(load_constants(many))
    assert max(map(len, said.splitlines())) <= 80
    assert "Smoothness is an estimate from below" in said
    assert "48 of 48 still grew" in " ".join(said.split())


def test_figures_are_what_plotly_takes(tmp_path):
    found = load_constants(write(tmp_path))
    figure = constants_figure(found, "smoothness", "width", {"layers": 2, "trained": 0})
    plotly.graph_objects.Figure(data=figure["data"], layout=figure["layout"])
    assert figure["table"]["columns"] == ["norm", "width", "seed", "smoothness"]
    assert ["spectral", 64, 0, 12.0] in figure["table"]["rows"]
    assert [(one["group"], one["symbol"]) for one in figure["legend"]] == [("row", "circle"), ("spectral", "square")]
    lines = {trace["name"]: trace["y"] for trace in figure["data"]}
    assert lines["spectral"] == pytest.approx([6, 12, 24])
    assert lines["spectral: theory"] == pytest.approx([6, 12, 24])
    assert lines["row: theory"] == pytest.approx([6, 6, 6])
    other = constants_figure(found, "lipschitz", "width", {"layers": 2, "trained": 0})
    assert [trace["name"] for trace in other["data"]] == ["row", "spectral"]


def test_pngs_have_a_panel_per_constant_and_case(tmp_path):
    figure = constants_png(load_constants(write(tmp_path)), "width")
    assert isinstance(figure, Figure)
    assert [len(axes.get_lines()) for axes in figure.axes] == [4, 4, 2, 2]


def test_the_page_stands_alone(tmp_path):
    path = write_smoothness_report(write(tmp_path, layers=(2, 4)))
    page = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html"
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "estimate from below" in page
    assert "moga smoothness --out &lt;x&gt;" in page
    assert '<td class="n">+0.50 ±\xa00.00</td>' in page
    assert "a figure has every seed" in page
    assert page.count('class="plot"') == 2 * (2 * 2 + 3 * 2)
    assert {one.name for one in tmp_path.glob("*.png")} == {"smoothness-width.png", "smoothness-depth.png"}


def test_the_methods_say_which_seeds_each_size_has(tmp_path):
    write(tmp_path, layers=(2, 4), trained=(0,))
    write(tmp_path, layers=(2,), trained=(10,), widths=(16,), seeds=(0, 1))
    write(tmp_path, layers=(2,), trained=(10,), widths=(64,))
    page = " ".join(write_smoothness_report(tmp_path).read_text(encoding="utf-8").split())
    assert (
        "Runs: 2 layers, after 0 steps: width 16, 64, 256 with seed 0; 4 layers, after 0 steps: width 16, 64, 256 with "
        "seed 0; 2 layers, after 10 steps: width 16 with seed 0, 1 and width 64 with seed 0. The CSV"
    ) in page


def test_directories_without_such_a_study(tmp_path, make_study):
    with pytest.raises(StudyError, match="holds no study of smoothness; `moga report .*` draws what it holds"):
        load_constants(make_study({"moga-row": {}}))
    write(tmp_path / "empty", widths=())
    with pytest.raises(StudyError, match="no finished measurement in .*: run `moga smoothness --out"):
        load_constants(tmp_path / "empty")
    with pytest.raises(StudyError, match="holds no study"):
        load_constants(tmp_path / "nowhere")


def test_the_page_in_the_documents_shows_what_was_recorded():
    root = Path(__file__).parents[2]
    found = load_constants(root / "records" / "smoothness-width")
    recorded = {table.title: table.rows for table in tables(found)}
    lines = [line for line in (root / "docs" / "smoothness.md").read_text().splitlines() if line.startswith("| `")]
    assert len(lines) == 8
    for line in lines:
        norm, steps, *shown = (cell.strip(" `") for cell in line.strip("|").split("|"))
        [row] = [
            one for one in recorded[f"gpt2, 2 layers, after {steps} steps: smoothness, from below"] if one[0] == norm
        ]
        assert [float(number) for number in shown[:3]] == [float(number) for number in row[1:4]]
        assert shown[3:] == row[4:]
