"""One step of one tensor, in the words of the formulas: the slow twin that ``update.batched`` is held to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moga.geometry.layout import from_matrices, logical_matrices, to_matrices
from moga.geometry.norms import norm
from moga.geometry.polar import POLAR_DTYPES, polar_factor, work_dtype
from moga.optim.averages import State, lookahead
from moga.optim.matrices import Group
from moga.optim.rounding import Noise, write_
from moga.optim.steps import TRUST_EPS
from moga.optim.update import decay


def reference(weight: Tensor, grad: Tensor, state: State, group: Group, noise: Noise | None = None) -> None:
    """One step of one weight, in place."""
    wide = work_dtype(weight.dtype)
    W, G = weight.to(wide), grad.to(wide)
    lr = group["lr"] * group["lr_scale"]
    moved = _new_weight(W, G, state, group, lr, noise)
    write_([weight], [moved if lr != 0 else W], group["rounding"], noise)


def _new_weight(W: Tensor, G: Tensor, state: State, group: Group, lr: float, noise: Noise | None) -> Tensor:
    wd = decay(group)
    if group["norm"] in ("adam", "rmsprop"):
        D = _adam(G, state, group, noise) if group["norm"] == "adam" else _rmsprop(G, state, group, noise)
        return (1 - lr * wd) * W - lr * _join([s * X for X, s, _ in _matrices(D, group)], group, W)
    if group["norm"] == "shampoo":
        D = _join([s * _shampoo(X, place, state, group["damping"]) for X, s, place in _matrices(G, group)], group, W)
        return (1 - lr * wd) * W - lr * D
    if group["constraint"] == "row_magnitude":
        return _muown(W, G, state, group, lr, noise)
    L = _momentum(G, state, group, noise)
    moved = []
    for (X, s, place), (Y, _, _) in zip(_matrices(W, group), _matrices(L, group), strict=True):
        if group["step"] == "trust_ratio":
            moved.append(_orscale(X, s * _direction(Y, group), place, state, group, lr))
        elif group["constraint"] == "sphere":
            U = _direction(Y, group)
            V = X - lr * torch.linalg.norm(X) * U / max(torch.linalg.norm(U), 1e-30)
            moved.append(V * torch.linalg.norm(X) / max(torch.linalg.norm(V), 1e-30))
        elif group["constraint"] == "stiefel":
            tall = X.shape[0] >= X.shape[1]
            T = Y - X @ _sym(X.mT @ Y) if tall else Y - _sym(Y @ X.mT) @ X
            T = T * (X.numel() > 1)
            moved.append(polar_factor(X - lr * s * _direction(T, group)))
        else:
            moved.append((1 - lr * wd) * X - lr * s * _direction(Y, group) * _dual(Y, s, group))
    return _join(moved, group, W)


Place = tuple[int, int]  # of a logical matrix: its block, and which of the matrices that are stacked in the tensor


def _matrices(tensor: Tensor, group: Group) -> list[tuple[Tensor, float, Place]]:
    """Every logical matrix (out, in) by itself, with its scale and its place."""
    found = []
    for block, stack in enumerate(_blocks(tensor, group)):
        scale = group["scale"][block] if isinstance(group["scale"], (list, tuple)) else group["scale"]
        found += [(X, scale, (block, i)) for i, X in enumerate(stack.reshape(-1, *stack.shape[-2:]))]
    return found


def _blocks(tensor: Tensor, group: Group) -> list[Tensor]:
    return logical_matrices(tensor, group["layout"], group["blocks"], group["interleave"])


def _join(matrices: Sequence[Tensor], group: Group, like: Tensor) -> Tensor:
    """The stored tensor of all these matrices, in the order of :func:`_matrices`."""
    blocks, rest = [], list(matrices)
    for block in _blocks(like, group):
        count = block.shape[:-2].numel()
        blocks.append(torch.stack(rest[:count]).reshape(block.shape))
        rest = rest[count:]
    return from_matrices(blocks, group["layout"], like.shape, group["interleave"])


def _average(name: str, value: Tensor, b: float, state: State, group: Group, noise: Noise | None) -> Tensor:
    new = b * state[name].to(value.dtype) + (1 - b) * value
    write_([state[name]], [new], group["rounding"], noise)
    return new


def _momentum(G: Tensor, state: State, group: Group, noise: Noise | None) -> Tensor:
    if group["average"] == "none":
        return G
    b1, b2 = group["momentum"], lookahead(group)
    G = G / (1 - b1) if group["average"] == "sum" else G
    L = b2 * state["momentum_buffer"].to(G.dtype) + (1 - b2) * G
    _average("momentum_buffer", G, b1, state, group, noise)
    return L


def _adam(G: Tensor, state: State, group: Group, noise: Noise | None, prefix: str = "") -> Tensor:
    b1, b2 = group["betas"]
    state["step"] += 1
    t = state["step"].item()
    m = _average(prefix + "exp_avg", G, b1, state, group, noise) / (1 - b1**t)
    v = _average(prefix + "exp_avg_sq", G * G, b2, state, group, noise) / (1 - b2**t)
    D = m / (v.sqrt() + float(group["eps"]))
    return torch.where(v + group["eps"] == 0, torch.zeros_like(D), D)


def _rmsprop(G: Tensor, state: State, group: Group, noise: Noise | None) -> Tensor:
    v = _average("square_avg", G * G, group["alpha"], state, group, noise)
    D = G / (v.sqrt() + float(group["eps"]))
    return torch.where(v + group["eps"] == 0, torch.zeros_like(D), D)


def _shampoo(G: Tensor, place: Place, state: State, damping: float) -> Tensor:
    block, i = place
    X, roots = G.double(), []
    for side, product in (("left", X @ X.mT), ("right", X.mT @ X)):
        sums = state[f"{side}_{block}"].view(-1, *product.shape)[i]
        sums += product
        values, vectors = torch.linalg.eigh(sums)  # below a floor they are rounding
        floor = len(values) * torch.finfo(values.dtype).eps * values[-1:]
        values = torch.maximum(values, floor.clamp(min=damping))
        roots.append(vectors @ torch.diag(values**-0.25) @ vectors.mT)
    D: Tensor = roots[0] @ X @ roots[1]
    return D.to(G.dtype)


def _direction(L: Tensor, group: Group) -> Tensor:
    if group["norm"] == "spectral":
        return polar_factor(L, group["polar"], dtype=POLAR_DTYPES[group.get("polar_dtype", "float32")])
    if group["norm"] == "euclidean":
        return L / float(torch.linalg.norm(L)) if L.any() else L
    steepest = norm(group["norm"], p=group["p"], q=group["q"])
    return steepest.direction(L, fan=(1, 1))


def _dual(L: Tensor, s: float, group: Group) -> Tensor | float:
    if group["step"] != "dual":
        return 1.0
    if group["norm"] == "euclidean":
        return s * float(torch.linalg.norm(L))
    return s * float(norm(group["norm"], p=group["p"], q=group["q"]).dual(L, fan=(1, 1)))


def _orscale(W: Tensor, Q: Tensor, place: Place, state: State, group: Group, lr: float) -> Tensor:
    D = decay(group) * W + Q
    c = torch.ones(())
    if group["calibration"] == "first_step":
        block, i = place
        saved = state["calibration"].view(-1, state["calibration"].shape[-1])
        if saved[i, block] == 0 and Q.any() and W.any():
            saved[i, block] = torch.linalg.norm(W) / torch.linalg.norm(D)
        c = saved[i, block]
        if c == 0:
            return W - lr * D
    ratio = torch.linalg.norm(W) / (c * torch.linalg.norm(D) + TRUST_EPS)
    moved: Tensor = W - lr * ratio.clamp(*group["trust_clip"]) * D
    return moved


def _sym(X: Tensor) -> Tensor:
    symmetric: Tensor = (X + X.mT) / 2
    return symmetric


def _muown(W: Tensor, G: Tensor, state: State, group: Group, lr: float, noise: Noise | None) -> Tensor:
    [X], [Y] = to_matrices(W, group["layout"]), to_matrices(G, group["layout"])
    g, length = state["magnitude"].clone(), state["length"].clone()
    unit = torch.where(g == 0, 0, X / g)
    grad_g = (Y * unit).sum(-1, keepdim=True)
    grad_v = torch.where(length == 0, 0, g / length) * (Y - unit * grad_g) * (X.shape[-1] > 1)
    L = _momentum(from_matrices([grad_v], group["layout"], W.shape), state, group, noise)
    D = _join([s * _direction(one, group) for one, s, _ in _matrices(L, group)], group, W)
    v = unit * length - lr * to_matrices(D, group["layout"])[0]
    state["length"].copy_(torch.linalg.norm(v, dim=-1, keepdim=True))
    g = g - lr * _adam(grad_g, state, group, noise, "magnitude_")
    moved = torch.where(state["length"] == 0, 0, g * v / state["length"])
    if decay(group):
        moved = moved - lr * decay(group) * X
        g = torch.linalg.norm(moved, dim=-1, keepdim=True)
    state["magnitude"].copy_(g)
    return from_matrices([moved], group["layout"], W.shape)
