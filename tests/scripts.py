"""Scripts of the project (docs/, benchmarks/, examples/) as modules, loaded from their files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def load_script(path: str) -> ModuleType:
    """The script at a path from the project's root; its neighbours are found as where it is run."""
    place = ROOT / path
    spec = importlib.util.spec_from_file_location(f"script_{place.stem}", place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(place.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(place.parent))
    return module
