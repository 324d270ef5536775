"""The boxes of shards, against torch's own arithmetic; routes; owners and their shares. No other rank is needed."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as torch_piece
from torch.distributed.tensor.placement_types import _StridedShard

from moga.optim.distributed import plan
from moga.optim.distributed.balance import SLACK, balanced, buckets, teams
from moga.optim.distributed.pieces import Grid, Piece, own_piece, piece_at
from moga.optim.distributed.plan import Place
from moga.optim.distributed.routes import local_group, reach_of, route_of

PLAIN = {"step": "fixed", "constraint": "decay", "p": None, "q": None, "scale": 1.0, "blocks": [], "interleave": 1}
PLACED = st.sampled_from([Replicate(), Shard(0), Shard(1)])


def places(mesh: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, mesh)))


@given(
    shape=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    mesh=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    placements=st.tuples(PLACED, PLACED),
)
def test_pieces_are_those_of_torch_and_cover_every_entry(shape, mesh, placements):
    covered = torch.zeros(shape)
    for at in places(mesh):
        piece = piece_at(shape, mesh, at, placements)
        size, start = torch_piece(shape, mesh, list(at), placements)
        assert piece.shape == size and (0 in size or piece.start == start)
        piece.of(covered).add_(1)
    copies = [n for n, placement in zip(mesh, placements, strict=True) if placement.is_replicate()]
    assert torch.equal(covered, torch.full(shape, float(torch.Size(copies).numel())))


@pytest.mark.parametrize("data", [1, 2, 3])
def test_fully_shard_cuts_what_tensor_parallelism_has_cut(data: int):
    placements = (_StridedShard(0, split_factor=2), Shard(0))
    for at in places((data, 2)):
        expected = torch_piece((12, 5), (data, 2), list(at), placements)
        assert piece_at((12, 5), (data, 2), at, placements) == expected[::-1]
    assert piece_at((8, 3), (2, 2), (0, 1), placements) == Piece((4, 0), (2, 3))  # not rows 2 and 3


def test_a_plain_tensor_is_one_piece():
    assert own_piece(torch.ones(2, 3)) == Piece((0, 0), (2, 3))


@pytest.mark.parametrize(
    "words, reach",
    [
        ({"norm": "row", "p": 1.0}, "entry"),
        ({"norm": "row", "p": 2.0, "layout": "vector"}, "entry"),
        ({"norm": "row", "p": 2.0, "constraint": "sphere"}, "matrix"),
        ({"norm": "sign", "step": "dual"}, "matrix"),
        ({"norm": "column", "q": 2.0, "layout": "vector"}, "column"),
        ({"norm": "rmsprop"}, "entry"),
        ({"norm": "shampoo"}, "matrix"),
        ({"norm": "euclidean"}, "matrix"),
        ({"norm": "euclidean", "step": "dual"}, "entry"),
    ],
    ids=str,
)
def test_reach(words, reach):
    assert reach_of({**PLAIN, "layout": "out,in", **words}) == reach


class Sharded(torch.Tensor):
    """What a DTensor says of itself, without ranks."""

    device_mesh = type("Mesh", (), {"shape": (2,), "get_coordinate": lambda self: [1]})()
    placements = (Shard(0),)


@pytest.mark.parametrize(
    "norm, layout, shape, axis, route",
    [
        ("row", "out,in", (8, 6), 0, "local"),
        ("row", "out,in", (8, 6), 1, "reduced"),
        ("row", "in,out", (8, 6), 0, "reduced"),
        ("column", "in,out", (8, 6), 0, "local"),
        ("column", "out,in", (8, 6), 0, "reduced"),
        ("spectral", "out,in", (8, 6), 0, "owner"),
        ("spectral", "stack,out,in", (4, 8, 6), 0, "local"),
        ("spectral", "stack,out,in", (4, 8, 6), 1, "owner"),
        ("row", "2*out,in,k", (8, 6, 3), 0, "local"),
        ("row", "2*in,out,k", (8, 6, 3), 0, "owner"),
        ("row", "2*in,out,k", (8, 6, 3), 1, "local"),
        ("sign", "2*in,out,k", (8, 6, 3), 0, "local"),
    ],
)
def test_routes(norm, layout, shape, axis, route):
    weight = torch.ones(shape).as_subclass(Sharded)
    weight.placements = (Shard(axis),)
    group = {**PLAIN, "norm": norm, "layout": layout}
    assert route_of(group, weight, reach_of(group), spread=False) == route


def test_with_owners_for_all_whole_matrices_have_one_and_rows_have_not():
    for norm, route in (("spectral", "owner"), ("row", "local")):
        group = {**PLAIN, "norm": norm, "layout": "out,in"}
        assert route_of(group, torch.ones(2, 2), reach_of(group), spread=True) == route
    group = {**PLAIN, "norm": "euclidean", "layout": "vector"}
    assert route_of(group, torch.ones(()), reach_of(group), spread=True) == "local"


def test_a_shard_keeps_the_scale_of_the_block_that_its_rows_are_of():
    weight = torch.ones(9, 4).as_subclass(Sharded)
    group = {**PLAIN, "norm": "row", "layout": "out,in", "blocks": [2, 4, 3], "scale": [0.5, 0.25, 0.125]}
    own = local_group(group, weight, Piece((5, 0), (4, 4)), "row")
    assert own["blocks"] == [1, 3] and own["scale"] == [0.25, 0.125]
    assert local_group(group, weight, Piece((6, 0), (3, 4)), "row")["scale"] == 0.125
    assert local_group(group, weight, Piece((9, 0), (0, 4)), "row")["blocks"] == []  # a rank without rows


@given(costs=st.lists(st.integers(1, 100), max_size=40), ranks=st.integers(1, 6))
def test_no_rank_has_more_than_its_mean_and_one_matrix(costs, ranks):
    owners = balanced(costs, [1] * ranks)
    loads = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(ranks)]
    assert max(loads) <= sum(costs) / ranks + max(costs, default=0)


@given(shares=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(1, 9))), limit=st.integers(1, 20))
def test_buckets_are_bounded_and_take_of_every_owner_the_dearest_first(shares, limit):
    costs, owners, loads = ([one[k] for one in shares] for k in range(3))
    found = buckets(costs, owners, loads, limit)
    assert sorted(i for bucket in found for i in bucket) == list(range(len(shares)))
    for owner in range(4):
        own = [[i for i in bucket if owners[i] == owner] for bucket in found]
        sums = [sum(loads[i] for i in some) for some in own]
        assert all(total <= max(limit, *loads) for total in sums)
        order = [costs[i] for some in own for i in some]
        assert order == sorted(order, reverse=True)
        full = [total for total in sums if total]
        assert sums == full + [0] * (len(sums) - len(full))  # no bucket without work before one with it


def test_owners_of_equal_matrices_have_as_many_of_them_in_each_bucket():
    found = buckets([1] * 14, [i % 3 for i in range(14)], [10] * 14, 20)
    assert [[sum(i % 3 == owner for i in bucket) for owner in range(3)] for bucket in found] == [
        [2, 2, 2],
        [2, 2, 2],
        [1, 1, 0],
    ]


@given(data=st.data(), ranks=st.integers(1, 20))
def test_teams_cover_every_row_once_and_even_out_the_work_of_a_node(data, ranks):
    costs = data.draw(st.lists(st.integers(1, 100), min_size=1, max_size=40))
    splits = data.draw(st.lists(st.booleans(), min_size=len(costs), max_size=len(costs)))
    found, loads = teams(costs, splits, ranks), [0.0] * ranks
    for cost, split, team in zip(costs, splits, found, strict=True):
        assert [part.start for part in team] == [0.0, *(part.end for part in team[:-1])] and team[-1].end == 1.0
        assert len({part.rank // 8 for part in team}) == 1 and (split or len(team) == 1)
        rows = [part.of(13) for part in team]
        assert [i for one in rows for i in range(13)[one]] == list(range(13))
        for part in team:
            loads[part.rank] += cost * (part.end - part.start)
    for first in range(0, ranks, 8):
        node = loads[first : first + 8]
        most = max((cost for cost, split in zip(costs, splits, strict=True) if not split), default=0)
        assert max(node) <= sum(node) / len(node) * (1 + SLACK) + most + 1e-6


def test_a_stack_is_shared_out_and_every_matrix_has_one_owner():
    grid = Grid(tuple(range(3)), (3,), ((0,), (1,), (2,)))
    place = Place("experts", torch.ones(7, 4, 5), "matrix", "owner", grid, Piece((0, 0, 0), (7, 4, 5)))
    group = {**PLAIN, "norm": "spectral", "layout": "stack,out,in"}
    shares = plan.shares_of(place, group)
    assert [(share.start, share.count) for share in shares] == [(0, 3), (3, 3), (6, 1)]
    assert [share.cost for share in shares] == [3 * 224, 3 * 224, 224]  # 2 x 80 + 4^3
    assert shares[1].piece(0) == Piece((0, 0, 0), (3, 4, 5))
    [whole] = plan.shares_of(place, {**group, "constraint": "sphere"})
    assert whole.shape == (7, 4, 5)
