"""The kinds of matrix whose role needs a decision, one word each: ``Assignment.part``. docs/roles.md gives reasons."""

from __future__ import annotations

# word -> what such a matrix is
PARTS: dict[str, str] = {
    "": "nothing special",
    "router": "scores the experts of a mixture for each token",
    "depthwise": "a convolution with one matrix per channel",
    "rank down": "a low-rank projection, from the width to the rank",
    "rank up": "a low-rank projection, from the rank to the width",
    "few heads": "keys and values (alone, or packed with queries) of fewer heads than there are queries",
    "across": "a map between positions, whose number need not grow with width",
    "features": "a projection to the features that a model ends in, which are compared by their angles",
    "token": "learned rows that stand beside the tokens: a class token, a mask, registers",
    "adapter down": "an adapter's map to its rank",
    "adapter up": "an adapter's map from its rank",
}

# The parts whose role does not depend on where in the model they stand. A router is no output of the model: it says
# nothing about where the model ends; nor do class tokens and adapters say where it begins.
PART_ROLES = {
    "router": "output",
    "depthwise": "hidden",
    "token": "input",
    "adapter down": "output",
    "adapter up": "input",
}
