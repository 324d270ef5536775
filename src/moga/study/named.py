"""A model by the word for it: a family, a directory with a ``config.json``, or a function of one's own.

gpt2                       a family of the study, at --width
path/to/model              the config of a transformers model; weights in the directory are not read
package.module:function    a function that returns a model, called with width= where a width is given
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import nn

from moga.rules.init import initialize_
from moga.study.factories import call_factory, is_path
from moga.study.models import FAMILIES, build_model, heads_of
from moga.study.settings import STARTS, Settings

LARGEST = 200_000_000  # parameters of a config's model that gets memory and weights; a larger one has only shapes
SEED = 0


@dataclass(frozen=True)
class Wanted:
    """What is said of a model; None where nothing is said.

    ``start``: the "own" weights of the model's code, or those of :func:`moga.initialize_` ("moga"); a family starts
    with the latter, as in the study.
    """

    width: int | None = None
    layers: int | None = None
    head_size: int | None = None
    start: str | None = None
    recipe: str = "moga-row"
    roles: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Named:
    """A model, what it is in words, its width where that is known, and how its weights start ("none": no memory)."""

    model: nn.Module
    what: str
    width: int | None
    start: str


def kind_of(word: str) -> str:
    """ "family", "config" or "function".

    Raises ValueError for a word that is none of them.

    >>> kind_of("gpt2"), kind_of("package.module:function")
    ('family', 'function')
    """
    if word in FAMILIES:
        return "family"
    if Path(word).exists():
        return "config"
    if is_path(word):
        return "function"
    raise ValueError(
        f"unknown model {word!r}; give a family ({', '.join(sorted(FAMILIES))}), a directory with a config.json, or a "
        "function, as package.module:function"
    )


def load_named(word: str, wanted: Wanted) -> Named:
    """The model of that word; the same weights every time.

    Raises ValueError for an unknown word, sizes that such a model does not take, and what its maker refuses.

    >>> load_named("gpt2", Wanted(width=32, layers=1)).what
    'gpt2, width 32, 1 layer'
    """
    kind = kind_of(word)
    if wanted.start not in (None, *STARTS):
        raise ValueError(f"unknown word {wanted.start!r} for --start; the words are {', '.join(STARTS)}")
    takes = {"family": ("width", "layers", "head_size"), "function": ("width",), "config": ()}[kind]
    for name in ("width", "layers", "head_size"):
        if getattr(wanted, name) is not None and name not in takes:
            option = "--" + name.replace("_", "-")
            where = f"the sizes of {word} are in its config.json" if kind == "config" else "a function is given a width"
            raise ValueError(f"{option} is for a family of the study, and {word} is a {kind}: {where}")
    if kind == "family":
        return _family(word, wanted)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model, what = _function(word, wanted.width) if kind == "function" else _config(Path(word))
    if any(parameter.is_meta for parameter in model.parameters()):
        return Named(model, what, wanted.width, "none")
    if wanted.start == "moga":
        initialize_(model, wanted.recipe, roles=wanted.roles, generator=torch.Generator().manual_seed(SEED))
    return Named(model, what, wanted.width, wanted.start or "own")


def _family(word: str, wanted: Wanted) -> Named:
    usual = Settings(family=word)
    width, layers = wanted.width or 128, wanted.layers or usual.layers
    head_size = wanted.head_size or usual.head_size
    what = f"{word}, width {width}, {layers} layer{'s' * (layers != 1)}"
    if wanted.start != "own":
        sizes = {"layers": layers, "head_size": head_size, "context": usual.context}
        return Named(build_model(word, width, **sizes, seed=SEED, recipe=wanted.recipe), what, width, "moga")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return Named(FAMILIES[word](width, layers, heads_of(width, head_size), usual.context), what, width, "own")


def _function(word: str, width: int | None) -> tuple[nn.Module, str]:
    model = call_factory(word, "width", width).model
    return model, word if width is None else f"{word}, width {width}"


def _config(path: Path) -> tuple[nn.Module, str]:
    """The model of a config: the class that it names, or else the causal language model of its type."""
    import transformers

    if path.is_dir() and not (path / "config.json").is_file():
        raise ValueError(f"{path} has no config.json; give the directory of a transformers model, or its config")
    config = _asked(
        path,
        lambda: transformers.AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False),
    )
    kinds = [kind for name in config.architectures or () if (kind := getattr(transformers, name, None)) is not None]
    make: Callable[[Any], nn.Module] = kinds[0] if kinds else transformers.AutoModelForCausalLM.from_config
    config.dtype = torch.float32
    with torch.device("meta"):
        model = _asked(path, lambda: make(copy.deepcopy(config)))
    if sum(parameter.numel() for parameter in model.parameters()) <= LARGEST:
        model = _asked(path, lambda: make(config))
    return model, f"{path} ({type(model).__name__})"


def _asked(path: Path, ask: Callable[[], Any]) -> Any:
    """What transformers answers; whatever it refuses is an error of the config, in its first words."""
    try:
        return ask()
    except Exception as error:
        text = shorten(str(error), 160, placeholder=" ...")
        raise ValueError(f"transformers refuses the config of {path}: {text}") from error


def load_base(word: str, named: str, wanted: Wanted) -> tuple[Any, str, Named | None]:
    """A base for ``base=``, what it is in words, and its model where it has one.

    ``word``: a width, at which the model ``named`` is made once more; a file that :func:`moga.save_base` wrote; or
    another model's word.

    Raises ValueError as :func:`load_named`, and for a width where the model has none.
    """
    if word.isdecimal():
        if kind_of(named) == "config":
            raise ValueError(
                f"--base {word} is a width, and the sizes of {named} are in its config.json; give the config of a "
                "smaller model, or a file that moga.save_base wrote"
            )
        made = load_named(named, replace(wanted, width=int(word)))
        return made.model, f"width {word}", made
    if Path(word).is_file() and _is_saved(Path(word)):
        return word, word, None
    try:
        made = load_named(word, replace(wanted, width=None, layers=None, head_size=None))
    except ValueError as error:
        raise ValueError(f"--base: {error}") from None
    return made.model, made.what, made


def _is_saved(path: Path) -> bool:
    try:
        saved = json.loads(path.read_text("utf-8"))
    except ValueError:
        return False  # left to transformers, which says what is wrong
    return isinstance(saved, dict) and "moga_base" in saved


def smaller(word: str, model: Named, wanted: Wanted) -> Named | None:
    """The same model at half of its width, or None where it has no width or cannot be made so small."""
    if model.width is None or model.start == "none":
        return None
    try:
        return load_named(word, replace(wanted, width=model.width // 2))
    except Exception:  # a function of one's own was not asked to take this width; the table says what was measured
        return None
