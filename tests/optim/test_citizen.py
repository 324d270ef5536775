"""What torch.optim does, every optimizer of the table does: closures, hooks, schedulers, scalers, compilation, ..."""

import copy
import functools
import inspect
import math

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import lr_scheduler as schedulers
from torch.utils._python_dispatch import TorchDispatchMode

import moga
from moga.optim import steepest_descent


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


def test_hooks_of_every_kind_in_their_order_and_with_their_effects(entry, tools):
    """Before a step and after it; before a state is saved and after; before one is loaded and after."""
    model, other, calls = tools.Network(), tools.Network(), []
    optimizer, target = entry.optimizer(model), entry.optimizer(other, lr=0.7)
    weights, start = list(model.parameters()), copy.deepcopy(list(model.parameters()))

    def freeze(own, args, kwargs):
        calls.append("before step")
        assert own is optimizer and all(torch.equal(a, b) for a, b in zip(weights, start, strict=True))
        weights[0].grad = None  # what a hook changes counts for this step

    def moved(own, args, kwargs):
        calls.append("after step")
        assert torch.equal(weights[0], start[0]) and not torch.equal(weights[1], start[1])

    def before_saving(own):
        calls.append("before saving")
        own.param_groups[0]["lr"] = 0.123

    def after_saving(own, saved):
        calls.append("after saving")
        assert saved["param_groups"][0]["lr"] == 0.123
        return {**saved, "own": "kept"}

    def before_loading(own, saved):
        calls.append("before loading")
        assert saved.pop("own") == "kept" and own.param_groups[0]["lr"] == 0.7 and not own.state
        saved["param_groups"] = [{**group, "lr": 0.5} for group in saved["param_groups"]]

    def second_before_loading(own, saved):
        calls.append("second before loading")
        assert saved["param_groups"][0]["lr"] == 0.5
        return {**saved, "param_groups": [{**group, "lr": 0.25} for group in saved["param_groups"]]}

    def after_loading(own):
        calls.append("after loading")
        assert {group["lr"] for group in own.param_groups} == {0.25} and set(own.state) == set(other.parameters())

    optimizer.register_step_pre_hook(freeze)
    optimizer.register_step_post_hook(moved)
    optimizer.register_state_dict_pre_hook(before_saving)
    optimizer.register_state_dict_post_hook(after_saving)
    target.register_load_state_dict_pre_hook(before_loading)
    target.register_load_state_dict_pre_hook(second_before_loading)
    target.register_load_state_dict_post_hook(after_loading)
    tools.run(weights, optimizer, [0])
    target.load_state_dict(optimizer.state_dict())
    step, saving, loading = (["before " + word, "after " + word] for word in ("step", "saving", "loading"))
    assert calls == [*step, *saving, loading[0], "second before loading", loading[1]]


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


@pytest.mark.parametrize("dtype,rounding", [(torch.float32, "nearest"), (torch.bfloat16, "stochastic")], ids=str)
def test_two_optimizers_on_halves_equal_one_on_both(entry, tools, dtype, rounding):
    """Also where rounding is random: its bits depend on the step and on the name of a parameter."""
    whole, halves = tools.Network(dtype), tools.Network(dtype)
    words = {"rounding": rounding, "state_dtype": "bfloat16" if rounding == "stochastic" else "float32"}
    one = entry.optimizer(whole, **words)
    groups = entry.optimizer(halves, **words).param_groups
    for group in groups:
        group["params"] = list(zip(group.pop("param_names"), group["params"], strict=True))
    singles = [{**group, "params": [pair]} for group in groups for pair in group["params"]]
    two = [moga.SteepestDescent(part, lr=entry.lr) for part in (singles[1::2], singles[::2])]
    for seed in range(3):
        tools.fill(whole.parameters(), seed)
        tools.fill(halves.parameters(), seed)
        for optimizer in (one, *two):
            optimizer.step()
    tolerance = {"rtol": 1e-6, "atol": 1e-7} if dtype == torch.float32 else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(list(whole.parameters()), list(halves.parameters()), **tolerance)


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
    assert found | {"SWALR"} == set(LAST)


CYCLED = ("lr", "momentum", "betas")


