"""What a user says about a study, in the types that people have at hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moga.study.plans import check_plan, seeds_of, transfer_plan

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sizes": [16.0, 32.0]}, r"sizes must be whole numbers, got \[16.0, 32.0\]; write them as in"),
    ({"seeds": 2.0}, "seeds must be whole numbers, got 2.0"),
    ({"seeds": True}, "seeds must be whole numbers, got True"),
    ({"settings": {"steps": "4"}}, "steps must be a whole number, as in 200; got '4'"),
    ({"settings": {"weight_decay": "4"}}, "weight_decay must be a number, as in 0.1; got '4'"),
    ({"recipes": ["a:b"], "lrs": 1.0, "settings": {"weight_decay": 0.1}}, "weight_decay has no effect here: a:b makes"),
    ({"lrs": [None]}, r'lrs must be numbers or text, as in \[0.1, 0.2\] or "2\*\*-6:2\*\*-1"; got \[None\]'),
    ({"lrs": ["2**-3"]}, "lrs must be numbers or text"),
    ({"lrs": {"adamw": 1j}}, "lrs must be numbers or text"),
    ({"seeds": [2**64]}, "a seed must be below 2..64, got 18446744073709551616"),
    ({"settings": {"roles": ["a"]}}, r"roles must be a dict of roles by pattern, as in .*; got \['a'\]"),
]


def test_text_and_numpy_are_read_as_numbers() -> None:
    plan = transfer_plan("quick", sizes="16,32", lrs=np.float32(0.5), seeds="2", settings={"steps": np.int64(40)})  # type: ignore[arg-type]
    assert (plan.sizes, plan.seeds, plan.settings.steps) == ((16, 32), (0, 1), 40)
    assert set(plan.rates.values()) == {(0.5,)}
    assert len(seeds_of("10")) == 10 and seeds_of("3,1") == (1, 3)


def test_rates_that_can_be_read_once_are_those_of_every_recipe() -> None:
    plan = transfer_plan("quick", recipes=["moga-row", "muon"], lrs=(one for one in (0.1, 0.2)))  # type: ignore[arg-type]
    assert set(plan.rates.values()) == {(0.1, 0.2)}


def test_the_rate_of_a_check_is_a_number() -> None:
    assert [case.lr for case in check_plan("gpt2", lrs=np.float32(0.5), plants=()).cases] == [0.5]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the learning rate of a check must be a number, got \[0.1\]"):
        check_plan("gpt2", lrs=[0.1])  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_what_is_no_number_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        transfer_plan("quick", **given)
