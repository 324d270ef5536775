"""Tensors that FSDP1 and DeepSpeed have flattened, recognised in a model, a list, a group and behind an optimizer."""

import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import moga

WHY = (
    "A flat tensor holds weights end to end, or pieces of them: it has no rows or columns, and the size of a step is "
    "measured in those. Use FSDP2, torch.distributed.fsdp.fully_shard, which keeps every weight a matrix, or "
    "DistributedDataParallel where the model fits on one device."
)
BY_FSDP1 = f"was flattened by FSDP1 (FullyShardedDataParallel). {WHY} use_orig_params=True does not help: its"
BY_ZERO = f"was flattened by DeepSpeed ZeRO. {WHY} ZeRO flattens in each of its stages 1, 2 and 3."


def network():
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False))


ROLES = {"2.weight": "output"}


def flat(**marks):
    weight = nn.Parameter(torch.zeros(0 if "ds_id" in marks else 6))
    for name, value in marks.items():
        setattr(weight, name, value)
    return weight


@pytest.mark.parametrize(
    "marks,text",
    [
        ({"_is_flat_param": True}, f"shape (6,), {BY_FSDP1}"),
        ({"_fsdp_flattened": True}, f"shape (6,), {BY_FSDP1}"),
        ({"ds_id": 0, "ds_shape": (2, 3), "ds_tensor": torch.zeros(3)}, f"shape (0,), {BY_ZERO}"),
    ],
    ids=["flat", "piece", "zero"],
)
def test_marked_tensors_are_refused_wherever_they_arrive(marks, text):
    def refused(name, make):
        with pytest.raises(ValueError, match=re.escape(f"parameter {name!r}, {text}")):
            make()

    model = network()
    model[1].bias = flat(**marks)
    refused("1.bias", lambda: moga.find_roles(model, ROLES))
    refused("1.bias", lambda: moga.optimizer(model, "moga-row", lr=0.1, roles=ROLES))
    refused("1.bias", lambda: moga.initialize_(model, "moga-row", roles=ROLES))
    refused("w", lambda: moga.find_roles([("w", flat(**marks))]))
    group = {"params": [flat(**marks)], "norm": "sign", "layout": "vector", "scale": 1.0}
    refused(0, lambda: moga.SteepestDescent([group], lr=0.1))


def test_marks_that_say_no_and_frozen_flat_tensors_are_no_hindrance():
    model = network()
    model[1].weight._is_flat_param = False
    model[1].bias = flat(ds_id=3).requires_grad_(False)
    assert len(moga.find_roles(model, ROLES)) == 3


def test_a_flat_tensor_that_takes_the_place_of_weights_is_refused_at_the_step():
    """As DeepSpeed does in every stage: the groups get one flat partition each, without any mark."""
    optimizer = moga.optimizer(network(), "moga-row", lr=0.1, roles=ROLES)
    for group in optimizer.param_groups:
        group["params"] = [nn.Parameter(torch.zeros(50))]
        group["params"][0].grad = torch.ones(50)
    text = (
        "in the place of the weights of a parameter group (0.weight, ...) stand tensors of shape (50,), put there "
        f"after the optimizer was made, as DeepSpeed ZeRO and FSDP1 do. {WHY}"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        optimizer.step()


def test_several_vectors_flattened_into_one_are_refused_at_the_step():
    pairs = [(name, nn.Parameter(torch.ones(2))) for name in "ab"]
    optimizer = moga.optimizer(pairs, "moga-row", lr=0.1, roles={"*": "vector"})
    optimizer.param_groups[0]["params"] = [nn.Parameter(torch.zeros(4))]
    with pytest.raises(ValueError, match=r"of a parameter group \(a, b, ...\) stand tensors of shape \(4,\), put"):
        optimizer.step()


def real_fsdp1():
    """The errors that FSDP1 itself leads to, on the first of two ranks that need no second process."""
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    for keeps_names in (False, True):
        model = network()
        earlier = moga.optimizer(model, "moga-row", lr=0.1, roles=ROLES)
        wrapped = FullyShardedDataParallel(model, use_orig_params=keeps_names, device_id=torch.device("cpu"))
        with pytest.raises(ValueError, match="flattened by FSDP1"):
            moga.find_roles(wrapped)
        with pytest.raises(ValueError, match="flattened by FSDP1"):
            moga.optimizer(list(wrapped.named_parameters()), "moga-row", lr=0.1, roles={"*": "vector"})
        if keeps_names:  # otherwise the optimizer still holds the old weights, which nobody uses
            with pytest.raises(
                ValueError, match=r"of a parameter group \(0.weight, ...\) stand tensors of shape \(36,\)"
            ):
                earlier.step()


def test_fsdp1_itself():
    code = f"import runpy; runpy.run_path({__file__!r})['real_fsdp1']()"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
