"""What the documents show works, and every public name shows itself."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import moga

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of a page run in order, in one namespace and an empty directory; ``>>>`` blocks are compared."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 2
        if match[1].startswith(">>>"):
            run_examples(match[1], namespace, page, line)
        else:
            exec(compile("\n" * (line - 1) + match[1], str(page), "exec"), namespace)


def run_examples(source: str, namespace: dict[str, object], page: Path, line: int) -> None:
    test = doctest.DocTestParser().get_doctest(source, namespace, page.name, str(page), line - 1)
    test.globs = namespace  # not the copy that doctest makes: later blocks use what this one defines
    runner = doctest.DebugRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test, clear_globs=False)


def test_the_readme_shows_python():
    assert BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))


PUBLIC = [name for name in moga.__all__ if callable(getattr(moga, name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_an_example(name: str):
    text = getattr(moga, name).__doc__ or ""
    assert ">>>" in text, f"moga.{name} has no example in its docstring"
