"""Named optimizers as rows of one table: which update each role gets. The words of an update are in ``updates.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moga.rules.keywords import near
from moga.rules.options import OPTIONS as OPTIONS
from moga.rules.options import filled
from moga.rules.transfer import ROLES
from moga.rules.updates import Update as Update
from moga.rules.updates import operator_norm as operator_norm
from moga.rules.updates import usable as usable


@dataclass(frozen=True)
class Recipe:
    """A published optimizer: an update per role, the hyper-parameters that it fixes, and where it is from.

    ``maths`` is the update of a hidden matrix in one line, ``width`` what becomes of it in a wider layer, ``chosen``
    what was decided here where the source leaves something open.
    """

    rows: Mapping[str, str | Update]
    source: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    maths: str = ""
    width: str = ""
    chosen: str = ""


def _rows(hidden: str | Update, input: str | Update, output: str | Update, vector: str | Update) -> dict[str, Any]:
    return {"hidden": hidden, "input": input, "output": output, "vector": vector}


def _everywhere(update: Update) -> dict[str, Any]:
    return _rows(update, update, update, update)


def _with_adamw(hidden: Update) -> dict[str, Any]:
    return _rows(hidden, ADAM_UNSCALED, ADAM_UNSCALED, ADAM_UNSCALED)


ADAM_UNSCALED = {"norm": "adam", "shape": "none"}
SIGN_UNSCALED = {"norm": "sign", "shape": "none"}
GRADIENT = {"norm": "euclidean", "step": "dual"}
MUON = {"norm": "spectral", "polar": "quintic"}

WIDTH_FREE = "lr is the same at every width"
AS_ADAM = "none: the best lr falls as 1 / in"
BY_SIZE = "none: the best lr falls as 1 / sqrt(max(out, in))"
BY_GRADIENT = "none: the step has the size of the gradient"
SQUARE = "none: right where all sides grow together"
ANGLE = "lr is the relative change of W"
ADAMW_REST = "Inputs, outputs and vectors on AdamW with the same lr; set theirs with overrides"

RECIPES: dict[str, Recipe] = {
    "moga-row": Recipe(
        _rows("row", "sign", "row", "sign"),
        "arXiv 2603.09952, Algorithm 1",
        maths="W <- (1 - lr wd) W - lr / in^(1/p) r(L), per row r(x) = sign(x) |x|^(p-1) / |x|_p^(p-1)",
        width=WIDTH_FREE,
        chosen="inputs by sign (the paper also has per-token columns), vectors by sign",
    ),
    "moga-column": Recipe(
        _rows("column", "column", "sign", "sign"),
        "arXiv 2603.09952, Algorithm 1",
        maths="W <- (1 - lr wd) W - lr out^(1/q) / in c(L), per column c(x) = sign(x) |x|^(q*-1) / |x|_q*^(q*-1)",
        width=WIDTH_FREE,
        chosen="outputs and vectors by sign",
    ),
    "muon": Recipe(
        _rows({"norm": "spectral", "shape": "rms", "polar": "quintic"}, "adam", "adam", "adam"),
        "Keller Jordan et al., Muon, 2024; shape 'moonlight': arXiv 2502.16982",
        {"betas": (0.9, 0.95)},
        maths="W <- (1 - lr wd) W - lr s polar(L); s = sqrt(out/in), or as the word shape says",
        width=WIDTH_FREE + " with shape rms",
        chosen="the step for an output is divided by its in, so that one lr serves all parameters",
    ),
    "mup-adamw": Recipe(
        _rows("adam", "adam", "adam", "adam"),
        "Tensor Programs V, arXiv 2203.03466",
        maths="W <- (1 - lr wd) W - lr / in m / (sqrt(v) + eps)",
        width=WIDTH_FREE,
        chosen="the decay is not divided by in: it keeps its strength at every width",
    ),
    "adamw": Recipe(
        _everywhere(ADAM_UNSCALED),
        "arXiv 1711.05101",
        {"betas": (0.9, 0.999), "eps": 1e-8},
        maths="W <- (1 - lr wd) W - lr m / (sqrt(v) + eps)",
        width=AS_ADAM,
        chosen="equals torch.optim.AdamW with decay_vectors=True; by default vectors are not decayed",
    ),
    "lion": Recipe(
        _everywhere(SIGN_UNSCALED),
        "arXiv 2302.06675",
        {"momentum": 0.99, "lookahead": 0.9},
        maths="W <- (1 - lr wd) W - lr sign(L), b1 = 0.99, b2 = 0.9",
        width=AS_ADAM,
        chosen="sign(0) = 0; one lr for all parameters, as published; vectors are decayed only if asked",
    ),
    "sgd": Recipe(
        _everywhere(GRADIENT | {"average": "none"}),
        "Robbins and Monro, 1951; as torch.optim.SGD",
        maths="W <- (1 - lr wd) W - lr G",
        width=BY_GRADIENT,
        chosen="the decay is decoupled, which without momentum is torch's",
    ),
    "heavy-ball": Recipe(
        _everywhere(GRADIENT | {"average": "sum", "lookahead": "momentum"}),
        "Polyak, 1964; as torch.optim.SGD with momentum",
        {"momentum": 0.9},
        maths="M = b1 M + G; W <- (1 - lr wd) W - lr M",
        width=BY_GRADIENT,
        chosen="lookahead=None is Nesterov's form; the decay is decoupled, torch's goes through M",
    ),
    "rmsprop": Recipe(
        _everywhere({"norm": "rmsprop", "shape": "none"}),
        "Tieleman and Hinton, 2012; as torch.optim.RMSprop",
        {"alpha": 0.99, "eps": 1e-8},
        maths="v = a v + (1 - a) G^2; W <- (1 - lr wd) W - lr G / (sqrt(v) + eps)",
        width=AS_ADAM,
        chosen="eps outside the root, not centred, no momentum, decoupled decay",
    ),
    "adam": Recipe(
        _everywhere(ADAM_UNSCALED),
        "arXiv 1412.6980",
        {"betas": (0.9, 0.999), "eps": 1e-8},
        maths="W <- (1 - lr wd) W - lr m / (sqrt(v) + eps)",
        width=AS_ADAM,
        chosen="equals torch.optim.Adam without weight decay; a weight decay is decoupled, as in adamw",
    ),
    "signsgd": Recipe(
        _everywhere(SIGN_UNSCALED | {"average": "none"}),
        "arXiv 1802.04434",
        maths="W <- (1 - lr wd) W - lr sign(G)",
        width=AS_ADAM,
        chosen="without momentum; with it (Signum) it is lion with lookahead='momentum'",
    ),
    "rmnp": Recipe(
        _with_adamw({"norm": "row", "shape": "none", "lookahead": "momentum"}),
        "arXiv 2603.20527",
        {"momentum": 0.95, "betas": (0.9, 0.95)},
        maths="W <- (1 - lr wd) W - lr r(M), per row r(x) = x / |x|_2",
        width="none: the best lr falls as 1 / sqrt(in)",
        chosen=f"the paper's rule; its code adds Nesterov and a factor of shape. {ADAMW_REST}",
    ),
    "scion": Recipe(
        {
            **_rows(
                MUON | {"radius": 50.0},
                {"norm": "column", "radius": 3000.0},
                {"norm": "sign", "radius": 3000.0},
                {"norm": "sign", "radius": 50.0},
            ),
            "tied": {"norm": "sign", "radius": 3000.0},
        },
        "arXiv 2502.07529",
        {"momentum": 0.9, "lookahead": "momentum", "weight_decay": 1.0},
        maths="W <- (1 - lr wd) W - lr radius sqrt(out/in) polar(M); outputs: radius / in sign(M)",
        width=WIDTH_FREE,
        chosen="wd = 1 is the constrained form, weight_decay=0 the unconstrained one; radii of the paper's GPT; inputs "
        "by column, a tied matrix by sign; vectors by sign instead of x / RMS(x): the same RMS, without a reduction",
    ),
    "shampoo": Recipe(
        _with_adamw({"norm": "spectral", "shape": "none", "polar": "exact", "average": "none"}),
        "arXiv 1802.09568; without accumulation: arXiv 2409.20325",
        {"betas": (0.9, 0.999)},
        maths="W <- (1 - lr wd) W - lr (G G^T)^(-1/4) G (G^T G)^(-1/4) = W - lr polar(G)",
        width=SQUARE,
        chosen=ADAMW_REST,
    ),
    "shampoo-accumulated": Recipe(
        _with_adamw({"norm": "shampoo", "shape": "none"}),
        "arXiv 1802.09568, Algorithm 1",
        {"damping": 1e-4, "betas": (0.9, 0.999)},
        maths="A += G G^T, B += G^T G, from damping I; W <- (1 - lr wd) W - lr A^(-1/4) G B^(-1/4)",
        width="none: the step shrinks as gradients add up",
        chosen=f"roots at every step, in float64 (a fourth root of a float32 sum has two digits). {ADAMW_REST}",
    ),
    "muown": Recipe(
        _with_adamw(MUON | {"shape": "moonlight", "constraint": "row_magnitude"}),
        "arXiv 2605.10797",
        {"momentum": 0.95, "betas": (0.9, 0.95), "eps": 1e-8},
        maths="W = g v / |v| by rows; v <- v - lr 0.2 sqrt(max(out, in)) polar(L_v); g by Adam with the same lr",
        width=BY_SIZE,
        chosen="a row of zeros has no direction and stays zero; what rounding leaves of a gradient along a row does "
        "not turn it; rows that are written from outside start anew with g = |v| = their length, the averages stay. "
        + ADAMW_REST,
    ),
    "orscale": Recipe(
        _with_adamw(MUON | {"shape": "none", "step": "trust_ratio", "trust_clip": [0.5, 1.5]}),
        "arXiv 2605.07815",
        {"momentum": 0.95, "betas": (0.9, 0.95)},
        maths="D = wd W + polar(L); W <- W - lr clip(|W|_F / |D|_F, 0.5, 1.5) D",
        width=SQUARE,
        chosen=f"the decay is inside the trust ratio, as published. {ADAMW_REST}",
    ),
    "orscale-lm": Recipe(
        _with_adamw(
            MUON
            | {
                "shape": "moonlight",
                "step": "trust_ratio",
                "trust_clip": [0.1, 5.0],
                "calibration": "first_step",
            }
        ),
        "arXiv 2605.07815",
        {"momentum": 0.95, "betas": (0.9, 0.95)},
        maths="D = wd W + 0.2 sqrt(max(out, in)) polar(L); W <- W - lr clip(|W|_F / (c |D|_F), 0.1, 5) D",
        width=BY_SIZE,
        chosen="c makes the ratio 1 at the first step at which weight and gradient are not zero; until then it is 1. "
        + ADAMW_REST,
    ),
    "hyperp": Recipe(
        _with_adamw(MUON | {"constraint": "sphere"}),
        "arXiv 2603.28743",
        {"momentum": 0.95, "betas": (0.9, 0.95)},
        maths="U = polar(L); W' = W - lr |W|_F / |U|_F U; W <- W' |W|_F / |W'|_F",
        width=ANGLE,
        chosen="embeddings are not on the sphere; no weight decay on it: where nothing else decays, asking for one "
        f"gives a warning. {ADAMW_REST}",
    ),
    "spel": Recipe(
        _with_adamw(
            {"norm": "spectral", "shape": "none", "polar": "exact", "constraint": "stiefel", "lookahead": "momentum"}
        ),
        "arXiv 2601.21487",
        {"momentum": 0.95, "betas": (0.9, 0.95)},
        maths="T = M - W sym(W^T M); W <- polar(W - lr polar(T)); singular values of W stay 1",
        width=ANGLE,
        chosen="hidden weights start on the manifold, or a warning says so; the retraction is exact; what rounding to "
        "float32 leaves of a momentum without a tangent part moves nothing (a bfloat16 W is on the manifold to 2^-8 "
        f"only, and so is what counts as tangent). {ADAMW_REST}",
    ),
}


def resolve_recipe(
    recipe: str | Mapping[str, str | Update], options: Mapping[str, Any] | None = None
) -> dict[str, Update]:
    """The complete update of each role, for a recipe's name or a dict role -> update, with options filled in.

    An option reaches the rows that can use it: ``p`` the row updates, ``q`` the column updates, ``shape`` and
    ``polar`` the spectral ones, ``betas`` and ``eps`` the adam ones, ``momentum`` and ``lookahead`` all others,
    ``weight_decay`` all. A tied matrix takes the input's update unless the dict has one for it.

    Raises ValueError for an unknown recipe, role, norm, word, or option, an option that no row can use, and a value
    out of range; TypeError for a recipe that is neither a name nor a dict.

    >>> resolve_recipe("moga-row", {"p": 1.5})["hidden"]  # doctest: +NORMALIZE_WHITESPACE
    {'norm': 'row', 'p': 1.5, 'q': None, 'shape': 'rms', 'polar': 'exact', 'step': 'fixed', 'constraint': 'decay',
     'average': 'mean'}
    """
    rows, defaults = _rows_of(recipe)
    label = repr(recipe) if isinstance(recipe, str) else "this recipe"
    complete = filled(rows, defaults, options or {}, label)
    return complete if "tied" in complete or "input" not in complete else complete | {"tied": complete["input"]}


def _rows_of(recipe: str | Mapping[str, str | Update]) -> tuple[Mapping[str, str | Update], Mapping[str, Any]]:
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"unknown recipe {recipe!r}; the recipes are {', '.join(RECIPES)}{near(recipe, RECIPES)}")
        return RECIPES[recipe].rows, RECIPES[recipe].defaults
    if not isinstance(recipe, Mapping):
        raise TypeError(f"a recipe is a name or a dict role -> update; got {type(recipe).__name__}")
    for role in recipe:
        if role not in ROLES:
            raise ValueError(f"unknown role {role!r} in the recipe; the roles are {', '.join(ROLES)}")
    if not recipe:
        raise ValueError(f"the recipe is empty; it needs an update for each role that occurs ({', '.join(ROLES)})")
    return recipe, {}
