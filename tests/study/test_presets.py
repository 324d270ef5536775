import itertools

import pytest

from moga.rules.recipes import RECIPES
from moga.study.presets import DEFAULT_RATES, PRESETS, default_rates, parse_integers, parse_rates, parse_seconds, preset


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_plans_over_at_least_three_widths(name: str) -> None:
    plan = preset(name)
    assert len(plan.sizes) >= 3
    assert all(len(rates) >= 4 for rates in plan.rates.values())
    assert len(plan.runs()) == sum(map(len, plan.rates.values())) * len(plan.sizes) * len(plan.seeds)


def test_an_unknown_preset_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown preset 'huge'; known: quick, full"):
        preset("huge")


def test_default_rates_are_factors_of_two_of_known_recipes() -> None:
    assert set(DEFAULT_RATES) <= set(RECIPES)
    for rates in DEFAULT_RATES.values():
        assert all(after == 2 * before for before, after in itertools.pairwise(rates))
    with pytest.raises(ValueError, match=r"no default learning rates for 'sgd', only for moga-row, .*give them, as in"):
        default_rates("sgd")


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("2**-6:2**-1", tuple(2.0**exponent for exponent in range(-6, 0))),
        ("2^-2", (0.25,)),
        (" 0.2 , 0.1,0.1", (0.1, 0.2)),
        ("1e-3", (0.001,)),
        ("3e-4:1.2e-3, 1", (3e-4, 6e-4, 1.2e-3, 1.0)),
        ("0.5:0.5", (0.5,)),
    ],
)
def test_rates(text: str, rates: tuple[float, ...]) -> None:
    assert parse_rates(text) == pytest.approx(rates, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "'fast' is no learning rate; write numbers or powers with commas"),
        ("", "'' is no learning rate"),
        ("0.1,", "'' is no learning rate"),
        ("1:2:4", "'2:4' is no learning rate"),
        ("-0.1", "a learning rate must be finite and above 0, got '-0.1'"),
        ("-2**-0.5", "a learning rate must be finite and above 0, got"),
        ("0", "a learning rate must be finite and above 0, got '0'"),
        ("0**-1", "a learning rate must be finite and above 0"),
        ("9**9999", "a learning rate must be finite and above 0"),
        ("nan", "'nan' is no learning rate"),
        ("0.2:0.1", "'0.2:0.1' is no range of learning rates: from the smaller to the larger in whole factors of 2"),
        ("0.1:0.3", "is no range of learning rates"),
    ],
)
def test_rates_that_are_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        parse_rates(text)


def test_integers() -> None:
    assert parse_integers("64,32,64") == (32, 64)
    assert parse_integers("0,1", least=0) == (0, 1)
    with pytest.raises(ValueError, match="'a,1' is no list of whole numbers; write them with commas, as in 32,64,128"):
        parse_integers("a,1")
    with pytest.raises(ValueError, match="numbers must be at least 1, got 0 in '0,1'"):
        parse_integers("0,1")


@pytest.mark.parametrize("text", ["", "30", "m", "30x", "0s", "-5m", "1h and 5m"])
def test_what_is_no_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is no time; write a number above 0 and s, m or h, as in 30m"):
        parse_seconds(text)
