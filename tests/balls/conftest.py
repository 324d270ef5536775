"""The page in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from windows import browser, windows

from moga.balls.page import write_balls

__all__ = ["browser", "open_page"]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """A function that opens the page in a window of its own, as :func:`windows.windows`."""
    with windows(browser) as open_it:

        def open_balls(path: Path | None = None, **options: Any) -> Page:
            if path is None:
                path = tmp_path / "balls.html"
                write_balls(path)
            return open_it(path, **options)

        yield open_balls
