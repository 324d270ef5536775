"""Mouse, keyboard and touch move the gradients; the page fits small and large screens in both themes."""

import re

import pytest

pytestmark = pytest.mark.browser

VECTOR = "[data-vector={}] .plane"
MATRIX = "#gradient-matrix .plane"
REACH = 2  # the pictures show -2 to 2


def entries(page, letter):
    """The gradient that the number fields show."""
    count = {"g": 2, "G": 4}[letter]
    return [float(page.locator(f"[data-entry={letter}{index}]").input_value()) for index in range(count)]


def at(page, plane, x, y):
    """The place of the point (x, y) of a picture, in pixels of the window."""
    locator = page.locator(plane)
    locator.scroll_into_view_if_needed()
    box = locator.bounding_box()
    return box["x"] + (x / REACH + 1) / 2 * box["width"], box["y"] + (1 - y / REACH) / 2 * box["height"]


def drag(page, plane, start, end):
    page.mouse.move(*at(page, plane, *start))
    page.mouse.down()
    page.mouse.move(*at(page, plane, *end), steps=2)
    page.mouse.up()


def test_the_mouse_drags_the_gradient_in_every_picture(open_page):
    page = open_page()
    drawn = [page.locator("[data-vector=l1] .fixed").get_attribute("d")]
    way = [(1.2, 0.7), (-0.5, 1.1), (-1.4, -0.6), (0, -1.3), (0.8, 0.8)]
    for norm, start, end in zip(("l2", "linf", "l1", "mahalanobis"), way, way[1:], strict=False):
        drag(page, VECTOR.format(norm), start, end)
        assert entries(page, "g") == list(end)
        drawn.append(page.locator("[data-vector=l1] .fixed").get_attribute("d"))
        page.mouse.move(*at(page, VECTOR.format(norm), 1, 1))  # released: nothing follows
        assert entries(page, "g") == list(end)
    assert len(set(drawn)) == 5


def test_a_press_beside_the_handle_brings_it_there_and_drags_on(open_page):
    page = open_page()
    drag(page, VECTOR.format("linf"), (-1, -1), (-1, 0.5))
    assert entries(page, "g") == [-1, 0.5]
    drag(page, MATRIX, (0.1, 1.2), (-0.4, 1))  # nearer to the second column, at (0.2, 0.6)
    assert entries(page, "G") == [1.1, -0.4, 0.5, 1]
    drag(page, MATRIX, (1.1, 0.5), (1.5, -0.5))
    assert entries(page, "G") == [1.5, -0.4, -0.5, 1]


def test_a_drag_out_of_the_picture_stops_at_its_edge(open_page):
    page = open_page()
    drag(page, VECTOR.format("l1"), (1.2, 0.7), (-3.0, 0.0))
    assert entries(page, "g") == [-1.9, 0]


def test_keys_move_the_gradient(open_page):
    page = open_page()
    page.locator("[data-vector=l2] .handle").focus()
    for key in (
        "ArrowRight",
        "ArrowUp",
        "ArrowUp",
        "Shift+ArrowDown",
        "Shift+ArrowLeft",
        "Escape",
        "Control+ArrowLeft",
    ):
        page.keyboard.press(key)
    assert entries(page, "g") == [0.75, 0.3]  # 1.2 + 0.05 - 0.5, 0.7 + 0.1 - 0.5
    for _ in range(20):
        page.keyboard.press("Shift+ArrowLeft")
    assert entries(page, "g") == [-1.9, 0.3]
    handle = page.locator("[data-vector=l2] .handle")
    assert handle.get_attribute("aria-valuetext") == "g = (−1.90, 0.30)"
    assert handle.get_attribute("aria-valuenow") == "-1.9"
    page.keyboard.press("End")
    assert entries(page, "g") == [1.9, 0.3]
    page.keyboard.press("Home")
    assert entries(page, "g") == [-1.9, 0.3]


KEYS = [  # typed, key, entries after it: only the axis that moves is rounded to the grid, and none is pulled in
    ((5, 0.7), "ArrowUp", [5, 0.75]),
    ((5, 0.7), "ArrowRight", [5, 0.7]),
    ((5, 0.7), "ArrowLeft", [4.95, 0.7]),
    ((5, 0.7), "Home", [-5, 0.7]),
    ((1.23, -7.333), "ArrowDown", [1.23, -7.333]),
    ((1.23, -7.333), "ArrowLeft", [1.2, -7.333]),
    ((1.88, 1e-20), "ArrowRight", [1.9, 1e-20]),
]


