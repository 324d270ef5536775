"""Data flows one way, and imports prove it: geometry -> rules -> optim -> study -> records -> report -> api -> cli."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "moga"
MODULES = sorted(SOURCE.rglob("*.py"))
STUDY = {"numpy", "transformers", "accelerate", "cloudpickle", "datasets"}

# layer: (parts of moga that it may import, packages from outside that it may import)
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "geometry": ({"geometry"}, {"torch"}),
    "rules": ({"geometry", "rules"}, {"torch"}),
    "optim": ({"geometry", "rules", "optim"}, {"torch", "triton"}),
    "study": ({"geometry", "rules", "optim", "study"}, {"torch"} | STUDY),
    "report": ({"report", "study.records", "study.fit", "study.verdicts"}, {"matplotlib", "jinja2", "markupsafe"}),
    "balls": ({"balls"}, set()),
    "api": ({"study", "report", "api"}, {"IPython", "matplotlib", "pandas", "rich"}),
    "cli": ({"", "geometry", "rules", "optim", "study", "report", "balls", "api", "cli"}, {"rich", "typer"}),
    "": ({"geometry", "rules", "optim"}, set()),  # moga/__init__.py
}
# Where a user looks for the functions of the top layer: names that are loaded when they are asked for.
WINDOW = {"study.__init__": {"api"}}
# What a report reads has to be readable where torch is not installed.
TORCH_FREE = {"study.records": set(), "study.verdicts": set(), "study.fit": {"numpy"}}


def name_of(path: Path) -> str:
    """``report/page.py`` as ``report.page``; the package's own ``__init__`` as ``__init__``."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def layer_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return "" if parts == ("__init__.py",) else parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it: ``from moga.study import fit`` is ``moga.study.fit``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            submodules = {f"{module}.{alias.name}" for alias in node.names}
            found |= {name for name in submodules if is_module(name)} or {module}
    return {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}


def is_module(name: str) -> bool:
    """Whether a dotted name is a module of moga."""
    if name.partition(".")[0] != "moga":
        return False
    place = SOURCE.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or place.is_dir()


def within(name: str, allowed: set[str]) -> bool:
    return any(name == part or (part and name.startswith(f"{part}.")) for part in allowed)


def test_the_modules_are_found():
    assert {layer_of(path) for path in MODULES} == set(ALLOWED)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_one_way(path: Path):
    own, foreign = ALLOWED[layer_of(path)]
    for name in imports_of(path):
        package, _, rest = name.partition(".")
        if package == "moga":
            assert within(rest, WINDOW.get(name_of(path), own)), (
                f"{name_of(path)} imports {name}; {layer_of(path) or 'moga'} may import {sorted(own)}"
            )
        else:
            assert package in foreign, f"{name_of(path)} imports {name}; allowed are {sorted(foreign)}"


@pytest.mark.parametrize("name", TORCH_FREE)
def test_what_a_report_reads_is_free_of_torch(name: str):
    path = SOURCE.joinpath(*name.split(".")).with_suffix(".py")
    for imported in imports_of(path):
        package, _, rest = imported.partition(".")
        assert rest in TORCH_FREE if package == "moga" else package in TORCH_FREE[name], f"{name} imports {imported}"


@pytest.mark.parametrize("path", [p for p in SOURCE.rglob("*") if p.suffix in {".py", ".html", ".css", ".js"}], ids=str)
def test_files_are_short(path: Path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300


def loaded_by(code: str) -> set[str]:
    """The top-level packages that are loaded after ``code`` ran in a fresh Python."""
    code += "\nimport sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_import_moga_needs_torch_alone():
    extras = {"transformers", "accelerate", "rich", "typer", "plotly", "matplotlib", "scipy", "triton"}
    assert not loaded_by("import moga; [getattr(moga, name) for name in moga.__all__]") & extras


def test_the_study_is_loaded_when_it_is_asked_for():
    assert not loaded_by("import moga; moga.study; dir(moga.study)") & {"pandas", "rich", "transformers"}
    assert {"pandas", "rich"} <= loaded_by("import moga; moga.study.transfer; import pandas")


def test_help_loads_nothing_heavy():
    loaded = loaded_by("from moga.cli import main; main(['--help']); main(['transfer', '--help'])")
    assert not loaded & {"transformers", "accelerate", "plotly", "matplotlib"}
    assert {"typer", "rich"} <= loaded
