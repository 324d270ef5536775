"use strict";
// A plane is a square picture of the plane around 0, with handles that pointer and keyboard move.
const planes = (() => {
  const REACH = 2; // the picture shows -REACH to REACH on both axes
  const LIMIT = 1.9; // how far a handle goes
  const STEP = 0.05; // handles stand on multiples of it, so that zeros and ties can be hit

  const element = (name, attributes, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  };

  // Numbers for the screen: y points up. A far point keeps its direction; the frame cuts it off anyway.
  const place = ([x, y]) => {
    const far = Math.max(1, geometry.largest([x, y]) / 50);
    return `${(x / far).toFixed(4)} ${(-y / far).toFixed(4)}`;
  };
  const polygon = (points) => `M${points.map(place).join("L")}Z`;
  const angles = Array.from({ length: 180 }, (_, index) => (index * Math.PI) / 90 + Math.PI / 4); // the corners are among them
  const circle = angles.map((angle) => [Math.cos(angle), Math.sin(angle)]);

  const arrow = (tip) => {
    const long = geometry.length(tip);
    if (!(long > 0)) return "";
    const along = geometry.times(1 / long, tip);
    const head = Math.min(0.26, long);
    const at = (back, side) => [tip[0] - back * along[0] - side * along[1], tip[1] - back * along[1] + side * along[0]];
    return `M0 0L${place(at(head / 2, 0))}M${place(tip)}L${place(at(head, 0.4 * head))}L${place(at(head, -0.4 * head))}Z`;
  };

  // An svg inside the element, with axes and one path per layer, from back to front.
  const makePlane = (holder, layers) => {
    const svg = element("svg", { viewBox: `${-REACH} ${-REACH} ${2 * REACH} ${2 * REACH}`, "aria-hidden": "true" }, holder);
    element("path", { class: "axis", d: `M${-REACH} 0H${REACH}M0 ${-REACH}V${REACH}` }, svg);
    const ticks = [-1, 1].map((t) => `M${t} -.05V.05M-.05 ${t}H.05`);
    element("path", { class: "axis", d: ticks.join("") }, svg);
    const paths = Object.fromEntries(layers.map((layer) => [layer, element("path", { class: layer }, svg)]));
    return (layer, d) => paths[layer].setAttribute("d", d);
  };

  const most = (x) => Math.max(LIMIT, Math.abs(x)); // a number that was typed may be larger than the picture
  const tidy = (x, end = LIMIT) => {
    const snapped = Number((Math.round(x / STEP) * STEP).toFixed(2)); // no 0.15000000000000002
    return Math.min(end, Math.max(-end, snapped)) || 0; // no -0
  };
  const visible = (point) => geometry.times(Math.min(1, LIMIT / geometry.largest(point)), point);

  const KEYS = { // axis and way; Home and End go to the ends of the first axis, whose number the slider tells
    ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowDown: [1, -1], ArrowUp: [1, 1], Home: [0, -Infinity], End: [0, Infinity],
  };

  const describe = (button, name, point, text) => {
    const [x, y] = geometry.largest(point) > LIMIT ? visible(point) : point;
    button.style.left = `${50 + (50 * x) / REACH}%`;
    button.style.top = `${50 - (50 * y) / REACH}%`;
    const told = { min: -most(point[0]), max: most(point[0]), now: point[0] };
    for (const [key, value] of Object.entries(told)) button.setAttribute(`aria-value${key}`, String(value));
    button.setAttribute("aria-valuetext", `${name} = ${text}`);
  };

  // A handle at a point that `get` reads and `set` writes. Returns a function that puts it where the point is.
  const makeHandle = (holder, { name, label, kind, tab, get, set, show }) => {
    const button = document.createElement("button");
    const told = { type: "button", class: `handle ${kind}`, role: "slider", "aria-label": label, tabindex: tab ? 0 : -1 };
    for (const [key, value] of Object.entries({ ...told, "aria-roledescription": "point to drag" })) {
      button.setAttribute(key, value);
    }
    holder.append(button);

    const point = (event) => {
      const box = holder.getBoundingClientRect();
      const at = (share) => tidy((2 * share - 1) * REACH);
      return [at((event.clientX - box.left) / box.width), at(1 - (event.clientY - box.top) / box.height)];
    };
    button.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      button.setPointerCapture(event.pointerId);
      button.focus({ preventScroll: true });
      event.preventDefault();
    });
    button.addEventListener("pointermove", (event) => {
      if (button.hasPointerCapture(event.pointerId)) set(point(event));
    });
    button.addEventListener("keydown", (event) => {
      const move = KEYS[event.key];
      if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
      const [axis, way] = move;
      const step = STEP * (event.shiftKey ? 10 : 1);
      set(get().map((x, index) => (index === axis ? tidy(x + step * way, most(x)) : x)));
      event.preventDefault();
    });
    const distance = (event) => Math.hypot(...point(event).map((x, axis) => x - get()[axis]));
    return { button, distance, take: (event) => set(point(event)), move: () => describe(button, name, get(), show(get())) };
  };

  // A press beside the handles brings the nearest one there. Of touches only a tap does: a swipe scrolls the page.
  const pressMoves = (holder, handles) => {
    const take = (event) => {
      const nearest = handles.reduce((best, other) => (other.distance(event) < best.distance(event) ? other : best));
      nearest.take(event);
      nearest.button.focus({ preventScroll: true });
      return nearest.button;
    };
    const beside = (event) => handles.every(({ button }) => event.target !== button);
    holder.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button !== 0 || !beside(event)) return;
      take(event).setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    holder.addEventListener("pointerup", (event) => {
      if (event.pointerType === "touch" && beside(event)) take(event);
    });
  };

  const inside = (points) => points.every((point) => geometry.largest(point) <= REACH * (1 + 1e-9)); // up to rounding
  return { element, polygon, circle, arrow, makePlane, makeHandle, pressMoves, inside, LIMIT };
})();
