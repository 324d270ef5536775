import re

import pytest
import torch
from torch import nn

from moga.rules.roles import find_roles

STACK = {"role": "hidden", "layout": "stack,in,out"}


def tensors(*shape):
    return [("w", torch.zeros(shape)), ("b", torch.zeros(4))]


def one_of(shape, statement):
    return find_roles(tensors(*shape), {"w": statement})[0]


STORED = [  # shape, statement, (layout, blocks, interleave, fan, lookup)
    ((3, 4, 6), STACK, ("stack,in,out", (), 1, ((6, 4),), False)),
    ((3, 4, 6), {**STACK, "blocks": [4, 2], "interleave": 2}, ("stack,in,out", (4, 2), 2, ((4, 4), (2, 4)), False)),
    ((4, 6, 3, 3), {"role": "input", "layout": "out,in,k"}, ("out,in,k", (), 1, ((4, 54),), False)),
    (
        (1, 9, 4),
        {"role": "input", "kind": "lookup", "layout": "stack,in,out"},
        ("stack,in,out", (), 1, ((4, 1),), True),
    ),
    ((6, 4), {"role": "output", "layout": "in,out"}, ("in,out", (), 1, ((1, 6),), False)),
    ((6, 4), {"role": "hidden", "blocks": [2, 2, 2]}, ("out,in", (2, 2, 2), 1, ((2, 4),) * 3, False)),
    ((5, 3, 2), "vector", ("vector", (), 1, ((1, 1),), False)),
    ((5, 3), {"role": "vector"}, ("vector", (), 1, ((1, 1),), False)),
]


@pytest.mark.parametrize(("shape", "statement", "expected"), STORED)
def test_a_user_may_say_how_a_tensor_is_stored(shape, statement, expected):
    one = one_of(shape, statement)
    assert (one.layout, one.blocks, one.interleave, one.fan, one.lookup) == expected
    assert one.role == (statement if isinstance(statement, str) else statement["role"])


def test_the_blocks_of_a_linear_map_of_your_own():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 12), nn.Linear(12, 9))
    statement = {"role": "hidden", "blocks": [4, 4, 4], "interleave": 2}
    found = {one.name: one for one in find_roles(model, {"1.*": statement, "2.weight": "output"})}
    assert (found["1.weight"].blocks, found["1.weight"].interleave) == ((4, 4, 4), 2)
    assert found["1.bias"].role == "vector"


BAD = [  # shape, statement, error, text
    ((3, 2), 7, TypeError, "roles['w'] must be a role or a dict such as {'role': 'hidden'}; got 7"),
    ((3, 2), {"layout": "in,out"}, ValueError, "roles['w'] is None; the roles are input, hidden, output, tied, vector"),
    (
        (3, 2),
        {"role": "hidden", "fan": 3},
        ValueError,
        "roles['w'] has 'fan'; the keys are role, kind, layout, blocks,",
    ),
    ((3, 2), {"role": "hidden", "kind": "table"}, ValueError, "has kind 'table'; the kinds are linear, lookup"),
    ((3, 2), {"role": "hidden", "layout": "up,down"}, ValueError, "w (tensor, shape (3, 2)): unknown layout 'up,down'"),
    (
        (3, 2),
        {"role": "hidden", "layout": "stack,out,in"},
        ValueError,
        "w (tensor, shape (3, 2)): layout 'stack,out,in'",
    ),
    ((3, 2), {"role": "hidden", "blocks": [1, 1]}, ValueError, "w (tensor, shape (3, 2)): blocks [1, 1] do not add up"),
    ((3, 2), {"role": "hidden", "layout": "vector"}, ValueError, "stated as 'hidden' with the layout 'vector'; only a"),
    ((3, 2), {"role": "vector", "layout": "in,out"}, ValueError, "stated as 'vector' with the layout 'in,out'; only a"),
    ((3, 2), {"role": "vector", "blocks": [3, 3]}, ValueError, "w (tensor, shape (3, 2)): a vector has no blocks; got"),
    ((3, 2, 2), "output", ValueError, "w (tensor, shape (3, 2, 2)) has 3 dimensions; state how it is stored too, such"),
    ((4, 3, 2, 2), "input", ValueError, "w (tensor, shape (4, 3, 2, 2)) has 4 dimensions; state how it is stored too"),
]


@pytest.mark.parametrize(("shape", "statement", "error", "text"), BAD)
def test_impossible_statements(shape, statement, error, text):
    with pytest.raises(error, match=re.escape(text)):
        one_of(shape, statement)


KNOWN = [
    ({"0.weight": {"role": "input", "layout": "out,in"}}, "0.weight (Embedding, shape (9, 4)) is a lookup tensor; how"),
    (
        {"1.weight": {"role": "hidden", "layout": "in,out,k"}},
        "1.weight (Linear, shape (4, 4)): layout 'in,out,k' needs",
    ),
    ({"1.weight": "vector"}, "1.weight (Linear, shape (4, 4)) cannot be 'vector'; it can be 'input' or 'hidden' or"),
]


@pytest.mark.parametrize(("roles", "text"), KNOWN)
def test_what_a_module_says_cannot_be_contradicted(roles, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        find_roles(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4)), roles)


def test_a_position_parameter_of_three_dimensions_is_told_what_to_state():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(1, 9, 4))

    with pytest.raises(
        ValueError, match=r"table \(Positions, shape \(1, 9, 4\)\) has 3 dimensions; state how"
    ) as error:
        find_roles(Positions(), {"table": "input"})
    assert "{'role': 'input', 'kind': 'lookup', 'layout': 'stack,in,out'}" in str(error.value)
    [one] = find_roles(Positions(), {"table": {"role": "input", "kind": "lookup", "layout": "stack,in,out"}})
    assert (one.fan, one.lookup) == (((4, 1),), True)
