/* One step of many matrices in one pass over memory; moga/optim/update.py says the same in tensor operations.
 *
 * Compiled once for each dtype of the weights: STORED is that dtype, `real` the one of state and arithmetic, `wide` the
 * one of sums: its exponent has room for the square of every `real`, so no sum overflows or vanishes and no entry has
 * to be scaled first. No result depends on the number of threads: a row, and a column, is summed by one thread in one
 * order, and without contraction to fused multiply-adds every entry is rounded alike wherever a loop is cut.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(STORED_float64)
typedef double real, stored;
typedef long double wide;
#define ROOT sqrtl
#else
typedef float real;
typedef double wide;
#define ROOT sqrt
#endif

#if defined(STORED_bfloat16)
typedef uint16_t stored, bits_of_stored;
static inline real widen(stored x) {
    uint32_t bits = (uint32_t)x << 16;
    real y;
    memcpy(&y, &bits, sizeof y);
    return y;
}
static inline stored narrow(real y) { /* to the nearest, ties to even; a NaN must not round to Inf */
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (stored)(y != y ? 0x7fc0 : rounded);
}
#else
#if defined(STORED_float16)
typedef _Float16 stored;
typedef uint16_t bits_of_stored;
#elif defined(STORED_float32)
typedef float stored;
typedef uint32_t bits_of_stored;
#else
typedef uint64_t bits_of_stored;
#endif
static inline real widen(stored x) { return (real)x; }
static inline stored narrow(real y) { return (stored)y; }
#endif

enum { SIGN, ROWS, COLUMNS, ADAM }; /* of the stored order: ROWS normalises runs of `cols` entries, one after another */
enum { CHUNK = 1 << 14, PIECE = 1 << 19 };  /* the least and the most entries of a task */
enum { STRIPE = 1 << 12, BLOCK = 64 };      /* columns of a task; rows */
enum { PART = 64, SOON = 768 };             /* entries, and partial sums, that are taken at a time; how far ahead */
enum { FRONTS = 4 };                                    /* places of a chunk that are looked at in turn */
enum { WEIGHT, GRAD, FIRST, SECOND, STEP, KEYS }; /* addresses of a tensor; FIRST is 0 without momentum */

typedef struct { /* a matrix within a tensor: `rows` runs of `cols` entries, `stride` entries apart */
    int64_t kind, tensor, offset, rows, cols, stride;
    double scale;
} Job;

typedef struct {
    double lr, decay, b1, b2, eps; /* decay is multiplied by lr; b1, b2: momentum and lookahead, or Adam's betas */
} Numbers;

typedef struct { /* one matrix of this step */
    stored *weight;
    const stored *grad;
    real *first, *second;
    double size; /* lr times scale, for Adam over the bias of the first average too */
    double root; /* Adam: one over the square root of the bias of the second average */
} Matrix;

static inline int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* a b + c with one rounding where the processor has it, as torch's lerp */
static inline real fused(real a, real b, real c) {
#if defined(FP_FAST_FMA) && defined(FP_FAST_FMAF)
    return sizeof(real) == 4 ? (real)fmaf(a, b, c) : (real)fma(a, b, c);
#else
    return a * b + c;
#endif
}

typedef struct { /* of a + t (b - a) */
    real t;
    int far;
} Mix;

static inline Mix mix(double t) { return (Mix){(real)(t < 0.5 ? t : 1 - t), !(t < 0.5)}; }

/* a + t (b - a) from the nearer end: `b` itself at t = 1 and where a == b */
static inline real lerp(real a, real b, Mix c) {
    real from = c.far ? b : a, to = c.far ? a : b;
    return fused(c.t, to - from, from);
}

/* The two factors whose product is size / norm, the first a power of two near 1 / norm: x * a * b is then the quotient
 * also where one over the norm, or the size over it, is not a number of `real`. Zero stays zero; not finite is NaN. */
static inline void inverse(wide sum, double size, real *a, real *b) {
    const double most = sizeof(real) == 4 ? 0x1p126 : 0x1p1022;
    wide norm = ROOT(sum);
    double power = (double)norm;
    uint64_t bits;
    memcpy(&bits, &power, sizeof bits);
    bits &= 0x7ffULL << 52; /* without its fraction a number is a power of two, Inf or 0 */
    memcpy(&power, &bits, sizeof bits);
    power = power > most ? most : power < 1 / most ? 1 / most : power;
    *a = (real)(1 / power), *b = (real)(size / (norm / power));
    if (!(norm > 0 && isfinite(norm))) *a = 1, *b = norm == 0 ? 0 : (real)NAN;
}

