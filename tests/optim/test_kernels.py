"""The compiled step against float64 and against the step of tensor operations; where it is not taken, and why."""

import copy
import ctypes
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim.fast_steps import SHAPES, UPDATES, Fast, grads_of

import moga
from moga.optim.kernels import build, compiled
from moga.optim.kernels.compiled import leave, look
from moga.optim.kernels.jobs import ROWS, SIGN, jobs_of, normalised
from moga.optim.update import batched, decay, new_state

LAYOUTS = [
    {},
    {"layout": "in,out"},
    {"layout": "vector"},
    {"blocks": (2, 2, 2)},
    {"blocks": (1, 3, 2), "scale": [0.1, 0.2, 0.3]},
    {"layout": "in,out", "blocks": (1, 3, 2), "scale": [0.1, 0.2, 0.3]},
    {"layout": "in,out", "blocks": (2, 2, 2), "scale": [0.1, 0.2, 0.3]},
    {"layout": "stack,out,in"},
    {"layout": "2*out,in,k"},
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def take(weight, grad, state, group):
    assert not len(leave([weight], [grad], [state], group, decay(group), None))


FAST = Fast("c", take)
group_of, start, ran, check_errors = FAST.group_of, FAST.start, FAST.ran, FAST.check_errors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(map(str, layout.values())) or "plain")
@pytest.mark.parametrize("update", UPDATES, ids=lambda update: "-".join(map(str, update.values())))
def test_every_update_in_every_layout(update, layout, dtype):
    group = group_of(update, layout)
    shape = SHAPES.get(group["layout"], (6, 5))
    expected = ran(group, shape, dtype, grads_of(shape, 3), "plain")
    got = ran(group, shape, dtype, grads_of(shape, 3), "c")
    torch.testing.assert_close(got, expected)


sizes = st.sampled_from([0.0, 1e-44, 1e-38, 1e-25, 1e-8, 1.0, 1e30, 1e37])


@settings(max_examples=120, deadline=None)
@given(
    update=st.sampled_from([one for one in UPDATES if one["norm"] != "adam"]),
    layout=st.sampled_from(["out,in", "in,out", "vector"]),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    size=sizes,
    seed=st.integers(0, 5),
)
def test_errors_are_no_larger_than_those_of_tensor_operations(update, layout, shape, size, seed):
    group = group_of(update, layout=layout)
    check_errors(group, shape, torch.float32, grads_of(shape, 2, size, seed))


@settings(max_examples=40, deadline=None)
@given(shape=st.tuples(st.integers(1, 9), st.integers(1, 40)), size=st.sampled_from([0.0, 1e-25, 1.0, 1e15]))
def test_errors_of_adam(shape, size):
    check_errors(group_of(norm="adam"), shape, torch.float32, grads_of(shape, 3, size))


@pytest.mark.parametrize("layout", ["out,in", "in,out"])
@pytest.mark.parametrize("update", UPDATES, ids=lambda update: "-".join(map(str, update.values())))
def test_errors_over_many_entries_are_those_of_tensor_operations(update, layout):
    """In the mean over entries no luck is left, and no allowance is needed but for results that are exact."""
    group, shape = group_of(update, layout=layout), (64, 300)
    grads = grads_of(shape, 3)
    exact, plain, fast = (ran(group, shape, torch.float32, grads, way, 0.0) for way in ("float64", "plain", "c"))
    for a, b, c in zip(exact, plain, fast, strict=True):
        limit = 2 * (b.double() - a).square().mean().sqrt() + 1e-9 * a.abs().max()
        assert (c.double() - a).square().mean().sqrt() <= limit


def test_a_planted_error_is_found(monkeypatch):
    monkeypatch.setattr(compiled, "lookahead", lambda group: 0.810002)  # momentum squared is 0.81
    with pytest.raises(AssertionError):
        check_errors(group_of(norm="row"), (6, 50), torch.float32, grads_of((6, 50), 3))


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: "-".join(map(str, update.values())))
@pytest.mark.parametrize("layout", ["out,in", "in,out"])
def test_threads_change_no_bit(update, layout):
    group, results, before = group_of(update, layout=layout), [], torch.get_num_threads()
    try:
        for threads in (1, 2, 5):  # tasks of 32,064, 16,384 and 16,384 entries
            torch.set_num_threads(threads)
            results.append(ran(group, (768, 668), torch.float32, grads_of((768, 668), 2), "c"))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["out,in", "in,out"])
