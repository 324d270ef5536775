"""A file that was edited after its import is no longer what this process runs."""

from __future__ import annotations

import importlib
import os
import sys

import pytest

from moga.study.records import StudyError
from moga.study.tasks import code_of

SOURCE = """
import functools

INSIDE = 16

@functools.lru_cache
def helper(x):
    return x + 1

class Net:
    @property
    def twice(self):
        return 2

def net(width):
    return Net().twice + helper(width) + INSIDE
"""
EDITS = {
    "a helper": ("x + 1", "x + 2222"),
    "a property": ("return 2", "return 3333"),
    "no Python any more": ("return 2", "return ("),
    "a constant": ("INSIDE = 16", "INSIDE = 32  # now wider"),
}


@pytest.fixture
def edited_net(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "edited_net.py"
    path.write_text(SOURCE)
    yield path
    sys.modules.pop("edited_net", None)


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_is_refused_until_the_module_is_loaded_again(edited_net, what):
    before = code_of("edited_net:net")
    edited_net.write_text(SOURCE.replace(*EDITS[what]))
    with pytest.raises(
        StudyError, match=r"edited_net.py changed since it was imported.*restart it, or reload edited_net"
    ):
        code_of("edited_net:net")
    if "Python" not in what:
        importlib.reload(sys.modules["edited_net"])
        assert code_of("edited_net:net") != before


def test_without_compiled_files_the_code_tells(edited_net, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    code_of("edited_net:net")
    edited_net.write_text(SOURCE.replace("x + 1", "x + 2222"))
    os.utime(edited_net, (0, 0))
    with pytest.raises(StudyError, match="changed since it was imported"):
        code_of("edited_net:net")
