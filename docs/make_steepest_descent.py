"""Write docs/steepest-descent.md and its figures: ``python docs/make_steepest_descent.py``. A test compares both.

The text is ``docs/figures/steepest-descent.md.in``; the numbers come from the modules beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from string import Template

import torch
from figures import adam, classical, polar, width
from figures.draw import two_digits, write

DOCS = Path(__file__).parent
PAGE = DOCS / "steepest-descent.md"
FIGURES = DOCS / "figures"
TEXT = FIGURES / "steepest-descent.md.in"


def page() -> str:
    """The whole page as text."""
    return Template(TEXT.read_text(encoding="utf-8")).substitute({**plain(), **tables()})


def plain() -> dict[str, str]:
    """The numbers that stand in sentences."""
    (first, first_slope), (second, _) = polar.fixed_points()
    x = torch.logspace(-4, 0, 40001, dtype=torch.float64)
    after = polar.iterate("quintic", x, 5)
    one = torch.ones((), dtype=torch.float64)
    cycle = [f"({a:.2f}, {b:.2f})" for a, b in classical.descend("sign descent", "constant")[-2:].tolist()]
    newton = classical.fit_path("Newton", "xi", 1.0, 6)[:, 1].tolist()
    return {
        "log2": f"{math.log(2):.4f}",
        "l2_curvature": f"{classical.curvature('gradient descent'):.0f}",
        "sign_cycle": " and ".join(cycle),
        "ngd_cycle": f"{classical.left(classical.descend('normalised gradient descent', 'constant'), 1600):.2f}",
        "inverse_e": f"{math.exp(-1):.2f}",
        "newton": ", ".join(f"{theta2:.2g}" for theta2 in newton),
        "noise_sd": f"{adam.noisy_theory(0.0)[1]:.3f}",
        "bound": f"{adam.sharp_bound():.2f}",
        "spike": f"{adam.largest_steps()['single spike']:.2f}",
        "limit_same": f"{adam.stability_limit(0.9, 0.9):.0f}",
        "limit_default": f"{adam.stability_limit(0.9, 0.81):.2f}",
        "adam_growing": f"{max(adam.decayed_adam(0.5, 'growing', 'zeros')):.2f}",
        "adam_steady": f"{adam.decayed_adam(0.5, 'steady', 'nothing')[-1]:.2f}",
        "adam_onset": f"{max(adam.decayed_adam(0.5, 'steady', 'zeros')):.2f}",
        "phi_one": f"{float(polar.iterate('quintic', one)):.3f}",
        "phi_slope": f"{polar.COEFFICIENTS['quintic'][0]:.4f}",
        "phi_first": f"{first:.3f}",
        "phi_first_slope": f"{first_slope:.2f}",
        "phi_second": f"{second:.3f}",
        "phi_low": f"{float(after.min()):.3f}",
        "phi_high": f"{float(after.max()):.2f}",
        "phi_start": f"{1e-5 * math.ceil(1e5 * polar.start_of(0.6)):.5f}",
        "cubic_steps": f"{polar.steps_to(0.5, 1e-3)}",
        "adamw_rate": f"{width.RATES['adamw']:g}",
        "mup_rate": f"{width.RATES['mup-adamw']:g}",
    }


def tables() -> dict[str, str]:
    """The tables by their names in the text."""
    return {
        "four_methods": table(
            ("method", "step", "lr", "rate", "at 400", "at 1600", ""),
            (
                (method, classical.METHODS[method].step, f"{classical.rate(method):.2g}", schedule, *distances(path))
                for method in classical.FOUR
                for schedule in classical.SCHEDULES
                for path in (classical.descend(method, schedule),)
            ),
        ),
        "gaps": table(
            ("method", *(f"lr = {lr}" for lr in (0.1, 0.05, 0.025))),
            (
                (method, *(f"{classical.gap(method, lr):.3f}" for lr in (0.1, 0.05, 0.025)))
                for method in ("natural gradient", "gradient descent")
            ),
        ),
        "noise": table(
            ("mu", "mean: formula", "run", "s.d.: formula", "run"),
            (
                (f"{mu:g}", two_digits(mean), two_digits(run[0]), f"{spread:.3f}", f"{run[1]:.3f}")
                for mu, run in zip((0.0, 1.0, 3.0), adam.noisy_steps((0.0, 1.0, 3.0)), strict=True)
                for mean, spread in (adam.noisy_theory(mu),)
            ),
        ),
        "signs": table(
            ("rank", *(f"n = {n}" for n in (width.WIDTHS[0], width.WIDTHS[-1])), "slope", "at 2048, over n", "limit"),
            map(sign_row, width.RANKS),
        ),
        "network": table(
            (
                "recipe",
                "rate of W",
                "what",
                *(f"n = {n}" for n in width.WIDTHS[::2]),
                f"n = {width.WIDTHS[-1]}",
                "slope",
            ),
            (
                (
                    f"`{recipe}`",
                    rate,
                    what,
                    *(f"{size:.3f}" for size in (*sizes[::2], sizes[-1])),
                    two_digits(width.trained_slope(recipe, what)),
                )
                for recipe, rate in (("adamw", "fixed"), ("mup-adamw", "1/n"))
                for what in ("spectral", "effect")
                for sizes in (width.trained(recipe, what),)
            ),
        ),
    }


def distances(path: torch.Tensor) -> tuple[str, str, str]:
    return f"{classical.left(path, 400):.1g}", f"{classical.left(path, 1600):.1g}", classical.verdict(path)


def sign_row(rank: int) -> tuple[str, ...]:
    sizes = width.sign_sizes(rank)
    limit = two_digits(width.limit(rank)) if rank else "0"
    share = two_digits(sizes[-1] / width.WIDTHS[-1])
    return str(rank or "n"), f"{sizes[0]:.0f}", f"{sizes[-1]:.0f}", two_digits(width.sign_slope(rank)), share, limit


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown.

    >>> print(table(("a", "b"), [("1", "2")]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    head = tuple(head)
    lines = [head, *map(tuple, rows)]
    written = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([written[0], "|" + "---|" * len(head), *written[1:]])


if __name__ == "__main__":
    write(FIGURES)
    PAGE.write_text(page(), encoding="utf-8")
