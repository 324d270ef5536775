import pytest

from moga.study.data import Corpus
from moga.study.prices import Price, Prices, estimate, price_list, within_budget
from moga.study.settings import Plan, Run, Settings

# A step takes width / 1000 seconds: a run of 100 steps 3.2, 6.4 and 12.8 s.
PRICES: Prices = {("adamw", width): Price(width / 1000, 10, 1000) for width in (32, 64, 128)}
PLAN = Plan({"adamw": (0.1, 0.2, 0.3)}, (32, 64, 128), (0, 1), Settings(steps=100))


def kept(budget: float, workers: int = 1) -> tuple[set[tuple[int, int]], tuple[str, ...]]:
    runs, left_out = within_budget(PLAN.runs(), PRICES, budget, workers)
    assert all(sum(one.seed == run.seed and one.size == run.size for one in runs) == 3 for run in runs)  # whole grids
    return {(run.seed, run.size) for run in runs}, left_out


# A size takes 3 runs, and a run more at the largest for the regret of every seed there:
# 9.6, + 19.2 + 6.4 = 35.2 for two sizes, 9.6 + 19.2 + 38.4 + 12.8 = 80 for three, 160 for both seeds.
@pytest.mark.parametrize(
    ("budget", "workers", "expected", "words"),
    [
        (161, 1, {(seed, width) for seed in (0, 1) for width in (32, 64, 128)}, ()),
        (81, 2, {(seed, width) for seed in (0, 1) for width in (32, 64, 128)}, ()),
        (81, 1, {(0, 32), (0, 64), (0, 128)}, ("81 s: width 32 (seed 1), width 64 (seed 1), width 128 (seed 1)",)),
        (91, 1, {(0, 32), (0, 64), (0, 128), (1, 32)}, ("91 s: width 64 (seed 1), width 128 (seed 1)",)),
        (36, 1, {(0, 32), (0, 64)}, ("36 s: width 32 (seed 1), width 64 (seed 1), width 128 (seeds 0, 1)",)),
    ],
)
def test_whole_sizes_are_kept(
    budget: float, workers: int, expected: set[tuple[int, int]], words: tuple[str, ...]
) -> None:
    assert kept(budget, workers) == (expected, tuple(f"left out to stay within {one}" for one in words))


def test_what_is_on_record_costs_nothing() -> None:
    done = {run.key for run in PLAN.runs() if run.size == 128}
    runs, _ = within_budget(PLAN.runs(), PRICES, 42, 1, done)  # 9.6 + 19.2 + 12.8, of the first seed
    assert {run.size for run in runs if run.seed == 0} == {32, 64, 128}


def test_a_budget_without_two_sizes_is_an_error() -> None:
    message = "a budget of 30 s holds no two sizes: width 32 and 64 take about 35 s with one seed; give more time"
    with pytest.raises(ValueError, match=message):
        within_budget(PLAN.runs(), PRICES, 30, 1)


def test_prices_come_from_records_or_a_few_steps(corpus: Corpus, small: Settings) -> None:
    runs = [Run("adamw", width, 0.01, 0, small) for width in (16, 32)]
    result = {"diverged": False, "seconds": 4.0, "tokens": 8 * 64, "parameters": 77}
    records = [{"config": runs[0].config(), "result": result}]
    prices = price_list(runs, records, corpus, 1)
    assert prices["adamw", 16] == Price(4.0 / 8, 64, 77)
    measured = prices["adamw", 32]
    assert 0 < measured.seconds < 5
    # embeddings 256 w + 16 w, output 256 w, a block of 12 w^2 + 13 w, a last norm of 2 w
    assert (measured.tokens, measured.parameters) == (4 * 16, 543 * 32 + 12 * 32**2)
    assert estimate(runs, prices, 5).workers == 2