def curve(optimizer, weights, tools, make, steps=7):
    """What the groups say at each step, after it."""
    scheduler, said = make(optimizer), []
    for t in range(steps):
        tools.fill(weights, t)
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, schedulers.ReduceLROnPlateau) else []))
        said.append([{key: group[key] for key in CYCLED if key in group} for group in optimizer.param_groups])
    return said


@functools.cache
def rates_of_torch(kind):
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.05, momentum=0.9)
    rates = []
    scheduler = LAST[kind](optimizer)
    for _ in range(7):
        optimizer.step()
        scheduler.step(*([1.0] if kind == "ReduceLROnPlateau" else []))
        rates.append(optimizer.param_groups[0]["lr"])
    assert len(set(rates)) > 1
    return rates


@pytest.mark.filterwarnings("ignore:.*epoch parameter:UserWarning")
def test_every_scheduler_drives_every_optimizer(entry, tools):
    """One lr in every group, the same as torch.optim's; and the step obeys what the groups say, bit for bit."""
    weights = list(tools.Network().parameters())
    start = [weight.detach().clone() for weight in weights]
    names = [f"{i}" for i in range(len(weights))]
    roles = {"*": "hidden"}

    def fresh():
        for weight, value in zip(weights, start, strict=True):
            weight.data.copy_(value)
        return entry.optimizer(list(zip(names, weights, strict=True)), lr=0.05, roles=roles)

    for kind, make in LAST.items():
        said = curve(fresh(), weights, tools, make)
        assert [groups[0]["lr"] for groups in said] == pytest.approx(rates_of_torch(kind)), kind
        assert all(len({group["lr"] for group in groups}) == 1 for groups in said), kind
        driven = [weight.detach().clone() for weight in weights]
        assert all(weight.isfinite().all() for weight in driven), kind
        if kind in REPLAYED:
            by_hand = fresh()
            make(by_hand)  # sets the first rate
            for t in range(7):
                tools.fill(weights, t)
                by_hand.step()
                for group, own in zip(by_hand.param_groups, said[t], strict=True):
                    group.update(own)
            torch.testing.assert_close(weights, driven, rtol=0, atol=0)


REPLAYED = ("OneCycleLR", "CyclicLR", "ReduceLROnPlateau")  # those that write more than lr, or write it in another way


@pytest.mark.parametrize("lr", [0.08, torch.tensor(0.08)], ids=["number", "tensor"])
def test_a_plateau_reduces_lr_once_in_each_group(entry, tools, lr):
    """torch multiplies a tensor lr in place, once for each group: each has a copy of its own."""
    given = lr.clone() if isinstance(lr, torch.Tensor) else lr
    optimizer = entry.optimizer(tools.Network(), lr=lr)
    optimizer.add_param_group({**GROUP, "params": [("late", nn.Parameter(torch.eye(2)))]})
    assert len(optimizer.param_groups) > 1
    scheduler = schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for _ in range(3):
        scheduler.step(1.0)
    for group in optimizer.param_groups:
        assert type(group["lr"]) is type(lr) and float(group["lr"]) == pytest.approx(0.08 * 0.25)
    rates = [group["lr"] for group in optimizer.param_groups if isinstance(group["lr"], torch.Tensor)]
    assert len({id(rate) for rate in (*rates, lr)}) == len(rates) + 1
    assert lr == given  # the caller's tensor is not written to, and writing to it changes nothing
    resumed = copy.deepcopy(optimizer)
    resumed.load_state_dict(optimizer.state_dict())
    tensors = [group["lr"] for group in resumed.param_groups if isinstance(group["lr"], torch.Tensor)]
    assert len({id(rate) for rate in tensors}) == len(rates)


def test_a_shared_tensor_would_be_reduced_once_for_every_group(tools, monkeypatch):
    """The planted fault: without copies the check above fails."""
    monkeypatch.setattr(steepest_descent, "_unshare", lambda group: None)
    optimizer = tools.ENTRIES[0].optimizer(tools.Network(), lr=torch.tensor(0.08))
    schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0).step(1.0)
    scheduler = schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for _ in range(2):
        scheduler.step(1.0)
    assert float(optimizer.param_groups[0]["lr"]) < 0.08 * 0.25


