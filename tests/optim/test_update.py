"""The batched update against its readable twin, and the size of a step."""

import copy

import pytest
import torch
from models.groups import GROUP

from moga.geometry.norms import NORMS, norm
from moga.optim.reference import reference
from moga.optim.rounding import Noise
from moga.optim.update import TOGETHER, batched, new_state
from moga.rules.updates import COMBINATIONS

FUSED = {"layout": "in,out", "blocks": (2, 2, 2)}
UNEVEN = {"blocks": (1, 3, 2), "scale": [0.1, 0.2, 0.3]}
GROUPS = [
    *({**GROUP, "norm": a, "step": b, "constraint": c} for a, b, c in COMBINATIONS),
    *({**GROUP, "norm": a, "step": b, "constraint": c, **FUSED} for a, b, c in COMBINATIONS),
    *({**GROUP, "norm": a, "step": b, "constraint": c, **UNEVEN} for a, b, c in COMBINATIONS),
    {**GROUP, "norm": "row", "p": 1.5, "lookahead": 0.3},
    {**GROUP, "norm": "column", "q": 4.0, "layout": "in,out", "lookahead": 0.0},
    {**GROUP, "norm": "spectral", **UNEVEN, "polar": "quintic", "decays": False},
    {**GROUP, "norm": "spectral", "step": "trust_ratio", "calibration": "first_step", "trust_clip": [0.1, 5.0]},
    {**GROUP, "norm": "spectral", "step": "trust_ratio", "calibration": "first_step", **FUSED},
    {**GROUP, "norm": "spectral", "step": "trust_ratio", "calibration": "first_step", **UNEVEN},
    {**GROUP, "norm": "spectral", "constraint": "row_magnitude", "weight_decay": 0.0},
    {**GROUP, "norm": "euclidean", "step": "dual", "average": "sum", "lookahead": "momentum"},
    {**GROUP, "norm": "sign", "average": "none"},
    {**GROUP, "norm": "spectral", "average": "none"},
    {**GROUP, "norm": "sign", "layout": "vector", "weight_decay": 0.0},
    {**GROUP, "norm": "euclidean", "layout": "vector"},
    {**GROUP, "norm": "adam", "state_dtype": "bfloat16"},
    {**GROUP, "norm": "rmsprop", "state_dtype": "bfloat16", "rounding": "stochastic"},
    {**GROUP, "norm": "spectral", "constraint": "sphere", "state_dtype": "bfloat16", "rounding": "stochastic"},
]
SHAPES = {"vector": [(5,), (), (1,), (0,)], "out,in": [(6, 4), (6, 4), (6, 1)], "in,out": [(4, 6), (1, 6), (4, 6)]}
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def label(group):
    return "-".join(
        str(group[key]) for key in ("norm", "step", "constraint", "average", "layout", "state_dtype")
    ) + str(len(group["blocks"]))


every_group = pytest.mark.parametrize("group", GROUPS, ids=label)


def tensors(group, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES[group["layout"]]]


def follow(group, dtype, finite, steps=4):
    """The weights and states of both twins after some steps."""
    fast = tensors(group, dtype, 0)
    slow = copy.deepcopy(fast)
    fast_states, slow_states = ([new_state(w, group) for w in weights] for weights in (fast, slow))
    for t in range(steps):
        grads = tensors(group, dtype, 1 + t)
        batched(fast, grads, fast_states, group, finite)
        torch.testing.assert_close(grads, tensors(group, dtype, 1 + t), rtol=0, atol=0)
        for weight, grad, state in zip(slow, grads, slow_states, strict=True):
            if weight.numel():
                reference(weight, grad, state, group)
    return fast, slow, fast_states, slow_states


