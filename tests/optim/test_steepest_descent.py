"""The optimizer as PyTorch's contract wants it: state, words, non-finite gradients, errors."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from moga import SteepestDescent
from moga.optim.update import UPDATES

every_word = pytest.mark.parametrize("word", UPDATES)


def make(word="row", dtype=torch.float32, count=2, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    weights = [nn.Parameter(torch.randn(3, 4, generator=generator).to(dtype)) for _ in range(count)]
    group = {"params": [(f"w{i}", w) for i, w in enumerate(weights)], "norm": word, "layout": "out,in", "scale": 0.5}
    return weights, SteepestDescent([group], **{"lr": 0.1, "weight_decay": 0.1, **options})


def fill(weights, seed, bad=None):
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)
    if bad is not None:
        weights[-1].grad[1, 2] = bad


def run(weights, optimizer, seeds):
    for seed in seeds:
        fill(weights, seed)
        optimizer.step()
    return [w.detach().clone() for w in weights]


@every_word
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps_before", [0, 3])
def test_a_saved_run_goes_on_as_if_it_had_not_stopped(word, dtype, steps_before):
    weights, optimizer = make(word, dtype)
    run(weights, optimizer, range(steps_before))
    buffer = io.BytesIO()
    torch.save({"weights": [w.data for w in weights], "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    others, other = make(word, dtype, seed=1, lr=0.7)
    for weight, value in zip(others, saved["weights"], strict=True):
        weight.data.copy_(value)
    other.load_state_dict(saved["optimizer"])
    for state in other.state.values():
        assert {value.dtype for value in state.values()} == {torch.float32}
    assert other.param_groups[0]["lr"] == 0.1
    torch.testing.assert_close(run(others, other, range(5, 8)), run(weights, optimizer, range(5, 8)), rtol=0, atol=0)


@every_word
def test_deepcopy_and_pickle_keep_state_and_words(word):
    weights, optimizer = make(word, nonfinite="propagate", maximize=True)
    run(weights, optimizer, range(2))
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert (other.nonfinite, other.maximize, other.skipped) == ("propagate", True, 0)
        torch.testing.assert_close(list(other.state.values()), list(optimizer.state.values()), rtol=0, atol=0)
        copies = other.param_groups[0]["params"]
        expected = run(*(copy.deepcopy((weights, optimizer))), range(2, 4))
        torch.testing.assert_close(run(copies, other, range(2, 4)), [w.data for w in expected], rtol=1, atol=1)


@every_word
def test_state_is_float32_appears_together_and_is_as_small_as_stated(word):
    weights, optimizer = make(word, torch.bfloat16)
    assert not optimizer.state
    fill(weights[:1], 0)
    optimizer.step()
    for weight in weights:
        state = optimizer.state[weight]
        full = [value for value in state.values() if value.shape == weight.shape]
        assert len(full) == (2 if word == "adam" else 1) and {value.dtype for value in state.values()} == {
            torch.float32
        }
    assert torch.equal(weights[1], make(word, torch.bfloat16)[0][1])  # no gradient: neither step nor decay


@every_word
def test_maximize_is_descent_on_the_negative(word):
    (up, climb), (down, descend) = make(word, maximize=True), make(word)
    for seed in range(3):
        fill(up, seed)
        fill(down, seed)
        for weight in down:
            weight.grad.neg_()
        climb.step()
        descend.step()
    torch.testing.assert_close(up, down, rtol=0, atol=0)


@every_word
def test_lr_as_tensor_and_lr_zero(word):
    (a, number), (b, tensor) = make(word), make(word, lr=torch.tensor(0.1))
    torch.testing.assert_close(run(a, number, range(3)), run(b, tensor, range(3)), rtol=1e-6, atol=1e-7)
    tensor.param_groups[0]["lr"].fill_(0.0)
    before = [w.detach().clone() for w in b]
    torch.testing.assert_close(run(b, tensor, range(2)), before, rtol=0, atol=0)


@every_word
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_skip_drops_the_whole_step_and_counts_it(word, bad):
    (a, skips), (b, plain) = make(word), make(word)
    run(a, skips, [0])
    fill(a, 99, bad)
    skips.step()
    assert skips.skipped == 1
    torch.testing.assert_close(run(a, skips, [1, 2]), run(b, plain, [0, 1, 2]), rtol=0, atol=0)
    resumed = make(word)[1]
    resumed.load_state_dict(skips.state_dict())
    fill(resumed.param_groups[0]["params"], 99, bad)
    resumed.step()
    assert (skips.skipped, resumed.skipped) == (1, 2)


@every_word
def test_propagate_lets_nan_through_and_raise_names_the_parameter(word):
    weights, optimizer = make(word, nonfinite="propagate")
    fill(weights, 0, math.nan)
    optimizer.step()
    assert weights[1].isnan().any() and not weights[0].isnan().any()
    weights, optimizer = make(word, nonfinite="raise")
    fill(weights, 0, math.inf)
    before = copy.deepcopy(weights)
    with pytest.raises(FloatingPointError, match="the gradient of w1 holds NaN or Inf; no weight was changed"):
        optimizer.step()
    torch.testing.assert_close(weights, before, rtol=0, atol=0)


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


@every_word
@pytest.mark.parametrize("nonfinite", ["skip", "propagate"])
def test_step_reads_nothing_on_the_host_and_writes_no_gradient(word, nonfinite):
    weights, optimizer = make(word, nonfinite=nonfinite, lr=torch.tensor(0.1))
    run(weights, optimizer, [0])
    fill(weights, 1)
    grads = [w.grad.clone() for w in weights]
    with Calls() as calls:
        optimizer.step()
    reads = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero", "aten::equal"}
    assert calls.names and not reads & set(calls.names)
    torch.testing.assert_close([w.grad for w in weights], grads, rtol=0, atol=0)


def test_the_count_of_host_reads_sees_a_read():
    with Calls() as calls:
        torch.ones(()).item()
    assert "aten::_local_scalar_dense" in calls.names


def test_closure_returns_its_loss_and_schedulers_drive_lr():
    weights, optimizer = make()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))

    def closure():
        optimizer.zero_grad()
        loss = sum((w**2).sum() for w in weights)
        loss.backward()
        return loss

    losses = []
    for _ in range(5):
        losses.append(optimizer.step(closure).item())
        scheduler.step()
    assert losses == sorted(losses, reverse=True) and optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 6)


def test_two_optimizers_on_halves_equal_one_on_both():
    both, one = make()
    halves, _ = make()
    two = [
        SteepestDescent([{"params": [w], "norm": "row", "layout": "out,in", "scale": 0.5}], lr=0.1, weight_decay=0.1)
        for w in halves
    ]
    for seed in range(3):
        fill(both, seed)
        fill(halves, seed)
        one.step()
        for optimizer in two:
            optimizer.step()
    torch.testing.assert_close(both, halves, rtol=1e-6, atol=1e-7)


def test_non_contiguous_weights_and_gradients():
    stored = torch.randn(4, 3)
    (a, straight), b = make(count=1), nn.Parameter(torch.randn(4, 3).mT)
    other = SteepestDescent([{"params": [("b", b)], "norm": "row", "layout": "out,in", "scale": 0.5}], lr=0.1)
    straight.param_groups[0]["weight_decay"] = 0.0
    b.data.copy_(a[0].data)
    for _ in range(3):
        a[0].grad, b.grad = stored.mT.contiguous(), stored.mT
        straight.step()
        other.step()
    torch.testing.assert_close(a[0].data, b.data, rtol=1e-6, atol=1e-7)


GOOD = {"norm": "row", "layout": "out,in", "scale": 1.0}


@pytest.mark.parametrize(
    "changes,options,error,text",
    [
        ({}, {"lr": -1.0}, ValueError, "lr = -1.0 is out of range; allowed is a finite 0 <= lr"),
        ({}, {"lr": math.nan}, ValueError, "lr = nan is out of range"),
        ({}, {"lr": math.inf}, ValueError, "lr = inf is out of range"),
        ({}, {"momentum": 1.0}, ValueError, "momentum = 1.0 is out of range; allowed is a finite 0 <= momentum < 1"),
        ({}, {"lookahead": -0.1}, ValueError, "lookahead = -0.1 is out of range"),
        ({}, {"betas": (0.9, 1.5)}, ValueError, r"betas\[1\] = 1.5 is out of range"),
        ({}, {"eps": -1e-8}, ValueError, "eps = -1e-08 is out of range"),
        ({}, {"weight_decay": -0.1}, ValueError, "weight_decay = -0.1 is out of range"),
        ({"lr_scale": -1.0}, {}, ValueError, "lr_scale = -1.0 is out of range"),
        ({"decay_scale": math.nan}, {}, ValueError, "decay_scale = nan is out of range"),
        (
            {},
            {"nonfinite": "ignore"},
            ValueError,
            "unknown word nonfinite='ignore'; the words are skip, raise, propagate",
        ),
        ({"norm": "rows"}, {}, ValueError, "unknown norm 'rows' in a parameter group; the words are sign, column, row"),
        ({"layout": "io"}, {}, ValueError, "unknown layout 'io' in a parameter group; the words are out,in, in,out"),
        ({"polar": "svd"}, {}, ValueError, "unknown polar 'svd' in a parameter group; the words are exact, quintic"),
        ({"params": []}, {}, ValueError, "a parameter group is empty; give it at least one tensor"),
        (
            {"params": [nn.Parameter(torch.ones(3))]},
            {},
            ValueError,
            r"shape \(3,\); layout 'out,in' needs two dimensions",
        ),
        (
            {"params": [nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))]},
            {},
            TypeError,
            "parameter 0 is torch.complex64; a real floating-point tensor is needed",
        ),
    ],
)
def test_errors(changes, options, error, text):
    group = {"params": [nn.Parameter(torch.ones(2, 2))], **GOOD, **changes}
    with pytest.raises(error, match=text):
        SteepestDescent([group], **{"lr": 0.1, **options})


def test_errors_of_lists():
    weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ValueError, match="empty parameter list"):
        SteepestDescent([], lr=0.1)
    with pytest.raises(
        ValueError, match="a parameter group lacks 'norm', 'layout', 'scale'; make groups with moga.param_groups"
    ):
        SteepestDescent([weight], lr=0.1)
    with pytest.raises(ValueError, match="some parameters appear in more than one parameter group"):
        SteepestDescent([{"params": [weight], **GOOD}, {"params": [weight], **GOOD}], lr=0.1)
    with pytest.raises(ValueError, match="parameter 1 is given twice"), pytest.warns(UserWarning, match="duplicate"):
        SteepestDescent([{"params": [weight, weight], **GOOD}], lr=0.1)


def test_a_refused_group_leaves_the_optimizer_as_it_was():
    _, optimizer = make()
    with pytest.raises(ValueError, match="scale"):
        optimizer.add_param_group({"params": [("x", nn.Parameter(torch.ones(2, 2)))], **GOOD, "lr_scale": -1.0})
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients_are_refused():
    table = nn.Embedding(4, 3, sparse=True)
    optimizer = SteepestDescent([{"params": [("table", table.weight)], **GOOD}], lr=0.1)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="parameter 'table' has a sparse gradient; use sparse=False"):
        optimizer.step()
