"""The error for parameters whose role nothing settles; its example, pasted as it stands, settles every one of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

from moga.rules.storage import StoredTensor

SHOWN = 12  # tensors that an error lists one by one

FEATURES = (
    "This is a base model: it ends in features, and what it feeds is not part of it. If those features grow with "
    "width, all of its linear maps are hidden."
)

SCORES = (
    "Which of several matrices in a module that records router_logits scores the experts is not known: that one is "
    "'output', the others most likely hidden."
)


def likely(one: StoredTensor) -> str | dict[str, Any]:
    """A statement that a tensor may have: "hidden" where it is a matrix; an example, not an answer."""
    if one.kind in ("lookup", "tied"):
        return "tied"
    if one.kind in ("unknown", "tensor") and one.tensor.ndim > 2:
        return {"role": "hidden", "layout": "stack,out,in" if one.tensor.ndim == 3 else "out,in,k"}
    return "hidden"


def open_message(
    linear: Sequence[StoredTensor],
    unknown: Sequence[StoredTensor],
    ends: tuple[bool, bool],
    rest: dict[str, str] | None,
) -> str:
    """The text of the error.

    ``linear`` are linear maps that may be the first, the last or between; ``ends`` says whether the inputs and the
    outputs are known. ``rest``, not None for a base model, has the roles of the tensors that are settled, by name.
    """
    open_ones = (*linear, *unknown)
    reasons, example = [], {}
    if linear and rest is not None:
        reasons.append(FEATURES)
        example = _hidden_layers([one.names[0] for one in linear], rest)
    elif linear:
        reasons.append("Which linear map is the first and which the last does not follow from the modules.")
        example = _ends([one.names[0] for one in linear], *ends)
    if any(one.may_score for one in unknown):
        reasons.append(SCORES)
    if any(not one.may_score for one in unknown):
        reasons.append("What a module of unknown type does with a tensor is not known; a matrix is read as (out, in).")
    example |= {one.names[0]: likely(one) for one in unknown}
    how = f"{' '.join(reasons)} State roles by name, for example\n  roles={example}"
    return "\n".join([f"parameters without a role ({len(open_ones)}):", *_lines(open_ones), how])


def _lines(tensors: Sequence[StoredTensor]) -> list[str]:
    """A line for each tensor; of a deep model one for each kind, its numbers written as ``*``."""
    if len(tensors) <= SHOWN:
        return [f"  {one}" for one in tensors]
    kinds = Counter(_starred(str(one)) for one in tensors)
    return [f"  {kind}{f', {times} times' if times > 1 else ''}" for kind, times in kinds.items()]


def _ends(names: Sequence[str], inputs: bool, outputs: bool) -> dict[str, Any]:
    first, last = names[0], names[-1]
    if len(names) > 1 and not inputs and not outputs:
        return {"*": "hidden", first: "input", last: "output"}
    if not inputs and not outputs:
        return {first: "hidden"}
    return {last: "output"} if inputs else {first: "input"}


def _hidden_layers(names: Sequence[str], rest: dict[str, str]) -> dict[str, Any]:
    """One pattern for all of ``names``, and then one for each kind of parameter that it should not have covered."""
    shared = takewhile(lambda steps: len(set(steps)) == 1, zip(*(name.split(".")[:-1] for name in names), strict=False))
    pattern = ".".join([*(steps[0] for steps in shared), "*"])
    others = {name: role for name, role in rest.items() if fnmatchcase(name, pattern) and role in ("input", "output")}
    return {pattern: "hidden", **{_starred(name): role for name, role in others.items()}}


def _starred(name: str) -> str:
    """With a star for every number that is a step of the name.

    >>> _starred("layers.0.experts.12.up2")
    'layers.*.experts.*.up2'
    """
    return re.sub(r"(?<![^.])\d+(?!\w)", "*", name)
