"""Hooks: what they keep under which name, and that measuring changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from moga.study.probes import ROOT, Probe


def passed(model, *inputs, changed=()):
    """The pass of a model whose named parameters were set to the values of ``changed`` after the probe was made."""
    with Probe(model) as probe:
        with torch.no_grad():
            for name, value in changed:
                model.get_parameter(name).fill_(value)
        _, found = probe.forward(lambda: model(*inputs))
    return found


def linear(out, in_, value):
    layer = nn.Linear(in_, out, bias=False)
    nn.init.constant_(layer.weight, value)
    return layer


def test_a_change_is_split_into_own_and_inherited():
    """y = b a x: with a from 2 to 3 and b from 5 to 7 the second changes by 7 * 3 - 5 * 2, of which (7 - 5) * 3 own."""
    model = nn.Sequential(linear(1, 1, 2.0), linear(1, 1, 5.0))
    before = passed(model, torch.ones(1))
    after = passed(model, torch.ones(1), changed=(("0.weight", 3.0), ("1.weight", 7.0)))
    assert (after.outputs["1"][0] - before.outputs["1"][0]).item() == 11
    assert after.own["1"][0].item() == 6
    assert after.own["0"][0].item() == 1
    assert after.inputs["1"][0].item() == 3


def test_what_is_passed_on_is_kept_once():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4)), nn.Dropout(0.5), nn.Identity(), nn.ReLU())
    assert list(passed(model, torch.ones(2, 3)).outputs) == ["0.0", "2", "3"]


class Viewed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return self.inner(x).view(2, 3)


def test_a_view_is_no_new_tensor():
    assert list(passed(Viewed(), torch.ones(6)).outputs) == ["inner"]


def test_what_is_done_in_place_is_a_new_tensor_and_leaves_the_old_one():
    model = nn.Sequential(linear(2, 2, -1.0), nn.ReLU(inplace=True))
    found = passed(model, torch.ones(1, 2))
    assert found.outputs["0"][0].tolist() == [[-2.0, -2.0]]
    assert found.outputs["1"][0].tolist() == [[0.0, 0.0]]


class Nested(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.result = result

    def forward(self, x):
        return self.result(x)


@pytest.mark.parametrize(
    ("result", "keys"),
    [
        (lambda x: x + 1, [ROOT]),
        (lambda x: (x + 1, None), [ROOT]),
        (lambda x: (x + 1, [x + 2]), [f"{ROOT}[0]", f"{ROOT}[1][0]"]),
        (lambda x: {"a": x + 1, "b": (x + 2,)}, [f"{ROOT}[a]", f"{ROOT}[b][0]"]),
        (lambda x: {"loss": x.sum(), "a": x + 1, "count": torch.ones(3, dtype=torch.long)}, [ROOT]),
        (lambda x: x.sum(), []),
        (lambda x: "text", []),
    ],
)
def test_tuples_and_dicts(result, keys):
    assert list(passed(Nested(result), torch.ones(2)).outputs) == keys


def test_a_module_that_is_called_twice_has_two_tensors():
    layer = linear(2, 2, 1.0)
    found = passed(nn.Sequential(layer, layer), torch.ones(1, 2))
    assert [one.sum().item() for one in found.outputs["0"]] == [4.0, 8.0]
    assert len(found.own["0"]) == 2


class Noisy(nn.Module):
    """Dropout inside of a module that has parameters, as in attention."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.after = nn.Dropout(0.5)

    def forward(self, x):
        return nn.functional.dropout(x * self.weight, 0.5, training=True) + torch.rand(64)


def test_random_numbers_are_the_same_at_every_pass():
    model = nn.Sequential(Noisy(), nn.Dropout(0.5), nn.ReLU())
    with Probe(model) as probe:
        _, first = probe.forward(lambda: model(torch.ones(64)))
        torch.set_rng_state(torch.Generator().manual_seed(7).get_state())  # whatever happens between two passes
        _, second = probe.forward(lambda: model(torch.ones(64)))
    assert torch.equal(torch.random.get_rng_state(), torch.Generator().manual_seed(7).get_state())
    for key in ("0", "2"):
        assert first.outputs[key][0].std() > 0
        assert torch.equal(first.outputs[key][0], second.outputs[key][0])
    assert not second.own["0"][0].any()


def test_measuring_changes_nothing():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(8, 4)
    other = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    other.load_state_dict(model.state_dict())
    with Probe(model) as probe:
        (loss, _) = probe.forward(lambda: model(x).square().sum())
    loss.backward()
    other(x).square().sum().backward()
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad), name
    assert all(map(torch.equal, model.buffers(), other.buffers()))  # the running statistics moved once
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_steps_of_a_bias_do_not_hide_those_of_a_matrix():
    layer = nn.Linear(1, 1)
    after = passed(layer, torch.ones(1), changed=(("weight", 3.0), ("bias", 100.0)))
    with torch.no_grad():
        layer.weight.fill_(1.0)
    again = passed(layer, torch.ones(1), changed=(("weight", 3.0), ("bias", 200.0)))
    assert again.own[ROOT][0].item() == pytest.approx(2, abs=1e-4)
    assert list(after.own) == [ROOT]
    gain = nn.LayerNorm(2, bias=False)
    assert passed(gain, torch.tensor([[1.0, -1.0]]), changed=(("weight", 3.0),)).own[ROOT][0].tolist() == [
        [pytest.approx(2, abs=1e-4), pytest.approx(-2, abs=1e-4)]
    ]
