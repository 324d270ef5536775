"""Where runs are made, in torch's words: cpu, cuda (every GPU), cuda:1 (that one), mps."""

from __future__ import annotations

import torch


def check_device(word: str) -> None:
    """Raise ValueError for a device that this torch has not, or that computes nothing.

    >>> check_device("cpu")
    """
    try:
        torch.zeros(1, device=word).item()  # a tensor on "meta" can be made, and has no number in it
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"no device {word!r} here ({reason}); give cpu, or one that this torch can use") from None


def devices_of(word: str) -> tuple[str, ...]:
    """The devices that a word means; a kind of accelerator without a number means all of them.

    Raises:
        ValueError: what `check_device` refuses.

    >>> devices_of("cpu")
    ('cpu',)
    """
    check_device(word)
    device = torch.device(word)
    if device.type in ("cpu", "mps") or ":" in word:
        return (word,)
    return tuple(f"{device.type}:{index}" for index in range(torch.get_device_module(device).device_count()))


def finish(word: str) -> None:
    """Wait until the device has done what it was given, so that a clock tells how long that took."""
    if kind_of(word) != "cpu":
        torch.accelerator.synchronize(torch.device(word))


def name_of(word: str) -> str:
    """What the device is called by its maker, or its kind.

    >>> name_of("cpu")
    'cpu'
    """
    device = torch.device(word)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def kind_of(word: str) -> str:
    """What of a device decides the numbers of a run.

    >>> kind_of("cuda:1")
    'cuda'
    """
    return word.partition(":")[0]
