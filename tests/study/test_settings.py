from pathlib import Path
from typing import Any

import pytest

from moga.study.records import read_records, read_study
from moga.study.settings import Plan, Run, Settings, settings_dict


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "mamba"}, "unknown model family 'mamba'; known: gpt2, llama"),
        ({"decay": "step"}, "unknown decay 'step'; known: linear, cosine, constant"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"steps": 20}, r"warmup must be at least 0 and below the number of steps \(20\), got 20; use fewer"),
        ({"warmup": -1}, "warmup must be at least 0"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"betas": (0.9, 1.5)}, "betas must be at least 0 and below 1, got 1.5"),
        ({"weight_decay": -0.1}, "weight_decay must be finite and at least 0, got -0.1"),
        (
            {"family": "own:net", "branches": "1/K"},
            r"branches \(1/K\) is a word for the families .*; let own:net call moga.",
        ),
        ({"over": "time"}, "unknown over 'time'; known: width, depth"),
        ({"start": "best"}, "unknown start 'best'; known: own, moga"),
        ({"branches": "2/K"}, r"unknown branches '2/K'; known: none, 1/K, 1/sqrt\(2K\)"),
        ({"margin": 0}, "margin must be finite and above 0, got 0.0"),
        ({"margin": float("inf")}, "margin must be finite and above 0, got inf"),
        ({"clip": float("inf")}, "clip must be finite and above 0, got inf"),
        ({"clip": [1]}, r"clip must be a number, got \[1\]"),
        ({"momentum": "x"}, "momentum must be a number, got 'x'"),
        ({"betas": (0.9,)}, r"betas must be two numbers, as in \(0.9, 0.95\); got \(0.9,\)"),
        ({"betas": (0.9, 0.9, 0.9)}, "betas must be two numbers"),
        ({"betas": 0.9}, "betas must be two numbers, as in .*; got 0.9"),
        ({"clip": 0}, r"clip must be finite and above 0, got 0.0; leave it out \(None\)"),
    ],
)
def test_impossible_settings_are_errors(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": "adamw2"}, "unknown recipe 'adamw2'; known: .*adamw.*moga-row"),
        ({"size": 40}, "width 40 is not a multiple of the head size 16"),
        ({"size": 0, "settings": Settings(over="depth")}, "a depth must be at least 1, got 0"),
        ({"lr": 0}, "a learning rate must be finite and above 0, got 0.0 for adamw"),
        ({"lr": float("inf")}, "a learning rate must be finite and above 0, got inf"),
        ({"seed": -1}, "a seed must be at least 0, got -1"),
    ],
)
def test_impossible_runs_are_errors(change: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"recipe": "adamw", "size": 32, "lr": 0.1, "seed": 0, "settings": Settings()}
    with pytest.raises(ValueError, match=message):
        Run(**(values | change))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (({}, (32,), (0,)), "a study needs at least one recipe, got none"),
        (({"adamw": (0.1,)}, (), (0,)), "a study needs at least one width, got none"),
        (({"adamw": (0.1,)}, (32,), ()), "a study needs at least one seed, got none"),
        (({"adamw": ()}, (32,), (0,)), "a study needs at least one learning rate for adamw, got none"),
        (({"adamw": (-1.0,)}, (32,), (0,)), "a learning rate must be finite and above 0, got -1.0"),
    ],
)
def test_impossible_plans_are_errors(values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(*values)


def test_one_spelling_of_every_value() -> None:
    assert Run("adamw", 32, 1, 0, Settings(clip=1)).key == Run("adamw", 32, 1.0, 0, Settings(clip=1.0)).key
    assert settings_dict(Settings(betas=(0, 0)))["betas"] == [0.0, 0.0]


def test_the_key_covers_every_value() -> None:
    settings = [Settings(), Settings(steps=300), Settings(corpus="ab"), Settings(clip=1.0), Settings(betas=(0.9, 0.99))]
    runs = [Run("adamw", 32, 0.1, 0, one) for one in settings]
    runs += [Run("lion", 32, 0.1, 0, Settings()), Run("adamw", 64, 0.1, 0, Settings())]
    runs += [Run("adamw", 32, 0.2, 0, Settings()), Run("adamw", 32, 0.1, 1, Settings())]
    assert len({run.key for run in runs}) == len(runs)


RECORDED = Path(__file__).parents[2] / "records" / "gpt2-width"


def test_recorded_runs_keep_their_keys() -> None:
    """New settings must leave the keys of recorded configurations as they are, or every recorded run is lost."""
    records = read_records(RECORDED)
    assert len(records) > 100
    for record in records:
        config = dict(record["config"])
        own = [config.pop(name) for name in ("recipe", "width", "lr", "seed")]
        assert Run(*own, Settings(**config)).key == record["key"]
    assert settings_dict(Settings(**read_study(RECORDED)["settings"])) == read_study(RECORDED)["settings"]


def test_a_configuration_says_what_its_model_takes() -> None:
    width = Run("muon", 32, 0.1, 0, Settings()).config()
    depth = Run("muon", 4, 0.1, 0, Settings(over="depth", width=32, branches="1/K")).config()
    own = Run("own:make", 32, 0.1, 0, Settings(family="own:net", data="own:data", code="ab")).config()
    assert depth.keys() - width.keys() == {"over", "depth", "branches"}
    assert (depth["depth"], depth["width"], width["width"]) == (4, 32, 32)
    assert width.keys() - depth.keys() == {"layers"}
    assert width.keys() - own.keys() == {"layers", "head_size", "context", "batch"}
    assert own.keys() - width.keys() == {"data", "code"}


def test_runs_come_once_and_the_longest_first() -> None:
    runs = Plan({"adamw": (0.2, 0.1, 0.1), "lion": (0.1,)}, (32, 64, 32), (1, 0)).runs()
    assert len({run.key for run in runs}) == len(runs) == 12
    costs = [run.cost for run in runs]
    assert costs == sorted(costs, reverse=True)
    assert str(runs[0]) == "adamw, width 64, lr 0.1, seed 0"
