"""Write docs/recipes.md from the table of recipes: ``python docs/make_recipes.py``. A test compares the two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import moga
from moga.optim.checks import PLAIN
from moga.optim.update import new_state
from moga.rules.updates import COMBINATIONS

PAGE = Path(__file__).with_name("recipes.md")
TRAINED = Path(__file__).with_name("which_lr.json")  # written by which_lr.py
OUT, IN = 64, 48

# What a matrix split over devices by rows has to exchange at each step, by the norm of its update.
TRAFFIC = {
    "sign": "none",
    "adam": "none",
    "rmsprop": "none",
    "row": "none (split by columns: out numbers)",
    "column": "in numbers (split by columns: none)",
    "spectral": "the whole matrix",
    "shampoo": "the whole matrix",
    "euclidean": "one number",
}

HEAD = """# Recipes

This page is made from the table in `src/moga/rules/recipes.py` by `python docs/make_recipes.py`.

Letters: `W` weight (out, in), `G` gradient, `M = b1 M + (1 - b1) G`, `L = b2 M_old + (1 - b2) G` (b2 = b1^2 unless a
recipe says otherwise: Nesterov), `wd` weight decay, `polar(X) = U V^T` for `X = U S V^T`, `sym(X) = (X + X^T) / 2`,
`1/q + 1/q* = 1`. *State* counts tensors of the parameter's size (in float32; half of that with
`state_dtype="bfloat16"`). *Traffic* is what a hidden matrix that is split over devices by its rows must exchange.
"""

CHOSEN = """
## What was chosen where a source leaves something open
"""

WORDS = """
## Steps and constraints

A group's update is three words: its norm (the direction), its `step` and its `constraint`. `fixed` steps with `decay`
exist for every norm: {norms}.
Besides, these exist, and every other combination is refused:
"""

RATES = '''
## I train with AdamW at 3e-4, or with Muon at 0.02; which lr here?

Keep the root mean square (RMS) of the update's entries. At lr = 1 it is, for a hidden matrix (out, in) of full rank:

| recipe | RMS of an update at lr = 1 | square matrix of width n |
|---|---|---|
| `adamw`, `lion`, `signsgd` | r | r |
| `mup-adamw` | r / in | r / n |
| `moga-row` (p = 2), `moga-column` (q = 2) | 1 / in | 1 / n |
| `muon`, shape `rms` | sqrt(out / in) / sqrt(max(out, in)) | 1 / sqrt(n) |
| `muon`, shape `original` | sqrt(max(1, out / in)) / sqrt(max(out, in)) | 1 / sqrt(n) |
| `muon`, shape `moonlight` | 0.2 | 0.2 |

`r` is 1 for signs. For Adam it is the size of `m / sqrt(v)`: 1 where gradients repeat themselves and
sqrt((1 - b1) / (1 + b1)) = 0.23 where they are pure noise (b1 = 0.9); 0.2 to 0.4 is usual in training, and 0.2 is the
factor of Moonlight. The new rate is the old one times the old entry over the new one, on the model on which the old
rate was tuned. With n = 512 as its width, and without `base=`:

| from | to `moga-row`, `moga-column` | to `mup-adamw` | to `muon`, `rms` |
|---|---|---|---|
| AdamW, 3e-4, r = 0.2 | 3e-4 * 0.2 * 512 = 0.031 | 3e-4 * 512 = 0.154 | 3e-4 * 0.2 * sqrt(512) = 0.00136 |
| Muon, 0.02 | 0.02 * sqrt(512) = 0.45 | 0.02 * sqrt(512) / 0.2 = 2.3 | 0.02 |

After that it stays as it is when the model grows; that is what the units are for. The two rows do not agree with each
other, because Muon at 0.02 takes larger steps than AdamW at 3e-4: start from the one that you have tuned, and look one
octave to each side. Keep `lr * weight_decay`, the fraction of a weight that a step removes:
`weight_decay_new = weight_decay_old * lr_old / lr_new`. Inputs, outputs and vectors: with `moga-row`, `moga-column` and
`mup-adamw` the one rate is for all of them; with recipes that leave them on AdamW, give those parameters
`overrides={"*embed*": {"lr_scale": 3e-4 / lr}}`, and the same for the others.

With `base=` a step at the base is the direction without scale, so these rates do not hold there: `adamw` and
`mup-adamw` keep 3e-4 as it is, `muon` steps by `U V^T`, and `moga-row` by rows of length 1: 3e-4 * 0.2 * sqrt(512).

### The same model at the old rates and at the new ones

{trained}

A LLaMA of width 64 with two blocks, 200 steps of 1024 bytes of the standard library's source, warmup and linear decay,
no weight decay; held-out loss in nats per byte. Made by `python docs/which_lr.py`. What is the same optimizer has the
same loss: `adamw`, and `mup-adamw` with `lr_scale` that leaves each parameter at its old rate, equal
`torch.optim.AdamW` in all digits shown; `muon` differs from `torch.optim.Muon`, which iterates in bfloat16, by less
than the two seeds do. At one rate for all parameters the recipes move inputs and vectors by more than AdamW does, as
they are meant to: `moga-row` and `moga-column` are then better than AdamW at the best of its three rates, and from
Muon's rate `moga-row` comes within 0.07 of Muon, on this model. Steps of equal size are not equal optimizers: with the
steps of inputs and vectors cut down to AdamW's, `moga-row` is worse than AdamW by 0.37 to 0.39. So convert the rate of
the hidden matrices and leave the others at one rate with them; it is where to start, not where to stop.

### One matrix

All steps have the same size.

```python
import math, torch, moga

OUT, IN = 256, 128


def rms_of_step(recipe, lr, steps=1, **options):
    """The RMS of the last of some updates along gradients of pure noise."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(OUT, IN))
    optimizer = moga.optimizer([("w", weight)], recipe, lr=lr, roles={"w": "hidden"}, **options)
    for _ in range(steps):
        before, weight.grad = weight.detach().clone(), torch.randn(OUT, IN)
        optimizer.step()
    return (weight.detach() - before).square().mean().sqrt().item()


