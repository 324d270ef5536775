"""Whether Triton's kernels can run on a device, asked by a small step with them."""

from __future__ import annotations

import functools
import warnings

import torch

from moga.optim.kernels.build import Unavailable

INSTALL = (
    "Install it: pip install triton (on Linux, torch's builds for CUDA and ROCm bring the version that fits; on "
    "Windows: pip install triton-windows)"
)


def available(device: torch.device, word: str) -> bool:
    """Whether the kernels run there. "auto" uses them on GPUs, and warns once where a GPU has to do without them.

    Raises Unavailable for the word "triton", which asks for them.
    """
    if word == "auto" and device.type != "cuda":
        return False
    reason = why_not(device)
    if reason is None:
        return True
    if word == "triton":
        raise Unavailable(reason)
    _warn(reason)
    return False


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"{reason}. Until then the optimizer's steps on the GPU are made of tensor operations, which pass over memory "
        'several times; implementation="plain" chooses these without a warning',
        stacklevel=2,
    )


def why_not(device: torch.device) -> str | None:
    """What is missing for the kernels on that device, and how to get it; None where they run."""
    try:
        from triton.runtime.jit import JITFunction

        from moga.optim.kernels import triton_step
    except ImportError as error:
        return f"there is no Triton to make the steps' kernels ({error}). {INSTALL}"
    if device.type == "cpu":
        if isinstance(triton_step.sign_step, JITFunction):
            return (
                "Triton's kernels run on a GPU and these weights are on the CPU; move the model first, or let its "
                "interpreter try them, slowly: set TRITON_INTERPRET=1 before Python starts"
            )
        return None
    if device.type != "cuda":
        return f"moga's Triton kernels run on CUDA and ROCm devices; these weights are on {device.type}"
    if torch.cuda.is_current_stream_capturing() and device not in _tried:
        return "Triton compiles at the first step, which cannot be captured in a CUDA graph: take one step before"
    if device not in _tried:
        _tried[device] = _trial(device)
    return _tried[device]


_tried: dict[torch.device, str | None] = {}


def _trial(device: torch.device) -> str | None:
    """A step of one small matrix: what compiles is launched and what is launched is right, or why not."""
    from moga.optim.kernels.jobs import ROWS, Job
    from moga.optim.kernels.triton_launch import take

    group = {"norm": "row", "lr": 1.0, "lr_scale": 1.0, "momentum": 0.0, "lookahead": 0.0, "eps": 0.0}
    try:
        weight, grad = torch.zeros(2, 2, device=device), torch.tensor([[3.0, -4.0], [0.0, 0.0]], device=device)
        take([[weight, grad]], bytes(Job(ROWS, 0, 0, 2, 2, 2, 5.0)), group, 0.0, None)
        moved = weight.tolist()
    except Exception as error:  # of many kinds: no C compiler, no rights in Triton's cache, a GPU that is too old
        return f"Triton cannot make the steps' kernels here ({type(error).__name__}: {error})"
    right = torch.allclose(torch.tensor(moved), torch.tensor([[-3.0, 4.0], [0.0, 0.0]]))
    return None if right else f"Triton's kernels give wrong numbers here ({moved} for a step to [[-3, 4], [0, 0]])"
