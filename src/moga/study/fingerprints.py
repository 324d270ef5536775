"""What tells that a function is the same as yesterday, where no file does: its compiled code and all that it uses.

Source text would say less: that of a notebook is not always there, and it does not hold what a name stands for. Of
other modules only names are looked at, as for import paths; comments, docstrings and line numbers do not count.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype, torch.device)
# Of a class: what Python writes into it, and what says nothing of how it computes.
LEFT_OUT = {"__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__firstlineno__"}
LEFT_OUT |= {"__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__classcell__"}
LEFT_OUT |= {"__abstractmethods__", "_abc_impl", "__dataclass_fields__", "__dataclass_params__"}

WRAPPERS = (staticmethod, classmethod, property, functools.cached_property, type(functools.cache(len)))
HELD = ("__func__", "__wrapped__", "fget", "fset", "fdel", "func")  # the functions inside them
NAMED = {*dis.hasname, *dis.haslocal, *dis.hasfree}

Seen = dict[int, tuple[int, Any]]  # by id: the number of an object, and the object itself, so that the id stays its own


class Unclear(ValueError):
    """The text names the object whose content cannot be told."""


def fingerprint(function: Callable[..., Any]) -> str:
    """sha256 of a function's or a class's code and of the functions, classes and values that it uses.

    Raises:
        Unclear: it uses an object of a kind whose content cannot be told.

    >>> def line(slope): return lambda x: slope * x
    >>> fingerprint(line(1)) == fingerprint(line(1)), fingerprint(line(1)) == fingerprint(line(2))
    (True, False)
    """
    digest = hashlib.sha256()
    for part in _parts(function, "it", {}):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(value: Any, name: str, seen: Seen) -> Iterator[bytes]:
    """The bytes that stand for an object; name: how an error calls it."""
    if isinstance(value, PLAIN):
        yield f"{type(value).__name__} {value!r}".encode()
        return
    if not isinstance(value, (tuple, frozenset)):  # whether equal ones are one object is the compiler's choice
        if id(value) in seen:
            yield f"again {seen[id(value)][0]}".encode()
            return
        seen[id(value)] = (len(seen), value)
    if isinstance(value, CodeType):
        yield from _code_parts(value, name, seen)
    elif isinstance(value, FunctionType) and _is_own(value):
        yield from _function_parts(value, seen)
    elif isinstance(value, type) and _is_own(value):
        yield from _class_parts(value, seen)
    elif isinstance(value, (FunctionType, BuiltinFunctionType, type)):
        yield f"{value.__module__}:{value.__qualname__}".encode()
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__}".encode()
    else:
        yield f"{type(value).__module__}:{type(value).__qualname__}".encode()
        yield from _content(value, name, seen)


def inner_functions(value: Any) -> list[Any]:
    """The functions inside a wrapper such as a property or what ``functools.cache`` makes.

    >>> inner_functions(functools.cache(fingerprint)) == [fingerprint]
    True
    """
    return [getattr(value, word) for word in HELD if hasattr(value, word)] if isinstance(value, WRAPPERS) else []


def _is_own(value: Any) -> bool:
    """Whether no other process finds it by its import path."""
    return value.__module__ == "__main__" or "<" in value.__qualname__


def _content(value: Any, name: str, seen: Seen) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield _tensor_bytes(value, name)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype} {value.shape}".encode() + value.tobytes()
    elif isinstance(value, (set, frozenset)):
        yield from sorted(b"".join(_parts(one, name, dict(seen))) for one in value)
    elif isinstance(value, (list, tuple, dict)):
        yield str(len(value)).encode()
        for one in value.items() if isinstance(value, dict) else value:
            yield from _parts(one, name, seen)
    elif isinstance(value, WRAPPERS):
        for one in inner_functions(value):
            yield from _parts(one, name, seen)
    else:
        yield from _pickled_parts(value, name, seen)


def _tensor_bytes(value: torch.Tensor, name: str) -> bytes:
    try:
        entries = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return f"{value.dtype} {tuple(value.shape)}".encode() + entries.tobytes()
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, nested, or without storage
        raise Unclear(f"`{name}` (a tensor of layout {value.layout} on {value.device})") from None


def _pickled_parts(value: Any, name: str, seen: Seen) -> Iterator[bytes]:
    """What pickle would keep of an object."""
    reduce = copyreg.dispatch_table.get(type(value))  # pickle looks there first: patterns, ufuncs
    try:
        kept = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:
        raise Unclear(f"`{name}` ({type(value).__name__})") from None
    for one in (kept,) if isinstance(kept, str) else kept:
        yield from _parts(list(one) if isinstance(one, Iterator) else one, name, seen)


def _function_parts(function: FunctionType, seen: Seen) -> Iterator[bytes]:
    code, name = function.__code__, function.__qualname__
    yield from _parts(code, name, seen)
    yield from _parts((function.__defaults__, function.__kwdefaults__), name, seen)
    if vars(function):
        yield from _parts(vars(function), name, seen)
    used = {one: function.__globals__[one] for one in sorted(_globals_of(code) & function.__globals__.keys())}
    used |= {one: _held(cell) for one, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)}
    for one, value in used.items():
        yield one.encode()
        yield from _parts(value, one, seen)


def _held(cell: CellType) -> Any:
    """What a closure holds under a name; nothing where the name has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _code_parts(code: CodeType, name: str, seen: Seen) -> Iterator[bytes]:
    yield repr((code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount)).encode()
    steps = [one for one in dis.get_instructions(code) if one.opname not in ("EXTENDED_ARG", "NOP")]
    stored = [one.opname == "STORE_NAME" and one.argval in LEFT_OUT for one in steps]  # docstring and line of a class
    for step, here, next_one in zip(steps, stored, [*stored[1:], False], strict=True):
        if here or (next_one and step.opname.startswith("LOAD_")):
            continue
        yield step.opname.encode()
        if step.opcode in dis.hasconst:  # not by its place: a docstring has one too
            yield from _parts(step.argval, name, seen)
        else:
            yield str(step.argrepr if step.opcode in NAMED else step.arg).encode()


def _globals_of(code: CodeType) -> set[str]:
    """The global names that the code reads, and those that the functions inside it read."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_globals_of(one) for one in code.co_consts if isinstance(one, CodeType)))


def _class_parts(kind: type, seen: Seen) -> Iterator[bytes]:
    yield kind.__qualname__.encode()
    for base in kind.__bases__:
        yield from _parts(base, base.__qualname__, seen)
    for name, value in sorted(vars(kind).items()):
        if name not in LEFT_OUT and not isinstance(value, MemberDescriptorType):
            yield name.encode()
            yield from _parts(value, f"{kind.__qualname__}.{name}", seen)
