"""What torch.optim does, every optimizer of the table does: closures, hooks, schedulers, scalers, compilation, ..."""

import copy
import inspect
import math

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.optim import lr_scheduler as schedulers
from torch.utils._python_dispatch import TorchDispatchMode

import moga


def test_a_closure_returns_its_loss(entry, tools):
    model = tools.Network()
    optimizer = entry.optimizer(model, lr=entry.lr / 10)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.arange(5)), torch.arange(5))
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(5)]
    assert losses[-1] < losses[0]


def test_maximize_is_descent_on_the_negative(entry, tools):
    up, down = tools.Network(), tools.Network()
    climb, descend = entry.optimizer(up, maximize=True), entry.optimizer(down)
    for seed in range(3):
        tools.fill(up.parameters(), seed)
        tools.fill(down.parameters(), seed)
        for weight in down.parameters():
            weight.grad.neg_()
        climb.step()
        descend.step()
    torch.testing.assert_close(list(up.parameters()), list(down.parameters()), rtol=0, atol=0)


def test_hooks(entry, tools):
    model, calls = tools.Network(), []
    optimizer = entry.optimizer(model)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.register_state_dict_post_hook(lambda *_: calls.append("saved"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("loads"))
    tools.run(model.parameters(), optimizer, [0])
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before", "after", "saved", "loads"]


def test_lr_as_a_tensor(entry, tools):
    one, two = tools.Network(torch.float64), tools.Network(torch.float64)
    number = entry.optimizer(one)
    tensor = entry.optimizer(two, lr=torch.tensor(entry.lr, dtype=torch.float64))
    a, b = tools.run(one.parameters(), number, range(3)), tools.run(two.parameters(), tensor, range(3))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("lr", [0.0, torch.tensor(0.0)], ids=["number", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("nonfinite", ["skip", "propagate"])
def test_lr_zero_changes_no_weight(entry, tools, lr, dtype, nonfinite):
    model = tools.Network(dtype)
    before = copy.deepcopy(list(model.parameters()))
    optimizer = entry.optimizer(model, lr=lr, nonfinite=nonfinite)
    tools.run(model.parameters(), optimizer, range(2))
    torch.testing.assert_close(list(model.parameters()), before, rtol=0, atol=0)
    assert set(optimizer.state) == set(model.parameters())


def test_a_group_that_is_added_later(entry, tools):
    model, apart = tools.Network(), tools.Network()
    whole = entry.optimizer(apart)
    groups = entry.optimizer(model).param_groups
    for group in groups:
        group["params"] = list(zip(group.pop("param_names"), group["params"], strict=True))
    grown = moga.SteepestDescent(groups[:1], lr=entry.lr)
    for group in groups[1:]:
        grown.add_param_group(group)
    a, b = tools.run(model.parameters(), grown, range(2)), tools.run(apart.parameters(), whole, range(2))
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_two_optimizers_on_halves_equal_one_on_both(entry, tools):
    whole, halves = tools.Network(), tools.Network()
    one = entry.optimizer(whole)
    groups = entry.optimizer(halves).param_groups
    for group in groups:
        group["params"] = list(zip(group.pop("param_names"), group["params"], strict=True))
    two = [moga.SteepestDescent(part, lr=entry.lr) for part in (groups[::2], groups[1::2]) if part]
    for seed in range(3):
        tools.fill(whole.parameters(), seed)
        tools.fill(halves.parameters(), seed)
        for optimizer in (one, *two):
            optimizer.step()
    torch.testing.assert_close(list(whole.parameters()), list(halves.parameters()), rtol=1e-6, atol=1e-7)


def test_parameters_without_gradient_and_frozen_ones(entry, tools):
    model = tools.Network()
    optimizer = entry.optimizer(model)
    frozen = model.down.weight
    frozen.requires_grad_(False)
    start = frozen.detach().clone()
    for unfrozen in (False, True):
        frozen.requires_grad_(unfrozen)
        optimizer.zero_grad()
        model(torch.arange(5)).square().sum().backward()
        assert (frozen.grad is not None) == unfrozen
        optimizer.step()
        assert torch.equal(frozen, start) != unfrozen


def test_zero_gradients_move_nothing(entry, tools):
    model = tools.Network()
    before = copy.deepcopy(list(model.parameters()))
    optimizer = entry.optimizer(model)
    for _ in range(2):
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
    torch.testing.assert_close(list(model.parameters()), before, rtol=1e-5, atol=1e-6)


# What its source says depends on the size of the gradient. All others take the same step.
NOT_SCALE_FREE = {"sgd", "heavy-ball", "rmsprop", "adam", "adamw", "mup-adamw", "shampoo-accumulated", "muown"}


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_gradients_of_any_size(entry, tools, size):
    def after(factor):
        weight = nn.Parameter(torch.linalg.qr(torch.arange(24.0).reshape(6, 4).cos())[0])
        optimizer = entry.optimizer([("w", weight)])
        for seed in range(3):
            tools.fill([weight], seed, size=factor)
            optimizer.step()
        assert optimizer.skipped == 0
        return weight.detach()

    assert after(size).isfinite().all()
    if entry.name not in NOT_SCALE_FREE:
        torch.testing.assert_close(after(size), after(1.0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("name,peer", [("adam", torch.optim.Adam), ("rmsprop", torch.optim.RMSprop)])
def test_gradients_of_any_size_do_what_they_do_in_torch(tools, size, name, peer):
    ours, theirs = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(4, 3))
    a, b = moga.optimizer([("w", ours)], name, lr=0.01, roles={"w": "hidden"}), peer([theirs], lr=0.01)
    for seed in range(3):
        tools.fill([ours], seed, size=size)
        tools.fill([theirs], seed, size=size)
        a.step()
        b.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_skip_drops_the_whole_step_and_counts_it(entry, tools, bad):
    one, two = tools.Network(), tools.Network()
    skips, plain = entry.optimizer(one), entry.optimizer(two)
    tools.run(one.parameters(), skips, [0])
    tools.fill(one.parameters(), 99, bad)
    skips.step()
    assert skips.skipped == 1
    a, b = tools.run(one.parameters(), skips, [1, 2]), tools.run(two.parameters(), plain, [0, 1, 2])
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    resumed = entry.optimizer(tools.Network())
    resumed.load_state_dict(skips.state_dict())
    assert resumed.skipped == 1 and copy.deepcopy(resumed).skipped == 1
    weights = [weight for group in resumed.param_groups for weight in group["params"]]
    tools.fill(weights, 99, bad)
    resumed.step()
    assert resumed.skipped == 2 and skips.skipped == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_propagate_lets_it_through_and_raise_names_the_parameter(entry, tools, bad):
    model = tools.Network()
    optimizer = entry.optimizer(model, nonfinite="propagate")
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, bad)
        weight.grad.view(-1)[0] = math.nan
    optimizer.step()
    assert not any(weight.isfinite().all() for weight in model.parameters())
    model = tools.Network()
    optimizer = entry.optimizer(model, nonfinite="raise")
    tools.fill(model.parameters(), 0, bad)
    before = copy.deepcopy(list(model.parameters()))
    with pytest.raises(FloatingPointError, match="the gradient of head.weight holds NaN or Inf; no weight was changed"):
        optimizer.step()
    torch.testing.assert_close(list(model.parameters()), before, rtol=0, atol=0)


def test_transposed_and_strided_parameters(entry, tools):
    plain = nn.Parameter(torch.linalg.qr(torch.arange(24.0).reshape(6, 4).cos())[0].contiguous())
    transposed = nn.Parameter(plain.detach().mT.contiguous().mT)
    strided = nn.Parameter(torch.empty(6, 8)[:, ::2])
    strided.data.copy_(plain.data)
    assert not transposed.is_contiguous() and not strided.is_contiguous()
    results = []
    for weight in (plain, transposed, strided):
        optimizer = entry.optimizer([("w", weight)])
        for seed in range(3):
            tools.fill([weight], seed)
            weight.grad = weight.grad.mT.contiguous().mT
            optimizer.step()
        results.append(weight.detach())
    torch.testing.assert_close(results[1:], [results[0]] * 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (1, 4), (4, 1)])
def test_parameters_of_size_0_and_1(entry, tools, shape):
    weight = nn.Parameter(torch.ones(shape) / max(1, max(shape)) ** 0.5)
    optimizer = entry.optimizer([("w", weight)])
    tools.run([weight], optimizer, range(3))
    assert weight.shape == shape and weight.isfinite().all()
    entry.optimizer([("w", weight)]).load_state_dict(optimizer.state_dict())


def test_vectors_and_scalars_of_size_0_and_1(entry, tools):
    weights = [nn.Parameter(torch.ones(shape)) for shape in ((0,), (), (1,), (3,))]
    named = [(str(i), weight) for i, weight in enumerate(weights)]
    optimizer = entry.optimizer(named, roles={"*": "vector"})
    tools.run(weights, optimizer, range(3))
    assert all(weight.isfinite().all() for weight in weights)
    assert not any(torch.equal(weight, torch.ones_like(weight)) for weight in weights[1:])


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


READS = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero", "aten::equal"}


@pytest.mark.parametrize("nonfinite", ["skip", "propagate"])
def test_step_reads_nothing_on_the_host_and_writes_no_gradient(entry, tools, nonfinite):
    model = tools.Network()
    optimizer = entry.optimizer(model, nonfinite=nonfinite, lr=torch.tensor(entry.lr))
    tools.fill(model.parameters(), 1)
    grads = [(weight.grad, weight.grad.clone(), weight.grad._version) for weight in model.parameters()]
    for _ in range(2):  # also the first step, which makes the state
        with Calls() as calls:
            optimizer.step()
        assert calls.names and not READS & set(calls.names)
    for weight, (grad, copied, version) in zip(model.parameters(), grads, strict=True):
        assert weight.grad is grad and grad._version == version and torch.equal(grad, copied)


def test_the_count_of_host_reads_sees_a_read():
    with Calls() as calls:
        torch.ones(()).item()
    assert READS & set(calls.names)


def test_a_scaler_on_a_cpu_autocast_run(entry, tools):
    model = tools.Network()
    optimizer, scaler = entry.optimizer(model, lr=entry.lr / 4), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    losses = []
    for t in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(torch.arange(5)), torch.arange(5))
        scaler.scale(loss).backward()
        before = [weight.detach().clone() for weight in model.parameters()]
        if t == 10:
            model.head.weight.grad[0, 0] = math.inf
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        unchanged = [torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True)]
        assert all(unchanged) if t == 10 else not any(unchanged)
        losses.append(loss.item())
    assert losses[-1] < losses[0] and optimizer.skipped == 0


