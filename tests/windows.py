"""Pages in a headless Chromium that takes real events of mouse, keyboard and touch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's own Chromium, with every host name unreachable."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.fail("no Chromium found; install it (Debian: apt-get install chromium), or unset MOGA_REQUIRE_BROWSER")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=["--host-resolver-rules=MAP * ~NOTFOUND"])


@contextmanager
def windows(browser: Browser, allowed: tuple[str, ...] = ()) -> Iterator[Callable[..., Page]]:
    """A function that opens a file in a window of its own; ``page.said`` are its complaints and requests so far.

    That there are none is checked at the end. ``allowed`` are beginnings of addresses that a page may ask for. Options
    are those of a browser's context.
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
            page.on("request", lambda one: one.url.startswith(allowed) or page.said.append(one.url))
            page.goto(path.as_uri())
            page.said.remove(path.as_uri())
            pages.append(page)
            return page

        yield open_it
        assert [page.said for page in pages] == [[] for _ in pages]
