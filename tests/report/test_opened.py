"""The pages of the committed records in a browser: for every window, eye and hand, on paper, without a network."""

from __future__ import annotations

import json
from itertools import product

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import Fake, fake_record, write_study

pytestmark = pytest.mark.browser
KINDS = ("transfer", "check", "smoothness")
WINDOWS = {"phone": {"width": 360, "height": 780}, "desktop": {"width": 1280, "height": 900}}
UNDRAWN = ".plot:not(.js-plotly-plot)"
FOCUS = "[document.activeElement.dataset.number, getComputedStyle(document.activeElement).outlineStyle]"
GROUNDS = "[...document.querySelectorAll('.main-svg:first-child')].map(x => getComputedStyle(x).backgroundColor)"
CONTROLS = "main :is(button, select, a[href], [tabindex])"


def ready(page):
    page.wait_for_selector("html[data-ready=true]")
    return page


def draw_all(page):
    """Scroll until every figure has been near the window."""
    for place in page.query_selector_all(".plot"):
        place.scroll_into_view_if_needed()
    while page.locator(UNDRAWN).count():  # the policy of the page forbids Playwright's wait_for_function
        page.wait_for_timeout(20)


def wait_until(page, holds, seconds=10):
    """The policy of the page forbids Playwright's own ``wait_for_function``."""
    for _ in range(50 * seconds):
        if holds():
            return
        page.wait_for_timeout(20)
    pytest.fail(f"not within {seconds} s")


