"""Triton's kernels in its interpreter (tests/conftest.py asks for it) against float64 and against tensor operations.

On a machine with a GPU, `TRITON_INTERPRET=0 pytest tests/optim/test_triton.py` runs the same on the GPU.
"""

import copy
import math
import os
import subprocess
import sys

import pytest
import torch
from optim.fast_steps import SHAPES, UPDATES, Fast, grads_of

import moga
from moga.geometry import newton_schulz
from moga.geometry.polar import polar_factor
from moga.optim.kernels import triton_available, triton_launch, triton_step, triton_tables
from moga.optim.kernels.build import Unavailable
from moga.optim.kernels.jobs import COLUMNS, ROWS, SIGN, jobs_of, normalised
from moga.optim.kernels.triton_launch import leave_to_triton, product_for
from moga.optim.kernels.triton_product import symmetric_product
from moga.optim.update import batched, decay, new_state

DEVICE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"

NORMS = [{"norm": norm} for norm in ("sign", "row", "column", "adam")]
LAYOUTS = [
    {},
    {"layout": "in,out"},
    {"layout": "vector"},
    {"blocks": (2, 2, 2)},
    {"layout": "in,out", "blocks": (1, 3, 2), "scale": [0.1, 0.2, 0.3]},
    {"layout": "stack,out,in"},
    {"layout": "2*out,in,k"},
]


def words(update):
    return "-".join(map(str, update.values())) or "plain"


def take(weight, grad, state, group):
    assert leave_to_triton([0], [weight], [grad], [state], group, decay(group), None) == []


FAST = Fast("triton", take, DEVICE)
group_of, start, ran, check_errors = FAST.group_of, FAST.start, FAST.ran, FAST.check_errors


@pytest.mark.parametrize("layout", LAYOUTS, ids=words)
@pytest.mark.parametrize("update", UPDATES, ids=words)
def test_every_update_in_every_layout(update, layout):
    group = group_of(update, layout)
    shape = SHAPES.get(group["layout"], (6, 5))
    expected, got = (ran(group, shape, torch.float32, grads_of(shape, 2), way) for way in ("plain", "triton"))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("update", UPDATES, ids=words)
def test_narrow_weights(update, dtype):
    group, grads = group_of(update), grads_of((7, 33), 2)
    torch.testing.assert_close(*(ran(group, (7, 33), dtype, grads, way) for way in ("triton", "plain")))
    check_errors(group, (7, 33), dtype, grads)


def test_bfloat16_is_rounded_to_the_nearest_even_and_a_nan_stays_one():
    values = torch.tensor([1.0, 1 + 2**-7, -1.0, -1 - 2**-7, 1 + 127 / 128, 3.3e38, 0.0, 2**-130]).bfloat16()
    group = group_of(norm="sign", layout="vector", average="none", weight_decay=0.0, lr=1.0, lr_scale=1.0, scale=2**-8)
    for sign in (1, -1):  # by half of what separates numbers of bfloat16 from 1 to 2
        weight, grad = values.to(DEVICE, copy=True), torch.full_like(values, sign).to(DEVICE)
        leave_to_triton([0], [weight], [grad], [{}], group, 0.0, None)
        torch.testing.assert_close(weight.cpu(), (values.float() - sign * 2**-8).bfloat16(), rtol=0, atol=0)
    weight, state = torch.ones_like(grad), {"momentum_buffer": torch.zeros(8, device=DEVICE)}
    state["momentum_buffer"].view(torch.int32).fill_(0x7FFFFFFF)  # the NaN of GPUs, whose upper half would become -0
    leave_to_triton([0], [weight], [grad], [state], {**group, "average": "mean"}, 0.0, None)
    assert weight.isnan().all()


@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-38, 1e-25, 1e30, 1e37])
@pytest.mark.parametrize("update", NORMS[:3], ids=words)
def test_gradients_of_every_size(update, size):
    for layout in ("out,in", "in,out"):
        check_errors(group_of(update, layout=layout), (9, 21), torch.float32, grads_of((9, 21), 2, size))


@pytest.mark.parametrize("size", [0.0, 1e-25, 1.0, 1e15])
def test_gradients_of_every_size_for_adam(size):
    for eps in (1e-8, 0.0):
        check_errors(group_of(norm="adam", eps=eps), (9, 21), torch.float32, grads_of((9, 21), 2, size))


@pytest.mark.parametrize("shape", [(1, 1), (1, 70), (70, 1), (260, 3), (17, 129)], ids=str)
@pytest.mark.parametrize("update", NORMS, ids=words)
def test_shapes_that_fill_no_tile_and_more_than_one(update, shape):
    check_errors(group_of(update), shape, torch.float32, grads_of(shape, 2))


