"""What the buttons beside a figure save, byte by byte, from a page opened as a file."""

from __future__ import annotations

import csv
import io
import json

import pytest
from PIL import Image

pytestmark = pytest.mark.browser


def saved(page, figure, kind):
    """The bytes and the name of what a button saves."""
    with page.expect_download(timeout=120_000) as download:
        # by key: figures are drawn as they come near, which can move a button from under the mouse
        figure.locator(f"[data-save={kind}]").press("Enter")
    return download.value.path().read_bytes(), download.value.suggested_filename


def figures(page, group):
    return page.locator(f"figure[data-group={json.dumps(group)}]")


def table(page, figure):
    """Rows by column name."""
    return list(csv.DictReader(io.StringIO(saved(page, figure, "csv")[0].decode("utf-8"))))


def records(path):
    return [json.loads(line) for line in (path.parent / "records.jsonl").read_text().splitlines()]


def test_loss_csv_is_the_records(open_page, pages):
    page = open_page(pages["transfer"])
    figure = figures(page, "loss").last  # far below, not drawn yet
    assert saved(page, figure, "csv")[1] == "loss-adamw.csv"
    rows = table(page, figure)
    found = {(int(row["width"]), float(row["learning_rate"]), int(row["seed"])): row for row in rows}
    own = [one for one in records(pages["transfer"]) if one["config"]["recipe"] == "adamw"]
    assert len(found) == len(rows) == len(own) > 20
    for one in own:
        row = found[one["config"]["width"], one["config"]["lr"], one["config"]["seed"]]
        assert float(row["validation_loss"]) == one["result"]["loss"]
        assert (row["recipe"], row["diverged"]) == ("adamw", str(one["result"]["diverged"]).lower())


def test_training_csv_is_the_view_that_is_shown(open_page, pages):
    page = open_page(pages["transfer"])
    page.get_by_label("Show", exact=True).select_option("Width 64: every learning rate")
    name = saved(page, figures(page, "training").first, "csv")[1]
    assert name == "training-moga-row-width-64-every-learning-rate.csv"
    rows = table(page, figures(page, "training").first)
    found = {}
    for row in rows:
        key = (row["recipe"], int(row["width"]), float(row["learning_rate"]), int(row["seed"]))
        found.setdefault(key, []).append([int(row["step"]), float(row["training_loss"])])
    own = [
        one
        for one in records(pages["transfer"])
        if one["config"]["recipe"] == "moga-row" and one["config"]["width"] == 64
    ]
    names = ("recipe", "width", "lr", "seed")
    assert found == {tuple(one["config"][name] for name in names): one["result"]["curve"] for one in own}


def test_check_csv_is_the_records(open_page, pages):
    page = open_page(pages["check"])
    figure = figures(page, "moga-row with the planted fault 'scale'").last
    rows = table(page, figure)
    own = [one for one in records(pages["check"]) if one["config"]["plant"] == "scale"]
    sizes = {(one["config"]["size"], one["config"]["seed"]): one["result"]["modules"] for one in own}
    assert len(rows) > 100
    for row in rows:
        assert float(row["size"]) == sizes[int(row["width"]), int(row["seed"])][row["module"]]["change"][-1][1]


def test_smoothness_csv_is_the_records(open_page, pages):
    page = open_page(pages["smoothness"])
    figure = page.locator("figure[data-title^='smoothness'][data-title$='2 layers, after 40 steps']")
    found = {
        (row["norm"], int(row["width"]), int(row["seed"])): float(row["smoothness"]) for row in table(page, figure)
    }
    own = [
        one for one in records(pages["smoothness"]) if (one["config"]["layers"], one["config"]["trained"]) == (2, 40)
    ]
    names = ("norm", "width", "seed")
    assert found == {tuple(one["config"][name] for name in names): one["result"]["smoothness"] for one in own}


def test_text_with_commas_and_quotes_stays_one_cell(open_page, pages, tmp_path):
    name = 'own, "best"'
    path = tmp_path / "report.html"
    text = pages["check"].read_text(encoding="utf-8")
    path.write_text(text.replace('["lm_head"', f"[{json.dumps(name)}"), encoding="utf-8")
    page = open_page(path)
    rows = table(page, page.locator("figure").nth(1))
    assert sum(row["module"] == name for row in rows) == 16


@pytest.mark.parametrize("kind", ["transfer", "check", "smoothness"])
def test_png_is_sharp_on_white_and_not_empty(open_page, pages, kind):
    page = open_page(pages[kind], color_scheme="dark", viewport={"width": 360, "height": 780})
    content, name = saved(page, page.locator("figure").last, "png")
    assert name.endswith(".png")
    with Image.open(io.BytesIO(content)) as image:
        assert (image.format, image.size) == ("PNG", (1600, 1040))
        colours = image.convert("RGB").getcolors(1600 * 1040)
    white = {colour: count for count, colour in colours}[255, 255, 255] / (1600 * 1040)
    assert 0.5 < white < 0.99
    assert len(colours) > 50


def test_every_figure_saves_both_under_a_name_of_its_own(open_page, pages):
    page = open_page(pages["transfer"])
    names = page.locator("figure").evaluate_all("all => all.map(one => one.dataset.file)")
    assert len(set(names)) == len(names) == 11
    for kind in ("csv", "png"):
        assert page.locator(f"figure [data-save={kind}]").count() == 11
