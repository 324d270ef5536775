"""docs/scale.md, and 256 simulated ranks: the optimizer's own code on the real models, on tensors without values.

torch's fake process group answers every message at once, so one process sees what one of the ranks does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from distributed.messages import Counter, script
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

import moga
from moga.geometry import newton_schulz
from moga.optim import steepest_descent
from moga.optim.distributed.pieces import piece_at
from moga.optim.distributed.plan import settle

RANKS = 256
LLAMA = {
    "7B": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
    "70B": {"vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80},
}
HEADS = {"7B": (32, 32), "70B": (64, 8)}


@pytest.fixture(scope="module")
def maker() -> Any:
    return script("make_scale")


@contextmanager
def simulated(rank: int = 0) -> Iterator[int]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    yield RANKS
    dist.destroy_process_group()


@pytest.fixture
def ranks() -> Iterator[int]:
    with simulated() as count:
        yield count


def model_of(name: str, **changes: int) -> nn.Module:
    """The model as transformers builds it; its weights take no memory."""
    from transformers import Llama4ForCausalLM, Llama4TextConfig, LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        if name == "400B":
            return Llama4ForCausalLM(Llama4TextConfig(num_local_experts=128, interleave_moe_layer_step=2))
        heads, narrow = HEADS[name]
        words = {**LLAMA[name], "num_attention_heads": heads, "num_key_value_heads": narrow, **changes}
        return LlamaForCausalLM(LlamaConfig(**words))


def placement(weight: torch.Tensor, between: bool = False) -> Shard:
    """As fully_shard cuts: the first axis; through experts, along out, unless ``between`` them."""
    return Shard(2 if weight.ndim == 3 and not between else 0)


def sharded(model: nn.Module, mesh: DeviceMesh, mode: FakeTensorMode, between: bool = False) -> nn.Module:
    """What fully_shard makes of the parameters, much faster."""
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            place = placement(weight, between)
            with mode:
                part = torch.empty(piece_at(weight.shape, mesh.shape, mesh.get_coordinate(), [place]).shape)
                whole = DTensor.from_local(
                    part, mesh, [place], run_check=False, shape=weight.shape, stride=weight.stride()
                )
                setattr(module, name, nn.Parameter(whole))
    return model


def loads_of(places: Any) -> list[float]:
    loads = [0.0] * RANKS
    for place in places.values():
        for share in place.shares:
            for part in share.team:
                loads[part.rank] += share.cost * (part.end - part.start)
    return loads


def sent_by(places: Any) -> torch.Tensor:
    """Bytes that every rank sends for whole matrices: its piece to the owner, who sends all others theirs."""
    sent = torch.zeros(RANKS, dtype=torch.float64)
    alike = {place.weight.shape: place for place in places.values()}
    pieces = {
        shape: torch.tensor([4.0 * math.prod(place.piece_of(rank).shape) for rank in range(RANKS)]).double()
        for shape, place in alike.items()
    }
    for place in places.values():
        for share in place.shares:
            part = pieces[place.weight.shape] * share.count / place.weight.shape[0]
            sent += part
            sent[share.owner] += part.sum() - 2 * part[share.owner]
    return sent


def test_the_page_is_made_from_the_formulas(maker):
    written = maker.PAGE.read_text(encoding="utf-8")
    assert written == maker.page(), "run: python docs/make_scale.py"


@pytest.mark.parametrize("name", ["7B", "70B", "400B"])
def test_work_is_spread_over_256_ranks(name: str, maker: Any, ranks: int):
    """The largest work is at most 1.1 of the mean with teams; owners of whole matrices have what the page says."""
    model = model_of(name)
    weights = [tuple(weight.shape) for weight in model.parameters() if weight.ndim > 1]
    assert sorted(weights) == sorted(shape for one in maker.MODELS[name].weights for shape in one.stored)
    mesh, mode = init_device_mesh("cpu", (ranks,)), FakeTensorMode()
    groups = moga.optimizer(sharded(model, mesh, mode), "muon", lr=0.02).param_groups
    for word in ("owners", "teams"):
        places = settle(groups, word)
        loads = loads_of(places)
        assert sorted(loads) == pytest.approx(sorted(maker.loads(maker.MODELS[name], ranks, word)), rel=1e-4)
        if word == "teams":
            assert maker.balance(loads) <= 1.1
        else:
            expected = torch.tensor(maker.whole(maker.MODELS[name], ranks, 1, word), dtype=torch.float64)
            torch.testing.assert_close(sent_by(places).sort()[0], expected.sort()[0], rtol=1e-3, atol=0)


@pytest.mark.parametrize("word", ["owners", "teams"])
def test_the_step_of_the_busiest_rank_is_as_on_the_page(word: str, maker: Any):
    """What the rank that sends most sends and multiplies in a step of four blocks of the 7B model."""
    described = maker.Model((*maker.attention(4, 4096, 4096), *maker.gated(4, 4096, 11008)), 0)
    sent = maker.whole(described, RANKS, 1, word)
    busiest = sent.index(max(sent))
    with simulated(busiest) as ranks:
        mesh, mode = init_device_mesh("cpu", (ranks,)), FakeTensorMode()
        model = sharded(model_of("7B", num_hidden_layers=4), mesh, mode)
        optimizer = moga.optimizer(model, "muon", lr=0.02, nonfinite="propagate", distribute=word)
        places = settle(optimizer.param_groups, word)  # now, as tensors without values cannot be compared between ranks
        blockwise = mock.patch.object(newton_schulz, "_blockwise", return_value=False)  # halves of products: CPUs alone
        with mock.patch.object(steepest_descent, "settle", return_value=places), blockwise, mode:
            for weight in model.parameters():
                weight.grad = torch.empty_like(weight)
            with FlopCounterMode(display=False) as flops, Counter() as messages:
                optimizer.step()
    assert flops.get_total_flops() == pytest.approx(maker.spectral_flops(described, RANKS, 1, word)[busiest], rel=1e-3)
    assert sum(size for _, size in messages.sent) == max(sent)  # rows are whole


def test_between_experts_half_of_the_ranks_have_none(ranks: int):
    """A stack of 128 on 256 ranks, cut between experts: nothing is sent, and the work is that of the shards."""
    weight = nn.Parameter(torch.empty(128, 8, 4, device="meta"))
    mesh, mode = init_device_mesh("cpu", (ranks,)), FakeTensorMode()
    model = sharded(nn.ParameterDict({"experts": weight}), mesh, mode, between=True)
    group = {"params": list(model.parameters()), "norm": "spectral", "layout": "stack,in,out", "scale": 1.0}
    [place] = settle(moga.SteepestDescent([group], lr=0.1).param_groups, "teams").values()
    assert place.route == "local" and not place.shares
    assert [piece_at(weight.shape, (ranks,), (i,), [Shard(0)]).shape[0] for i in range(ranks)] == [1] * 128 + [0] * 128
