"""The page: complete, self-contained, and working in a real browser without a network."""

import json
import re
import shutil
import subprocess

import pytest
from markupsafe import escape

from moga.report.page import write_report

TWO = {"moga-row": {}, "adamw": {"drift": -0.9, "optimum": -3.0}}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def page(make_study):
    return write_report(make_study(TWO)).read_text(encoding="utf-8")


def without_plotly(page):
    """The page without the largest script, which is plotly.js."""
    scripts = re.findall(r"<script>.*?</script>", page, flags=re.DOTALL)
    return page.replace(max(scripts, key=len), "")


def test_the_verdict_comes_before_any_figure(page):
    assert page.index("moga-row: the learning rate transfers; adamw: it does not.") < page.index('class="plot')
    assert page.count('class="plot transfer"') == 2


def test_command_versions_and_machine_are_there(page):
    assert "<pre><code>moga transfer --preset quick --out runs/demo</code></pre>" in page
    assert '<th scope="row">torch</th><td>2.13.0</td>' in page
    assert '<th scope="row">machine</th><td>x86_64</td>' in page


def test_nothing_is_loaded_from_elsewhere(page):
    text = without_plotly(page)
    assert len(text) < len(page) - 1_000_000  # plotly.js is inside, once
    assert "default-src 'none'" in text
    assert not re.findall(r"""(?:src|href)\s*=|@import|url\(|https?://""", text)


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
    text = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)[1]
    assert "<" not in text
    assert set(json.loads(text)) == {"transfer", "drift", "curves"}


def open_in_browser(path, profile):
    """The page's DOM after its scripts ran, and what the browser's console said. Every host name is unreachable."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.fail("no Chromium found; install it (Debian: apt-get install chromium), or unset MOGA_REQUIRE_BROWSER")
    words = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    words += "disable-component-update disable-sync disable-dev-shm-usage enable-logging=stderr dump-dom"
    options = [f"--{word}" for word in words.split()]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000", f"--user-data-dir={profile}"]
    run = subprocess.run([program, *options, path.as_uri()], capture_output=True, text=True, timeout=150, check=True)
    return run.stdout, [line for line in run.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["drifts", "edge", "lost"])
def test_the_page_draws_itself_without_network_or_complaint(make_study, tmp_path, kind):
    fakes = {"drifts": {"drift": -0.9, "optimum": -3.0}, "edge": {"optimum": -9.0}, "lost": {"diverges": -99.0}}
    path = write_report(make_study({"moga-row": {}, "other": fakes[kind]}))
    dom, console = open_in_browser(path, tmp_path / "profile")
    assert console == []
    assert 'data-ready="true"' in dom
    drawn = re.findall(r'class="plot [a-z]+ js-plotly-plot', dom)
    assert len(drawn) == 4  # two recipes: loss against learning rate, training curves
    assert "main-svg" in dom


@pytest.mark.browser
def test_the_console_check_sees_a_request_and_an_error(tmp_path):
    path = tmp_path / "bad.html"
    policy = "default-src 'none'; script-src 'unsafe-inline'"
    path.write_text(
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<script>fetch('https://example.org/').catch(() => 0); missing();</script>"
    )
    _, console = open_in_browser(path, tmp_path / "profile")
    assert any("Content Security Policy" in line for line in console)
    assert any("missing is not defined" in line for line in console)
