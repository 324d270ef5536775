"""What the modules of a model give at one forward pass, by forward hooks alone.

A module may return a tensor, or a tuple, list or dict of them (a Hugging Face output is a dict). Every floating-point
tensor with dimensions is kept under the module's name, with its place behind it where there are several:
``attn[0]``, ``encoder[last_hidden_state]``. What a module passes on from a module inside of it is kept once, under the
name of the inner one. Dropout layers are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

ROOT = "(model)"
LEFT_OUT = (nn.modules.dropout._DropoutNd,)


Place = tuple[int, int, int]


@dataclass
class Pass:
    """One forward pass, in the order in which modules finished. A module that is called again has several tensors.

    ``outputs``: by module (and place). ``own``: the part of the output that is due to the change of the module's own
    matrices, f(W_t, x_t) - f(W_0, x_t); of its vectors where it has no matrix (the steps of a bias would hide those of
    a matrix that are too small). ``inputs``: the first floating-point tensor that the module was given.
    ``modules``: the module of each key.
    """

    outputs: dict[str, list[Tensor]] = field(default_factory=dict)
    own: dict[str, list[Tensor]] = field(default_factory=dict)
    inputs: dict[str, list[Tensor]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)


def tensors(value: Any, place: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every floating-point tensor with dimensions in a module's output, with its place.

    >>> x = torch.zeros(2)
    >>> [place for place, _ in tensors((x, None, {"state": x}))], [place for place, _ in tensors(x)]
    (['[0]', '[2][state]'], [''])
    """
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.ndim:
            yield place, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from tensors(one, f"{place}[{key}]")
    elif isinstance(value, (tuple, list)):
        for index, one in enumerate(value):
            yield from tensors(one, f"{place}[{index}]")


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the matrices that a module has itself, or of its vectors if it has none."""
    own = {key: value.detach().clone() for key, value in module.named_parameters(recurse=False)}
    return {key: value for key, value in own.items() if value.ndim > 1} or own


def _place(x: Tensor) -> Place:
    """Where the numbers lie and how often they were written to: the same for a view, not for what was done in place."""
    return x.data_ptr(), x.numel(), x._version


def _random_state(cuda: bool) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if cuda else [])]


def _set_random_state(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


class Probe:
    """Hooks on every module of a model, from the beginning of a ``with`` block to its end.

    The weights at its making are the W_0 of ``own``. Random numbers (dropout) are the same at every pass, so that
    no change comes from them.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 2.0)
    >>> with Probe(nn.Sequential(layer)) as probe:
    ...     _ = nn.init.constant_(layer.weight, 5.0)
    ...     _, found = probe.forward(lambda: layer(torch.tensor([10.0])))
    >>> found.outputs, found.own
    ({'0': [tensor([50.])]}, {'0': [tensor([30.])]})
    """

    def __init__(self, model: nn.Module, seed: int = 0) -> None:
        self._modules = {name or ROOT: one for name, one in model.named_modules() if not isinstance(one, LEFT_OUT)}
        self._first = {name: _weights(module) for name, module in self._modules.items()}
        self._seed, self._cuda = seed, any(parameter.is_cuda for parameter in model.parameters())
        self._pass, self._seen, self._idle = Pass(), dict[Place, Tensor](), True
        self._random: dict[str, list[Tensor]] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Probe:
        for name, module in self._modules.items():
            if self._first[name]:
                self._hooks.append(module.register_forward_pre_hook(self._remembering(name)))
            self._hooks.append(module.register_forward_hook(self._keeping(name), with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def forward(self, call: Callable[[], Any]) -> tuple[Any, Pass]:
        """What ``call`` returns, and what the modules gave while it ran."""
        self._pass, self._seen, self._idle = Pass(), {}, False
        try:
            with torch.random.fork_rng():
                torch.manual_seed(self._seed)
                result = call()
        finally:
            self._idle, self._seen = True, {}
        return result, self._pass

    def _remembering(self, name: str) -> Callable[..., None]:
        def remember(module: nn.Module, args: Any) -> None:
            if not self._idle:
                self._random[name] = _random_state(self._cuda)

        return remember

    def _keeping(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._idle:
                return
            found = [(place, one) for place, one in tensors(output) if _place(one) not in self._seen]
            if not found:
                return
            first = self._with_first_weights(name, module, args, kwargs)
            given = next((one for _, one in tensors((*args, *kwargs.values()))), None)
            for place, one in found:
                key = name + (place if len(found) > 1 else "")
                self._seen[_place(one)] = one
                self._pass.modules[key] = name
                self._pass.outputs.setdefault(key, []).append(one.detach().clone())  # the next module may write to it
                if given is not None:
                    self._pass.inputs.setdefault(key, []).append(given.detach().clone())
                if place in first:
                    self._pass.own.setdefault(key, []).append(one.detach() - first[place])

        return keep

    @torch.no_grad()
    def _with_first_weights(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> dict[str, Tensor]:
        """The output of a module that has parameters, by place, with those that it began with."""
        if not self._first[name]:
            return {}
        values = {**self._first[name], **{key: one.clone() for key, one in module.named_buffers()}}
        self._idle = True
        try:
            _set_random_state(self._random[name])  # the same random numbers, so the state ends where it is now
            return dict(tensors(functional_call(module, values, args, kwargs)))
        finally:
            self._idle = False
