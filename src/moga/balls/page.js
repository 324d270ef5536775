"use strict";
(() => {
  const { vectors, mahalanobis, definite, matrices, rank, times, largest, columns } = geometry;
  const { element, polygon, circle, arrow, makePlane, makeHandle, pressMoves, inside, LIMIT } = planes;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Eigenvalues of M are powers of two, so that M is always positive definite.
  const state = { g: [1.2, 0.7], G: [1.1, 0.2, 0.5, 0.6], lr: 1, first: -1, second: 2, angle: -20 };

  const format = (x) => {
    const small = Math.abs(x) < 0.005 && x !== 0;
    const text = small || Math.abs(x) >= 1e4 ? x.toExponential(1).replace("e+", "e") : (x || 0).toFixed(2);
    return text.replaceAll("-", "−");
  };
  const pair = (x) => `(${x.map(format).join(", ")})`;
  const bracket = (W) => `<span class="bracket">${W.map((x) => `<span>${format(x)}</span>`).join("")}</span>`;
  // The full numbers stand in data-value, for whoever wants to read them from the page.
  const cell = (value, html) => `<td data-value="${[value].flat().join(" ")}">${html}</td>`;

  const metric = () => definite([2 ** state.first, 2 ** state.second], state.angle);
  const vectorNorm = (name) => (name === "mahalanobis" ? mahalanobis(metric()) : vectors[name]);
  const steps = (norm, G) => {
    const direction = norm.direction(G);
    const dual = norm.dual(G);
    return { direction, dual, fixed: times(-state.lr, direction), grown: times(-state.lr * dual, direction) };
  };

  const remark = (plane) => {
    const text = document.createElement("span");
    text.className = "beyond";
    text.hidden = true;
    plane.append(text);
    return (fixed, dual) => { // the points of both steps
      const out = Object.entries({ fixed, dual }).filter(([, points]) => !inside(points)).map(([name]) => name);
      text.hidden = out.length === 0;
      text.textContent = out.length === 2 ? "both steps go beyond" : `${out} step goes beyond`;
    };
  };

  const ball = (norm) => circle.map((point) => times(1 / norm.size(point), point));
  const acrossAt = (g, [x, y]) => { // the line through a point, perpendicular to g
    const [a, b] = times(10 / geometry.length(g), g);
    return polygon([[x - b, y + a], [x + b, y - a]]);
  };
  const drawVector = ({ name, draw, beyond, handle }) => {
    const { g, lr } = state;
    const norm = vectorNorm(name);
    const { fixed, grown } = steps(norm, g);
    const edge = ball(norm);
    const shown = times(1 / (largest(g) || 1), g);
    draw("ball", polygon(edge));
    draw("radius", lr === 1 ? "" : polygon(edge.map((point) => times(lr, point))));
    draw("line", largest(g) > 0 ? acrossAt(shown, fixed) : "");
    draw("gradient", arrow(g));
    draw("dual", arrow(grown));
    draw("fixed", arrow(fixed));
    beyond([fixed], [grown]);
    handle.move();
  };

  const ellipse = (W) => circle.map(([x, y]) => [W[0] * x + W[1] * y, W[2] * x + W[3] * y]);
  const image = (W) => polygon(ellipse(W));
  const spokes = (W) => columns(W).map((tip) => polygon([[0, 0], tip])).join("");
  const spot = (center) => polygon(circle.map(([x, y]) => [center[0] + 0.07 * x, center[1] + 0.07 * y]));
  const square = [[1, 1], [-1, 1], [-1, -1], [1, -1]];
  const GUIDES = { row: square, column: circle, sign: square, spectral: circle };

  const drawMatrix = ({ name, draw, beyond }) => {
    const norm = matrices[name];
    const { fixed, grown } = steps(norm, state.G);
    const [one, two] = columns(fixed);
    draw("guide", polygon(GUIDES[name].map((point) => times(state.lr * norm.scale, point))));
    draw("dual-image", image(grown));
    draw("fixed-image", image(fixed));
    draw("columns", spokes(fixed));
    draw("first", spot(one));
    draw("second", spot(two));
    beyond(ellipse(fixed), ellipse(grown));
  };

  const drawGradientMatrix = ({ draw, handles }) => {
    draw("inputs", polygon(circle));
    draw("gradient-image", image(state.G));
    draw("gradient-columns", spokes(state.G));
    for (const handle of handles) handle.move();
  };

  const vectorRow = (name) => {
    const { direction, dual, fixed, grown } = steps(vectorNorm(name), state.g);
    const cells = [cell(dual, format(dual)), ...[direction, fixed, grown].map((x) => cell(x, pair(x)))];
    return `<tr data-norm="${name}"><th scope="row">${name === "mahalanobis" ? "Mahalanobis" : name}</th>${cells.join("")}</tr>`;
  };
  const matrixRow = (name) => {
    const norm = matrices[name];
    const { direction, dual, fixed, grown } = steps(norm, state.G);
    const numbers = [norm.scale, dual, norm.size(fixed), norm.size(grown)].map((x) => cell(x, format(x)));
    numbers.splice(2, 0, cell(direction, bracket(direction)));
    return `<tr data-norm="${name}"><th scope="row">${name}</th>${numbers.join("")}</tr>`;
  };

  const far = (x) => (largest(x) > LIMIT ? "The gradient is longer than the picture; its handle waits at the edge. " : "");
  const vectorStatus = ({ g }) => {
    if (largest(g) === 0) return "The gradient is zero: there is no way down, so every step is zero.";
    if (Math.abs(g[0]) === Math.abs(g[1])) return `${far(g)}A tie: both entries are equally large, and l1 lets them share the step.`;
    if (g.includes(0)) return `${far(g)}One entry is zero: linf does not move it, because the sign of 0 is 0.`;
    return far(g);
  };
  const matrixStatus = ({ G }) => {
    const empty = (lines) => lines.some((line) => largest(line) === 0);
    if (largest(G) === 0) return "The gradient is zero: there is no way down, so every step is zero.";
    if (empty(columns(G))) return `${far(G)}A zero column stays zero in every step: nothing was learned about that input.`;
    if (empty(columns([G[0], G[2], G[1], G[3]]))) return `${far(G)}A zero row stays zero in every step.`;
    if (rank(G) < 2) return `${far(G)}Rank one: the gradient knows one direction only, and spectral gives a line of length 1 each way.`;
    return far(G);
  };

  // Beyond these sizes the numbers of the table overflow or vanish.
  const drawable = (x) => x === 0 || (Math.abs(x) >= 1e-100 && Math.abs(x) <= 1e100);
  const REFUSAL = "That is not drawn: write 0 or a number between 1e-100 and 1e100 in size.";

  const fill = (selector, text) => all(selector).forEach((output) => { output.innerHTML = text; });
  const showEntries = () => {
    for (const input of all("[data-entry]")) {
      if (document.activeElement === input) continue; // somebody types there
      input.value = state[input.dataset.entry[0]][input.dataset.entry[1]];
      input.removeAttribute("aria-invalid");
    }
  };
  const showControls = () => {
    const [a, b, c] = metric();
    fill("[data-show=lr]", state.lr.toFixed(2));
    fill("[data-show=angle]", `${state.angle}°`.replace("-", "−"));
    for (const word of ["first", "second"]) fill(`[data-show=${word}]`, format(2 ** state[word]));
    fill("[data-show=M]", bracket([a, b, b, c]));
    for (const input of all("[data-lr]")) input.value = state.lr;
    for (const input of all("[data-m]")) input.value = state[input.dataset.m];
  };
  const say = (id, text) => { // only a change, or a screen reader repeats it
    const place = document.getElementById(id);
    if (place.textContent !== text.trim()) place.textContent = text.trim();
  };

  const vectorPanels = all("[data-vector]").map((figure, index) => {
    const name = figure.dataset.vector;
    const plane = figure.querySelector(".plane");
    plane.classList.add("live");
    const draw = makePlane(plane, ["ball", "radius", "line", "gradient", "dual", "fixed"]);
    const handle = makeHandle(plane, {
      name: "g", label: "gradient; the arrow keys move it", kind: "ring", tab: index === 0,
      get: () => state.g, set: (g) => change({ g }), show: pair,
    });
    pressMoves(plane, [handle]);
    return { name, draw, beyond: remark(plane), handle };
  });

  const matrixPanels = all("[data-matrix-norm]").map((figure) => {
    const plane = figure.querySelector(".plane");
    const draw = makePlane(plane, ["guide", "dual-image", "fixed-image", "columns", "first", "second"]);
    return { name: figure.dataset.matrixNorm, draw, beyond: remark(plane) };
  });

  const gradientPanel = (() => {
    const plane = document.querySelector("#gradient-matrix .plane");
    plane.classList.add("live");
    const draw = makePlane(plane, ["inputs", "gradient-image", "gradient-columns"]);
    const handles = [0, 1].map((index) => makeHandle(plane, {
      name: `column ${index + 1}`, label: `column ${index + 1} of the gradient; the arrow keys move it`,
      kind: index ? "second" : "first", tab: true, show: pair,
      get: () => columns(state.G)[index],
      set: ([x, y]) => change({ G: index ? [state.G[0], x, state.G[2], y] : [x, state.G[1], y, state.G[3]] }),
    }));
    pressMoves(plane, handles);
    return { draw, handles };
  })();

  const drawVectors = () => {
    vectorPanels.forEach(drawVector);
    fill("#vector-table tbody", [...Object.keys(vectors), "mahalanobis"].map(vectorRow).join(""));
    say("vector-status", vectorStatus(state));
  };
  const drawMatrices = () => {
    matrixPanels.forEach(drawMatrix);
    drawGradientMatrix(gradientPanel);
    fill("#matrix-table tbody", Object.keys(matrices).map(matrixRow).join(""));
    say("matrix-status", matrixStatus(state));
  };
  const change = (part) => {
    Object.assign(state, part);
    if (!("G" in part)) drawVectors();
    if (!("g" in part)) drawMatrices();
    showEntries();
    showControls();
  };

  for (const input of all("[data-lr]")) input.addEventListener("input", () => change({ lr: Number(input.value) }));
  for (const input of all("[data-m]")) {
    input.addEventListener("input", () => change({ [input.dataset.m]: Number(input.value) }));
  }
  for (const input of all("[data-entry]")) {
    const [key, index] = input.dataset.entry;
    input.addEventListener("input", () => {
      const fine = drawable(input.valueAsNumber);
      input.setAttribute("aria-invalid", String(!fine));
      if (fine) change({ [key]: state[key].with(index, input.valueAsNumber) });
      else say(key === "g" ? "vector-status" : "matrix-status", REFUSAL);
    });
    input.addEventListener("blur", () => change({})); // what cannot be drawn gives way to what is
  }

  const numbers = (text) => text.split(" ").map(Number);
  for (const button of all("[data-g]")) button.addEventListener("click", () => change({ g: numbers(button.dataset.g) }));
  for (const button of all("[data-matrix]")) button.addEventListener("click", () => change({ G: numbers(button.dataset.matrix) }));

  change({});
  document.documentElement.dataset.ready = "true";
})();