@pytest.mark.parametrize("shape, layout", [((2, 4100), "out,in"), ((1040, 5), "in,out"), ((1040, 5), "out,in")])
def test_rows_longer_than_a_tile_and_columns_longer_than_a_part(shape, layout):
    update = {"norm": "row" if 4100 in shape else "column"}
    check_errors(group_of(update, layout=layout), shape, torch.float32, grads_of(shape, 1))


@pytest.mark.parametrize("update", UPDATES, ids=words)
def test_errors_over_many_entries_are_those_of_tensor_operations(update):
    """In the mean over entries no luck is left, and no allowance is needed but for results that are exact."""
    group, grads = group_of(update), grads_of((40, 300), 2)
    exact, plain, fast = (
        ran(group, (40, 300), torch.float32, grads, way, 0.0) for way in ("float64", "plain", "triton")
    )
    for a, b, c in zip(exact, plain, fast, strict=True):
        limit = 2 * (b.double() - a).square().mean().sqrt() + 1e-9 * a.abs().max()
        assert (c.double() - a).square().mean().sqrt() <= limit


def test_a_planted_error_is_found(monkeypatch):
    monkeypatch.setattr(triton_launch, "lookahead", lambda group: 0.810002)  # momentum squared is 0.81
    with pytest.raises(AssertionError):
        check_errors(group_of(norm="row"), (6, 50), torch.float32, grads_of((6, 50), 2))


@pytest.mark.filterwarnings("ignore:invalid value")  # of numpy, in the interpreter
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("update", UPDATES, ids=words)
def test_what_is_not_finite_spreads_alike(update, bad):
    group, grads = group_of(update), grads_of((4, 40), 2)
    grads[0][2, 3] = bad
    for dtype in (torch.float32, torch.bfloat16):
        expected, got = (ran(group, (4, 40), dtype, grads, way) for way in ("plain", "triton"))
        torch.testing.assert_close(got, expected, equal_nan=True)
        assert got[0].isnan().any() or group["norm"] == "adam"


@pytest.mark.parametrize("update", NORMS, ids=words)
def test_a_dropped_step_and_a_rate_of_zero(update):
    group = group_of(update)
    weight, state = start((6, 5), torch.float32, group)
    before = copy.deepcopy((weight, state))
    nan, yes, no = torch.full_like(weight, math.nan), *torch.tensor([True, False], device=DEVICE).unbind()
    assert leave_to_triton([0], [weight], [nan], [state], group, decay(group), no) == []
    torch.testing.assert_close((weight, state), before, rtol=0, atol=0)
    for rate in (0.0, 0, torch.tensor(0.0, device=DEVICE), torch.tensor([0.0], dtype=torch.float64)):
        assert leave_to_triton([0], [weight], [torch.ones_like(nan)], [state], group | {"lr": rate}, 0.2, yes) == []
        assert torch.equal(weight, before[0])
    assert not torch.equal(state["exp_avg" if group["norm"] == "adam" else "momentum_buffer"], torch.zeros_like(weight))


@pytest.mark.parametrize("update", [*NORMS, {"norm": "row", "weight_decay": 0.0}], ids=words)
def test_many_tensors_in_one_launch_and_a_rate_on_the_device(update, monkeypatch):
    """One launch for each shape of a tile, and one more for tensors with numbers that 16 does not divide."""
    shapes, count = [(3, 4), (1, 1), (60, 50), (0, 3), (7, 1000), (1, 4000)], []
    group = group_of(update, lr=torch.tensor(0.1, device=DEVICE))
    fast = [start(shape, torch.float32, group) for shape in shapes]
    slow = copy.deepcopy(fast)
    grads = [grads_of(shape, 1)[0].to(DEVICE, torch.float32) for shape in shapes]
    run = triton_launch._run
    monkeypatch.setattr(triton_launch, "_run", lambda launch, *rest: (count.append(launch), run(launch, *rest)))
    for made, word in ((fast, "triton"), (slow, "plain")):
        batched([w for w, _ in made], grads, [state for _, state in made], group | {"implementation": word}, None)
    torch.testing.assert_close(fast, slow)
    assert len(count) == {"sign": 2, "adam": 2, "column": 4, "row": 4}[group["norm"]]  # a row of one entry is a sign