@every_group
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_batched_equals_reference(group, dtype, masked):
    if group["rounding"] == "stochastic":
        dtype, group = torch.float64, {**group, "rounding": "nearest"}
    fast, slow, fast_states, slow_states = follow(group, dtype, torch.tensor(True) if masked else None)
    tolerance = max(TOLERANCE[dtype], 2e-2 if group["state_dtype"] == "bfloat16" else 0)
    torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)
    near = min(tolerance, 1e-4) if group["state_dtype"] == "float32" else 1e-2
    torch.testing.assert_close(fast_states, slow_states, rtol=near, atol=min(near, 1e-5) if near < 1e-3 else near)


@every_group
def test_tensors_may_take_their_steps_one_after_another(group, monkeypatch):
    group = {**group, "rounding": "nearest"}
    together, _, states, _ = follow(group, torch.float64, None)
    monkeypatch.setitem(TOGETHER, "cpu", 1)
    apart, _, states_apart, _ = follow(group, torch.float64, None)
    torch.testing.assert_close((apart, states_apart), (together, states))


@every_group
def test_a_masked_step_changes_nothing(group):
    weights = tensors(group, torch.bfloat16, 0)
    states = [new_state(w, group) for w in weights]
    batched(weights, tensors(group, torch.bfloat16, 1), states, group, torch.tensor(True), Noise(0))
    before = copy.deepcopy((weights, states))
    bad = tensors(group, torch.bfloat16, 2)
    for grad in bad:
        grad.fill_(torch.nan)
    batched(weights, bad, states, group, torch.tensor(False), Noise(1))
    torch.testing.assert_close((weights, states), before, rtol=0, atol=0)


@pytest.mark.parametrize("rule", [norm("sign"), norm("row", p=3), norm("column", q=2), norm("spectral")], ids=str)
def test_lr_is_the_size_of_one_update_in_the_norm(rule):
    group = {**GROUP, "norm": rule.name, "p": rule.p, "q": rule.q, "weight_decay": 0.0, "scale": rule.scale(6, 4)}
    weight = torch.randn(6, 4, dtype=torch.float64)
    before = weight.clone()
    batched([weight], [torch.randn(6, 4, dtype=torch.float64)], [new_state(weight, group)], group, None)
    assert rule.measure(weight - before).item() == pytest.approx(group["lr"] * group["lr_scale"], rel=1e-9)


@pytest.mark.parametrize("rule", [norm("sign"), norm("spectral")], ids=str)
def test_a_dual_step_is_the_penalised_one(rule):
    """It minimises ``<G, D> + |D|^2 / 2``: its size is the dual norm, and ``<G, D>`` is minus the square of it."""
    group = {**GROUP, "norm": rule.name, "step": "dual", "average": "none", "weight_decay": 0.0, "lr_scale": 1.0}
    group |= {"lr": 1.0, "scale": rule.scale(6, 4)}
    weight, grad = torch.zeros(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    batched([weight], [grad], [{}], group, None)
    assert rule.measure(weight).item() == pytest.approx(rule.dual(grad).item(), rel=1e-9)
    assert (grad * weight).sum().item() == pytest.approx(-(rule.dual(grad).item() ** 2), rel=1e-9)


def test_the_euclidean_dual_step_is_the_gradient_bit_for_bit():
    group = {**GROUP, "norm": "euclidean", "step": "dual", "average": "none", "weight_decay": 0.0, "lr_scale": 1.0}
    weight, grad = torch.zeros(6, 4), torch.randn(6, 4)
    batched([weight], [grad], [{}], {**group, "lr": 1.0, "scale": 1.0}, None)
    assert torch.equal(weight, -grad)


@pytest.mark.parametrize("word", NORMS)
def test_decay_keeps_the_size_below_its_inverse(word):
    rule = norm(word)
    group = {**GROUP, "norm": word, "lr_scale": 1.0, "lr": 0.5, "scale": rule.scale(5, 3)}
    weight = torch.zeros(5, 3, dtype=torch.float64)
    state = new_state(weight, group)
    for _ in range(100):
        batched([weight], [torch.ones(5, 3, dtype=torch.float64)], [state], group, None)
    assert 0.99 / 0.2 < rule.measure(weight) <= (1 + 1e-9) / 0.2