#define INLINE static inline __attribute__((always_inline))

/* The entries from k to `end`, PART at a time */
#define PARTS(k, end, n) for (int64_t k = 0, end; end = k + PART < (n) ? k + PART : (n), k < (n); k = end)

/* Ask for the memory of PART entries that will be needed soon; where there is none, nothing happens. The processor
 * fetches ahead by itself only within a page and a direction, which is a third slower here. */
INLINE void fetch(const void *from, int64_t entry, const int written) {
    for (int64_t k = 0; k < PART * entry; k += 64) __builtin_prefetch((const char *)from + k, written);
}

/* L of entry j; `kept` says whether there is a momentum */
#define AHEAD(g, m, j) (kept ? lerp(widen((g)[j]), (m)[j], ahead) : widen((g)[j]))

INLINE void sign_run(const Matrix *X, int64_t at, int64_t n, Numbers c, const int kept) {
    stored *restrict w = X->weight + at;
    const stored *restrict g = X->grad + at;
    real *restrict m = kept ? X->first + at : 0;
    const real keep = 1 - c.lr * c.decay, size = X->size;
    const Mix ahead = mix(c.b2), rate = mix(1 - c.b1);
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        real L = AHEAD(g, m, j), D = (real)((L > 0) - (L < 0)) + 0 * L; /* NaN where L is not finite */
        if (kept) m[j] = lerp(m[j], widen(g[j]), rate);
        w[j] = narrow(widen(w[j]) * keep - D * size);
    }
}

/* The second look finds g and m in the cache, and w, for which the first has asked. Many partial sums, as each waits
 * for the one before it. `next` is how far away the next row is, or 0. */
INLINE void row(const Matrix *X, int64_t at, int64_t n, int64_t next, Numbers c, const int kept) {
    stored *restrict w = X->weight + at;
    const stored *restrict g = X->grad + at;
    real *restrict m = kept ? X->first + at : 0;
    const real keep = 1 - c.lr * c.decay;
    const Mix ahead = mix(c.b2), rate = mix(1 - c.b1);
    wide sums[PART] = {0};
    real a, b;
    PARTS(k, end, n) {
        fetch(w + k, sizeof *w, 1);
#pragma omp simd
        for (int64_t j = k; j < end; j++) {
            wide L = AHEAD(g, m, j);
            sums[j - k] += L * L;
        }
    }
    for (int64_t half = PART / 2; half; half /= 2)
        for (int64_t j = 0; j < half; j++) sums[j] += sums[j + half];
    inverse(sums[0], X->size, &a, &b);
    PARTS(k, end, n) {
        if (next) fetch(g + k + next, sizeof *g, 0);
        if (next && kept) fetch(m + k + next, sizeof *m, 1);
#pragma omp simd
        for (int64_t j = k; j < end; j++) {
            real L = AHEAD(g, m, j);
            if (kept) m[j] = lerp(m[j], widen(g[j]), rate);
            w[j] = narrow(widen(w[j]) * keep - L * a * b);
        }
    }
}

/* n <= STRIPE columns. The second look takes the blocks of rows backwards: the last ones are still in the cache, and
 * within a block forwards, as what is fetched ahead. Rows are read whole: narrow stripes that fit into a cache cost a
 * page each, which is more than what they save. */