def test_tensors_that_lie_at_odd_addresses():
    group, shape = group_of(norm="row"), (4, 32)
    made = []
    for word in ("triton", "plain"):
        memory = torch.arange(0.0, 129.0, device=DEVICE)
        weight = memory[1:].view(shape)
        state = new_state(weight, group)
        batched([weight], [weight.sin()], [state], group | {"implementation": word}, None)
        made.append((memory, state))
    torch.testing.assert_close(*made)
    assert triton_tables.address_table(bytes(40), torch.device("cpu"))[1]
    assert not triton_tables.address_table(b"\4" + bytes(39), torch.device("cpu"))[1]


def test_autograd_learns_of_the_change():
    group = group_of(norm="sign")
    weight, state = start((2, 3), torch.float32, group)
    versions = weight._version, state["momentum_buffer"]._version
    leave_to_triton([0], [weight], [torch.ones_like(weight)], [state], group, 0.0, None)
    assert weight._version > versions[0] and state["momentum_buffer"]._version > versions[1]


@pytest.mark.parametrize(
    "more, tensor",
    [
        ({"norm": "row", "p": 3.0}, torch.ones(4, 6)),
        ({"norm": "spectral"}, torch.ones(4, 6)),
        ({"norm": "row", "constraint": "sphere"}, torch.ones(4, 6)),
        ({"norm": "row", "state_dtype": "bfloat16"}, torch.ones(4, 6)),
        ({"norm": "row", "rounding": "stochastic"}, torch.ones(4, 6, dtype=torch.bfloat16)),
        ({"norm": "row"}, torch.ones(4, 6, dtype=torch.float64)),
        ({"norm": "row"}, torch.ones(6, 4).T),
        ({"norm": "row"}, torch.ones(4, 6).as_subclass(torch.nn.Buffer)),
        ({"norm": "column", "blocks": (4, 4), "interleave": 2}, torch.ones(8, 6)),
        ({"norm": "row", "implementation": "plain"}, torch.ones(4, 6)),
        ({"norm": "row", "implementation": "c"}, torch.ones(4, 6)),
        ({"norm": "row", "implementation": "auto"}, torch.ones(4, 6)),  # on a CPU, that is C
    ],
    ids=lambda part: words(part) if isinstance(part, dict) else "",
)
def test_the_rest_is_left_to_others(more, tensor):
    group = group_of(more)
    grad, before = torch.ones_like(tensor), tensor.clone()
    assert list(leave_to_triton([0], [tensor], [grad], [new_state(tensor, group)], group, 0.0, None)) == [0]
    assert torch.equal(tensor, before)


@pytest.mark.parametrize("grad", [torch.ones(6, 4).T, torch.ones(4, 6, dtype=torch.float64)])
def test_gradients_that_are_left(grad):
    group = group_of(norm="row")
    weight, state = start((4, 6), torch.float32, group)
    assert leave_to_triton([0], [weight], [grad.to(DEVICE)], [state], group, 0.0, None) == [0]


def test_every_recipe_takes_the_same_steps(entry, tools):
    nets = [tools.Network().to(DEVICE) for _ in range(2)]
    got, expected = (
        tools.run(net.parameters(), entry.optimizer(net, implementation=word), range(2))
        for net, word in zip(nets, ("triton", "plain"), strict=True)
    )
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_skipped_step_of_an_optimizer(tools):
    net = tools.Network().to(DEVICE)
    optimizer = tools.ENTRIES[0].optimizer(net, implementation="triton")
    before = [weight.detach().clone() for weight in net.parameters()]
    tools.fill(net.parameters(), 0, bad=math.nan)
    optimizer.step()
    assert optimizer.skipped == 1 and all(map(torch.equal, before, net.parameters()))
    tools.fill(net.parameters(), 0)
    optimizer.step()
    assert optimizer.skipped == 1 and not any(map(torch.equal, before, net.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (70, 33), (130, 200), (2, 65, 20), (3, 2, 90)], ids=str)
def test_symmetric_products(shape, dtype):
    A = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    R = A @ A.mT / shape[-1]
    for left, right, more, beta, alpha in ((A, A.mT, None, 0.0, 1.0), (R, R, R, 0.5, -2.0)):
        exact = alpha * left.double() @ right.double() + (0 if more is None else beta * more.double())
        plain, fast = (
            way(left, right, more, beta, alpha) for way in (newton_schulz.symmetric_product, symmetric_product)
        )
        least = torch.finfo(dtype).eps * exact.abs().max()
        assert (fast.double() - exact).abs().max() <= 2 * (plain.double() - exact).abs().max() + least
        assert fast.dtype == dtype and fast.shape == plain.shape