@pytest.mark.parametrize(("typed", "key", "after"), KEYS)
def test_a_key_moves_one_axis_and_leaves_what_was_typed(open_page, typed, key, after):
    page = open_page()
    for index, value in enumerate(typed):
        page.locator(f"[data-entry=g{index}]").fill(str(value))
    handle = page.locator("[data-vector=l2] .handle")
    handle.focus()
    page.keyboard.press(key)
    assert entries(page, "g") == after
    low, now, high = (float(handle.get_attribute(f"aria-value{word}")) for word in ("min", "now", "max"))
    assert low <= now == after[0] <= high and low <= -1.9 and high >= 1.9


def test_keys_leave_the_other_entries_of_a_matrix(open_page):
    page = open_page()
    page.locator("[data-entry=G1]").fill("7.3")
    page.get_by_label("column 2 of the gradient").focus()
    page.keyboard.press("ArrowUp")
    assert entries(page, "G") == [1.1, 7.3, 0.5, 0.65]


@pytest.mark.parametrize("button", ["right", "middle"])
def test_only_the_main_button_drags(open_page, button):
    page = open_page()
    for plane, start in ((VECTOR.format("l2"), (1.2, 0.7)), (VECTOR.format("l2"), (-1, -1)), (MATRIX, (1.1, 0.5))):
        page.mouse.move(*at(page, plane, *start))
        page.mouse.down(button=button)
        page.mouse.move(*at(page, plane, -0.5, -0.5), steps=2)
        page.mouse.up(button=button)
    assert entries(page, "g") == [1.2, 0.7] and entries(page, "G") == [1.1, 0.2, 0.5, 0.6]


def test_tab_reaches_one_gradient_and_both_columns_and_shows_the_focus(open_page):
    page = open_page()
    names = []
    while not names or "column 2" not in names[-1]:
        page.keyboard.press("Tab")
        assert len(names) < 40
        names.append(page.evaluate("document.activeElement.getAttribute('aria-label') || ''"))
        if "column 1" in names[-1]:
            style = page.evaluate("getComputedStyle(document.activeElement, '::before').outline")
            assert "3px" in style and "solid" in style
            page.keyboard.press("Shift+ArrowUp")
    handles = [name for name in names if "arrow keys" in name]
    assert [re.sub(";.*", "", name) for name in handles] == [
        "gradient",
        "column 1 of the gradient",
        "column 2 of the gradient",
    ]
    assert entries(page, "G") == [1.1, 0.2, 1.0, 0.6]


@pytest.fixture
def phone(open_page):
    """A small touch screen, and a function that sends a touch: its way in pixels, with a pause for the page."""
    page = open_page(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True, device_scale_factor=2)
    devtools = page.context.new_cdp_session(page)

    def touch(*way):
        for index, (x, y) in enumerate(way):
            word = "touchMove" if index else "touchStart"
            devtools.send("Input.dispatchTouchEvent", {"type": word, "touchPoints": [{"x": x, "y": y}]})
        devtools.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        page.wait_for_timeout(100)

    return page, touch


def way(start, end, steps=8):
    return [tuple(a + (b - a) * step / steps for a, b in zip(start, end, strict=True)) for step in range(steps + 1)]


def test_a_finger_drags_the_handles_and_the_page_stays(phone):
    page, touch = phone
    plane = VECTOR.format("linf")
    start, end = at(page, plane, 1.2, 0.7), at(page, plane, -0.6, -1.2)
    scrolled = page.evaluate("scrollY")
    touch(*way(start, end))
    assert entries(page, "g") == [-0.6, -1.2]
    assert page.evaluate("scrollY") == scrolled
    start, end = at(page, MATRIX, 1.1, 0.5), at(page, MATRIX, 0.5, -1.5)
    scrolled = page.evaluate("scrollY")
    touch(*way(start, end))
    assert entries(page, "G") == [0.5, 0.2, -1.5, 0.6]
    assert page.evaluate("scrollY") == scrolled


def test_a_tap_moves_the_gradient_and_a_swipe_scrolls(phone):
    page, touch = phone
    plane = VECTOR.format("linf")
    touch(at(page, plane, -1, -0.5))
    x, y = entries(page, "g")
    assert abs(x + 1) < 0.06 and abs(y + 0.5) < 0.06
    before, scrolled = entries(page, "g"), page.evaluate("scrollY")
    touch(*way(at(page, plane, 1, -1), at(page, plane, 1, 1.5)))
    page.wait_for_function("before => scrollY > before + 20", arg=scrolled, timeout=10_000)
    assert entries(page, "g") == before