INLINE void columns(const Matrix *X, int64_t at, int64_t n, const Job *job, Numbers c, const int kept) {
    const int64_t rows = job->rows, stride = job->stride;
    /* what lies SOON entries ahead in the stripe, before and after the end of the run */
    const int64_t wrap = n > SOON ? n - SOON : 0, beyond = n > SOON ? SOON + stride - n : ceiling(SOON, n) * stride;
    const real keep = 1 - c.lr * c.decay;
    const Mix ahead = mix(c.b2), rate = mix(1 - c.b1);
    wide sums[STRIPE];
    real a[STRIPE], b[STRIPE];
    for (int64_t j = 0; j < n; j++) sums[j] = 0;
    for (int64_t i = 0; i < rows; i++) {
        const stored *restrict g = X->grad + at + i * stride;
        const real *restrict m = kept ? X->first + at + i * stride : 0;
        PARTS(k, end, n) {
            const int64_t soon = k + (k < wrap ? SOON : beyond);
            fetch(g + soon, sizeof *g, 0);
            if (kept) fetch(m + soon, sizeof *m, 0);
#pragma omp simd
            for (int64_t j = k; j < end; j++) {
                wide L = AHEAD(g, m, j);
                sums[j] += L * L;
            }
        }
    }
    for (int64_t j = 0; j < n; j++) inverse(sums[j], X->size, a + j, b + j);
    for (int64_t block = (rows - 1) / BLOCK; block >= 0; block--)
        for (int64_t i = block * BLOCK; i < rows && i < (block + 1) * BLOCK; i++) {
            stored *restrict w = X->weight + at + i * stride;
            const stored *restrict g = X->grad + at + i * stride;
            real *restrict m = kept ? X->first + at + i * stride : 0;
            PARTS(k, end, n) {
                const int64_t soon = k + (k < wrap ? SOON : beyond);
                fetch(w + soon, sizeof *w, 1);
                fetch(g + soon, sizeof *g, 0);
                if (kept) fetch(m + soon, sizeof *m, 1);
#pragma omp simd
                for (int64_t j = k; j < end; j++) {
                    real L = AHEAD(g, m, j);
                    if (kept) m[j] = lerp(m[j], widen(g[j]), rate);
                    w[j] = narrow(widen(w[j]) * keep - L * a[j] * b[j]);
                }
            }
        }
}

static void adam_run(const Matrix *X, int64_t at, int64_t n, Numbers c) {
    stored *restrict w = X->weight + at;
    const stored *restrict g = X->grad + at;
    real *restrict m = X->first + at, *restrict v = X->second + at;
    const real keep = 1 - c.lr * c.decay, size = X->size, root = X->root, eps = c.eps;
    const Mix rate = mix(1 - c.b1), slow = mix(1 - c.b2);
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        real x = widen(g[j]), mean = lerp(m[j], x, rate), square = lerp(v[j], x * x, slow);
        square = square != square ? (real)INFINITY : square; /* Inf - Inf; a NaN of the gradient is in `mean` too */
        real below = (real)sqrt(square) * root + eps;
        real D = below == 0 ? 0 : mean / below; /* eps = 0: an entry that never had a gradient rests */
        m[j] = mean, v[j] = square;
        w[j] = narrow(widen(w[j]) * keep - D * size);
    }
}

/* How finely work is cut: the entries of a task, and into how many stripes of columns a matrix may be cut. Both are to
 * keep all threads busy: the larger a task, the longer the processor reads on from where it is. */
typedef struct {
    int64_t piece, share;
} Grain;

/* The tasks of a job: whole rows, whole columns, or entries. No result depends on where it is cut. */
typedef struct {
    int64_t down, across; /* rows and columns of one task */
    int64_t count;
} Cut;

static Cut cut(const Job *job, Grain grain) {
    Cut x = {1, grain.piece, 0};
    if (job->rows == 0 || job->cols == 0) return x;
    if (job->kind == COLUMNS) {
        int64_t width = ceiling(ceiling(job->cols, grain.share), 64) * 64;
        x.down = job->rows, x.across = width < STRIPE ? width : STRIPE;
    } else if (job->kind == ROWS || job->cols <= x.across) x.down = ceiling(x.across, job->cols), x.across = job->cols;
    x.count = ceiling(job->rows, x.down) * ceiling(job->cols, x.across);
    return x;
}

INLINE void run(const Matrix *X, const Job *job, Cut x, int64_t part, Numbers c, const int kept) {
    int64_t across = ceiling(job->cols, x.across), from = part % across * x.across, top = part / across * x.down;
    int64_t n = job->cols - from < x.across ? job->cols - from : x.across;
    if (job->kind == COLUMNS) {
        columns(X, from, n, job, c, kept);
        return;
    }
    for (int64_t i = top; i < job->rows && i < top + x.down; i++) {
        int64_t at = i * job->stride + from;
        int last = i + 1 == job->rows || n > CHUNK; /* or too long to stay in a cache */
        if (job->kind == ROWS) row(X, at, n, last ? 0 : job->stride, c, kept);
        else if (job->kind == SIGN) sign_run(X, at, n, c, kept);
        else adam_run(X, at, n, c);
    }
}

