"""Pages of the committed records in a headless Chromium that takes real events of mouse and keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from windows import browser, windows

from moga.report.coordinates_page import write_check_report
from moga.report.page import write_report
from moga.report.smoothness_page import write_smoothness_report

__all__ = ["browser", "open_page", "pages"]

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


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A function that opens a page in a window of its own, as :func:`windows.windows`."""
    # A picture that is saved is made from an address without a network.
    with windows(browser, allowed=("data:", "blob:")) as open_it:
        yield open_it
