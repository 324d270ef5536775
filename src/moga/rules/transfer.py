"""What width does to a parameter, as functions of its role and of integers alone.

Together with ``OperatorNorm.scale`` and the table of shape words this is the only place that knows about width.
"""

from __future__ import annotations

import math

ROLES = ("input", "hidden", "output", "tied", "vector")


def effective_fan(role: str, out: int, in_: int, lookup: bool = False) -> tuple[int, int]:
    """The (out, in) that enter the norm's scale, for a matrix of ``out`` rows and ``in_`` columns.

    A network that is measured from one-hot tokens to its largest logit has no ``in`` at its first layer and no
    ``out`` at its last. Dense inputs (pixels, features) keep their ``in``, which does not grow with width. A tied
    matrix is scaled as the lookup that it also is. A vector of d entries is measured by its largest entry: (1, 1).

    Raises ValueError for an unknown role.

    >>> effective_fan("hidden", 256, 64), effective_fan("output", 50257, 64)
    ((256, 64), (1, 64))
    >>> effective_fan("input", 64, 50257, lookup=True), effective_fan("input", 64, 784)
    ((64, 1), (64, 784))
    """
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}; the roles are {', '.join(ROLES)}")
    if role == "input":
        return (out, 1) if lookup else (out, in_)
    return {"hidden": (out, in_), "output": (1, in_), "tied": (out, 1), "vector": (1, 1)}[role]


def initial_std(role: str, out: int, in_: int, lookup: bool = False, logit_scale: float = 1.0) -> float:
    """The standard deviation of a fresh matrix's independent normal entries; 0 stands for a matrix of zeros.

    - hidden, and input from dense features: ``min(1, sqrt(out/in)) / sqrt(in)``. Its largest singular value is about
      ``std (sqrt(out) + sqrt(in))``, so its spectral size is ``1 + sqrt(min/max)``: 1 to 2 at every shape.
    - input by lookup: 1, so each token's vector has entries of root-mean-square 1.
    - output: 0, so training starts from equal logits.
    - tied: ``1 / sqrt(out)`` with ``out`` the width: features of root-mean-square 1 then give logits of order 1. Logits
      that are multiplied by ``logit_scale`` = base_width / width start as at the base: ``1 / sqrt(base_width)``. So a
      step of lr is the same part of a token's vector at every width.

    Raises ValueError for an unknown role, and for a vector, which starts from no random numbers.

    >>> initial_std("hidden", 256, 64), initial_std("hidden", 64, 256), initial_std("tied", 64, 50257)
    (0.125, 0.03125, 0.125)
    >>> initial_std("tied", 1024, 50257, logit_scale=logit_multiplier(64, 1024))
    0.125
    """
    if role == "output":
        return 0.0
    if role == "tied":
        return 1 / math.sqrt(out * logit_scale)
    if role == "input" and lookup:
        return 1.0
    if role in ("input", "hidden"):
        return min(1.0, math.sqrt(out / in_)) / math.sqrt(in_)
    raise ValueError(f"role {role!r} has no random start; the roles that have one are input, hidden, output, tied")


def logit_multiplier(base_width: int, width: int) -> float:
    """``base_width / width``: what keeps the logits of a tied matrix from moving more in a wider model.

    A step on the lookup moves every entry of a token's vector by lr, whatever the width. Read as an output, the same
    step meets features that are aligned with it, and the products of ``width`` entries add up. Source: Tensor
    Programs V, arXiv 2203.03466, Table 8, which lets input and output share a matrix.

    Raises ValueError for what is no width.

    >>> logit_multiplier(64, 512)
    0.125
    """
    for word, value in (("base_width", base_width), ("width", width)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{word} must be a whole number of at least 1, the number of features; got {value!r}")
    return base_width / width
