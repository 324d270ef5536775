"""The facts of docs/steepest-descent.md: computed by the modules in docs/figures, which also make the page."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
