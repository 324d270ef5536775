"""How tests write down what a parameter is: rows of role, layout, blocks, interleave, fan and part, by name."""

from moga.rules.roles import find_roles

# role, layout, blocks, interleave, fan, part
VECTOR = ("vector", "vector", (), 1, ((1, 1),), "")


def vectors(*names):
    return dict.fromkeys(names, VECTOR)


def affine(*names):
    return vectors(*(f"{name}.{one}" for name in names for one in ("weight", "bias")))


def lookup(n):
    return ("input", "in,out", (), 1, ((n, 1),), "")


def head(n):
    return ("output", "out,in", (), 1, ((1, n),), "")


def router(n):
    return ("output", "out,in", (), 1, ((1, n),), "router")


def hidden(out, in_, part="", layout="out,in"):
    return ("hidden", layout, (), 1, ((out, in_),), part)


def packed(blocks, in_, interleave=1, part="", layout="out,in"):
    return ("hidden", layout, tuple(blocks), interleave, tuple((out, in_) for out in blocks), part)


def with_bias(rows):
    """Linear maps with their biases: ``name`` -> row becomes two parameters."""
    return {f"{name}.weight": row for name, row in rows.items()} | vectors(*(f"{name}.bias" for name in rows))


def without_bias(rows):
    return {f"{name}.weight": row for name, row in rows.items()}


def layers_of(prefix, *layers):
    return {f"{prefix}.{i}.{name}": row for i, layer in enumerate(layers) for name, row in layer.items()}


def inputs(out, in_, layout="out,in,k"):
    """A map of dense features: pixels, frequencies."""
    return ("input", layout, (), 1, ((out, in_),), "")


def beside(n, part="", layout="stack,in,out"):
    """Rows that are added to the tokens, or stand beside them."""
    return ("input", layout, (), 1, ((n, 1),), part)


def table(model, roles=None):
    return {
        one.name: (one.role, one.layout, one.blocks, one.interleave, one.fan, one.part)
        for one in find_roles(model, roles)
    }
