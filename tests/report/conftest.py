"""Pages of the committed records in a headless Chromium that takes real events of mouse and keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from moga.report.coordinates_page import write_check_report
from moga.report.page import write_report
from moga.report.smoothness_page import write_smoothness_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
RECORDS = Path(__file__).parents[2] / "records"
STUDIES: dict[str, tuple[str, Callable[[Path], Any]]] = {  # page -> (records, what writes it)
    "transfer": ("gpt2-width", write_report),
    "check": ("check-faults", write_check_report),
    "smoothness": ("smoothness-width", write_smoothness_report),
}


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind, beside a copy of its records."""
    found = {}
    for name, (records, write) in STUDIES.items():
        directory = tmp_path_factory.mktemp(name)
        for file in ("study.json", "records.jsonl"):
            shutil.copy(RECORDS / records / file, directory)
        write(directory)
        found[name] = directory / "report.html"
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's own Chromium, with every host name unreachable."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.fail("no Chromium found; install it (Debian: apt-get install chromium), or unset MOGA_REQUIRE_BROWSER")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=["--host-resolver-rules=MAP * ~NOTFOUND"])


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A function that opens a page in a window of its own; ``page.said`` are its complaints and requests so far.

    That there are none is checked at the end of every test. Options are those of a browser's context.
    """
    pages = []
    with ExitStack() as stack:

        def open_it(path: Path, **options: Any) -> Page:
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
            stack.callback(context.close)
            page = context.new_page()
            page.said = []
            page.on("console", lambda message: page.said.append(message.text))
            page.on("pageerror", lambda error: page.said.append(str(error)))
            # A picture that is saved is made from an address without a network: data: or blob:.
            page.on("request", lambda one: one.url.startswith(("data:", "blob:")) or page.said.append(one.url))
            page.goto(path.as_uri())
            page.said.remove(path.as_uri())
            pages.append(page)
            return page

        yield open_it
        assert [page.said for page in pages] == [[] for _ in pages]
