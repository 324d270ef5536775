"""Write docs/scale.md from the formulas that tests count: ``python docs/make_scale.py``. A test compares the two."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from message_formulas import member_bytes, row_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import moga
from moga.geometry.polar import POLAR, polar_factor
from moga.optim.distributed.balance import Part, balanced, teams
from moga.optim.distributed.pieces import chunk

PAGE = Path(__file__).with_name("scale.md")
RECIPES = {"row": "moga-row", "column": "moga-column", "sign": "signsgd", "AdamW": "mup-adamw", "spectral": "muon"}
POLAR_WORD = "quintic"  # of the recipe muon
STEPS = POLAR[POLAR_WORD].steps
TP = 8

# Operations of arithmetic for every entry of the calls that a step makes; views and copies have none.
ARITHMETIC = {
    **dict.fromkeys(("abs", "amax", "div", "mul", "sign", "sub", "sqrt", "reciprocal", "nan_to_num"), 1),
    **dict.fromkeys(("add", "linalg_vector_norm"), 2),
    **dict.fromkeys(("copy", "empty_like", "unsqueeze", "unbind"), 0),
    "lerp": 3,
}

HEAD = """# Costs at scale

This page is made by `python docs/make_scale.py`. What a matrix sends comes from the formulas of
[the table of messages](distributed.md#what-a-step-sends), which `tests/distributed/cases_messages.py` counts on real
ranks. Owners, teams, their work and the pieces of every device come from the functions of the optimizer that settle
them; `tests/distributed/test_scale.py` runs the optimizer itself on 256 simulated ranks, with the models as
transformers builds them, and finds the same work and the same bytes. Matrix products and arithmetic are counted on
the calls that a step makes. Nothing here was timed.

Models: 7B is LLaMA-2 (32 blocks of width 4096), 70B is LLaMA-3 (80 of 8192, 8 key and value heads), 400B is Llama 4
Maverick (48 of 5120, every second with 128 experts of 8192 and a shared one), in the shapes of their published
configurations. `row`, `column`, `sign`, `AdamW` and `spectral` are the recipes `moga-row`,
`moga-column`, `signsgd`, `mup-adamw` and `muon`. FSDP2 cuts the first axis of a tensor, a stack of experts between
experts while there are as many as devices and else through each of them along `out`
(`fully_shard(shard_placement_fn=...)`); tensor parallelism (TP) cuts query, key, value, gate, up and the output along
`out`, the others along `in`. It ends at 8 devices, as the models have 8 key and value heads. Weights, gradients
and state are float32.

## Sent by a device in a step

MB = 10^6 bytes; of an all-reduce what a ring sends, 2 (n - 1) / n of the tensor. Of `spectral`, and of `teams` (the
same with `distribute="teams"`), the mean over devices and the device that sends most, which all others wait for.
`FSDP2 itself` is the traffic of one forward and backward pass: weights gathered twice in bfloat16, gradients reduced in
float32 (what TP sends of activations depends on the batch, and is not in it).
"""

WORK = """
`row` sends nothing under FSDP2, and next to nothing with TP. `column` sends sums of `in` numbers for every matrix that
is cut along `out`; over stacks that are cut through every expert they add up. Of what FSDP2 itself sends, the busiest
device of `spectral` sends {most:.0%} with 7B on 8 devices, {middle:.2%} on 256 and {least:.2%} on 4,096.

An owner sends back all of a matrix, however many devices there are. On 4,096 most own none, so the busiest sends
{above} times the mean.

## Matrix products of spectral steps

TFLOP = 10^12 operations in a step, of the mean device and of the busiest, which all others wait for; `max / mean` of
the work; and the busiest against the training step, 6 operations for every token and every parameter that it meets,
with 4 Mi tokens a step on 8 and 256 devices and 16 Mi on 4,096. Products run in float32 unless `polar_dtype` says
"bfloat16": compare with the speed that a device has in that.
"""

BALANCE = """
Whole matrices cannot be spread evenly over 256 devices: the 7B model has fewer (224), the 70B model 560 of three sizes,
of which 240 make up most of the work. No choice of owners is better than {seven:.2f} there for 7B: that is the largest
matrix alone. `distribute="teams"` cuts the rows of some matrices among up to 8 consecutive devices, as many as most
nodes have, and gets {teams}. Its iteration takes one step at a time, where that of
a whole long matrix takes two together in fewer products: for 70B this eats up most of the better balance.

On 4,096 devices, 512 nodes of 8, there is hardly a matrix for each node (224 of 7B, 560 of 70B): most teams have one
matrix, and nodes rest. The busiest device has {less} of the work that it has with owners. Larger
teams would reach across nodes.

Teams trade work for messages. With 7B on 256 devices the one that computes most computes {saved:.2f} TFLOP less, and
the one that sends most sends {more:.2f} GB more. At F TFLOP/s and B GB/s, if no message hides behind work, they pay
where {saved:.2f} / F > {more:.2f} / B: where B > {near_7:.2g} F, with 70B where B > {near_70:.2g} F; on 4,096 devices
where B > {far_7:.2g} F (7B) and B > {far_70:.2g} F (70B). For products in bfloat16 that takes fast links, so teams have
to be asked for.

The 400B model spends more of its step on products, because the update covers all experts and a token meets one.

Expert stacks that FSDP2 cuts between experts send nothing, but on more devices than experts some have no expert:
on 256 devices half of them rest in the update of 128 experts, and the others do twice the mean. Cut them through.

## Memory, and the updates that have no products

Of one entry: operations of arithmetic counted on the calls of a step; bytes of memory that a step has to read and
write (weight, gradient and state once each, weight and state back; spectral also writes and reads L and D); bytes of
state, and those of a whole model on each of 256 devices. Such a step waits for memory, not for arithmetic.
"""


class Weight(NamedTuple):
    """``number`` tensors of ``experts`` matrices (out, in) each (0: one that is no stack), and how TP cuts them."""

    number: int
    out: int
    in_: int
    tensor: str  # the axis that tensor parallelism cuts: "out" or "in"
    role: str = "hidden"
    experts: int = 0
    blocks: int = 1  # matrices of this size that are stored together, one below the other

    @property
    def matrices(self) -> int:
        """In one tensor."""
        return max(1, self.experts) * self.blocks

    @property
    def stored(self) -> list[tuple[int, ...]]:
        """The shapes of its tensors: embeddings and stacks of experts are stored (in, out)."""
        out = self.out * self.blocks
        shape = (self.in_, out) if self.role == "input" or self.experts else (out, self.in_)
        return [(self.experts, *shape) if self.experts else shape] * self.number

    @property
    def cost(self) -> float:
        """Multiplications of one step of Newton-Schulz on one matrix."""
        short = min(self.out, self.in_)
        return 2.0 * self.out * self.in_ * short + float(short) ** 3


class Model(NamedTuple):
    """A decoder: its weights, parameters that a token meets, and tokens of a training step for numbers of devices."""

    weights: tuple[Weight, ...]
    idle: int  # parameters of experts that a token does not meet

    @property
    def parameters(self) -> int:
        """All of them, but for the gains of norms (less than 0.01 %)."""
        return sum(one.number * one.matrices * one.out * one.in_ for one in self.weights)


def attention(layers: int, width: int, narrow: int) -> list[Weight]:
    """Query and output maps, keys and values."""
    return [
        Weight(layers, width, width, "out"),
        Weight(2 * layers, narrow, width, "out"),
        Weight(layers, width, width, "in"),
    ]


def gated(layers: int, width: int, inner: int) -> list[Weight]:
    """Gate and up, down."""
    return [Weight(2 * layers, inner, width, "out"), Weight(layers, width, inner, "in")]


def ends(vocabulary: int, width: int) -> list[Weight]:
    """Embedding, stored (in, out), and output."""
    return [Weight(1, width, vocabulary, "in", "input"), Weight(1, vocabulary, width, "out", "output")]


def experts(layers: int, width: int, inner: int, count: int) -> list[Weight]:
    """Stacks of gate and up together and of down, and the router."""
    return [
        Weight(layers, inner, width, "out", experts=count, blocks=2),
        Weight(layers, width, inner, "in", experts=count),
        Weight(layers, count, width, ""),
    ]


MODELS = {
    "7B": Model((*attention(32, 4096, 4096), *gated(32, 4096, 11008), *ends(32000, 4096)), 0),
    "70B": Model((*attention(80, 8192, 1024), *gated(80, 8192, 28672), *ends(128256, 8192)), 0),
    "400B": Model(
        (
            *attention(48, 5120, 1024),
            *gated(24, 5120, 16384),
            *gated(24, 5120, 8192),
            *experts(24, 5120, 8192, 128),
            *ends(202048, 5120),
        ),
        24 * 127 * 3 * 5120 * 8192,
    ),
}
TOKENS = {8: 2**22, 256: 2**22, 4096: 2**24}


class Cuts(NamedTuple):
    """Into how many parts the axes of a tensor are cut: each of out and in maybe by several axes of the mesh."""

    stack: int
    out: list[int]
    in_: list[int]


def cuts(weight: Weight, data: int, tensor: int) -> Cuts:
    """FSDP2 over ``data`` devices, along the first stored axis or, where experts are too few, along out; and TP."""
    out = [tensor] if tensor > 1 and weight.tensor == "out" else []
    in_ = [tensor] if tensor > 1 and weight.tensor == "in" else []
    stack = data if weight.experts >= data else 1
    if stack == 1 and data > 1:
        (in_ if weight.role == "input" else out).append(data)
    return Cuts(stack, out, in_)


def arrangements() -> Iterator[tuple[int, str, int, int]]:
    """Devices, words, FSDP2 over, TP over."""
    for devices in (8, 256, 4096):
        yield devices, f"FSDP2 {devices}", devices, 1
        tensor = f"FSDP2 {devices // TP} x TP {TP}" if devices > TP else f"TP {TP}"
        yield devices, tensor, devices // TP, TP


def sums(weight: Weight, norm: str, cut: Cuts) -> float:
    """Bytes that a device sends for the sums of rows or columns: a ring sends 2 (n - 1) / n of an all-reduce."""
    joined = {"row": cut.in_, "column": cut.out}.get(norm, [])
    tensor = row_of(norm, "in" if norm == "row" else "out").bytes(
        weight.out / math.prod(cut.out), weight.in_ / math.prod(cut.in_)
    )
    return sum(2 * (n - 1) / n * tensor for n in joined) * weight.number * weight.matrices / cut.stack


@cache
def pieces(weight: Weight, data: int, tensor: int) -> list[float]:
    """Entries of a hidden tensor on every device, or of one of its experts: the mean one, if cut between experts."""
    through = data if cuts(weight, data, tensor).stack == 1 else 1
    out_tp, in_tp = (tensor if weight.tensor == axis else 1 for axis in ("out", "in"))
    out, in_, found = weight.out * weight.blocks, weight.in_, []
    for d, t in itertools.product(range(data), range(tensor)):
        _, rows = chunk(out, out_tp, t % out_tp)
        _, rows = chunk(rows, through, d % through)
        _, columns = chunk(in_, in_tp, t % in_tp)
        found.append(rows * columns)
    alike = sum(found) / (out * in_)  # what several devices hold alike counts once
    return [one / alike for one in found]


@cache
def whole(model: Model, data: int, tensor: int, word: str) -> list[float]:
    """Bytes that every device sends for whole matrices; ``word`` is "owners" or "teams"."""
    found = [0.0] * (data * tensor)
    copies: Counter[Weight] = Counter()  # each is put together on every member of its team
    for weight, parts in shared(model, data, tensor, word):
        held, cut = pieces(weight, data, tensor), [part.of(min(weight.out, weight.in_)) for part in parts]
        between = member_bytes(weight.out, weight.in_, [part.stop - part.start for part in cut], STEPS)
        for part, own in zip(parts, between, strict=True):
            found[part.rank] += weight.blocks * own - 4 * held[part.rank]  # to itself it sends nothing
        owner = parts[0].rank
        found[owner] += 4 * (weight.blocks * weight.out * weight.in_ - held[owner])
        copies[weight] += len(parts)
    for weight, count in copies.items():
        found = [sent + 4 * count * one for sent, one in zip(found, pieces(weight, data, tensor), strict=True)]
    return found


@cache
def shared(model: Model, data: int, tensor: int, word: str) -> list[tuple[Weight, tuple[Part, ...]]]:
    """The matrices that are cut, with the ranks that compute each; as the optimizer settles it."""
    owned = [
        weight
        for weight in model.weights
        if weight.role == "hidden" and (cuts(weight, data, tensor).out or cuts(weight, data, tensor).in_)
        for _ in range(weight.number * max(1, weight.experts))
    ]
    costs, ranks = [one.blocks * one.cost for one in owned], data * tensor
    if word == "teams":
        return list(zip(owned, teams(costs, [True] * len(costs), ranks), strict=True))
    return [(one, (Part(rank, 0.0, 1.0),)) for one, rank in zip(owned, balanced(costs, [1] * ranks), strict=True)]


@cache
def products(out: int, in_: int) -> int:
    """FLOPs of the polar factor of one matrix on one device, as counted on a tensor without values."""
    with FlopCounterMode(display=False) as counter:
        polar_factor(torch.empty(out, in_, device="meta"), POLAR_WORD)
    return int(counter.get_total_flops())


def loads(model: Model, ranks: int, word: str) -> list[float]:
    """The work of every rank under FSDP2, as it is balanced: multiplications of one step of Newton-Schulz."""
    found = [0.0] * ranks
    for weight, parts in shared(model, ranks, 1, word):
        for part in parts:
            found[part.rank] += weight.blocks * weight.cost * (part.end - part.start)
    return found


@cache
def spectral_flops(model: Model, data: int, tensor: int, word: str) -> list[float]:
    """FLOPs of every device."""
    loads = [0.0] * (data * tensor)
    for weight in model.weights:
        if weight.role == "hidden" and not (cuts(weight, data, tensor).out or cuts(weight, data, tensor).in_):
            stack = cuts(weight, data, tensor).stack
            each = weight.number * weight.matrices / stack * products(weight.out, weight.in_)
            loads = [load + each for load in loads]
    for weight, parts in shared(model, data, tensor, word):
        full = 2 * STEPS * weight.cost if word == "teams" else products(weight.out, weight.in_)
        for part in parts:
            loads[part.rank] += weight.blocks * (part.end - part.start) * full
    return loads


def sent(model: Model, recipe: str, data: int, tensor: int) -> float:
    """Bytes that a device sends in a step of a recipe, without whole matrices."""
    updates = moga.rules.resolve_recipe(recipe)
    return sum(sums(one, updates[one.role]["norm"], cuts(one, data, tensor)) for one in model.weights)


class Operations(TorchDispatchMode):
    """Adds up the arithmetic on tensors of at least ``least`` entries, but for products of matrices."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.count = least, 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), words: Any = None) -> Any:
        size = max((one.numel() for one in tree_leaves(arguments) if isinstance(one, torch.Tensor)), default=0)
        if size >= self.least:
            name = function._schema.name.removeprefix("aten::").removeprefix("_foreach_").removesuffix("_")
            self.count += ARITHMETIC[name] * size
        return function(*arguments, **(words or {}))


def arithmetic(recipe: str) -> float:
    """Operations of arithmetic for an entry of a hidden matrix."""
    weight = torch.nn.Parameter(torch.randn(64, 48))
    words = {"implementation": "plain", "weight_decay": 0.1, "nonfinite": "propagate"}
    optimizer = moga.optimizer([("w", weight)], recipe, lr=0.1, roles={"w": "hidden"}, **words)
    optimizer.make_state()
    weight.grad = torch.randn_like(weight)
    with Operations(weight.numel()) as found:
        optimizer.step()
    return found.count / weight.numel()


def state_bytes(recipe: str) -> int:
    """Bytes of state for an entry of a hidden matrix."""
    weight = torch.nn.Parameter(torch.randn(64, 48))
    optimizer = moga.optimizer([("w", weight)], recipe, lr=0.1, roles={"w": "hidden"})
    optimizer.make_state()
    full = [one for one in optimizer.state[weight].values() if one.shape == weight.shape]
    return sum(one.numel() * one.element_size() for one in full) // weight.numel()


def line(*cells: object) -> str:
    """A line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def own_traffic(model: Model, data: int, tensor: int) -> float:
    """Bytes that FSDP2 sends from a device: weights twice in bfloat16, gradients once in float32."""
    return (2 * 2 + 4) * model.parameters / tensor * (data - 1) / data


def number(value: float) -> str:
    """Three digits, or "0"."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def traffic() -> list[str]:
    """The table of what is sent."""
    spectral = ("spectral: mean", "busiest", "teams: mean", "busiest")
    lines = ["", line("model", "devices", "row", "column", "sign, AdamW", *spectral, "FSDP2 itself")]
    lines.append("|" + "---|" * 10)
    for name, model in MODELS.items():
        for _, words, data, tensor in arrangements():
            single = {key: sent(model, RECIPES[key], data, tensor) for key in ("row", "column", "sign", "AdamW")}
            every = [whole(model, data, tensor, word) for word in ("owners", "teams")]
            rest = [one for each in every for one in (sum(each) / len(each), max(each))]
            values = [single["row"], single["column"], max(single["sign"], single["AdamW"]), *rest]
            own = own_traffic(model, data, tensor)
            lines.append(line(name, words, *(f"{number(one / 1e6)} MB" if one else "0" for one in [*values, own])))
    return lines


def work() -> list[str]:
    """The table of matrix products."""
    head = ("model", "devices", "mean", "busiest", "max / mean", "of training", "teams: busiest", "max / mean")
    lines = ["", line(*head), "|" + "---|" * 8]
    for name, model in MODELS.items():
        for devices, words, data, tensor in arrangements():
            if tensor > 1 and data > 1:
                continue  # the same matrices on as many devices
            owners, split = (spectral_flops(model, data, tensor, word) for word in ("owners", "teams"))
            training = 6 * (model.parameters - model.idle) * TOKENS[devices] / devices
            cells = [number(sum(owners) / devices / 1e12), number(max(owners) / 1e12), f"{balance(owners):.2f}"]
            cells += [f"{max(owners) / training:.2%}", number(max(split) / 1e12), f"{balance(split):.2f}"]
            lines.append(line(name, words, *cells))
    return lines


def balance(loads: list[float]) -> float:
    """The largest over the mean."""
    return max(loads) / (sum(loads) / len(loads))


def filled(words: str) -> str:
    """Paragraphs with numbers of the tables in their places, in lines of at most 120."""
    at, gain = {}, {}
    for ranks in (256, 4096):
        for name, model in MODELS.items():
            owners, split = (spectral_flops(model, ranks, 1, word) for word in ("owners", "teams"))
            more = max(whole(model, ranks, 1, "teams")) - max(whole(model, ranks, 1, "owners"))
            at[name, ranks] = owners, split
            gain[name, ranks] = max(owners) - max(split), more
    saved, more = gain["7B", 256]
    least = {key: more / 1e9 / (saved / 1e12) for key, (saved, more) in gain.items()}
    text = words.format(
        seven=balance(at["7B", 256][0]),
        teams=", ".join(f"{balance(at[name, 256][1]):.2f} for {name}" for name in MODELS),
        less=" and ".join(f"{max(at[name, 4096][1]) / max(at[name, 4096][0]):.0%} ({name})" for name in ("7B", "70B")),
        saved=saved / 1e12,
        more=more / 1e9,
        near_7=least["7B", 256],
        near_70=least["70B", 256],
        far_7=least["7B", 4096],
        far_70=least["70B", 4096],
        above=" and ".join(f"{balance(whole(MODELS[name], 4096, 1, 'owners')):.1f} ({name})" for name in ("7B", "70B")),
        **{
            word: max(whole(MODELS["7B"], ranks, 1, "owners")) / own_traffic(MODELS["7B"], ranks, 1)
            for word, ranks in (("most", 8), ("middle", 256), ("least", 4096))
        },
    )
    paragraphs = [textwrap.fill(one.strip(), 120, break_on_hyphens=False) for one in text.split("\n\n")]
    return "\n" + "\n\n".join(paragraphs)


def memory() -> list[str]:
    """The table of entries, and state by device."""
    lines = ["", line("update", "operations", "bytes moved", "bytes of state", *(f"{name} / 256" for name in MODELS))]
    lines.append("|" + "---|" * 7)
    for word, recipe in RECIPES.items():
        state = state_bytes(recipe)
        moved = 4 * 3 + 2 * state + (16 if word == "spectral" else 0)  # weight and gradient in, weight out
        held = [f"{state * model.parameters / 256 / 1e9:.3g} GB" for model in MODELS.values()]
        lines.append(line(word, "products" if word == "spectral" else f"{arithmetic(recipe):.0f}", moved, state, *held))
    return lines


def page() -> str:
    """The whole page as text."""
    return "\n".join([HEAD.rstrip(), *traffic(), filled(WORK), *work(), filled(BALANCE), *memory()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