LAST = {  # every scheduler of torch, and how to make it for ten steps
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda t: 1 / (1 + t)),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 3),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 5]),
    "ConstantLR": schedulers.ConstantLR,
    "LinearLR": schedulers.LinearLR,
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)], [4]
    ),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 8),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 10),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=2),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 3),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=10),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01),
}


def test_the_table_of_schedulers_is_complete():
    found = {
        name
        for name, kind in inspect.getmembers(schedulers, inspect.isclass)
        if issubclass(kind, schedulers.LRScheduler) and not name.startswith("_") and name != "LRScheduler"
    }
    assert found <= set(LAST)


def curve(optimizer, weights, tools, make):
    scheduler, rates = make(optimizer), []
    for t in range(8):
        tools.fill(weights, t)
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, schedulers.ReduceLROnPlateau) else []))
        rates.append([group["lr"] for group in optimizer.param_groups])
    return rates


@pytest.mark.filterwarnings("ignore:.*epoch parameter:UserWarning")
@pytest.mark.parametrize("kind", LAST)
def test_every_scheduler_drives_lr_as_it_does_for_torch(tools, kind):
    """One number in every group, the same as torch.optim's."""
    model, other = tools.Network(), tools.Network()
    ours = tools.ENTRIES[0].optimizer(model, lr=0.05)
    theirs = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    a, b = (curve(o, list(m.parameters()), tools, LAST[kind]) for o, m in ((ours, model), (theirs, other)))
    assert len({tuple(set(rates)) for rates in a}) > 1
    assert [rates[0] for rates in a] == pytest.approx([rates[0] for rates in b])
    assert all(len(set(rates)) == 1 for rates in a)


