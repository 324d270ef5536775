"""The PNGs are drawn for every kind of study."""

import pytest

from moga.report.figures import drift_png, transfer_png, write_figures
from moga.report.results import load_results


def test_a_panel_per_recipe_on_one_loss_axis(make_study):
    results = load_results(make_study({f"r{i}": {} for i in range(4)}))
    panels = [axes for axes in transfer_png(results).axes if axes.get_visible()]
    assert [panel.get_title(loc="left") for panel in panels] == ["r0", "r1", "r2", "r3"]
    assert len({panel.get_ylim() for panel in panels}) == 1


def test_edge_and_divergence_are_said_in_the_panel(make_study):
    results = load_results(make_study({"low": {"optimum": -9.0}}))
    texts = [text.get_text() for text in transfer_png(results).axes[0].texts]
    assert texts == ["edge of the grid: optimum unknown", "diverged or above the axis"]
    assert [text.get_text() for text in drift_png(results).axes[0].texts] == ["no recipe has two known optima"]


@pytest.mark.parametrize("options", [{}, {"widths": (64,)}, {"seeds": (0,)}, {"regret": False}])
@pytest.mark.parametrize("fake", [{}, {"diverges": -99.0}, {"drift": -0.8}], ids=["calm", "lost", "drifts"])
def test_png_files(make_study, options, fake):
    paths = write_figures(load_results(make_study({"moga-row": fake}, **options)))
    assert [path.name for path in paths] == ["transfer.png", "drift.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