def test_only_the_lower_half_of_the_tiles_is_computed():
    A, B = torch.randn(100, 20, device=DEVICE), torch.randn(20, 100, device=DEVICE)
    product = symmetric_product(A, B)  # not symmetric, unlike what comes out
    torch.testing.assert_close(product[64:, :64], (A @ B)[64:, :64])
    assert torch.equal(product[:64, 64:], product[64:, :64].T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_polar_factors_with_the_kernel(dtype):
    """Within twice the distance that tensor operations have from the same iteration in float64."""
    G = torch.randn(2, 66, 110, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    exact = polar_factor(G.double(), "gram")
    plain, fast = (polar_factor(G, "gram", dtype=dtype, product=way) for way in (None, symmetric_product))
    assert not torch.equal(plain, fast)
    error = torch.linalg.matrix_norm(torch.stack([plain, fast]).double() - exact).amax(-1)
    assert error[1] <= 2 * error[0]


def test_spectral_steps_use_the_kernel_where_the_word_says_so(monkeypatch):
    G = torch.randn(1, 64, 70, device=DEVICE)
    spectral = group_of(norm="spectral", polar="quintic")
    assert product_for(G, spectral) is symmetric_product
    assert product_for(G, {**spectral, "implementation": "plain"}) is None
    assert product_for(G.double(), spectral) is None
    assert product_for(G, {}) is None
    monkeypatch.setattr(triton_launch, "available", lambda device, word: True)
    assert product_for(G, {**spectral, "implementation": "auto"}) is None
    assert product_for(G, {**spectral, "implementation": "auto", "polar_dtype": "bfloat16"}) is symmetric_product
    used = []
    monkeypatch.setattr(triton_launch, "product_for", None)
    monkeypatch.setattr("moga.optim.steps.product_for", lambda L, group: used.append(L.shape))
    weight, state = start((64, 70), torch.float32, spectral)
    batched([weight], [weight.clone()], [state], spectral, None)
    assert used == [(1, 64, 70)]


@pytest.fixture
def fresh(monkeypatch):
    """Nothing is remembered of earlier questions."""
    triton_available._warn.cache_clear()
    monkeypatch.setattr(triton_available, "_tried", {})
    yield
    triton_available._warn.cache_clear()


def test_without_triton_the_word_decides(fresh, monkeypatch, recwarn):
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", None)
    text = r"there is no Triton to make the steps' kernels .*pip install triton"
    with pytest.raises(Unavailable, match=text):
        triton_available.available(torch.device("cpu"), "triton")
    for _ in range(3):
        assert not triton_available.available(torch.device("cuda"), "auto")
    [warning] = recwarn
    assert "there is no Triton" in str(warning.message) and 'implementation="plain"' in str(warning.message)
    assert not triton_available.available(torch.device("cpu"), "auto")  # has the compiled step: nothing is missing
    assert len(recwarn) == 1


def test_a_device_without_kernels(fresh):
    with pytest.raises(Unavailable, match="run on CUDA and ROCm devices; these weights are on meta"):
        triton_available.available(torch.device("meta"), "triton")


def test_weights_on_a_cpu_without_the_interpreter(fresh, monkeypatch):
    monkeypatch.setattr("triton.runtime.jit.JITFunction", type(triton_step.sign_step))
    with pytest.raises(
        Unavailable, match="run on a GPU and these weights are on the CPU; move the model first, or let"
    ):
        triton_available.available(torch.device("cpu"), "triton")


def test_a_gpu_on_which_the_first_step_fails_or_is_wrong(fresh, monkeypatch):
    assert triton_available._trial(torch.device(DEVICE)) is None
    monkeypatch.setattr(triton_launch, "take", lambda *given: None)
    assert "wrong numbers here ([[0.0, 0.0]" in triton_available._trial(torch.device(DEVICE))
    monkeypatch.setattr(triton_launch, "take", lambda *given: 1 / 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(triton_available, "_trial", lambda device, trial=triton_available._trial: trial(DEVICE))
    for _ in range(2):  # the second time from memory
        with pytest.raises(Unavailable, match=r"cannot make the steps' kernels here \(ZeroDivisionError: division"):
            triton_available.available(torch.device("cuda"), "triton")
        monkeypatch.setattr(triton_available, "_trial", None)


def test_a_first_step_within_a_capture(fresh, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(Unavailable, match="the first step, which cannot be captured in a CUDA graph: take one step"):
        triton_available.available(torch.device("cuda"), "triton")


def test_a_captured_graph_keeps_the_memory_that_it_reads(monkeypatch):
    """No memory can be pinned in a capture: the room for tables is there before, and no part of it is used twice."""
    room, elsewhere = torch.zeros(128, dtype=torch.uint8), torch.device("meta")
    monkeypatch.setattr(triton_tables, "_capturing", lambda device: True)
    monkeypatch.setattr(triton_tables, "_reserved", room)
    monkeypatch.setattr(triton_tables, "_kept", [])
    for number in (32, 64):
        addresses, aligned = triton_tables.address_table(number.to_bytes(40, "little"), elsewhere)
        assert addresses.device == elsewhere and addresses.shape == (1, 5) and aligned
    taken = room.view(torch.int64).tolist()
    assert (taken[:5], taken[6:11]) == ([32, 0, 0, 0, 0], [64, 0, 0, 0, 0]) and len(triton_tables._kept) == 4
    with pytest.raises(
        RuntimeError, match="needs 40 bytes of pinned memory and has 32: take a step before the capture"
    ):
        triton_tables.address_table(bytes(40), elsewhere)


def test_launches_hold_every_entry_once():
    kinds = {"sign": SIGN, "row": ROWS, "column": COLUMNS}
    for norm, kind in kinds.items():
        group = group_of(norm=norm)
        jobs = jobs_of((torch.Size((300, 260)), torch.Size((5, 16))), group, normalised(group))
        found = triton_tables.launches(bytes(jobs), torch.device("cpu"))
        assert {launch.kind for launch in found} == {kind}
        assert sum(len(launch.jobs) for launch in found) == 2
        for launch in found:
            for i, job in enumerate(launch.jobs.tolist()):
                parts = launch.tasks[launch.tasks[:, 0] == i, 1].tolist()
                assert parts == list(range(len(parts)))
                rows, cols = job[3:5]
                down = launch.shape[0] * (triton_tables.DOWN if kind == COLUMNS else 1)
                across = 1 if kind == ROWS else -(-cols // launch.shape[1])
                assert len(parts) == -(-rows // down) * across


KERNELS = ("sign_step", "row_step", "column_sums", "column_step", "adam_step")
COMPILE = f"""
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from moga.optim.kernels import triton_product, triton_step

TYPES = {{"tasks": "*i32", "jobs": "*i64", "addresses": "*i64", "finite": "*i1", "sums": "*fp64", "lr": "*fp32"}}
STEP = {{"LR_ON_DEVICE": True, "FAR1": False, "FAR2": True, "KEPT": True, "STORED": tl.uint16, "ALIGNED": True, "R": 4,
        "C": 1024, "ONCE": True, "DOWN": 8}}
SIDE, DEPTH, _ = triton_product.TILES[torch.bfloat16]
PRODUCT = {{"SIDE": SIDE, "DEPTH": DEPTH, "BRAIN": True, "NARROW": True, "a2": 1, "b1": 1, "c2": 1}}

def ptx(kernel, words, types, number="fp32", arch=80):
    names = kernel.arg_names
    given = {{(names.index(name),): value for name, value in words.items() if name in names}}
    kinds = {{name: "constexpr" if (i,) in given else types.get(name, number) for i, name in enumerate(names)}}
    wide = {{(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if kinds[name][:2] in ("*i", "i3", "*b")}}
    source = triton.compiler.ASTSource(fn=kernel, signature=kinds, constexprs=given, attrs=wide)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={{"num_warps": 8}}).asm["ptx"]

for name in {KERNELS}:
    text = ptx(getattr(triton_step, name), STEP, TYPES)
    assert "ld.global.v4" in text and ("st.global.v4" in text or name == "column_sums"), name
    print(name)
factors = {{"A": "*bf16", "B": "*bf16", "C": "*bf16", "product": "*i16", "alpha": "fp32", "beta": "fp32"}}
text = ptx(triton_product._product, PRODUCT, factors, "i32", 90)
assert "wgmma" in text
print("product")
"""


def test_kernels_compile_for_gpus_with_the_widest_loads(tmp_path):
    """To PTX and machine code of GPUs that need not be here; the interpreter checks neither types nor alignment."""
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True)
    assert run.stdout.split() == [*KERNELS, "product"], run.stderr


def test_the_word_is_one_of_the_words():
    group = {"params": [torch.nn.Parameter(torch.ones(2, 2))], "norm": "row", "layout": "out,in", "scale": 1.0}
    with pytest.raises(ValueError, match="unknown implementation 'cuda'.*auto, c, triton, plain"):
        moga.SteepestDescent([group], 0.1, implementation="cuda")