def test_one_cycle_cycles_the_average_that_is_in_use(entry, tools):
    model = tools.Network()
    optimizer = entry.optimizer(model)
    scheduler = schedulers.OneCycleLR(optimizer, entry.lr, total_steps=10)
    tools.run(model.parameters(), optimizer, [0])
    scheduler.step()
    key = "betas" if all(group["norm"] == "adam" for group in optimizer.param_groups) else "momentum"
    for group in optimizer.param_groups:
        value = group[key][0] if key == "betas" else group[key]
        assert 0.85 < value < 0.95
    tools.run(model.parameters(), optimizer, [1])
    assert all(weight.isfinite().all() for weight in model.parameters())


def test_one_cycle_equals_torch(tools):
    """AdamW's first beta and SGD's momentum change at every step, and the weights stay the same as torch's."""
    for name, peer, words in (
        ("adamw", torch.optim.AdamW, {"weight_decay": 0.0}),
        ("heavy-ball", torch.optim.SGD, {"momentum": 0.9}),
    ):
        ours, theirs = tools.Network(torch.float64), tools.Network(torch.float64)
        a = moga.optimizer(ours, name, lr=0.01, roles=tools.ROLES, **words)
        b = peer(theirs.parameters(), lr=0.01, **words)
        for optimizer, model in ((a, ours), (b, theirs)):
            scheduler = schedulers.OneCycleLR(optimizer, 0.01, total_steps=10)
            for t in range(6):
                tools.run(model.parameters(), optimizer, [t])
                scheduler.step()
        torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["moga-row", "hyperp"])
def test_a_compiled_step_recompiles_at_most_once_when_lr_changes(tools, name):
    entry = next(one for one in tools.ENTRIES if one.name == name)
    torch._dynamo.reset()
    counter = CompileCounter()
    weights = [[("w", nn.Parameter(torch.eye(4, 3)))] for _ in range(2)]
    optimizer, eager = (entry.optimizer(named) for named in weights)
    step = torch.compile(optimizer.step, backend=counter)
    counts = []
    for t in range(6):
        for one in (optimizer, eager):
            one.param_groups[0]["lr"] = entry.lr / (1 + max(0, t - 2))
        for [(_, weight)] in weights:
            tools.fill([weight], t)
        step()
        eager.step()
        counts.append(counter.frame_count)
    assert counts[0] == 1 and counts[2] == 2  # the first step makes the state
    assert counts[3:] == [3, 3, 3]  # lr becomes a variable, once
    torch.testing.assert_close(weights[0][0][1], weights[1][0][1], rtol=1e-5, atol=1e-6)
