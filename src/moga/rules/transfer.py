"""What width does to a parameter and depth to a branch, as functions of roles and of integers alone.

Together with ``OperatorNorm.scale`` and the table of shape words this is the only place that knows about width.
"""

from __future__ import annotations

import math

from moga.geometry.norms import OperatorNorm

ROLES = ("input", "hidden", "output", "tied", "vector")
DEPTH_RULES = ("1/K", "1/sqrt(2K)", "none")


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


def table_factor(width: int) -> float:
    """``sqrt(width)``: by it some models multiply the rows of their table, tokens of ``width`` features.

    >>> table_factor(64)
    8.0
    """
    _check_counts("features", width=width)
    return math.sqrt(width)


def follows_width(multiplier: float, width: int) -> bool:
    """Whether a table's multiplier is that of :func:`table_factor`, to the precision of bfloat16, and so no constant.

    >>> follows_width(8.0, 64), follows_width(12.0, 64), follows_width(1.0, 1)
    (True, False, False)
    """
    return multiplier != 1 and math.isclose(multiplier, table_factor(width), rel_tol=2**-8)


def initial_std(
    role: str, out: int, in_: int, lookup: bool = False, logit_scale: float = 1.0, multiplier: float = 1.0
) -> float:
    """The standard deviation of a fresh matrix's independent normal entries; 0 stands for a matrix of zeros.

    - hidden, and input from dense features: ``min(1, sqrt(out/in)) / sqrt(in)``. Its largest singular value is about
      ``std (sqrt(out) + sqrt(in))``, so its spectral size is ``1 + sqrt(min/max)``: 1 to 2 at every shape.
    - input by lookup: ``1 / multiplier``, so each token's vector has entries of root-mean-square 1 once the model has
      multiplied it.
    - output: 0, so training starts from equal logits.
    - tied: ``1 / sqrt(out)`` with ``out`` the width: features of root-mean-square 1 then give logits of order 1. Logits
      that are multiplied by ``logit_scale`` = base_width / width start as at the base: ``1 / sqrt(base_width)``. So a
      step of lr is the same part of a token's vector at every width. With ``multiplier`` = sqrt(width) that step is
      1 / sqrt(width) in the matrix, and so is the start, whatever the logits are multiplied by.

    Raises ValueError for an unknown role, and for a vector, which starts from no random numbers.

    >>> initial_std("hidden", 256, 64), initial_std("hidden", 64, 256), initial_std("tied", 64, 50257)
    (0.125, 0.03125, 0.125)
    >>> initial_std("tied", 1024, 50257, logit_scale=logit_multiplier(64, 1024))
    0.125
    >>> initial_std("input", 64, 50257, lookup=True, multiplier=8.0)
    0.125
    """
    if role == "output":
        return 0.0
    if role == "tied":
        return 1 / math.sqrt(out if follows_width(multiplier, out) else out * logit_scale)
    if role == "input" and lookup:
        return 1 / multiplier
    if role in ("input", "hidden"):
        return min(1.0, math.sqrt(out / in_)) / math.sqrt(in_)
    raise ValueError(f"role {role!r} has no random start; the roles that have one are input, hidden, output, tied")


def logit_multiplier(base_width: int, width: int, roots: int = 0) -> float:
    """``base_width / width``: what keeps the logits of a tied matrix from moving more in a wider model.

    A step on the lookup moves every entry of a token's vector by lr, whatever the width. Read as an output, the same
    step meets features that are aligned with it, and the products of ``width`` entries add up. Source: Tensor
    Programs V, arXiv 2203.03466, Table 8, which lets input and output share a matrix.

    ``roots`` counts what the model itself does by sqrt(width). If it multiplies its table so (Gemma), the entries of W
    have to move by lr / sqrt(width) for tokens to move by lr; if it divides the features of its output so (T5), the
    products add up to lr sqrt(width). Each takes sqrt(base_width / width) off: the multiplier is
    ``(base_width / width)^(1 - roots / 2)``.

    Raises ValueError for what is no width.

    >>> logit_multiplier(64, 512), logit_multiplier(64, 256, roots=1)
    (0.125, 0.5)
    """
    _check_counts("features", base_width=base_width, width=width)
    return math.pow(base_width / width, 1 - roots / 2)


