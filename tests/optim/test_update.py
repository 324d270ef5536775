"""The batched update against its readable twin, and the size of a step."""

import copy

import pytest
import torch

from moga.geometry.norms import norm
from moga.optim.update import UPDATES, batched, new_state, reference

BASE = {
    "lr": 0.1,
    "lr_scale": 0.5,
    "momentum": 0.9,
    "lookahead": None,
    "weight_decay": 0.2,
    "decay_scale": 1.0,
    "decays": True,
    "betas": [0.9, 0.99],
    "eps": 1e-8,
    "p": None,
    "q": None,
    "polar": "exact",
    "blocks": (),
    "layout": "out,in",
    "scale": 0.7,
}
GROUPS = [
    *({**BASE, "norm": word} for word in UPDATES),
    {**BASE, "norm": "row", "p": 1.5, "lookahead": 0.3},
    {**BASE, "norm": "column", "q": 4.0, "layout": "in,out", "lookahead": 0.0},
    {**BASE, "norm": "spectral", "layout": "in,out", "blocks": (2, 2, 2), "decays": False},
    {**BASE, "norm": "spectral", "blocks": (1, 3, 2), "scale": [0.1, 0.2, 0.3], "polar": "quintic"},
    {**BASE, "norm": "adam", "layout": "in,out", "blocks": (1, 3, 2), "scale": [0.1, 0.2, 0.3]},
    {**BASE, "norm": "sign", "layout": "vector", "weight_decay": 0.0},
]


def tensors(group, dtype, seed):
    shapes = {"vector": [(5,), (), (1,), (0,)], "out,in": [(6, 4), (6, 4), (6, 1)], "in,out": [(4, 6), (1, 6), (4, 6)]}
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes[group["layout"]]]


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: f"{g['norm']}-{g['layout']}-{len(g['blocks'])}")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_batched_equals_reference(group, dtype, masked):
    fast = tensors(group, dtype, 0)
    slow = copy.deepcopy(fast)
    fast_states, slow_states = ([new_state(w, group) for w in weights] for weights in (fast, slow))
    finite = torch.tensor(True) if masked else None
    for t in range(4):
        grads = tensors(group, dtype, 1 + t)
        batched(fast, grads, fast_states, group, finite)
        for weight, grad, state in zip(slow, grads, slow_states, strict=True):
            reference(weight, grad, state, group)
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(fast_states, slow_states, rtol=min(tolerance, 1e-4), atol=min(tolerance, 1e-5))


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: f"{g['norm']}-{g['layout']}-{len(g['blocks'])}")
def test_a_masked_step_changes_nothing(group):
    weights = tensors(group, torch.float32, 0)
    states = [new_state(w, group) for w in weights]
    batched(weights, tensors(group, torch.float32, 1), states, group, torch.tensor(True))
    before = copy.deepcopy((weights, states))
    bad = tensors(group, torch.float32, 2)
    for grad in bad:
        grad.fill_(torch.nan)
    batched(weights, bad, states, group, torch.tensor(False))
    torch.testing.assert_close((weights, states), before, rtol=0, atol=0)


@pytest.mark.parametrize("rule", [norm("sign"), norm("row", p=3), norm("column", q=2), norm("spectral")], ids=str)
def test_lr_is_the_size_of_one_update_in_the_norm(rule):
    group = {**BASE, "norm": rule.name, "p": rule.p, "q": rule.q, "weight_decay": 0.0, "scale": rule.scale(6, 4)}
    weight = torch.randn(6, 4, dtype=torch.float64)
    before = weight.clone()
    batched([weight], [torch.randn(6, 4, dtype=torch.float64)], [new_state(weight, group)], group, None)
    assert rule.measure(weight - before).item() == pytest.approx(group["lr"] * group["lr_scale"], rel=1e-9)


@pytest.mark.parametrize("word", [word for word in UPDATES if word != "adam"])
def test_decay_keeps_the_size_below_its_inverse(word):
    rule = norm(word)
    group = {**BASE, "norm": word, "lr_scale": 1.0, "lr": 0.5, "scale": rule.scale(5, 3)}
    weight = torch.zeros(5, 3, dtype=torch.float64)
    state = new_state(weight, group)
    for _ in range(100):
        batched([weight], [torch.ones(5, 3, dtype=torch.float64)], [state], group, None)
    assert 0.99 / 0.2 < rule.measure(weight) <= (1 + 1e-9) / 0.2


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("word", [word for word in UPDATES if word != "adam"])
def test_the_step_does_not_depend_on_the_size_of_the_gradient(word, size):
    group = {**BASE, "norm": word}
    grads = [tensors(group, torch.float32, seed) for seed in range(3)]

    def run(factor):
        weights = tensors(group, torch.float32, 9)
        states = [new_state(w, group) for w in weights]
        for grad in grads:
            batched(weights, [g * factor for g in grad], states, group, None)
        return weights

    torch.testing.assert_close(run(size), run(1.0), rtol=1e-4, atol=1e-4)
