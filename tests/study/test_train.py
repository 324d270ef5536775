import itertools
import json
import math
from dataclasses import replace

import pytest
import torch

from moga.rules.recipes import RECIPES
from moga.study.data import Corpus
from moga.study.settings import DECAYS, Run, Settings
from moga.study.train import CURVE_POINTS, DECAY, curve, has_diverged, optimizer_options, schedule, threads, train


def test_equal_runs_are_equal_bit_for_bit(corpus: Corpus, small: Settings) -> None:
    run = Run("moga-row", 16, 0.1, 0, small)
    first, second = train(run, corpus), train(run, corpus)
    assert first["loss"] == second["loss"]
    assert first["curve"] == second["curve"]
    assert train(replace(run, seed=1), corpus)["loss"] != first["loss"]


# Rates of recipes whose lr is not in units of the norm: of one entry, of the gradient, or of a published radius.
UNSCALED = dict.fromkeys(("adam", "adamw", "lion", "signsgd", "rmsprop", "hyperp", "muown", "rmnp"), 0.005)
UNSCALED |= dict.fromkeys(("orscale", "orscale-lm", "spel"), 0.005) | {"scion": 0.001}


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_learns_and_starts_alike(recipe: str, corpus: Corpus, small: Settings) -> None:
    rate = UNSCALED.get(recipe, 0.1)
    result = train(Run(recipe, 16, rate, 0, replace(small, steps=20)), corpus)
    assert result["curve"][0][1] == pytest.approx(math.log(256))
    assert result["loss"] < 5.3
    assert (result["diverged"], result["tokens"]) == (False, 20 * 4 * 16)
    assert result["tokens_per_second"] == pytest.approx(result["tokens"] / result["seconds"])
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_divergence_is_a_result(family: str, corpus: Corpus, small: Settings) -> None:
    settings = replace(small, family=family, steps=60)
    result = train(Run("moga-row", 16, 1e4, 0, settings), corpus)
    assert (result["diverged"], result["loss"]) == (True, None)
    assert result["tokens"] < 60 * 4 * 16
    json.dumps(result, allow_nan=False)


def test_a_loss_that_is_not_finite_is_a_divergence(corpus: Corpus, small: Settings) -> None:
    result = train(Run("adamw", 16, 1e38, 0, small), corpus)
    assert result["diverged"]
    assert all(math.isfinite(loss) for _, loss in result["curve"])


def test_a_rate_of_almost_nothing_leaves_the_uniform_guess(corpus: Corpus, small: Settings) -> None:
    assert train(Run("moga-row", 16, 1e-12, 0, small), corpus)["loss"] == pytest.approx(math.log(256), abs=1e-5)


def test_clipping_changes_adam_but_not_a_normalised_update(corpus: Corpus, small: Settings) -> None:
    clipped = replace(small, clip=1e-6)
    adam = [train(Run("adamw", 16, 0.01, 0, settings), corpus)["loss"] for settings in (small, clipped)]
    row = [train(Run("moga-row", 16, 0.1, 0, replace(one, momentum=0.0)), corpus)["loss"] for one in (small, clipped)]
    assert adam[0] != adam[1]
    assert row[0] == pytest.approx(row[1], abs=1e-4)


def test_the_progress_is_every_step(corpus: Corpus, small: Settings) -> None:
    seen: list[tuple[int, float]] = []
    train(Run("adamw", 16, 0.01, 0, small), corpus, lambda step, loss: seen.append((step, loss)))
    assert [step for step, _ in seen] == list(range(1, 9))
    assert seen[0][1] == pytest.approx(math.log(256))


@pytest.mark.parametrize("decay", DECAYS)
def test_schedules_warm_up_and_end(decay: str) -> None:
    factor = schedule(Settings(steps=100, warmup=10, decay=decay))
    factors = [factor(step) for step in range(101)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1.0
    assert factors[100] == pytest.approx(1.0 if decay == "constant" else 0.0)
    assert all(0 <= after <= before for before, after in itertools.pairwise(factors[10:]))
    assert set(DECAY) == set(DECAYS)


def test_recipes_get_the_options_that_they_use() -> None:
    settings = Settings(weight_decay=0.1)
    assert optimizer_options(Run("moga-row", 32, 0.1, 0, settings)) == {"weight_decay": 0.1}
    settings = replace(settings, momentum=0.9)
    assert optimizer_options(Run("moga-row", 32, 0.1, 0, settings)) == {"weight_decay": 0.1, "momentum": 0.9}
    assert set(optimizer_options(Run("muon", 32, 0.1, 0, settings))) == {"weight_decay", "momentum", "betas"}


def test_divergence_needs_patience_unless_the_loss_is_not_finite() -> None:
    assert not has_diverged([5.0] + [6.5] * 9)
    assert has_diverged([5.0] + [6.5] * 10)
    assert not has_diverged([5.0] + [6.5] * 9 + [5.9])
    assert has_diverged([math.inf])


@pytest.mark.parametrize("steps", [1, 49, 50, 51, 400])
def test_the_curve_is_short_and_ends_at_the_last_step(steps: int) -> None:
    points = curve([float(step) for step in range(steps)])
    assert len(points) <= CURVE_POINTS
    assert points[-1][0] == steps
    assert curve([math.nan]) == []


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="inside"), threads(1):
        raise RuntimeError("inside")
    assert torch.get_num_threads() == before
