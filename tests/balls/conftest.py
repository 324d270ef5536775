"""The page in a headless Chromium that takes real events of mouse, keyboard and touch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from moga.balls.page import write_balls

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's own Chromium, with every host name unreachable."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.fail("no Chromium found; install it (Debian: apt-get install chromium), or unset MOGA_REQUIRE_BROWSER")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=["--host-resolver-rules=MAP * ~NOTFOUND"])


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """A function that opens the page in a window of its own; ``page.said`` are its complaints and requests so far.

    That there are none is checked at the end of every test.
    """
    pages = []
    with ExitStack() as stack:

        def open_it(path: Path | None = None, **options: Any) -> Page:
            if path is None:
                path = tmp_path / "balls.html"
                write_balls(path)
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
            stack.callback(context.close)
            page = context.new_page()
            page.said = []
            page.on("console", lambda message: page.said.append(message.text))
            page.on("pageerror", lambda error: page.said.append(str(error)))
            page.on("request", lambda request: page.said.append(request.url))
            page.goto(path.as_uri())
            page.said.remove(path.as_uri())
            pages.append(page)
            return page

        yield open_it
        assert [page.said for page in pages] == [[] for _ in pages]