@pytest.mark.parametrize("norm", ["row", "column"])
@pytest.mark.parametrize("shape", [(70, 63), (3, 767), (9, 769), (2, 4096), (3, 5001), (2, 20011)])
def test_runs_around_the_lengths_at_which_loops_are_cut(norm, layout, shape, dtype):
    """64 entries at a time, 768 ahead, 4096 columns and 16384 entries a task; the shortest runs are shorter than 16."""
    group, before = group_of(norm=norm, layout=layout), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        got = ran(group, shape, dtype, grads_of(shape, 2), "c")
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(got, ran(group, shape, dtype, grads_of(shape, 2), "plain"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_is_found_wherever_it_is(dtype):
    group, before = group_of(norm="row"), torch.get_num_threads()
    numbers = torch.finfo(dtype)
    grads = [torch.full((n,), most, dtype=dtype) for n, most in ((0, 0.0), (3, numbers.max), (70001, numbers.min))]
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert look(group, grads) == (True, [])
            for i, place in ((1, 0), (1, 2), *((2, at) for at in (0, 4096, 12287, 16383, 16384, 70000))):
                for bad in (math.nan, math.inf, -math.inf):
                    grads[i][place] = bad
                    assert look(group, grads) == (False, [])
                grads[i][place] = numbers.tiny
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("words", [{"implementation": "plain"}, {"norm": "spectral"}, {"implementation": "triton"}])
def test_gradients_of_groups_without_a_compiled_step_are_looked_at_elsewhere(words):
    grads = [torch.ones(2, 3)]
    ok, others = look(group_of(words), grads)
    assert ok and others == grads


def test_gradients_that_the_compiled_look_does_not_take():
    grads = [torch.full((2, 3), math.nan).T, torch.full((3,), math.nan).as_subclass(torch.nn.Buffer), torch.ones(2, 3)]
    ok, others = look(group_of(norm="row"), iter(grads))
    assert ok and [id(one) for one in others] == [id(one) for one in grads[:2]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("bad", [(0,), (1,), (0, 1), ()])
def test_one_gradient_drops_the_step_of_groups_with_and_without_a_compiled_look(bad, order):
    weights = [torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2)]
    words = [{"norm": "row"}, {"norm": "row", "p": 3.0}]
    groups = [{"params": [weights[i]], "layout": "out,in", "scale": 1.0, **words[i]} for i in order]
    optimizer = moga.SteepestDescent(groups, 0.1)
    for i, weight in enumerate(weights):
        weight.grad = torch.full((2, 3), math.nan if i in bad else 1.0)
    optimizer.step()
    assert optimizer.skipped == bool(bad)
    assert all(torch.equal(weight, torch.ones(2, 3)) == bool(bad) for weight in weights)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("update", UPDATES, ids=lambda update: "-".join(map(str, update.values())))
def test_what_is_not_finite_spreads_alike(update, dtype, bad):
    group, grads = group_of(update), grads_of((4, 40), 3)
    grads[0][2, 3] = bad
    expected, got = (ran(group, (4, 40), dtype, grads, way) for way in ("plain", "c"))
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert any(one.isnan().any() for one in got) or group["norm"] == "adam"


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: "-".join(map(str, update.values())))
def test_a_dropped_step_and_a_rate_of_zero(update):
    group = group_of(update)
    weight, state = start((6, 5), torch.float32, group)
    before = copy.deepcopy((weight, state))
    nan = torch.full((6, 5), math.nan)
    assert leave([weight], [nan], [state], group, decay(group), torch.tensor(False)) == []
    torch.testing.assert_close((weight, state), before, rtol=0, atol=0)
    for rate in (0.0, torch.tensor(0.0), torch.tensor([0.0], dtype=torch.float64)):
        assert leave([weight], [torch.ones(6, 5)], [state], group | {"lr": rate}, 0.2, torch.tensor(True)) == []
        assert torch.equal(weight, before[0])


def test_many_tensors_at_once_and_a_tensor_as_rate():
    group = group_of(norm="row", lr=torch.tensor(0.1))
    shapes = [(3, 4), (1, 1), (200, 300), (0, 3), (7, 1000), (1, 20000)]
    fast = [start(shape, torch.float32, group) for shape in shapes]
    slow = copy.deepcopy(fast)
    grads = [grads_of(shape, 1)[0].float() for shape in shapes]
    for made, word in ((fast, "c"), (slow, "plain")):
        batched([w for w, _ in made], grads, [state for _, state in made], group | {"implementation": word}, None)
    torch.testing.assert_close(fast, slow)


def test_autograd_learns_of_the_change():
    group = group_of(norm="sign")
    weight, state = start((2, 3), torch.float32, group)
    versions = weight._version, state["momentum_buffer"]._version
    leave([weight], [torch.ones(2, 3)], [state], group, 0.0, None)
    assert weight._version > versions[0] and state["momentum_buffer"]._version > versions[1]


@pytest.mark.parametrize(
    "words, tensor",
    [
        ({"norm": "row", "p": 3.0}, torch.ones(4, 6)),
        ({"norm": "spectral"}, torch.ones(4, 6)),
        ({"norm": "row", "constraint": "sphere"}, torch.ones(4, 6)),
        ({"norm": "row", "average": "sum"}, torch.ones(4, 6)),
        ({"norm": "row", "state_dtype": "bfloat16"}, torch.ones(4, 6)),
        ({"norm": "row", "rounding": "stochastic"}, torch.ones(4, 6, dtype=torch.bfloat16)),
        ({"norm": "row"}, torch.ones(6, 4).T),
        ({"norm": "row"}, torch.ones(4, 6, dtype=torch.float32).as_subclass(torch.nn.Buffer)),
        ({"norm": "column", "blocks": (4, 4), "interleave": 2}, torch.ones(8, 6)),
        ({"norm": "column", "layout": "in,out,k"}, torch.ones(4, 6, 2)),
        ({"norm": "row", "implementation": "plain"}, torch.ones(4, 6)),
        ({"norm": "row", "lr": torch.tensor(1, dtype=torch.int64)}, torch.ones(4, 6)),
    ],
    ids=lambda part: "-".join(map(str, part.values())) if isinstance(part, dict) else "",
)
def test_the_rest_is_left_to_tensor_operations(words, tensor):
    group = group_of(words)
    grad = torch.ones_like(tensor)
    assert list(leave([tensor], [grad], [new_state(tensor, group)], group, 0.0, None)) == [0]


def test_a_gradient_of_another_order_in_memory_is_left():
    group = group_of(norm="row")
    weight, state = start((4, 6), torch.float32, group)
    assert leave([weight], [torch.ones(6, 4).T], [state], group, 0.0, None) == [0]


def test_rows_of_one_entry_are_signs_and_kept_in_one_run():
    [job] = jobs_of((torch.Size((500,)),), group_of(layout="vector"), "row")
    assert (job.kind, job.rows, job.cols) == (SIGN, 1, 500)
    [job] = jobs_of((torch.Size((500,)),), group_of(layout="vector"), "column")
    assert (job.kind, job.rows, job.cols) == (ROWS, 1, 500)


def test_which_norms_have_a_compiled_step():
    words = {one["norm"]: normalised(group_of(one)) for one in UPDATES if "p" not in one and "q" not in one}
    assert words == {"sign": "entry", "row": "row", "column": "column", "adam": "adam"}


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """No library in the cache, and nothing remembered of earlier calls."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached = (build.library_of, build._warn, build._own_directory)
    for function in cached:
        function.cache_clear()
    yield tmp_path
    for function in cached:
        function.cache_clear()


@pytest.mark.parametrize(
    "compiler, text", [("no-such-compiler", "'no-such-compiler' is not there"), ("false", "failed to make")]
)
def test_without_a_compiler_the_word_decides(fresh, monkeypatch, compiler, text):
    monkeypatch.setenv("CC", compiler)
    group = group_of(norm="row", implementation="auto")
    weight, state = start((4, 6), torch.float32, group)
    with pytest.warns(UserWarning, match=f'{text}.*Install gcc.*implementation="plain"'):
        assert leave([weight], [weight], [state], group, 0.0, None) == [0]
    with pytest.raises(build.Unavailable, match=text):
        leave([weight], [weight], [state], group | {"implementation": "c"}, 0.0, None)


def test_the_warning_comes_once(fresh, monkeypatch, recwarn):
    monkeypatch.setenv("CC", "no-such-compiler")
    for _ in range(3):
        assert build.available("float32", "auto") is None
    assert len(recwarn) == 1


def test_no_compiler_of_any_name(fresh, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(build.Unavailable, match=r"there is no C compiler \(gcc, cc\)"):
        build.available("float32", "c")


def test_a_torch_without_threads_to_share(fresh, monkeypatch):
    monkeypatch.setattr(build.ctypes, "CDLL", lambda name: object())
    with pytest.raises(build.Unavailable, match="this torch has no GNU OpenMP"):
        build.available("float32", "c")


def place_of(fresh):
    return fresh / "moga" / f"step-float32-{build._key(build._compiler())}.so"


@pytest.mark.parametrize("kept", [0, 3000, 20000])
def test_a_library_that_was_cut_is_made_anew_and_not_loaded(fresh, kept):
    build.available("float32", "c")
    place = place_of(fresh)
    whole = place.read_bytes()
    place.unlink()  # the process has it mapped
    place.write_bytes(whole[:kept])
    build.library_of.cache_clear()
    assert not isinstance(build.available("float32", "c"), build.Unavailable)
    assert place.read_bytes() == whole


@pytest.mark.parametrize("content", [b"no library", None])
def test_a_library_that_cannot_be_loaded(fresh, monkeypatch, content):
    place = place_of(fresh)
    place.parent.mkdir()
    if content is None:  # a library without the function
        (fresh / "empty.c").write_text("int other;")
        build.subprocess.run([*build._compiler(), "-shared", "-fPIC", fresh / "empty.c", "-o", place], check=True)
    else:
        place.write_bytes(content)
    build._digest_place(place).write_text(build._digest(place))
    with pytest.raises(build.Unavailable, match="cannot be loaded .*; delete that file"):
        build.available("float32", "c")


@pytest.mark.parametrize(
    "lines, text",
    [
        ("", "cannot be made .*Exec format error"),
        ("#!/nowhere/sh", "cannot be made .*No such file"),
        ("#!/bin/sh", "cannot be made .*No such file"),
        ("#!/bin/sh\nexit 3", "failed to make the compiled step: exit code 3. Install gcc"),
    ],
)
def test_a_compiler_that_does_not_work(fresh, monkeypatch, lines, text):
    compiler = fresh / "cc"
    compiler.write_text(lines)
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(build.Unavailable, match=text):
        build.available("float32", "c")
    build.library_of.cache_clear()
    with pytest.warns(UserWarning, match=text):
        assert build.available("float32", "auto") is None


def test_a_compiler_that_is_no_word(fresh, monkeypatch):
    monkeypatch.setenv("CC", '"')
    with pytest.raises(build.Unavailable, match="names no compiler"):
        build.available("float32", "c")


def test_a_full_cache_is_left_for_a_directory_of_this_process(fresh, monkeypatch):
    made = build._compile_in

    def full(directory, *rest):
        if directory == fresh / "moga":
            raise OSError(28, "No space left on device")
        return made(directory, *rest)

    monkeypatch.setattr(build, "_compile_in", full)
    assert not isinstance(build.available("float32", "c"), build.Unavailable)


def test_a_cache_that_cannot_be_written(fresh, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert build._directory().name.startswith("moga-")
    assert build._directory() == build._directory()


def test_compiled_once_and_found_again(fresh):
    step = build.available("float16", "c")
    [made] = (fresh / "moga").glob("*.so")
    when = made.stat().st_mtime_ns
    build.library_of.cache_clear()
    assert build.available("float16", "c") is not step
    assert [one.stat().st_mtime_ns for one in (fresh / "moga").glob("*.so")] == [when]


def test_a_tensor_that_is_the_negative_of_its_memory(monkeypatch):
    weights = [torch.nn.Parameter(torch.zeros(1, 3)) for _ in range(2)]
    for weight, word in zip(weights, ("auto", "plain"), strict=True):
        optimizer = moga.optimizer([("w", weight)], "moga-row", lr=0.1, roles={"w": "hidden"}, implementation=word)
        weight.grad = torch._neg_view(torch.ones(1, 3))
        optimizer.step()
    assert torch.equal(*weights) and bool((weights[0] > 0).all())


@pytest.mark.parametrize("lr", [torch.tensor([0.1, 0.9]), "0.1"])
def test_an_lr_that_is_no_number_fails_as_in_the_plain_step(lr):
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    optimizer = moga.optimizer([("w", weight)], "moga-row", lr=0.1, roles={"w": "hidden"})
    weight.grad, optimizer.param_groups[0]["lr"] = torch.ones(2, 3), lr
    with pytest.raises((RuntimeError, TypeError)):
        optimizer.step()


def test_no_memory_for_the_tasks(monkeypatch):
    library = SimpleNamespace(moga_step=lambda *arguments: 1)
    monkeypatch.setattr(compiled, "available", lambda stored, word: library)
    group = group_of(norm="row")
    weight, state = start((4, 6), torch.float32, group)
    with pytest.raises(MemoryError, match="no memory for its list of tasks"):
        leave([weight], [weight], [state], group, 0.0, None)


def test_the_library_brings_no_threads_of_its_own(fresh):
    assert ctypes.CDLL(None).GOMP_parallel
    build.available("float32", "c")
    [made] = (fresh / "moga").glob("*.so")
    assert b"libgomp" not in made.read_bytes() and b"GOMP_parallel" in made.read_bytes()
