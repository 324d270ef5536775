"""One step has size lr in each group's own norm, on real models and for every role."""

import pytest
import torch

from moga.geometry.layout import to_matrices
from moga.optim.steepest_descent import SteepestDescent
from moga.rules.groups import param_groups
from moga.rules.recipes import operator_norm

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
    model = request.getfixturevalue(family)(width, tie_word_embeddings=tie).double()
    groups = param_groups(model, recipe, **options)
    lr = 0.3
    optimizer = SteepestDescent(groups, lr=lr)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = {id(parameter): parameter.detach().clone() for parameter in model.parameters()}
    optimizer.step()
    measured = set()
    for group in groups:
        if group["norm"] == "adam":
            continue
        measured.add(group["role"])
        for parameter in group["params"]:
            update = parameter.detach() - before[id(parameter)]
            for stack in to_matrices(update, group["layout"], group["blocks"]):
                sizes = operator_norm(group).measure(stack, fan=tuple(group["fan"][0]))
                torch.testing.assert_close(sizes, torch.full_like(sizes, lr), rtol=1e-5, atol=0)
    roles = {"hidden"} if recipe == "muon" else {"hidden", "vector", "tied" if tie else "output", "input"}
    assert measured == (roles - {"input"} if tie and family == "llama" else roles)
