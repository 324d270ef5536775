"""The optimizer: steepest descent under a norm of each group's own, with momentum and decoupled weight decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from moga.geometry.layout import LAYOUTS
from moga.geometry.polar import POLAR
from moga.optim.update import UPDATES, batched, new_state

NONFINITE = ("skip", "raise", "propagate")
NEEDED = ("norm", "layout", "scale")
PLAIN = {"p": None, "q": None, "polar": "exact", "blocks": (), "decays": True, "lr_scale": 1.0, "decay_scale": 1.0}


class SteepestDescent(Optimizer):
    """One optimizer for all parameters of a model: ``W <- (1 - lr weight_decay) W - lr scale direction(L)``.

    ``L`` is the lookahead momentum of the gradient, ``direction`` the unit step of the group's ``norm`` ("sign",
    "row", "column", "spectral"; or "adam"), and ``scale`` the factor of its shape. State is one tensor per parameter
    (adam: two and a step count), in float32 or wider, created for a whole group at its first step.

    Args:
        params: parameter groups as made by :func:`moga.param_groups`: plain dicts that say everything about their
            tensors (at least ``params``, ``norm``, ``layout`` and ``scale``).
        lr: size of one update in the group's norm; the same number in every group. A float or a tensor.
        momentum: b1, the decay of the gradient's moving average; 0 <= b1 < 1.
        lookahead: b2, the weight of the old average in the step's input; None is b1^2 (Nesterov).
        weight_decay: the fraction of a weight removed per unit of lr; keeps its size below about 1 / weight_decay.
        betas: adam's two averages.
        eps: added to adam's root mean square, in units of the gradient.
        nonfinite: "skip" drops the whole step if any gradient holds NaN or Inf, without a host synchronisation, and
            counts it in :attr:`skipped`; "raise" names the parameter; "propagate" does not look.
        maximize: climb instead of descend.

    Raises ValueError for values out of range, unknown words, and groups that lack a needed key.

    Source: arXiv 2603.09952.

    >>> w = torch.nn.Parameter(torch.zeros(2, 3))
    >>> group = {"params": [w], "norm": "sign", "layout": "out,in", "scale": 1 / 3}
    >>> optimizer = SteepestDescent([group], lr=0.3)
    >>> w.grad = torch.tensor([[1.0, -5.0, 0.0], [2e-9, 0.0, -1e9]])
    >>> optimizer.step()
    >>> w.data
    tensor([[-0.1000,  0.1000,  0.0000],
            [-0.1000,  0.0000,  0.1000]])
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float | Tensor,
        *,
        momentum: float = 0.95,
        lookahead: float | None = None,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        nonfinite: str = "skip",
        maximize: bool = False,
    ) -> None:
        if nonfinite not in NONFINITE:
            raise ValueError(f"unknown word nonfinite={nonfinite!r}; the words are {', '.join(NONFINITE)}")
        self.nonfinite = nonfinite
        self.maximize = maximize
        self._skipped: Tensor | int = 0
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "lookahead": lookahead,
            "weight_decay": weight_decay,
            "betas": list(betas),
            "eps": eps,
            **PLAIN,
        }
        super().__init__(params, defaults)

    @property
    def skipped(self) -> int:
        """The number of steps dropped because a gradient was not finite. Reading it waits for the device."""
        return int(self._skipped)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; see the class for its keys. Raises ValueError for one that is incomplete or out of range."""
        _check_words(param_group)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_numbers(group)
            _check_tensors(group)
        except Exception:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns the closure's loss. Gradients are never written to."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        finite = self._check_gradients()
        for group in self.param_groups:
            for weight in group["params"]:
                if not self.state[weight]:
                    self.state[weight] = new_state(weight, group)
            members = [weight for weight in group["params"] if weight.grad is not None]
            grads = [-weight.grad if self.maximize else weight.grad for weight in members]
            batched(members, grads, [self.state[weight] for weight in members], group, finite)
        return loss

    def _check_gradients(self) -> Tensor | None:
        """A boolean tensor that is True where every gradient is finite; None if nobody asked."""
        named = [
            (group.get("param_names", range(len(group["params"])))[i], weight.grad)
            for group in self.param_groups
            for i, weight in enumerate(group["params"])
            if weight.grad is not None
        ]
        for name, grad in named:
            if grad.is_sparse:
                raise RuntimeError(f"parameter {name!r} has a sparse gradient; use sparse=False in its nn.Embedding")
        if self.nonfinite == "propagate" or not named:
            return None
        device = named[0][1].device
        peaks = [peak.float().to(device, non_blocking=True) for peak in _peaks([grad for _, grad in named])]
        finite = torch.isfinite(torch.stack(peaks)) if peaks else torch.ones(1, dtype=torch.bool, device=device)
        if self.nonfinite == "raise" and not finite.all():
            bad = [str(name) for (name, grad) in named if not torch.isfinite(grad).all()]
            raise FloatingPointError(
                f"the gradient of {', '.join(bad)} holds NaN or Inf; no weight was changed. Look for the cause in the "
                'loss, or drop such steps with nonfinite="skip"'
            )
        ok = finite.all()
        self._skipped = self._skipped + (~ok).int()
        return ok

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the number of skipped steps in every group."""
        for group in self.param_groups:
            group["skipped"] = self.skipped
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but the state keeps its own dtype: float32 averages stay so beside bfloat16 weights."""
        super().load_state_dict(state_dict)
        self._skipped = int(self.param_groups[0].get("skipped", 0))
        weights = [weight for group in self.param_groups for weight in group["params"]]
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        for weight, i in zip(weights, saved, strict=True):
            for key, value in state_dict["state"].get(i, {}).items():
                if isinstance(value, Tensor):
                    self.state[weight][key] = value.detach().clone().to(weight.device)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "nonfinite": self.nonfinite,
            "maximize": self.maximize,
            "_skipped": self.skipped,
        }


def _peaks(grads: list[Tensor]) -> list[Tensor]:
    """The largest absolute entry of each tensor, NaN where it holds one. No sum that could overflow is formed."""
    full = [grad for grad in grads if grad.numel()]
    return list(torch._foreach_norm(full, ord=math.inf)) if full else []


def _check_words(group: dict[str, Any]) -> None:
    missing = [key for key in NEEDED if key not in group]
    if missing:
        raise ValueError(
            f"a parameter group lacks {', '.join(map(repr, missing))}; make groups with moga.param_groups(model, "
            "recipe) or an optimizer with moga.optimizer(model, recipe, lr=...)"
        )
    for key, words in (("norm", UPDATES), ("layout", LAYOUTS), ("polar", tuple(POLAR))):
        if group.get(key, words[0]) not in words:
            raise ValueError(f"unknown {key} {group[key]!r} in a parameter group; the words are {', '.join(words)}")


def _check_numbers(group: dict[str, Any]) -> None:
    ranges = {
        "lr": (0, math.inf),
        "weight_decay": (0, math.inf),
        "eps": (0, math.inf),
        "lr_scale": (0, math.inf),
        "decay_scale": (0, math.inf),
        "momentum": (0, 1),
    }
    numbers = {key: group[key] for key in ranges}
    if group["lookahead"] is not None:
        numbers["lookahead"] = group["lookahead"]
    numbers |= {f"betas[{i}]": beta for i, beta in enumerate(group["betas"])}
    for key, value in numbers.items():
        low, high = ranges.get(key, (0, 1))
        if not low <= value < high:
            allowed = f"0 <= {key}" + ("" if high == math.inf else f" < {high}")
            raise ValueError(f"{key} = {value} is out of range; allowed is a finite {allowed}")


def _check_tensors(group: dict[str, Any]) -> None:
    if not group["params"]:
        raise ValueError("a parameter group is empty; give it at least one tensor")
    names = group.get("param_names", range(len(group["params"])))
    seen: set[Tensor] = set()
    for name, weight in zip(names, group["params"], strict=True):
        if weight in seen:
            raise ValueError(f"parameter {name!r} is given twice; every parameter is updated once")
        seen.add(weight)
        if not weight.is_floating_point():
            raise TypeError(f"parameter {name!r} is {weight.dtype}; a real floating-point tensor is needed")
        if group["layout"] != "vector" and weight.ndim != 2:
            raise ValueError(
                f"parameter {name!r} has shape {tuple(weight.shape)}; layout {group['layout']!r} needs two dimensions"
            )