def width_factor(norm: OperatorNorm, role: str, base_width: int, width: int) -> float:
    """What a step without scale is multiplied by when the features on its growing sides become ``width``.

    It is ``scale(width) / scale(base_width)``, so a step of size lr at the base has size lr at every width. For hidden
    matrices, inputs by lookup and outputs, in r = width / base_width: ``sign`` (and Adam) 1/r, 1, 1/r; ``row`` with p
    r^(-1/p), 1, r^(-1/p); ``column`` with q r^(1/q - 1), r^(1/q), 1/r; ``spectral`` 1, r^(1/2), r^(-1/2).
    Source: arXiv 2603.09952; ``sign`` is Tensor Programs V, arXiv 2203.03466.

    >>> from moga.geometry.norms import norm
    >>> [width_factor(norm("column", q=2), role, 64, 256) for role in ("hidden", "input", "output")]
    [0.5, 2.0, 0.25]
    """
    _check_counts("features", base_width=base_width, width=width)
    fans = [effective_fan(role, one, one, lookup=True) for one in (width, base_width)]
    return norm.scale(*fans[0]) / norm.scale(*fans[1])


def adamw_rate(lr: float, base_width: int, width: int) -> float:
    """``lr base_width / width``: AdamW's learning rate for hidden matrices and outputs.

    It is what ``mup-adamw`` with a base does by its scales. Source: Tensor Programs V, arXiv 2203.03466.

    >>> adamw_rate(3e-3, 64, 256)
    0.00075
    """
    _check_counts("features", base_width=base_width, width=width)
    return lr * base_width / width


def adamw_decay(weight_decay: float, base_width: int, width: int) -> float:
    """``weight_decay sqrt(base_width / width)``: keeps the largest singular value of what a layer does to its inputs.

    Published as weight_decay ~ sqrt(width) for lr ~ 1/width and a step that removes lr weight_decay: together
    1/sqrt(width). Here a step removes lr weight_decay with lr as it is. An observation on LLaMA-like models, not a
    theorem; CompleteP (arXiv 2505.01618) has weight_decay ~ width, which is a constant here.
    Source: arXiv 2510.15262.

    >>> adamw_decay(0.1, 64, 256)
    0.05
    """
    _check_counts("features", base_width=base_width, width=width)
    return weight_decay * math.sqrt(base_width / width)


def branch_multiplier(rule: str, depth: int, base_depth: int | None = None, branches: float = 2) -> float:
    """What a residual branch is multiplied by in a stack of ``depth`` blocks of ``branches`` branches each.

    - "1/K", K blocks: a step of lr on every weight changes each branch by order lr, aligned with the others, so K of
      them add up to order lr. CompleteP, arXiv 2505.01618 (there alpha = 1).
    - "1/sqrt(2K)", 2K branches: K independent random branches add up to order 1 at the start; the learning rate has to
      fall as 1/sqrt(K). Tensor Programs VI, arXiv 2310.02244; HyperP, arXiv 2603.28743.
    - "none": 1.

    With ``base_depth`` it is 1 there: ``base_depth / depth``, or the square root of that.

    Raises ValueError for an unknown rule and for what is no number of blocks.

    >>> branch_multiplier("1/K", 32), branch_multiplier("1/sqrt(2K)", 32), branch_multiplier("1/K", 32, base_depth=8)
    (0.03125, 0.125, 0.25)
    """
    if rule not in DEPTH_RULES:
        raise ValueError(f"unknown depth rule {rule!r}; the rules are {', '.join(DEPTH_RULES)}")
    _check_counts("blocks", depth=depth, base_depth=1 if base_depth is None else base_depth)
    if rule == "none":
        return 1.0
    ratio = (base_depth or 1) / depth
    if rule == "1/K":
        return ratio
    return math.sqrt(ratio if base_depth else ratio / branches)


def _check_counts(what: str, **counts: int) -> None:
    for word, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{word} must be a whole number of at least 1, the number of {what}; got {value!r}")