def too_wide(page):
    """How far the page reaches beyond its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def violations(page):
    return Axe().run(page).generate_snapshot()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_accessible_and_fits(open_page, pages, kind, scheme):
    page = ready(open_page(pages[kind], color_scheme=scheme))
    draw_all(page)
    assert violations(page) == ""
    paper = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 29)"}[scheme]
    assert set(page.evaluate(GROUNDS)) == {page.evaluate("getComputedStyle(document.body).backgroundColor")} == {paper}
    for window in WINDOWS.values():
        page.set_viewport_size(window)
        assert too_wide(page) <= 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_the_verdict_are_seen_first(open_page, pages, kind):
    page = ready(open_page(pages[kind], viewport=WINDOWS["phone"], has_touch=True))
    card, figure = page.locator(".cards .numbers").first, page.locator("figure").first
    assert 0 < card.bounding_box()["y"] < 700
    assert card.bounding_box()["y"] < figure.bounding_box()["y"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_control_is_reached_by_keyboard_and_shows_it(open_page, pages, kind):
    page = ready(open_page(pages[kind]))
    draw_all(page)
    page.evaluate(f"[...document.querySelectorAll({CONTROLS!r})].forEach((one, i) => {{ one.dataset.number = i }})")
    page.evaluate("window.scrollTo(0, 0)")
    seen = []
    for _ in range(page.locator(CONTROLS).count()):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUS))
    assert seen == [[str(number), "solid"] for number in range(len(seen))]
    assert len(seen) > 10


def test_a_legend_hides_lines_by_keyboard(open_page, pages):
    page = ready(open_page(pages["transfer"]))
    draw_all(page)
    button = page.get_by_role("button", name="width 64", exact=True).first
    lines = "one => one._fullData.filter(line => line.visible).length"
    shown = f"[...document.querySelectorAll('figure[data-group=loss] .plot')].map({lines})"
    before = page.evaluate(shown)
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    after = page.evaluate(shown)
    assert len(after) == 5 and all(one < other for one, other in zip(after, before, strict=True))
    page.keyboard.press("Space")
    assert page.evaluate(shown) == before


def test_another_view_of_the_training_curves(open_page, pages):
    page = ready(open_page(pages["transfer"]))
    draw_all(page)
    page.get_by_label("Show", exact=True).select_option("Width 64: every learning rate")
    names = page.locator("figure[data-group=training]").first.locator(".legend button").all_inner_texts()
    assert ["".join(name.split()) for name in names] == ["2−5", "2−4", "2−3", "2−2"]
    assert page.locator("figure[data-group=training]").first.locator(".legend sup").count() == 4


@pytest.mark.parametrize("kind", KINDS)
def test_on_paper_everything_is_whole_on_white_without_controls(open_page, pages, kind):
    page = ready(open_page(pages[kind], color_scheme="dark", viewport={"width": 688, "height": 1017}))
    # The window is as wide as A4 less its margins.
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator(UNDRAWN).count() == 0
    wide = (
        "[...document.querySelectorAll('figure, table, pre, .main-svg')].map(one => one.getBoundingClientRect().right)"
    )
    assert max(page.evaluate(wide)) < 689
    assert too_wide(page) <= 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert set(page.evaluate(GROUNDS)) == {"rgb(255, 255, 255)"}
    assert not any(one.is_visible() for one in page.query_selector_all("[data-save], select"))
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert set(page.evaluate(GROUNDS)) == {"rgb(20, 23, 29)"}


@pytest.mark.parametrize("fake", [{"optimum": -9.0}, {"diverges": -99.0}], ids=["edge", "lost"])
def test_a_page_without_answers_is_drawn_too(open_page, make_study, fake):
    from moga.report.page import write_report

    page = ready(open_page(write_report(make_study({"other": fake}))))
    draw_all(page)
    assert page.locator(".js-plotly-plot").count() == 2
    assert page.get_by_text("No recipe has a known optimum at two widths").is_visible()


def test_names_that_are_long_or_alike_break_nothing(open_page, make_study):
    from moga.report.page import write_report

    long = "a_company.language_models.experimental." + "a_very_long_module_name" * 2 + ":an_optimizer_of_our_own"
    page = ready(open_page(write_report(make_study({long: {}, "A b": {}, "a-b": {}})), viewport=WINDOWS["phone"]))
    draw_all(page)
    assert too_wide(page) <= 0
    files = page.locator("figure").evaluate_all("all => all.map(one => one.dataset.file)")
    assert len(set(files)) == len(files) == 7
    assert all(one.locator("button").count() for one in page.locator(".legend").all())
    button = page.get_by_role("button", name="…:an_optimizer_of_our_own")
    assert button.get_attribute("title") == long
    page.set_viewport_size({"width": 688, "height": 1017})
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert too_wide(page) <= 0


def test_the_checks_see_faults(open_page, pages):
    page = ready(open_page(pages["smoothness"], viewport=WINDOWS["phone"]))
    page.evaluate("document.querySelector('.note').style.color = '#bbb'")
    page.evaluate("document.querySelector('[data-save]').replaceChildren()")
    page.evaluate("document.querySelector('[data-save]').removeAttribute('aria-label')")
    said = violations(page)
    assert "color-contrast (serious) : 1" in said and "button-name (critical) : 1" in said
    page.evaluate("document.querySelector('.lead').style.width = '400px'")
    assert too_wide(page) > 0
    page.evaluate("fetch('https://example.org/').catch(() => 0)")
    page.evaluate("setTimeout(() => missing(), 0)")
    for words in ("Content Security Policy", "missing is not defined"):
        wait_until(page, lambda words=words: any(words in line for line in page.said))
    page.said.clear()


def many_runs(directory):
    """10 recipes, 5 widths, 10 rates, 4 seeds."""
    from moga.report.page import render_page
    from moga.report.results import load_results

    widths = (32, 64, 128, 256, 512)
    recipes = {f"r{number}": Fake(drift=-0.1 * number) for number in range(10)}
    write_study(directory, {"r0": recipes["r0"]}, widths=(32,), seeds=(0,), regret=False)
    cases = product(recipes.items(), enumerate(widths), range(-9, 1), range(4))
    lines = [
        json.dumps(fake_record(name, fake, doublings, width, 2.0**exponent, seed))
        for (name, fake), (doublings, width), exponent, seed in cases
    ]
    (directory / "records.jsonl").write_text("\n".join(lines) + "\n")
    path = directory / "report.html"
    path.write_text(render_page(load_results(directory)), encoding="utf-8")
    return path


def test_two_thousand_runs_open_in_under_two_seconds(open_page, pages, tmp_path):
    path = many_runs(tmp_path)
    spent = []
    for _ in range(2):
        page = open_page(pages["check"].with_name("study.json"))  # something small: the process is there already
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        before = processor_time(session)
        page.goto(path.as_uri())
        ready(page)
        spent.append(processor_time(session) - before)
        page.said.clear()
        assert page.locator(UNDRAWN).count() > 10  # they are drawn when they come near
    assert min(spent) < 1.5  # of the processor, which no other load of the machine lengthens much


def processor_time(session):
    """Seconds that the process of a page has computed."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(one["value"] for one in metrics if one["name"] == "ProcessTime")