static Matrix matrix(const Job *job, int64_t *const *at, Numbers c) {
    int64_t *const *its = at + KEYS * job->tensor;
    Matrix X = {(stored *)its[WEIGHT] + job->offset, (stored *)its[GRAD] + job->offset, 0, 0, c.lr * job->scale, 1};
    if (its[FIRST]) X.first = (real *)its[FIRST] + job->offset;
    if (job->kind == ADAM) {
        double t = *(float *)its[STEP];
        X.second = (real *)its[SECOND] + job->offset;
        X.size /= 1 - pow(c.b1, t);
        X.root = 1 / sqrt(1 - pow(c.b2, t));
    }
    return X;
}

/* |x| as an integer, which is in the order of the numbers; a NaN is above Inf */
static inline bits_of_stored magnitude(stored x) {
    const bits_of_stored sign = (bits_of_stored)1 << (8 * sizeof sign - 1);
    bits_of_stored bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & (bits_of_stored)~sign;
}

/* Whether n entries are finite. The processor fetches ahead at FRONTS places twice as fast as at one. */
static int all_finite(const stored *x, int64_t n) {
    const int64_t each = n / FRONTS / PART * PART;
    bits_of_stored most[PART] = {0};
    for (int64_t k = 0; k < each; k += PART)
        for (int64_t front = 0; front < FRONTS; front++)
#pragma omp simd
            for (int64_t j = 0; j < PART; j++) {
                bits_of_stored size = magnitude(x[front * each + k + j]);
                most[j] = most[j] > size ? most[j] : size;
            }
    for (int64_t j = FRONTS * each; j < n; j++) {
        bits_of_stored size = magnitude(x[j]);
        most[0] = most[0] > size ? most[0] : size;
    }
    for (int64_t j = 1; j < PART; j++) most[0] = most[0] > most[j] ? most[0] : most[j];
    return most[0] < magnitude(narrow(INFINITY));
}

/* Whether all entries are finite. at: the address and the number of entries of each tensor. */
int moga_finite(const int64_t *at, int64_t tensors, int threads) {
    int bad = 0;
    for (int64_t i = 0; i < tensors && !bad; i++) {
        const stored *x = (const stored *)at[2 * i];
        const int64_t n = at[2 * i + 1];
#pragma omp parallel for reduction(| : bad) num_threads(threads) if (threads > 1 && n > 4 * CHUNK)
        for (int64_t part = 0; part < ceiling(n, CHUNK); part++)
            bad |= !all_finite(x + part * CHUNK, (part + 1) * CHUNK < n ? CHUNK : n - part * CHUNK);
    }
    return !bad;
}

/* at: KEYS addresses for each tensor. Returns 0, or 1 where there was no memory (then nothing was changed). */
int moga_step(int64_t *const *at, int64_t tensors, const Job *jobs, int64_t count, Numbers c, int threads) {
    int64_t *ends = malloc((count + 1) * sizeof *ends), total = 0, entries = 0;
    if (!ends) return 1;
    for (int64_t k = 0; k < count; k++) entries += jobs[k].rows * jobs[k].cols;
    const int64_t piece = entries / (16 * threads);
    const Grain grain = {piece < CHUNK ? CHUNK : piece > PIECE ? PIECE : piece, count < 2 * threads ? threads : 1};
    for (int64_t k = 0; k < count; k++) ends[k] = total += cut(jobs + k, grain).count;
    for (int64_t i = 0; i < tensors; i++)
        if (at[KEYS * i + STEP]) *(float *)at[KEYS * i + STEP] += 1;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1 && entries > 4 * CHUNK)
    for (int64_t task = 0; task < total; task++) {
        int64_t low = 0, high = count - 1; /* the first job that ends after this task */
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (ends[middle] > task) high = middle;
            else low = middle + 1;
        }
        const Job *job = jobs + low;
        Matrix X = matrix(job, at, c);
        int64_t part = task - (low ? ends[low - 1] : 0);
        if (X.first) run(&X, job, cut(job, grain), part, c, 1);
        else run(&X, job, cut(job, grain), part, c, 0);
    }
    free(ends);
    return 0;
}
