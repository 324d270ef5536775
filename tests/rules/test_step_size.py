"""One step has size lr in each group's own norm, on real models and for every role."""

import pytest
from models.checks import check_step_size

RECIPES = [
    ("moga-row", {}),
    ("moga-row", {"p": 1}),
    ("moga-row", {"p": 1.5}),
    ("moga-row", {"p": float("inf")}),
    ("moga-column", {}),
    ("moga-column", {"q": 4}),
    ("moga-column", {"q": float("inf")}),
    ("muon", {"polar": "exact"}),
]


@pytest.mark.filterwarnings("ignore:.*is input and output in one")
@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize(("recipe", "options"), RECIPES)
def test_one_step_has_size_lr(family, recipe, options, width, tie, request):
    model = request.getfixturevalue(family)(width, tie_word_embeddings=tie)
    measured = check_step_size(model, recipe, **options)
    roles = {"hidden"} if recipe == "muon" else {"hidden", "vector", "tied" if tie else "output", "input"}
    assert measured == (roles - {"input"} if tie and family == "llama" else roles)
