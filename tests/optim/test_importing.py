"""A run that began under torch's optimizers goes on here with its averages."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import moga


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))


ROLES = {"0.weight": "hidden", "1.weight": "hidden"}


def fill(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)


def test_adamw_goes_on_as_if_it_had_not_changed():
    model, twin = network(), network()
    ours, theirs = [torch.optim.AdamW(one.parameters(), lr=0.01, weight_decay=0.1) for one in (model, twin)]
    for seed in range(3):
        for one, optimizer in ((model, ours), (twin, theirs)):
            fill(one, seed)
            optimizer.step()
    mine = moga.optimizer(model, "adamw", lr=0.01, weight_decay=0.1, decay_vectors=True, roles=ROLES)
    moga.import_state(mine, {name: ours.state[weight] for name, weight in model.named_parameters()})
    for one, optimizer in ((model, mine), (twin, theirs)):
        fill(one, 3)
        optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), rtol=1e-6, atol=1e-7)


def test_muon_beside_adamw_by_name():
    model = network()
    matrices = [model[0].weight, model[1].weight]
    muon = torch.optim.Muon(matrices, lr=0.01)
    adamw = torch.optim.AdamW([model[0].bias, model[1].bias], lr=0.01)
    fill(model, 0)
    muon.step()
    adamw.step()
    mine = moga.optimizer(model, "muon", lr=0.01, roles=ROLES)
    both = {name: (muon if w in muon.state else adamw).state[w] for name, w in model.named_parameters()}
    moga.import_state(mine, both)
    for weight in matrices:  # Muon's buffer is 0.05 of the first gradient
        torch.testing.assert_close(mine.state[weight]["momentum_buffer"], 0.05 * weight.grad)
    assert mine.state[model[0].bias]["step"] == 1
    torch.testing.assert_close(mine.state[model[0].bias]["exp_avg"], 0.1 * model[0].bias.grad)


def test_a_sum_is_a_mean_over_one_minus_b1():
    w = nn.Parameter(torch.eye(2))
    w.grad = torch.ones(2, 2)
    adamw, sgd = torch.optim.AdamW([w], betas=(0.9, 0.99)), torch.optim.SGD([w], lr=0.1, momentum=0.9)
    for other in (adamw, sgd):
        other.step()
        mine = moga.optimizer([("w", w)], "heavy-ball", lr=0.1, roles={"w": "hidden"})
        moga.import_state(mine, {"w": other.state[w]})
        torch.testing.assert_close(mine.state[w]["momentum_buffer"], torch.ones(2, 2))


def test_what_torch_does_not_know_begins_anew_and_an_empty_state_too():
    w = nn.Parameter(3 * torch.eye(2))
    mine = moga.optimizer([("w", w)], "muown", lr=0.1, roles={"w": "hidden"})
    moga.import_state(mine, {"w": {"momentum_buffer": torch.ones(2, 2)}})
    assert mine.state[w]["length"].flatten().tolist() == [3, 3] and mine.state[w]["momentum_buffer"].eq(1).all()
    moga.import_state(mine, {"w": {}})
    assert mine.state[w]["momentum_buffer"].eq(1).all()


@pytest.mark.parametrize(
    "recipe, states, text",
    [
        ("muon", {}, "a state is needed for every parameter of the optimizer and for no other; 'w' is on one side"),
        ("muon", {"w": {}, "v": {}}, "'v' is on one side only"),
        ("adamw", {"w": {"momentum_buffer": torch.ones(2, 2)}}, "'w' has momentum_buffer, from which no average of no"),
        ("signsgd", {"w": {"exp_avg": torch.ones(2, 2)}}, "norm 'sign' with average 'none' can be made"),
        ("shampoo-accumulated", {"w": {"exp_avg": torch.ones(2, 2)}}, "norm 'shampoo'"),
        ("rmsprop", {"w": {"exp_avg": torch.ones(2, 2)}}, "norm 'rmsprop'"),
        ("muon", {"w": {"exp_avg": torch.ones(2, 3)}}, r"average of shape \(2, 3\) for a parameter of shape \(2, 2\)"),
    ],
)
def test_what_does_not_fit_is_refused(recipe, states, text):
    w = nn.Parameter(torch.eye(2))
    mine = moga.optimizer([("w", w)], recipe, lr=0.1, roles={"w": "hidden"})
    with pytest.raises(ValueError, match=text):
        moga.import_state(mine, states)
    assert not mine.state


@pytest.mark.parametrize("words", [(None, {}), (True, None)])
def test_what_is_no_optimizer_or_no_states_is_refused(words):
    mine = moga.optimizer([("w", nn.Parameter(torch.eye(2)))], "moga-row", lr=0.1, roles={"w": "hidden"})
    with pytest.raises(TypeError, match="a dict from the names of its parameters to their states"):
        moga.import_state(mine if words[0] else None, words[1])


def test_rmsprop():
    w = nn.Parameter(torch.eye(2))
    mine = moga.optimizer([("w", w)], "rmsprop", lr=0.1, roles={"w": "hidden"})
    moga.import_state(mine, {"w": {"square_avg": torch.ones(2, 2), "step": torch.tensor(3.0)}})
    assert mine.state[w]["square_avg"].eq(1).all()


def test_an_unknown_word_for_the_spread_is_refused():
    w = nn.Parameter(torch.eye(2))
    with pytest.raises(ValueError, match="unknown word distribute='all'; the words are none, owners"):
        moga.optimizer([("w", w)], "muon", lr=0.1, roles={"w": "hidden"}, distribute="all")


def test_owners_in_one_process_are_that_process():
    w, v = (nn.Parameter(torch.eye(2)) for _ in range(2))
    for weight, word in ((w, "none"), (v, "owners")):
        mine = moga.optimizer([("w", weight)], "muon", lr=0.1, roles={"w": "hidden"}, distribute=word)
        weight.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        mine.step()
    assert torch.equal(w, v)
