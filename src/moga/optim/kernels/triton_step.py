"""One step of many matrices in one launch on a GPU; ``step.c`` says the same for a CPU, ``update.py`` in operations.

A launch reads three tables on the device, so it does not depend on how many tensors there are:

    tasks      (programs, 2) int32: the job of a program, and which of its parts
    jobs       (jobs, 7) int64: as :class:`moga.optim.kernels.jobs.Job`, the bits of its float64 scale among them
    addresses  (tensors, 5) int64: weight, gradient, averages, step count; 0 where there is none

A part is a tile of R x C entries. STORED is float32, float16, or uint16 for the bits of bfloat16, whose conversions are
then the same on every device and in Triton's interpreter. Averages and arithmetic are float32, sums float64: its
exponent has room for every square, so no sum overflows or vanishes. The order of a sum does not depend on timing.

``finite`` is the address of a boolean, or None: where it holds False, no program writes. ``lr`` is a number or the
address of one; t1 and t2 are 1 - b1 and so on, or b1 itself where FAR: see :func:`lerp`.
"""

import triton
import triton.language as tl

ROOM, TENSOR, OFFSET, ROWS, COLS, STRIDE, SCALE, WORDS = [tl.constexpr(i) for i in range(8)]  # of a job
WEIGHT, GRAD, FIRST, SECOND, STEP, KEYS = [tl.constexpr(i) for i in range(6)]  # of a tensor
NAN, INF = tl.constexpr(float("nan")), tl.constexpr(float("inf"))


