"""Published rules, written down a second time from their sources."""

import re
from fractions import Fraction
from pathlib import Path

import pytest
from models.decoders import DECODERS

import moga
from moga.rules.laws import LAWS, QUANTITIES, hyperp_rate, law_factors
from moga.rules.transfer import DEPTH_RULES, branch_multiplier

# At 4 times the width and 9 times the depth. CompleteP: the branch of its released code, alpha = 1 and 1/2.
AT_4_AND_9 = {
    "mup": {"hidden_lr": 1 / 4},
    "completep": {
        "branch": 1 / 9,
        "hidden_lr": 1 / 4,
        "block_vector_lr": 1,
        "hidden_decay": 4,
        "hidden_eps": 1 / 36,
        "embedding_eps": 1 / 4,
        "library_decay": 1,
    },
    "completep-half": {
        "branch": 1 / 3,
        "hidden_lr": 1 / 12,
        "block_vector_lr": 1 / 3,
        "hidden_decay": 4,
        "hidden_eps": 1 / 12,
        "embedding_eps": 1 / 4,
        "library_decay": 1,
    },
    "depth-mup": {"branch": 1 / 3, "hidden_lr": 1 / 12},
    "spectral": {"branch": 1 / 9, "hidden_lr": 1},
    "hyperp": {"branch": 1 / 3, "hidden_lr": 1 / 3},
    "sublayer-gain": {"hidden_lr": 1 / 4, "hidden_decay": 2, "library_decay": 1 / 2},
}


@pytest.mark.parametrize("name", LAWS)
def test_laws(name):
    assert law_factors(name, width_ratio=4, depth_ratio=9) == pytest.approx(AT_4_AND_9[name])
    assert set(law_factors(name).values()) == {1.0}
    assert set(LAWS[name].powers) <= set(QUANTITIES)
    assert "arXiv" in LAWS[name].source and LAWS[name].checked


def test_every_law_of_depth_moves_the_residual_stream_as_much():
    """Multiplier times learning rate is base_depth / depth: K blocks add up to one step. HyperP and CompleteP agree."""
    for name, law in LAWS.items():
        if "branch" in law.powers:
            factors = law_factors(name, depth_ratio=16)
            assert factors["branch"] * factors["hidden_lr"] == pytest.approx(1 / 16), name


def test_the_rules_of_scale_branches_are_those_of_the_laws():
    for name, rule in (
        ("completep", "1/K"),
        ("spectral", "1/K"),
        ("depth-mup", "1/sqrt(2K)"),
        ("hyperp", "1/sqrt(2K)"),
    ):
        assert branch_multiplier(rule, 48, base_depth=12) == pytest.approx(law_factors(name, depth_ratio=4)["branch"])
    assert set(DEPTH_RULES) == {"1/K", "1/sqrt(2K)", "none"}


RATES = [  # batch, depth, tokens, factor on lr
    (1, 1, 1, 1.0),
    (4, 1, 1, 2.0),
    (1, 4, 1, 0.5),
    (1, 1, 10, 0.4786300923),  # 10^-0.32
    (9, 4, 100, 1.5 * 0.2290867653),
]


@pytest.mark.parametrize(("batch", "depth", "tokens", "factor"), RATES)
def test_hyperp_rate(batch, depth, tokens, factor):
    found = hyperp_rate(0.016, batch_ratio=batch, depth_ratio=depth, token_ratio=tokens)
    assert found == pytest.approx(0.016 * factor, rel=1e-9)


def test_mup_is_what_the_groups_do():
    groups = moga.param_groups(DECODERS["llama"](128), "mup-adamw", base=DECODERS["llama"](32))
    scales = {group["scale"] for group in groups if group["role"] == "hidden"}
    assert scales == {law_factors("mup", width_ratio=4)["hidden_lr"]}


PAGE = Path(__file__).parents[2] / "docs" / "depth.md"


def power(law, key):
    """``w^-1 d^-1/2``, 1 if nothing is raised, and empty if the source leaves it open."""
    if key not in law.powers:
        return ""
    named = zip("wd", map(Fraction, law.powers[key]), strict=True)
    return " ".join(letter if power == 1 else f"{letter}^{power}" for letter, power in named if power) or "1"


def test_the_page_has_the_table():
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    table = {row.split("`")[1]: [cell.strip() for cell in row.strip("|").split("|")][1:] for row in rows}
    keys = ["branch", "hidden_lr", "block_vector_lr", "hidden_decay", "hidden_eps"]
    assert {name: table[name] for name in LAWS} == {
        name: [law.optimizer, *(power(law, key) for key in keys), law.source, law.checked] for name, law in LAWS.items()
    }


def test_errors():
    with pytest.raises(
        ValueError, match="unknown law 'u-mup'; the laws are mup, completep, completep-half, depth-mup, s"
    ):
        law_factors("u-mup")
    for make, text in (
        (lambda: law_factors("mup", width_ratio=0), "width_ratio must be a positive number, new over base; got 0"),
        (
            lambda: law_factors("mup", depth_ratio=float("nan")),
            "depth_ratio must be a positive number, new over base; ",
        ),
        (lambda: hyperp_rate(0.1, token_ratio=-1), "token_ratio must be a positive number, new over base; got -1"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            make()