@pytest.mark.filterwarnings("ignore:.*epoch parameter:UserWarning")
@pytest.mark.parametrize("kind", LAST)
def test_every_scheduler_drives_a_tensor_lr_as_it_does_for_torch(tools, kind):
    """Several groups here, one there; the tensor of a group stays the same object."""
    optimizer = tools.ENTRIES[0].optimizer(tools.Network(), lr=torch.tensor(0.05))
    before = [group["lr"] for group in optimizer.param_groups]
    scheduler = LAST[kind](optimizer)
    for rate in rates_of_torch(kind):
        optimizer.step()
        scheduler.step(*([1.0] if kind == "ReduceLROnPlateau" else []))
        assert [group["lr"].item() for group in optimizer.param_groups] == pytest.approx([rate] * len(before), rel=1e-5)
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, before, strict=True))


GROUP = {"norm": "row", "layout": "out,in", "scale": 1.0}


def test_writing_to_the_tensor_that_was_given_changes_nothing(tools):
    given, weight = torch.tensor(0.5), nn.Parameter(torch.eye(2))
    optimizer = moga.SteepestDescent([{**GROUP, "params": [weight]}], lr=given)
    given.fill_(99.0)
    assert optimizer.param_groups[0]["lr"] == 0.5
    optimizer.param_groups[0]["lr"].fill_(0.0)
    tools.run([weight], optimizer, [0])
    assert torch.equal(weight, torch.eye(2))


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


def compiled(entry, tools, lr, backend, rates):
    """Compile a step function, take a step at each rate, and return the count of compilations after each.

    A twin that is not compiled takes the same steps. The state exists before: making it is a compilation of its own.
    """
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    roles = {"w": "hidden", "b": "vector"}
    weights = [[("w", nn.Parameter(torch.eye(4, 3))), ("b", nn.Parameter(torch.ones(3)))] for _ in range(2)]
    optimizer, eager = (entry.optimizer(named, lr=lr, roles=roles) for named in weights)
    step, counts = torch.compile(lambda: optimizer.step(), backend=counter), []
    for t, rate in enumerate((entry.lr, *rates)):
        for one in (optimizer, eager):
            for group in one.param_groups:
                group["lr"] = group["lr"].fill_(rate) if isinstance(lr, torch.Tensor) else rate
        for named in weights:
            tools.fill([weight for _, weight in named], t)
        optimizer.step() if t == 0 else step()
        eager.step()
        counts.append(counter.frame_count)
    for (_, ours), (_, twin) in zip(*weights, strict=True):
        torch.testing.assert_close(ours, twin, rtol=1e-4, atol=1e-5)
    return counts[1:]


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_compiled_step_recompiles_at_most_once_when_lr_changes(entry, tools):
    """The graph is the whole step: one compilation, and one more where a number becomes a variable."""
    rates = [entry.lr, entry.lr / 2, entry.lr / 3, entry.lr / 4]
    assert compiled(entry, tools, entry.lr, "eager", rates) == [1, 2, 2, 2]
    assert compiled(entry, tools, torch.tensor(entry.lr), "eager", rates[1:]) == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("name", ["moga-row", "adamw"])
def test_a_step_that_inductor_compiles_recompiles_at_most_once(tools, name):
    entry = next(one for one in tools.ENTRIES if one.name == name)
    assert compiled(entry, tools, entry.lr, "inductor", [entry.lr, entry.lr / 2, entry.lr / 3])[-1] <= 2


@pytest.mark.parametrize("nonfinite", ["skip", "raise"])
def test_a_wider_gradient_must_be_finite_in_the_arithmetic_of_the_step(nonfinite):
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    weight.grad_dtype = None
    optimizer = moga.optimizer([("w", weight)], "moga-row", lr=0.1, roles={"w": "hidden"}, nonfinite=nonfinite)
    weight.grad = torch.full((2, 2), 1e300, dtype=torch.float64)
    if nonfinite == "raise":
        with pytest.raises(FloatingPointError, match="the gradient of w holds NaN or Inf"):
            optimizer.step()
    else:
        optimizer.step()
        assert optimizer.skipped == 1
    assert not weight.any()


def test_a_float64_gradient_beyond_float32_is_finite():
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = moga.optimizer([("w", weight)], "signsgd", lr=0.5, roles={"w": "vector"})
    weight.grad = torch.full((2,), 1e39, dtype=torch.float64)
    optimizer.step()
    assert optimizer.skipped == 0 and weight.tolist() == [-0.5, -0.5]
