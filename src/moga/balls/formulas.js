"use strict";
// The twin of moga.geometry for vectors [x, y] and 2 x 2 matrices [a, b, c, d] with the rows (a, b) and (c, d).
// Every norm has size, dual and direction; a test holds their numbers to those of the library.
const geometry = (() => {
  const EPSILON = Number.EPSILON;
  const nonzero = (divisor) => divisor || 1; // zero divided by its size stays zero
  const over = (x, divisor) => x.map((entry) => entry / nonzero(divisor));
  const times = (factor, x) => x.map((entry) => factor * entry);
  const dot = (x, y) => x.reduce((total, entry, index) => total + entry * y[index], 0);
  const largest = (x) => Math.max(...x.map(Math.abs));
  const sum = (x) => x.reduce((total, entry) => total + Math.abs(entry), 0);
  const length = (x) => Math.hypot(...x);
  const unit = (x) => over(x, largest(x)); // entries of at most 1: no square overflows or vanishes

  const signs = (x) => unit(x).map(Math.sign);
  const along = (x) => over(unit(x), length(unit(x)));
  const shared = (x) => { // all on the largest entry; equal largest ones share it
    const top = unit(x).map((entry) => (Math.abs(entry) === 1 ? entry : 0));
    return over(top, sum(top));
  };

  const vectors = {
    l2: { size: length, dual: length, direction: along },
    linf: { size: largest, dual: sum, direction: signs },
    l1: { size: sum, dual: largest, direction: shared },
  };

  // sqrt(x^T M x) for M = [[a, b], [b, c]], positive definite.
  const mahalanobis = ([a, b, c]) => {
    const apply = ([x, y]) => [a * x + b * y, b * x + c * y];
    const solve = ([x, y]) => over([c * x - b * y, a * y - b * x], a * c - b * b);
    const root = (x, map) => Math.sqrt(dot(x, map(x)));
    return {
      size: (x) => largest(x) * root(unit(x), apply),
      dual: (g) => largest(g) * root(unit(g), solve),
      direction: (g) => over(solve(unit(g)), root(unit(g), solve)),
    };
  };

  // The eigenvalues of M and the angle of its first axis, in degrees, to the entries [a, b, c].
  const definite = ([first, second], degrees) => {
    const cos = Math.cos((degrees * Math.PI) / 180);
    const sin = Math.sin((degrees * Math.PI) / 180);
    return [
      first * cos * cos + second * sin * sin,
      (first - second) * cos * sin,
      first * sin * sin + second * cos * cos,
    ];
  };

  // Every 2 x 2 matrix is a turn [[e, -h], [h, e]] plus a flip [[f, k], [k, -f]], of sizes t and s: its singular values
  // are t + s and |t - s|, and its polar factor is the larger part at size 1.
  const parts = ([a, b, c, d]) => {
    const [e, h, f, k] = [(a + d) / 2, (c - b) / 2, (a - d) / 2, (b + c) / 2];
    return { turn: [e, -h, h, e], flip: [f, k, k, -f], t: Math.hypot(e, h), s: Math.hypot(f, k) };
  };
  const singular = (G) => {
    const { t, s } = parts(unit(G));
    return times(largest(G), [t + s, Math.abs(t - s)]);
  };
  const rank = (G) => {
    const [first, second] = singular(unit(G));
    return first === 0 ? 0 : second > 2 * EPSILON * first ? 2 : 1;
  };
  const polar = (G) => {
    const { turn, flip, t, s } = parts(unit(G));
    if (rank(G) < 2) return over(unit(G), t + s);
    return t > s ? over(turn, t) : over(flip, s);
  };

  const rows = ([a, b, c, d]) => [[a, b], [c, d]];
  const columns = ([a, b, c, d]) => [[a, c], [b, d]];
  const transpose = ([a, b, c, d]) => [a, c, b, d];
  const eachRow = (G) => rows(G).flatMap(along);

  // scale = out^(1/q) / in^(1/p) at out = in = 2.
  const scaled = (scale, size, dual, direction) => ({
    scale,
    size: (W) => size(W) / scale,
    dual: (G) => dual(G) * scale,
    direction: (G) => times(scale, direction(G)),
  });
  const longest = (lines) => Math.max(...lines.map(length));
  const total = (lines) => sum(lines.map(length));
  const matrices = {
    row: scaled(Math.SQRT1_2, (W) => longest(rows(W)), (G) => total(rows(G)), eachRow),
    column: scaled(Math.SQRT1_2, (W) => longest(columns(W)), (G) => total(columns(G)),
      (G) => transpose(eachRow(transpose(G)))),
    sign: scaled(1 / 2, largest, sum, signs),
    spectral: scaled(1, (W) => singular(W)[0], (G) => sum(singular(G)), polar),
  };

  return { vectors, mahalanobis, definite, matrices, rank, times, largest, length, columns };
})();
