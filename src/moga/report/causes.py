"""Why a module fails a coordinate check, in words: which role, which scale, which initialisation.

The first wrong thing on the way from inputs to outputs is a cause, and what follows from it is none. Two things can be
wrong about a matrix by itself: at the start, the size of its outputs over that of its inputs (``gain``); later, what
the change of its own weights alone does to its outputs (``own``).
"""

from __future__ import annotations

from moga.report.coordinates import Check, Module, Parameter
from moga.report.slopes import Slope

__all__ = ["causes", "largest_slope", "offending", "verdict"]

FLAT = 0.02  # slopes of scales that differ by less are the same: they are numbers without noise


def causes(check: Check) -> dict[str, str]:
    """The likely cause of each module that does not pass, by its name; those with a cause of their own come first."""
    own = {module.name: text for module in check.modules if (text := _own_cause(check, module))}
    found = dict(own)
    seen: list[str] = []
    for module in check.modules:
        if module.name in own:
            seen.append(module.name)
        elif module.word != "passes":
            found[module.name] = _inherited(check, module, seen)
    return found


def offending(check: Check) -> list[tuple[Module, str]]:
    """The modules that do not pass with their causes: failures before what is undecided, causes before effects."""
    texts = causes(check)
    by_name = {module.name: module for module in check.modules}
    rows = [(by_name[name], text) for name, text in texts.items()]
    return sorted(rows, key=lambda row: row[0].word != "fails")


def verdict(check: Check) -> str:
    """One sentence with numbers."""
    rows, count = offending(check), len(check.modules)
    if not check.moved:
        return f"{check.title}: undecided. No module changed; give a larger learning rate or more steps"
    largest = largest_slope(check)
    if not rows and largest:
        return f"{check.title}: passes. {count} modules; the largest slope is {largest[0]}, of {largest[1]}"
    words = f"{sum(module.word == check.word for module, _ in rows)} of {count} modules"
    if check.word == "undecided":
        return f"{check.title}: undecided. {words} have slopes too uncertain to pass; give more seeds or larger sizes"
    return f"{check.title}: fails. {words} fail; the first is {rows[0][0].name}: {rows[0][1]}"


def largest_slope(check: Check) -> tuple[Slope, str] | None:
    """The largest slope of what is judged, up or down, and its module; None where nothing has a slope."""
    found = [
        (one.slope, module.name)
        for module in check.modules
        for one in (module.start, module.change, module.own)
        if one.slope
    ]
    return max(found, key=lambda one: abs(one[0].value), default=None)


def _own_cause(check: Check, module: Module) -> str:
    if module.weight is None:
        return ""
    texts = []
    if module.start.word == "fails" and (module.gain.word == "fails" or module.gain.slope is None):
        texts.append(_of_start(check, module, module.weight))
    if module.own.word == "fails":
        texts.append(_of_update(check, module, module.weight))
    return ". ".join(texts)


def _of_start(check: Check, module: Module, weight: Parameter) -> str:
    grown = module.gain.slope or module.start.slope
    assert grown is not None
    text = f"the initialisation of {_named(weight)}"
    if weight.weight.slope is not None:
        size = weight.weight.slope.value
        text += f": its entries go as {_power(check, size)}, and {_power(check, size - grown.value)} is needed"
    remedy = "an output starts at zero or small" if weight.role == "output" else "moga.initialize_ does it"
    return f"{text} ({remedy})"


def _of_update(check: Check, module: Module, weight: Parameter) -> str:
    assert module.own.slope is not None
    own = module.own.slope.value
    text = f"the update of {_named(weight)}: it moves outputs as {_power(check, own)}"
    if weight.scale is None or weight.rule is None:
        return f"{text}; multiply its learning rate by {_power(check, -own)}"
    if weight.role == "tied":
        return f"{text}; a matrix that is input and output needs logits times base_width/width (moga.scale_logits_)"
    if abs(weight.scale - weight.rule) < FLAT:
        return f"{text} although its scale is that of its role: is it one ({weight.role})?"
    fans = [tuple(fan) for _, fan in sorted(weight.fans.items()) if fan]
    if len(set(fans)) == 1 and abs(weight.rule) > FLAT:
        out, in_ = fans[0]
        return f"{text}; its scale takes the fan ({out}, {in_}) at every {check.settings['over']}, which does not grow"
    how = "is left out" if abs(weight.scale) < FLAT else f"goes as {_power(check, weight.scale)}"
    return f"{text}; its scale {how}, where the norm {weight.norm} needs {_power(check, weight.rule)}"


def _inherited(check: Check, module: Module, seen: list[str]) -> str:
    if module.word == "undecided":
        return "too uncertain: more seeds or larger sizes"
    if seen:
        return f"follows from {seen[0]}"
    if check.settings["over"] == "depth":
        return "branches add up: multiply each residual branch by 1/depth"
    return "no weight before it is wrong: what it computes from its inputs grows or shrinks"


def _named(weight: Parameter) -> str:
    return f"{weight.name} ({weight.role or 'role unknown'})"


def _power(check: Check, exponent: float) -> str:
    return f"{check.settings['over']}^{exponent:+.2f}"
