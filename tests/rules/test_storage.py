import re

import pytest
import torch
import torch.distributed as dist
from models.decoders import build
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.pytorch_utils import Conv1D

from moga.rules.roles import find_roles
from moga.rules.storage import UNKNOWN, listed_tensors, storage_of, stored_tensors

W = torch.zeros(3, 2)


def test_other_parameters_of_a_known_module_are_unknown():
    assert storage_of(nn.Linear(3, 2), "extra") == UNKNOWN


def test_conv1d_is_stored_in_out():
    assert storage_of(Conv1D(6, 2), "weight").layout == "in,out"


def test_a_matrix_that_is_stored_in_two_orders_raises():
    model = nn.ModuleDict({"one": nn.Linear(4, 4), "two": Conv1D(4, 4)})
    model["two"].weight = model["one"].weight
    text = (
        "one.weight, two.weight (Linear + Conv1D, shape (4, 4)) are one tensor that its modules store in different ways"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        stored_tensors(model)


def test_frozen_parameters_are_listed_too():
    assert len(stored_tensors(nn.Linear(3, 2).requires_grad_(False))) == 2


BAD = [  # list, error, text
    ([], ValueError, "the list of named tensors is empty; there is nothing to optimize"),
    ([("w", W), ("w", W.clone())], ValueError, "the name 'w' is given twice"),
    ([("a", W), ("b", W)], ValueError, "'a' and 'b' are the same tensor; give it once"),
    ([W], TypeError, "a model or a list of (name, tensor) pairs is needed; got an item Tensor"),
    ([("w", [1.0])], TypeError, "a model or a list of (name, tensor) pairs is needed; 'w' is list"),
    (7, TypeError, "a model or a list of (name, tensor) pairs is needed; got int"),
    (W, TypeError, "a model or a list of (name, tensor) pairs is needed; got Tensor"),
    ("w", TypeError, "a model or a list of (name, tensor) pairs is needed; got an item str"),
]


@pytest.mark.parametrize(("named", "error", "text"), BAD)
def test_bad_lists(named, error, text):
    with pytest.raises(error, match=re.escape(text)):
        listed_tensors(named)


def test_named_parameters_of_a_model_are_such_a_list():
    assert [one.names for one in listed_tensors(nn.Linear(3, 2).named_parameters())] == [("weight",), ("bias",)]


def compiled(model, tmp_path):
    return torch.compile(model)


def compiled_layer(model, tmp_path):
    attention = model.transformer.h[0].attn
    model.transformer.h[0].attn = torch.compile(attention)
    attention.c_attn = torch.compile(attention.c_attn)
    return model


def data_parallel(model, tmp_path):
    return nn.DataParallel(model)


def checkpointed(model, tmp_path):
    model.transformer.h[0].attn = checkpoint_wrapper(model.transformer.h[0].attn)
    return model


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def distributed(model, tmp_path):
    return nn.parallel.DistributedDataParallel(model)


def distributed_and_compiled(model, tmp_path):
    return torch.compile(nn.parallel.DistributedDataParallel(model))


def sharded(model, tmp_path):
    mesh = init_device_mesh("cpu", (1,))
    for layer in model.transformer.h:
        fully_shard(layer.attn, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WRAPPED = [compiled, compiled_layer, data_parallel, checkpointed, distributed, distributed_and_compiled, sharded]


@pytest.mark.parametrize("wrap", WRAPPED)
def test_a_wrapped_model_has_its_own_names_roles_and_blocks(wrap, one_rank, tmp_path):
    def rows(model):
        return [
            (one.name, one.role, one.layout, one.blocks, one.fan, one.lookup, one.added) for one in find_roles(model)
        ]

    expected = rows(build("gpt2", 32))
    wrapped = wrap(build("gpt2", 32), tmp_path)
    assert rows(wrapped) == expected
    whole = {name for one in find_roles(wrapped) for name in one.aliases}
    assert {name for name, _ in wrapped.named_parameters()} <= whole


def test_patterns_may_be_written_for_the_longer_names():
    model = torch.compile(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)))
    assert [one.name for one in find_roles(model, {"_orig_mod.1.weight": "output"})] == ["0.weight", "1.weight"]


def test_a_step_called_module_is_kept_where_nothing_is_wrapped():
    model = nn.ModuleDict({"module": nn.Linear(4, 9, bias=False)})
    assert [one.names for one in stored_tensors(model)] == [("module.weight",)]


def test_a_row_that_does_not_fit_names_the_parameter():
    model = build("phi3", 32)
    attention = model.model.layers[0].self_attn
    attention.qkv_proj = nn.Linear(32, 100, bias=False)
    text = (
        "model.layers.0.self_attn.qkv_proj.weight (Linear, shape (100, 32)): blocks [64, 16, 16] do not add up to the "
        "100 outputs"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        find_roles(model)


def test_frozen_weights_may_be_packed_in_any_way():
    """Quantised weights are of other shapes; they get no role, and are no obstacle."""
    model = build("phi3", 32)
    attention = model.model.layers[0].self_attn
    attention.qkv_proj.weight = nn.Parameter(torch.zeros(7, 1, dtype=torch.uint8), requires_grad=False)
    assert "model.layers.0.self_attn.qkv_proj.weight" not in {one.name for one in find_roles(model)}