adamw = 3e-4
r = rms_of_step("adamw", adamw, steps=300) / adamw
assert abs(r - math.sqrt(0.1 / 1.9)) < 0.02  # 0.23: noise

rate = {
    "moga-row": r * adamw * IN,
    "moga-column": r * adamw * IN,
    "muon": r * adamw * math.sqrt(max(OUT, IN)) * math.sqrt(IN / OUT),
}
for recipe, lr in rate.items():
    words = {"polar": "exact"} if recipe == "muon" else {}
    assert abs(rms_of_step(recipe, lr, **words) / (r * adamw) - 1) < 0.01, recipe
assert abs(rms_of_step("mup-adamw", adamw * IN, steps=300) / (r * adamw) - 1) < 0.01

muon = rms_of_step("muon", 0.02, shape="original", polar="exact")  # from Muon's rate
same = 0.02 * math.sqrt(OUT / IN) * IN / math.sqrt(max(OUT, IN))
assert abs(rms_of_step("moga-row", same) / muon - 1) < 0.01
```
'''


def page() -> str:
    """The whole page as text."""
    lines = [HEAD, "| recipe | hidden matrix | others | state | traffic | width | source |", "|" + "---|" * 7]
    for name, recipe in moga.RECIPES.items():
        updates = moga.rules.resolve_recipe(name)
        hidden = updates["hidden"]
        cells = (f"`{name}`", f"`{recipe.maths}`", others(updates), state(hidden), traffic(hidden))
        lines.append(row(*cells, recipe.width, recipe.source))
    lines += [CHOSEN, "| recipe | choice |", "|---|---|"]
    lines += [row(f"`{name}`", recipe.chosen) for name, recipe in moga.RECIPES.items() if recipe.chosen]
    plain = [norm for norm, step, constraint in COMBINATIONS if (step, constraint) == ("fixed", "decay")]
    lines += [WORDS.format(norms=", ".join(plain)), "| norm | step | constraint | source |", "|---|---|---|---|"]
    lines += [row(*words, text) for words, text in COMBINATIONS.items() if words[1:] != ("fixed", "decay")]
    return "\n".join(lines) + "\n" + RATES.replace("{trained}", "\n".join(trained()))


def trained() -> list[str]:
    """The table of runs at old and new rates."""
    lines = ["| optimizer | lr | from | loss, seed 0 | loss, seed 1 |", "|---|---|---|---|---|"]
    for run in json.loads(TRAINED.read_text(encoding="utf-8")):
        lines.append(row(run["optimizer"], f"{run['lr']:.4g}", run["from"], *(f"{loss:.4f}" for loss in run["losses"])))
    return lines


def row(*cells: str) -> str:
    """A line of a table; a bar inside a cell would end it.

    >>> row("a", "|W|")
    '| a | \\\\|W\\\\| |'
    """
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def others(updates: Mapping[str, Mapping[str, Any]]) -> str:
    """The norms of inputs, outputs and vectors."""
    norms = [updates[role]["norm"] for role in ("input", "output", "vector")]
    return norms[0] if len(set(norms)) == 1 else ", ".join(norms)


def state(update: Mapping[str, Any]) -> str:
    """The state of a matrix as the optimizer makes it, by the sizes of its tensors."""
    group = {**PLAIN, **update, "layout": "out,in", "blocks": ()}
    sizes = [value.numel() for value in new_state(torch.eye(OUT, IN), group).values() if value.numel() > 1]
    parts = [str(sizes.count(OUT * IN))] if OUT * IN in sizes or not sizes else []
    if rows := sizes.count(OUT):
        parts.append(f"{rows} numbers a row")
    if OUT**2 in sizes:
        parts.append("out^2 + in^2 numbers in float64")
    return " + ".join(parts)


def traffic(update: Mapping[str, Any]) -> str:
    """What the update of a matrix has to exchange between the devices that hold its rows."""
    if (update["norm"], update["step"]) == ("euclidean", "dual"):
        return "none"  # the gradient itself
    text = TRAFFIC[update["norm"]]
    if update["constraint"] == "sphere" or update["step"] == "trust_ratio":
        text += " and 2 sizes"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
