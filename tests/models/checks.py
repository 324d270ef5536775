"""Laws that hold for every model: the size of a step, the sizes at the start."""

import torch

import moga
from moga.geometry.layout import logical_matrices
from moga.rules.recipes import operator_norm
from moga.rules.roles import find_roles

# The largest singular value of independent normal entries is sqrt(out) + sqrt(in) of their standard deviations, less a
# little, and moves by about one of them (Gaussian concentration), whatever the shape. So the size of a matrix whose
# longer side is below 16, such as a depthwise kernel, says nothing, and of all others 3 / sqrt(longer side) is luck.
TINY, LUCK = 16, 3


def check_step_size(model, recipe="moga-row", roles=None, lr=0.3, **options):
    """One step moves every logical matrix by lr, in the norm of its group and with its own fan. Returns the roles."""
    model = model.double()
    groups = moga.param_groups(model, recipe, roles=roles, **options)
    optimizer = moga.SteepestDescent(groups, lr=lr)
    generator = torch.Generator().manual_seed(0)
    for group in groups:
        for parameter in group["params"]:
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    before = {id(one): one.detach().clone() for group in groups for one in group["params"]}
    optimizer.step()
    measured = set()
    for group in groups:
        if group["norm"] == "adam":
            continue
        measured.add(group["role"])
        for parameter in group["params"]:
            change = parameter.detach() - before[id(parameter)]
            blocks = logical_matrices(change, group["layout"], group["blocks"], group["interleave"])
            assert len(blocks) == len(group["fan"])
            for block, fan in zip(blocks, group["fan"], strict=True):
                sizes = operator_norm(group).measure(block, fan=tuple(fan))
                torch.testing.assert_close(sizes, torch.full_like(sizes, lr), rtol=1e-5, atol=0)
    return measured


def check_starts(model, roles=None, **options):
    """What :func:`moga.initialize_` promises, measured; returns how many blocks were hidden and not tiny.

    Everything is a number that nothing starts with before, so whatever was left alone shows.
    """
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    moga.initialize_(model, "moga-row", roles=roles, generator=torch.Generator().manual_seed(0), **options)
    number = 0
    for one in find_roles(model, roles):
        W = one.parameter.detach()
        assert bool((W != 7).any()) or one.role == "vector", one.name
        if one.role == "hidden" or (one.role == "output" and one.part):
            number += sum(
                _spectral(block, one) for block in logical_matrices(W, one.layout, one.blocks, one.interleave)
            )
        elif one.role == "output":
            assert not W.any(), one.name
        elif one.role == "input" and one.lookup:
            size = float(W.square().mean().sqrt()) * one.multiplier
            assert not W.any() if one.added else abs(size - 1) < 0.1 + LUCK / (2 * W.numel()) ** 0.5, one.name
    return number


def _spectral(block, one):
    """How many matrices were measured: their size is 1 to 1 + sqrt(short / long)."""
    short, long = sorted(block.shape[-2:])
    if long < TINY:
        return 0
    sizes = torch.linalg.matrix_norm(block, 2) * (block.shape[-1] / block.shape[-2]) ** 0.5
    luck = LUCK / long**0.5
    assert 1 - luck < float(sizes.min()) and float(sizes.max()) < 1 + (short / long) ** 0.5 + luck, (one.name, sizes)
    return sizes.numel()