def test_the_page_says_what_zeros_ties_and_ranks_do(open_page):
    page = open_page()
    vector, matrix = page.locator("#vector-status"), page.locator("#matrix-status")
    assert vector.inner_text() == matrix.inner_text() == ""
    page.get_by_role("button", name="a tie").click()
    assert "l1 lets them share" in vector.inner_text()
    for index, text in enumerate(("zero", "zero")):
        page.get_by_role("button", name=text, exact=True).nth(index).click()
    assert entries(page, "g") == [0, 0] and entries(page, "G") == [0, 0, 0, 0]
    assert "every step is zero" in vector.inner_text() and "every step is zero" in matrix.inner_text()
    for norm in ("l2", "linf", "l1", "mahalanobis"):
        assert [page.locator(f"[data-vector={norm}] .{step}").get_attribute("d") for step in ("fixed", "dual")] == [
            "",
            "",
        ]
    assert page.locator("#vector-table td").all_inner_texts() == ["0.00", *["(0.00, 0.00)"] * 3] * 4
    page.locator("[data-entry=g0]").fill("-2")
    assert "sign of 0 is 0" in vector.inner_text() and "waits at the edge" in vector.inner_text()
    page.get_by_role("button", name="rank one").click()
    assert "Rank one" in matrix.inner_text()
    page.get_by_role("button", name="a zero column").click()
    assert "zero column stays zero" in matrix.inner_text()
    for index, value in enumerate((0, 0, 1, 2)):
        page.locator(f"[data-entry=G{index}]").fill(str(value))
    assert "zero row stays zero" in matrix.inner_text()


@pytest.mark.parametrize("text", ["", "1e101", "1e-200", "-3e300"])
def test_what_cannot_be_drawn_is_refused_with_a_reason(open_page, text):
    page = open_page()
    field = page.locator("[data-entry=g0]")
    field.fill(text)
    assert field.get_attribute("aria-invalid") == "true"
    assert page.locator("#vector-status").inner_text() == (
        "That is not drawn: write 0 or a number between 1e-100 and 1e100 in size."
    )
    assert page.locator("[data-vector=l2] .handle").get_attribute("aria-valuenow") == "1.2"
    field.blur()
    assert field.input_value() == "1.2" and page.locator("#vector-status").inner_text() == ""


def test_a_step_that_leaves_its_picture_is_said(open_page):
    page = open_page()
    remarks = page.locator(".beyond")
    assert remarks.count() == 8 and not remarks.locator("visible=true").count()
    page.locator("[data-entry=g0]").fill("1e100")
    assert remarks.locator("visible=true").all_inner_texts() == ["dual step goes beyond"] * 4


def test_a_fixed_step_that_leaves_its_picture_is_said(open_page):
    """At M = diag(1/4, 4), lr = 2 and g = (0.1, 0) the fixed step is (-4, 0) and the dual one (-0.8, 0)."""
    page = open_page()
    for selector, value in (("[data-m=first]", -2), ("[data-m=second]", 2), ("[data-m=angle]", 0), ("[data-lr]", 2)):
        page.locator(selector).first.fill(str(value))
    for index, value in enumerate((0.1, 0)):
        page.locator(f"[data-entry=g{index}]").fill(str(value))
    remark = page.locator("[data-vector=mahalanobis] .beyond")
    assert page.locator("#vectors .beyond").locator("visible=true").all_inner_texts() == ["fixed step goes beyond"]
    page.locator("[data-entry=g0]").fill("1")
    assert remark.inner_text() == "both steps go beyond"
    matrices = page.locator("#matrices .beyond").locator("visible=true").all_inner_texts()
    assert set(matrices) <= {"dual step goes beyond"}  # a circle of radius 2 just fits


def test_both_rates_are_one(open_page):
    page = open_page()
    first, second = page.locator("[data-lr]").all()
    second.focus()
    page.keyboard.press("ArrowRight")
    assert first.input_value() == second.input_value() == "1.05"
    assert page.locator("[data-vector=l2] .radius").get_attribute("d") != ""


CONTRAST = """() => {
  const light = (text) => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255);
    const [r, g, b] = parts.map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return ["body", ".note", "legend", "thead th"].map((selector) => {
    const ink = light(getComputedStyle(document.querySelector(selector)).color);
    return Math.max(paper, ink) / Math.min(paper, ink);
  });
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_is_legible(open_page, theme, width):
    page = open_page(viewport={"width": width, "height": 800}, color_scheme=theme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert min(page.evaluate(CONTRAST)) >= 4.5  # WCAG AA
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 29)"
    assert dark == (theme == "dark")
    box = page.locator(".handle").first.bounding_box()
    assert min(box["width"], box["height"]) >= 44
    for caption in page.locator("figcaption").all():
        assert caption.is_visible()


def test_a_request_and_an_error_would_be_seen(open_page, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<script>fetch('https://example.org/').catch(() => 0); missing();</script>")
    page = open_page(path)
    page.wait_for_timeout(200)
    assert "https://example.org/" in page.said
    assert any("missing is not defined" in text for text in page.said)
    page.said.clear()
