"""The page as text: complete, self-contained, and safe from what stands in records."""

import json
import re

import plotly.offline
import pytest
from markupsafe import escape

from moga.report.html import resource
from moga.report.page import write_report
from moga.study.settings import Settings
from moga.study.train import DIVERGED_STEPS

TWO = {"moga-row": {}, "adamw": {"drift": -0.9, "optimum": -3.0}}
PLOTLY = resource("vendor/plotly-basic.min.js")


@pytest.fixture
def page(make_study):
    return write_report(make_study(TWO)).read_text(encoding="utf-8")


def without_plotly(page):
    assert page.count(PLOTLY) == 1
    return page.replace(PLOTLY, "")


def test_plotly_is_the_version_whose_schema_the_figures_are_checked_against():
    assert re.search(r"v(\d\S+)", PLOTLY)[1] == plotly.offline.get_plotlyjs_version()


def test_the_verdict_comes_before_any_figure(page):
    assert page.index("moga-row: the learning rate transfers; adamw: it does not.") < page.index('class="plot')
    assert page.index("<dt>drift</dt><dd>−0.90 ±") < page.index('class="plot')
    assert page.count('class="plot"') == 2 + 1 + 2  # loss and training curves of each, and the drift


def test_command_versions_and_machine_are_there(page):
    assert "<pre><code>moga transfer --preset quick --out runs/demo</code></pre>" in page
    assert '<th scope="row">torch</th><td>2.13.0</td>' in page
    assert '<th scope="row">machine</th><td>x86_64</td>' in page


def test_nothing_is_loaded_from_elsewhere(page):
    text = without_plotly(page)
    assert len(text) < 220_000
    assert "default-src 'none'" in text
    assert not re.findall(r"""(?:src|href)\s*=|@import|url\(|https?://(?!www\.w3\.org/2000/svg")""", text)


def test_words_from_the_records_cannot_break_the_page(make_study):
    directory = make_study(TWO)
    study = json.loads((directory / "study.json").read_text())
    study["commands"] = ["moga transfer --data '</script><b>&'"]
    study["corpus"]["name"] = "<i>"
    (directory / "study.json").write_text(json.dumps(study))
    page = write_report(directory).read_text(encoding="utf-8")
    assert str(escape(study["commands"][0])) in page
    assert "<i>" not in without_plotly(page)
    assert "</script><b>" not in page


def test_figures_stand_as_json_that_cannot_end_its_element(page):
    texts = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert len(texts) == 2 + 1 + 2 * 4  # training curves: at the best rate, and of three widths
    for text in texts:
        assert "<" not in text
        assert set(json.loads(text)) == {"data", "layout", "legend", "table"}


def test_no_table_calls_a_fitted_number_a_measured_one(page):
    heads = re.search(r"<th scope=.col.>fitted optimum.*?</tr>", page, re.DOTALL)[0]
    assert re.findall(r"<th[^>]*>([a-z ]+)<small>([a-z, ×]+)</small>", heads)[:4] == [
        ("fitted optimum", "learning rate, of the parabola"),
        ("fitted loss", "of the parabola"),
        ("lowest loss", "measured, mean of seeds"),
        ("at rate", "measured"),
    ]


@pytest.mark.parametrize(
    "number",
    ["loss", "diverged", "lowest loss", "fitted optimum", "drift", "regret", "verdict", "training curve", "runs"],
)
def test_the_methods_explain_every_number(page, number):
    methods = page[page.index('id="h-methods"') :]
    assert len(re.search(f"<dt>{number}</dt><dd>(.*?)</dd>", methods, re.DOTALL)[1]) > 60


def test_the_methods_have_the_numbers_that_the_code_has(page):
    methods = " ".join(page[page.index('id="h-methods"') :].split())
    assert "exp(−(loss − lowest loss) / 0.1)" in methods
    assert "regret at most 0.02 nats per token and drift at most 0.15 octave" in methods
    assert f"more than {Settings().margin:g} above the first for {DIVERGED_STEPS} steps in a row" in methods


def test_an_interrupted_study_says_how_to_go_on(make_study, page):
    directory = make_study(TWO)
    study = json.loads((directory / "study.json").read_text())
    assert "Not finished" not in page
    lines = (directory / "records.jsonl").read_text().splitlines()
    for command, words in {
        "moga transfer --out 'my runs'": "goes on where it stopped:",
        "": "it was made from Python",
    }.items():
        (directory / "study.json").write_text(json.dumps(study | {"unfinished": command}))
        shown = " ".join(write_report(directory).read_text(encoding="utf-8").split())
        warning = re.search(r'<div class="warning">.*?</div>', shown)[0]
        assert f"the {len(set(lines))} runs that are there so far" in warning
        assert words in warning
        assert (f"<pre><code>{escape(command)}</code></pre>" in warning) == bool(command)