@triton.jit
def widen(x):
    """float32 of what is stored."""
    if x.dtype == tl.uint16:
        return (x.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def narrow(y, STORED: tl.constexpr):
    """What is stored of float32: to the nearest, ties to even."""
    if STORED == tl.uint16:
        bits = y.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(y != y, 0x7FC0, rounded).to(tl.uint16)  # a NaN must not round to Inf
    return y.to(STORED)


@triton.jit
def lerp(a, b, t, FAR: tl.constexpr):
    """``a + t (b - a)``, or ``b + t (a - b)`` where FAR: from the nearer end, so that a = b stays as it is."""
    if FAR:
        return tl.fma(t, a - b, b)
    return tl.fma(t, b - a, a)


@triton.jit
def dropped(finite):
    """Whether the step is dropped."""
    if finite is None:
        return False
    return tl.load(finite) == 0


@triton.jit
def task_of(tasks, jobs):
    """The job of this program, and which part of it."""
    task = tasks + 2 * tl.program_id(0)
    return jobs + tl.load(task) * WORDS, tl.load(task + 1)


@triton.jit
def sizes(lr, lr_scale, decay, scale, LR_ON_DEVICE: tl.constexpr):
    """What the weight is multiplied by (float32), and the size of its step (float64)."""
    rate = tl.cast(tl.load(lr) if LR_ON_DEVICE else lr, tl.float64) * lr_scale
    return (1 - rate * decay).to(tl.float32), rate * scale


@triton.jit
def place_of(addresses, job, KEY: tl.constexpr, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Where the job's matrix begins in one of the tensors."""
    start = tl.load(addresses + tl.load(job + TENSOR) * KEYS + KEY).to(tl.pointer_type(TYPE)) + tl.load(job + OFFSET)
    return tl.multiple_of(start, 16) if ALIGNED else start


@triton.jit
def places_of(addresses, job, STORED: tl.constexpr, ALIGNED: tl.constexpr):
    """Where the job's matrix begins in weight, gradient and momentum."""
    W = place_of(addresses, job, WEIGHT, STORED, ALIGNED)
    G = place_of(addresses, job, GRAD, STORED, ALIGNED)
    return W, G, place_of(addresses, job, FIRST, tl.float32, ALIGNED)


@triton.jit
def number_of(job, WORD: tl.constexpr, ALIGNED: tl.constexpr):
    """A number of the job; ALIGNED: all its numbers of entries are multiples of 16."""
    number = tl.load(job + WORD)
    return tl.multiple_of(number, 16) if ALIGNED else number


@triton.jit
def tile(job, top, left, R: tl.constexpr, C: tl.constexpr, ALIGNED: tl.constexpr):
    """Places (R, C) of entries of a matrix, and which of them there are."""
    i, j = top + tl.arange(0, R).to(tl.int64), left + tl.arange(0, C)
    here = (i < tl.load(job + ROWS))[:, None] & (j < number_of(job, COLS, ALIGNED))[None, :]
    return i[:, None] * number_of(job, STRIDE, ALIGNED) + j[None, :], here


@triton.jit
def look(G, M, at, here, t, FAR: tl.constexpr, KEPT: tl.constexpr):
    """The gradient, the momentum before this step, and the lookahead: all the gradient without a momentum."""
    g = widen(tl.load(G + at, mask=here, other=0))
    if KEPT:
        m = tl.load(M + at, mask=here, other=0.0)
        return g, m, lerp(g, m, t, FAR)
    return g, g, g


@triton.jit
def write(W, M, at, here, g, m, D, keep, t, FAR: tl.constexpr, KEPT: tl.constexpr, STORED: tl.constexpr):
    """``W <- keep W - D``, and the step of the momentum."""
    if KEPT:
        tl.store(M + at, lerp(m, g, t, FAR), mask=here)
    w = widen(tl.load(W + at, mask=here, other=0))
    tl.store(W + at, narrow(w * keep - D, STORED), mask=here)


@triton.jit
def factors(total, size):
    """Two numbers whose product is size over the root of ``total``, the first one a power of two.

    One over the norm, and size over it, need not be numbers of float32. Zero stays zero; what is not finite gives NaN.
    """
    norm = tl.sqrt(total)
    exponent = (norm.to(tl.int64, bitcast=True) >> 52) - 1023
    a = ((127 - tl.minimum(tl.maximum(exponent, -126), 126)) << 23).to(tl.int32).to(tl.float32, bitcast=True)
    b = size / (tl.where(norm > 0, norm, 1.0) * a.to(tl.float64))
    b = tl.where(norm == 0, 0.0, tl.where(norm < INF, b, NAN))
    return a, b.to(tl.float32)


@triton.jit
def sign_step(
    tasks, jobs, addresses, finite, lr, lr_scale, decay, t1, t2,
    LR_ON_DEVICE: tl.constexpr, FAR1: tl.constexpr, FAR2: tl.constexpr, KEPT: tl.constexpr,
    STORED: tl.constexpr, ALIGNED: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """``D = sign(L)``; NaN where L is not finite."""
    if dropped(finite):
        return
    job, part = task_of(tasks, jobs)
    W, G, M = places_of(addresses, job, STORED, ALIGNED)
    across = tl.cdiv(tl.load(job + COLS), C)
    at, here = tile(job, part // across * R, part % across * C, R, C, ALIGNED)
    keep, size = sizes(lr, lr_scale, decay, tl.load(job + SCALE).to(tl.float64, bitcast=True), LR_ON_DEVICE)
    g, m, L = look(G, M, at, here, t2, FAR2, KEPT)
    D = (L > 0).to(tl.float32) - (L < 0).to(tl.float32) + 0 * L
    write(W, M, at, here, g, m, D * size.to(tl.float32), keep, t1, FAR1, KEPT, STORED)


@triton.jit
def row_step(
    tasks, jobs, addresses, finite, lr, lr_scale, decay, t1, t2,
    LR_ON_DEVICE: tl.constexpr, FAR1: tl.constexpr, FAR2: tl.constexpr, KEPT: tl.constexpr,
    STORED: tl.constexpr, ALIGNED: tl.constexpr, R: tl.constexpr, C: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """``D = L / norm_2(L)`` by rows; ONCE: a row is one tile and stays in registers between its two looks."""
    if dropped(finite):
        return
    job, part = task_of(tasks, jobs)
    W, G, M = places_of(addresses, job, STORED, ALIGNED)
    cols = tl.load(job + COLS)
    keep, size = sizes(lr, lr_scale, decay, tl.load(job + SCALE).to(tl.float64, bitcast=True), LR_ON_DEVICE)
    if ONCE:
        at, here = tile(job, part * R, 0, R, C, ALIGNED)
        g, m, L = look(G, M, at, here, t2, FAR2, KEPT)
        wide = L.to(tl.float64)
        a, b = factors(tl.sum(wide * wide, 1), size)
        write(W, M, at, here, g, m, L * a[:, None] * b[:, None], keep, t1, FAR1, KEPT, STORED)
    else:
        total = tl.zeros((R,), tl.float64)
        for left in range(0, cols, C):
            at, here = tile(job, part * R, left, R, C, ALIGNED)
            g, m, L = look(G, M, at, here, t2, FAR2, KEPT)
            wide = L.to(tl.float64)
            total += tl.sum(wide * wide, 1)
        a, b = factors(total, size)
        for left in range(0, cols, C):
            at, here = tile(job, part * R, left, R, C, ALIGNED)
            g, m, L = look(G, M, at, here, t2, FAR2, KEPT)
            write(W, M, at, here, g, m, L * a[:, None] * b[:, None], keep, t1, FAR1, KEPT, STORED)


@triton.jit
def column_sums(
    tasks, jobs, addresses, finite, sums, t2,
    FAR2: tl.constexpr, KEPT: tl.constexpr, STORED: tl.constexpr, ALIGNED: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, DOWN: tl.constexpr,
):  # fmt: skip
    """The squares of L, summed over the rows of each part: (parts, cols) from the job's ROOM in ``sums`` on."""
    if dropped(finite):
        return
    job, part = task_of(tasks, jobs)
    G = place_of(addresses, job, GRAD, STORED, ALIGNED)
    M = place_of(addresses, job, FIRST, tl.float32, ALIGNED)
    cols = tl.load(job + COLS)
    across = tl.cdiv(cols, C)
    total = tl.zeros((C,), tl.float64)
    first = part // across * DOWN
    for down in range(first, tl.minimum(first + DOWN, tl.cdiv(tl.load(job + ROWS), R))):
        at, here = tile(job, down * R, part % across * C, R, C, ALIGNED)
        _, _, L = look(G, M, at, here, t2, FAR2, KEPT)
        wide = L.to(tl.float64)
        total += tl.sum(wide * wide, 0)
    j = part % across * C + tl.arange(0, C)
    tl.store(sums + tl.load(job + ROOM) + part // across * cols + j, total, mask=j < cols)


@triton.jit
def column_step(
    tasks, jobs, addresses, finite, sums, lr, lr_scale, decay, t1, t2,
    LR_ON_DEVICE: tl.constexpr, FAR1: tl.constexpr, FAR2: tl.constexpr, KEPT: tl.constexpr,
    STORED: tl.constexpr, ALIGNED: tl.constexpr, R: tl.constexpr, C: tl.constexpr, DOWN: tl.constexpr,
):  # fmt: skip
    """``D = L / norm_2(L)`` by columns, after :func:`column_sums`."""
    if dropped(finite):
        return
    job, part = task_of(tasks, jobs)
    W, G, M = places_of(addresses, job, STORED, ALIGNED)
    rows, cols = tl.load(job + ROWS), tl.load(job + COLS)
    across = tl.cdiv(cols, C)
    keep, size = sizes(lr, lr_scale, decay, tl.load(job + SCALE).to(tl.float64, bitcast=True), LR_ON_DEVICE)
    j = part % across * C + tl.arange(0, C)
    own = sums + tl.load(job + ROOM) + j
    total = tl.zeros((C,), tl.float64)
    for above in range(tl.cdiv(rows, R * DOWN)):
        total += tl.load(own + above * cols, mask=j < cols, other=0.0)
    a, b = factors(total, size)
    first = part // across * DOWN
    for down in range(first, tl.minimum(first + DOWN, tl.cdiv(rows, R))):
        at, here = tile(job, down * R, part % across * C, R, C, ALIGNED)
        g, m, L = look(G, M, at, here, t2, FAR2, KEPT)
        write(W, M, at, here, g, m, L * a[None, :] * b[None, :], keep, t1, FAR1, KEPT, STORED)


@triton.jit
def adam_step(
    tasks, jobs, addresses, finite, lr, lr_scale, decay, t1, t2, log1, log2, eps,
    LR_ON_DEVICE: tl.constexpr, FAR1: tl.constexpr, FAR2: tl.constexpr,
    STORED: tl.constexpr, ALIGNED: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """``D = m / (sqrt(v) + eps)`` with bias-corrected averages; log1 and log2 are those of the betas.

    The count of steps has been advanced before: many programs share it.
    """
    if dropped(finite):
        return
    job, part = task_of(tasks, jobs)
    W, G, M = places_of(addresses, job, STORED, ALIGNED)
    V = place_of(addresses, job, SECOND, tl.float32, ALIGNED)
    across = tl.cdiv(tl.load(job + COLS), C)
    at, here = tile(job, part // across * R, part % across * C, R, C, ALIGNED)
    keep, size = sizes(lr, lr_scale, decay, tl.load(job + SCALE).to(tl.float64, bitcast=True), LR_ON_DEVICE)
    count = tl.load(addresses + tl.load(job + TENSOR) * KEYS + STEP).to(tl.pointer_type(tl.float32))
    t = tl.load(count).to(tl.float64)
    size /= 1 - tl.exp(t * log1)
    root = 1 / tl.sqrt(1 - tl.exp(t * log2))
    g = widen(tl.load(G + at, mask=here, other=0))
    mean = lerp(tl.load(M + at, mask=here, other=0.0), g, t1, FAR1)
    square = lerp(tl.load(V + at, mask=here, other=0.0), g * g, t2, FAR2)
    square = tl.where(square != square, INF, square)  # Inf - Inf; a NaN of the gradient is in `mean` too
    below = tl.sqrt_rn(square) * root.to(tl.float32) + eps
    rests = below == 0  # eps = 0: an entry that never had a gradient
    D = tl.where(rests, 0.0, tl.div_rn(mean, tl.where(rests, 1.0, below)))
    tl.store(M + at, mean, mask=here)
    tl.store(V + at, square, mask=here)
    w = widen(tl.load(W + at, mask=here, other=0))
    tl.store(W + at, narrow(w * keep - D * size.to(tl.float32), STORED), mask=here)
