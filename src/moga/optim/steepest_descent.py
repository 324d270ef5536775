"""The optimizer: steepest descent under a norm of each group's own, with momentum and decoupled weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from moga.optim.averages import State
from moga.optim.checks import (
    PLAIN,
    check_keys,
    check_memory,
    check_names,
    check_numbers,
    check_params,
    check_still_whole,
    check_tensors,
    named,
    warn_if_nothing_decays,
    warn_of_starts,
)
from moga.optim.distributed.pieces import local_gradient
from moga.optim.distributed.plan import Place, rates_compared, settle
from moga.optim.distributed.shards import ShardedStep
from moga.optim.finite import NONFINITE, all_finite
from moga.optim.loading import prepared
from moga.optim.rounding import Noise
from moga.optim.state import states_of
from moga.optim.update import batched
from moga.optim.watch import copies, measure, plain
from moga.rules.torch_words import no_keyword

DISTRIBUTE = ("none", "owners", "teams")


class SteepestDescent(Optimizer):
    """One optimizer for all parameters of a model: ``W <- (1 - lr weight_decay) W - lr scale direction(L)``.

    ``L`` is the lookahead momentum of the gradient, ``direction`` the unit step of the group's ``norm`` ("sign",
    "row", "column", "spectral", ...; or an adaptive one such as "adam"), and ``scale`` the factor of its shape; the
    words ``step`` and ``constraint`` of a group change this formula (see :mod:`moga.rules.updates`). State is one
    tensor per parameter (adam: two and a step count), created for a whole group at its first step.

    Args:
        params: parameter groups as made by :func:`moga.param_groups`: plain dicts that say everything about their
            tensors (at least ``params``, ``norm``, ``layout`` and ``scale``).
        lr: size of one update in the group's norm; the same number in every group. A float or a tensor: each group
            gets a copy of its own, so write to ``group["lr"]`` and not to the tensor that you gave.
        momentum: b1, the decay of the gradient's moving average; 0 <= b1 < 1.
        lookahead: b2, the weight of the old average in the step's input; None is b1^2 (Nesterov), "momentum" is b1.
        weight_decay: the fraction of a weight removed per unit of lr; keeps its size below about 1 / weight_decay.
        betas: adam's two averages.
        eps: added to adam's root mean square, in units of the gradient.
        nonfinite: "skip" drops the whole step if any gradient holds NaN or Inf, without a host synchronisation, and
            counts it in :attr:`skipped`; "raise" names the parameter; "propagate" does not look.
        maximize: climb instead of descend.
        distribute: "owners" spreads updates of whole matrices (spectral ones) that every rank holds, as under DDP,
            over the ranks; "none" computes them on each. Of shards every matrix has an owner in any case. "teams"
            also cuts the work of matrices where whole ones leave ranks uneven, at the price of more messages.
        state_dtype: "float32" (float64 beside float64 weights), or "bfloat16" for averages of half the size.
        rounding: how weights and averages of less than float32 are rounded: "nearest", or "stochastic", which keeps
            small updates on average (Adam's second average needs it in bfloat16: its changes are below half a bit).
        implementation: "auto" takes the kernels of :mod:`moga.optim.kernels` where a tensor has one (the first step
            compiles, a few seconds): of C on a CPU, of Triton on a GPU. It warns once if gcc or Triton is not there;
            "c" and "triton" raise then; "plain" is tensor operations alone. Equal to rounding.
        polar_dtype: "float32" (float64 beside float64 weights), or "bfloat16" for the matrix products of spectral
            steps: half the time where the device has it, wider bands (see :data:`moga.geometry.polar.POLAR`).

    Raises ValueError for values out of range, unknown words, and groups that lack a needed key or have an unknown one;
    TypeError for what is no number, no group or no list of groups.

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
        lookahead: float | str | None = None,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        nonfinite: str = "skip",
        maximize: bool = False,
        distribute: str = "none",
        state_dtype: str = "float32",
        rounding: str = "nearest",
        implementation: str = "auto",
        polar_dtype: str = "float32",
        **unknown: NoReturn,
    ) -> None:
        for word in unknown:
            raise TypeError(no_keyword(SteepestDescent, word))
        for key, value, words in (("nonfinite", nonfinite, NONFINITE), ("distribute", distribute, DISTRIBUTE)):
            if value not in words:
                raise ValueError(f"unknown word {key}={value!r}; the words are {', '.join(words)}")
        if not isinstance(maximize, bool):
            raise TypeError(f"maximize must be True or False; got {maximize!r}")
        check_params(params)
        self.distribute, self.nonfinite, self.maximize = distribute, nonfinite, maximize
        self._skipped: Tensor | int = 0
        self._steps, self._watching = 0, False
        self._sizes: list[dict[str, Any]] | None = None
        self._places: dict[Tensor, Place] = {}
        self._settled: list[int] = []
        defaults = {
            **PLAIN,
            "lr": lr,
            "momentum": momentum,
            "lookahead": lookahead,
            "weight_decay": weight_decay,
            "betas": list(betas) if isinstance(betas, tuple) else betas,
            "eps": eps,
            "state_dtype": state_dtype,
            "rounding": rounding,
            "implementation": implementation,
            "polar_dtype": polar_dtype,
        }
        super().__init__(params, defaults)
        if not all(group["norm"] == "adam" for group in self.param_groups):
            # OneCycleLR and CyclicLR cycle betas[0] if there are betas here, else momentum: the one that is in use.
            self._betas = self.defaults.pop("betas")
        warn_if_nothing_decays(self.param_groups, weight_decay)

    @property
    def skipped(self) -> int:
        """The number of steps dropped because a gradient was not finite. Reading it waits for the device."""
        return int(self._skipped)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; see the class for its keys. Raises as the class does."""
        check_keys(param_group, self.defaults)
        if "betas" not in self.defaults:
            param_group.setdefault("betas", self._betas)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        _unshare(group)
        try:
            check_names(group, self.param_groups[:-1])
            check_numbers(group)
            check_tensors(group)
            check_memory(self.param_groups)
        except Exception:
            self.param_groups.pop()
            raise
        warn_of_starts(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns the closure's loss. Gradients are never written to."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            check_still_whole(group)
        states = self.make_state()
        of = local_gradient if self._places else lambda weight: weight.grad
        grads = [[of(weight) for weight in group["params"]] for group in self.param_groups]
        finite = all_finite(self.param_groups, grads, self.nonfinite, self._places)
        if finite is not None:
            self._skipped += (~finite).int()  # in place: a captured graph counts at every replay
        before = copies(self.param_groups) if self._watching else None
        noise = self._noise()
        if self.maximize:
            grads = [[None if grad is None else -grad for grad in some] for some in grads]
        sharded = ShardedStep(self._places, finite, noise)
        for group, some, own in zip(self.param_groups, grads, states, strict=True):
            here: list[Any] = [one for one in zip(group["params"], some, own, strict=True) if one[1] is not None]
            if self._places:
                sharded.take(group, {weight: grad for weight, grad, _ in here}, self.state)
                here = [one for one in here if one[0] not in self._places]
            weights, gradients, own = ([one[i] for one in here] for i in range(3))
            batched(weights, gradients, own, group, finite, noise)
        sharded.finish()
        if before is not None:
            self._sizes, self._watching = measure(self.param_groups, before), False
        return loss

    @torch.no_grad()
    def make_state(self) -> list[list[State]]:
        """The states of all weights, by group, made where they are not there. Steps do this."""
        weights = [id(weight) for group in self.param_groups for weight in group["params"]]
        if self._settled != weights:
            self._places = settle(self.param_groups, self.distribute, nonfinite=self.nonfinite, maximize=self.maximize)
            self._settled = weights if rates_compared(self.param_groups, self._places) else []
        return [states_of(group, self.state, self._places) for group in self.param_groups]

    def _noise(self) -> Noise | None:
        """The random bits of this step; they depend on its number and on the names of the parameters."""
        if all(group["rounding"] != "stochastic" for group in self.param_groups):
            return None
        names: dict[int, str] = {}
        for i, group in enumerate(self.param_groups):
            for name, weight in named(group):
                name = name if isinstance(name, str) else f"{i}.{name}"
                names |= {id(weight): name, **{id(value): f"{name} {key}" for key, value in self.state[weight].items()}}
        self._steps += 1
        return Noise(self._steps - 1, names)

    def watch(self) -> None:
        """Measure the next step for :meth:`last_update`; it keeps a copy of the weights while it runs.

        Steps that nobody watches cost nothing more.
        """
        self._watching = True

    def last_update(self) -> list[dict[str, Any]]:
        """Of the last step that was watched, one dict per group, as plain numbers for a logger.

        ``update`` is the size of the step (with decay) and ``weight`` that of the weights after it, both in the norm
        of the group, the largest over its matrices: a step of lr = 1 has size 1. Reading waits for the device.

        Raises RuntimeError if no step was watched.

        >>> group = {"params": [torch.nn.Parameter(torch.ones(2, 3))], "norm": "row", "layout": "out,in", "scale": 0.5}
        >>> optimizer = SteepestDescent([group], lr=0.125)
        >>> optimizer.param_groups[0]["params"][0].grad = torch.eye(2, 3)
        >>> optimizer.watch()
        >>> optimizer.step()
        >>> [(round(row["update"], 5), round(row["weight"], 2)) for row in optimizer.last_update()]
        [(0.125, 3.39)]
        """
        if self._sizes is None:
            raise RuntimeError("no step was watched; call optimizer.watch() before the step that is to be measured")
        return plain(self._sizes)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the number of skipped steps (and of randomly rounded ones) in every group."""
        for group in self.param_groups:
            group["skipped"] = self.skipped
            group["rounded_steps"] = self._steps
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but by name where both sides have the same names, and the state keeps its own dtype.

        float32 averages stay so beside bfloat16 weights. Hooks that change the state before it is loaded are heard
        first; hooks after it see the optimizer as it will be.

        Raises ValueError for a state of another recipe, where only some names are the same, and for tensors that do
        not fit; nothing is changed then.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"a state is what state_dict() has returned, a dict; got {type(state_dict).__name__}")
        states: list[dict[str, Tensor] | None] = []

        def before(_: Optimizer, loaded: dict[str, Any]) -> dict[str, Any]:
            ordered, states[:] = prepared(loaded, self.param_groups)
            return ordered

        def after(_: Optimizer) -> None:
            weights = [weight for group in self.param_groups for weight in group["params"]]
            self.state.update((w, state) for w, state in zip(weights, states, strict=True) if state is not None)
            self._skipped, self._steps = (int(self.param_groups[0][key]) for key in ("skipped", "rounded_steps"))

        last = self.register_load_state_dict_pre_hook(before)
        first = self.register_load_state_dict_post_hook(after, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            first.remove()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("nonfinite", "maximize", "distribute", "_steps", "_betas")
        own = {key: getattr(self, key) for key in kept if hasattr(self, key)}
        own |= {"_skipped": self.skipped, "_watching": False, "_sizes": None, "_places": {}, "_settled": []}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for key, value in PLAIN.items():
                group.setdefault(key, value)
            _unshare(group)


def _unshare(group: dict[str, Any]) -> None:
    """A tensor lr of the group's own: schedulers multiply it in place, once for each group that holds it."""
    for key, value in group.items():
        if isinstance(value, Tensor):
            group[key] = value.detach().clone()
        elif isinstance(value, list) and key not in ("params", "param_names"):
            group[key] = list(value)
