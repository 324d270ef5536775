"""What torch's optimizers call what is called otherwise here, for errors that answer in the words of whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from moga.rules.keywords import keywords_of

_ITERATION = 'polar, a word for coefficients and steps together: "quintic" is torch\'s five'
_KERNELS = 'implementation: "auto" takes kernels where there are some, "plain" never'
_DECOUPLED = "weight_decay, which is decoupled in every recipe"
_NO_AVERAGE = "nothing: no recipe here has such an average"
_NO_RECIPE = "nothing: the optimizer that has it is no recipe here"

TORCH = {  # keyword of an optimizer of torch -> what says the same here
    "lr": "the optimizer's own: moga.optimizer(model, recipe, lr) or moga.SteepestDescent(groups, lr)",
    "nesterov": 'lookahead: None is Nesterov\'s step, "momentum" the plain one',
    "dampening": 'the word average of an update: "mean" is dampening = momentum, "sum" is dampening = 0',
    "ns_steps": _ITERATION,
    "ns_coefficients": _ITERATION,
    "adjust_lr_fn": 'shape: "original" is "original", "moonlight" is "match_rms_adamw"',
    "foreach": _KERNELS,
    "fused": _KERNELS,
    "capturable": "nothing: a step reads nothing on the host; give lr as a tensor",
    "differentiable": "nothing: a step is not differentiated",
    "decoupled_weight_decay": _DECOUPLED,
    "amsgrad": _NO_AVERAGE,
    "centered": _NO_AVERAGE,
    "momentum_decay": "nothing: the averages of a recipe do not change with time",
    "lr_decay": "a scheduler of torch, on the optimizer",
    "beta2_decay": "nothing: the averages of a recipe do not change with time",
    **dict.fromkeys(("rho", "d", "initial_accumulator_value", "lambd", "t0", "etas", "step_sizes"), _NO_RECIPE),
    **dict.fromkeys(("max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size"), _NO_RECIPE),
    "line_search_fn": _NO_RECIPE,
}
# Words that exist here too, where a recipe has no use for them: word -> (words instead, how they say it).
INSTEAD = {
    "betas": (("momentum", "lookahead"), "momentum and lookahead: the decay of the average, and its weight in a step"),
    "momentum": (("betas",), "betas, the decays of both averages"),
    "lookahead": (("betas",), "betas, the decays of both averages"),
}


def in_our_words(word: object, allowed: Container[str] = ()) -> str:
    """The end of an error about ``word``: what it is here, or "" where torch has no such word either.

    ``allowed`` are the words that could be given in the place of one that exists here too.

    >>> in_our_words("adjust_lr_fn")
    '. Here adjust_lr_fn is shape: "original" is "original", "moonlight" is "match_rms_adamw"'
    >>> in_our_words("betas", ["momentum", "lookahead"]), in_our_words("betas")
    ('. Here betas is momentum and lookahead: the decay of the average, and its weight in a step', '')
    """
    words, text = INSTEAD.get(str(word), ((), ""))
    said = text if words and all(one in allowed for one in words) else TORCH.get(str(word))
    return f". Here {word} is {said}" if said else ""


def no_keyword(function: Callable[..., Any], word: str) -> str:
    """The error about a keyword that a function of moga does not have: those that it has, and what torch's is here.

    >>> no_keyword(sorted, "fast")
    "moga.sorted has no keyword 'fast'; the keywords are key, reverse"
    """
    known = ", ".join(one.name for one in keywords_of(function))
    return f"moga.{function.__name__} has no keyword {word!r}; the keywords are {known}{in_our_words(word)}"
