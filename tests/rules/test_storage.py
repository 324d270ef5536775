import re

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from moga.rules.storage import FUSED, UNKNOWN, listed_tensors, storage_of, stored_tensors

W = torch.zeros(3, 2)


def test_other_parameters_of_a_known_module_are_unknown():
    assert storage_of(nn.Linear(3, 2), "extra") == UNKNOWN


def test_conv1d_is_stored_in_out():
    assert storage_of(Conv1D(6, 2), "weight").layout == "in,out"


@pytest.mark.parametrize(("path", "name", "attribute", "size"), FUSED)
def test_every_fused_row_names_a_class_with_those_attributes(path, name, attribute, size):
    import importlib
    import inspect

    source = inspect.getsource(getattr(importlib.import_module(path), name))
    assert f"self.{attribute} = Conv1D(" in source
    assert f"self.{size} = " in source


def test_a_matrix_that_is_stored_in_two_orders_raises():
    model = nn.ModuleDict({"one": nn.Linear(4, 4), "two": Conv1D(4, 4)})
    model["two"].weight = model["one"].weight
    text = "one.weight, two.weight (Linear + Conv1D, shape (4, 4)) are one tensor that its modules store in different"
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
    ("w", TypeError, "a model or a list of (name, tensor) pairs is needed; got an item str"),
]


@pytest.mark.parametrize(("named", "error", "text"), BAD)
def test_bad_lists(named, error, text):
    with pytest.raises(error, match=re.escape(text)):
        listed_tensors(named)


def test_named_parameters_of_a_model_are_such_a_list():
    assert [one.names for one in listed_tensors(nn.Linear(3, 2).named_parameters())] == [("weight",), ("bias",)]
