"""How often noise alone is taken for a rate that does not transfer, and how often one that does not is found."""

import math

import numpy as np
import pytest

from moga.study.fit import transfer_summary
from moga.study.verdicts import TRANSFERS_REGRET

SIZES, RATES, CURVATURE = (32, 64, 128), [2.0**k for k in range(-6, 0)], 0.05


def studied(drift, noise, seeds, generator):
    """A study of parabolas whose vertex moves by `drift` per doubling, and whose runs have noise of that size."""

    def record(size, lr, seed):
        away = math.log2(lr) + 3.3 - drift * math.log2(size / SIZES[0])
        loss = 2 + CURVATURE * away**2 + noise * generator.normal()
        return {
            "config": {"recipe": "r", "width": size, "lr": lr, "seed": seed},
            "result": {"loss": loss, "diverged": False},
        }

    records = [record(size, lr, seed) for size in SIZES for lr in RATES for seed in range(seeds)]
    if (lr := transfer_summary(records)[0].regret_lr) is not None:
        records += [record(SIZES[-1], lr, seed) for seed in range(seeds)]
    return transfer_summary(records)[0]


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_noise_is_seldom_taken_for_a_rate_that_does_not_transfer(seeds):
    generator = np.random.default_rng(0)
    found = [studied(0.0, 0.04, seeds, generator) for _ in range(80)]
    dear = [one for one in found if one.regret is not None and one.regret > TRANSFERS_REGRET]
    assert len(dear) > 0.2 * len(found)  # what a verdict by the cost alone would have called so
    assert sum(one.transfers is False for one in found) < 0.1 * len(found)
    assert all("may be noise" in one.verdict for one in dear if one.transfers is None and "costs" in one.verdict)


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_a_rate_that_does_not_transfer_is_found(seeds):
    generator = np.random.default_rng(1)
    found = [studied(0.5, 0.02, seeds, generator) for _ in range(80)]
    assert sum(one.transfers is False for one in found) > 0.75 * len(found)
    assert not any(one.transfers for one in found)


def test_a_cost_that_all_seeds_agree_on_counts_where_the_rate_stays():
    def record(size, lr, seed):  # at the largest size the rate tuned on the smallest is a narrow spike
        loss = 2 + CURVATURE * (math.log2(lr) + 3.0) ** 2 + 0.001 * seed
        if size == SIZES[-1] and lr == 2.0**-3:
            loss += 0.1
        return {
            "config": {"recipe": "r", "width": size, "lr": lr, "seed": seed},
            "result": {"loss": loss, "diverged": False},
        }

    for seeds, expected in ((1, None), (2, False)):
        (one,) = transfer_summary([record(size, lr, seed) for size in SIZES for lr in RATES for seed in range(seeds)])
        assert one.transfers is expected, one.verdict
