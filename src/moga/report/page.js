"use strict";
(() => {
  const dark = JSON.parse(document.getElementById("dark").textContent);
  const night = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displayModeBar: false, doubleClick: "reset" };
  const PICTURE = { width: 800, height: 520 }; // of a saved figure, at twice as many points
  const PAPER = { autosize: false, width: 325, height: 290 }; // half an A4 page between margins
  const MARKS = {
    circle: "M15 3a4 4 0 1 0 .01 0z", square: "M11.5 3.5h7v7h-7z", diamond: "M15 2l5 5-5 5-5-5z",
    "triangle-up": "M15 2.5l5 8.5h-10z", "triangle-down": "M15 11.5l5-8.5h-10z", cross: "M13.5 2h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
  };
  const STROKES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3" };
  let printing = false;

  const parse = (text, atNight) =>
    atNight ? JSON.parse(text, (key, value) => (typeof value === "string" && dark[value]) || value) : JSON.parse(text);

  const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const lines = (text) => text.match(/.{1,90}(?=\s|$)|.{1,90}/g).map((one) => one.trim().replaceAll("<", "&lt;"));

  // Different names may give one name of a file: those that come again are numbered.
  const files = new Set();
  const unique = (name) => {
    let found = name;
    for (let i = 2; files.has(found); i++) found = `${name}-${i}`;
    files.add(found);
    return found;
  };

  // Charts of one group share a legend, what it hides, and the view.
  const groups = new Map();
  const groupOf = (name, legend) => {
    if (!groups.has(name)) groups.set(name, { hidden: new Set(), legend, charts: [], view: 0 });
    return groups.get(name);
  };

  class Chart {
    constructor(figure) {
      this.place = figure.querySelector(".plot");
      this.sources = figure.querySelectorAll('script[type="application/json"]');
      this.title = `${figure.dataset.group}: ${figure.dataset.title}`;
      this.file = figure.dataset.file = unique(figure.dataset.file);
      this.select = document.querySelector(`select[data-group="${CSS.escape(figure.dataset.group)}"]`);
      const shared = document.querySelector(`.legend[data-group="${CSS.escape(figure.dataset.group)}"]`);
      this.group = groupOf(shared ? figure.dataset.group : this.file, shared ?? figure.querySelector(".legend"));
      this.group.charts.push(this);
      this.drawn = false;
      for (const button of figure.querySelectorAll("[data-save]")) {
        button.addEventListener("click", () => this[button.dataset.save]());
      }
    }

    // What is chosen of several views.
    get view() {
      return this.select && this.sources.length > 1 ? this.select.options[this.group.view].text : "";
    }

    // The name of a saved file without its ending.
    get saved() {
      return this.view ? `${this.file}-${slug(this.view)}` : this.file;
    }

    read(atNight) {
      const figure = parse(this.sources[Math.min(this.group.view, this.sources.length - 1)].textContent, atNight);
      for (const trace of figure.data) trace.visible = !this.group.hidden.has(trace.legendgroup);
      return figure;
    }

    // On a touch screen a drag must scroll the page, not zoom the figure.
    draw() {
      const { data, layout, legend } = this.read(night.matches && !printing);
      if (!this.drawn && this.group.legend.childElementCount === 0) fill(this.group, legend);
      this.drawn = true;
      const own = { dragmode: touch ? false : "zoom", hovermode: "closest", ...(printing ? PAPER : {}) };
      return Plotly.react(this.place, data, { ...layout, ...own }, config);
    }

    async png() {
      const { data, layout, legend } = this.read(false);
      for (const trace of data) trace.showlegend = false;
      const keys = legend.filter((one) => !this.group.hidden.has(one.group)).map((one) => ({
        type: "scatter", x: [null], y: [null], name: one.name, mode: one.symbol ? "lines+markers" : "lines",
        line: { color: one.colour, dash: one.dash, width: 2 }, marker: { color: one.colour, symbol: one.symbol || "circle", size: 9 },
      }));
      const title = [...lines(document.title), ...lines(this.view ? `${this.title}, ${this.view}` : this.title)];
      const words = {
        showlegend: true, legend: { orientation: "h", traceorder: "normal", x: 0, y: 1.01, yanchor: "bottom" },
        title: { text: title.join("<br>"), x: 0.02, xanchor: "left", y: 0.98, yanchor: "top", font: { size: 14 } },
        margin: { ...layout.margin, t: 60 + 19 * title.length },
      };
      const figure = { data: [...data, ...keys], layout: { ...layout, ...words, ...PICTURE } };
      save(`${this.saved}.png`, await Plotly.toImage(figure, { format: "png", scale: 2, ...PICTURE }));
    }

    csv() {
      const { data, table } = this.read(false);
      const rows = table.rows ?? data.flatMap(({ meta, x, y }) => x.map((value, i) => [...meta.row, value, y[i]]));
      const cell = (value) => {
        const text = value === null ? "" : String(value);
        return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
      };
      const lines = [table.columns, ...rows].map((row) => row.map(cell).join(",") + "\n");
      const place = URL.createObjectURL(new Blob(lines, { type: "text/csv" }));
      save(`${this.saved}.csv`, place);
      setTimeout(() => URL.revokeObjectURL(place), 10000);
    }
  }

  const save = (name, address) => Object.assign(document.createElement("a"), { href: address, download: name }).click();

  // Names hold powers of two as "2<sup>-3</sup>"; nothing else in them is markup.
  const named = (text) =>
    text.split(/<sup>(.*?)<\/sup>/).map((part, i) => {
      if (i % 2 === 0) return document.createTextNode(part);
      return Object.assign(document.createElement("sup"), { textContent: part });
    });

  const drawn = (tag, values) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
    return element;
  };

  const fill = (group, legend) => {
    group.legend.replaceChildren(...legend.map((one) => {
      const button = document.createElement("button");
      const picture = drawn("svg", { viewBox: "0 0 30 14", "aria-hidden": "true" });
      const stroke = { "stroke-dasharray": STROKES[one.dash], stroke: one.colour, "stroke-width": 2.5 };
      picture.append(drawn("path", { d: "M0 7h30", ...stroke }));
      if (one.symbol) picture.append(drawn("path", { d: MARKS[one.symbol], fill: one.colour }));
      button.type = "button";
      if (one.name.includes("…")) button.title = one.group;
      button.append(picture, ...named(one.name));
      button.setAttribute("aria-pressed", String(!group.hidden.has(one.group)));
      button.addEventListener("click", () => {
        if (!group.hidden.delete(one.group)) group.hidden.add(one.group);
        button.setAttribute("aria-pressed", String(!group.hidden.has(one.group)));
        redraw(group.charts);
      });
      return button;
    }));
  };

  const redraw = (some) => some.filter((chart) => chart.drawn).map((chart) => chart.draw());
  const charts = [...document.querySelectorAll("figure")].map((figure) => new Chart(figure));
  const refill = () => {
    for (const group of groups.values()) group.legend.replaceChildren();
    for (const chart of charts.filter((one) => one.drawn)) {
      chart.drawn = false;
      chart.draw();
    }
  };
  night.addEventListener("change", refill);

  // All charts of a select's group change together; another view has other lines to hide.
  for (const select of document.querySelectorAll("select[data-group]")) {
    select.addEventListener("change", () => {
      for (const chart of charts.filter((one) => one.place.closest("figure").dataset.group === select.dataset.group)) {
        Object.assign(chart.group, { view: Number(select.value), hidden: new Set() });
        chart.group.legend.replaceChildren();
        if (chart.drawn) {
          chart.drawn = false;
          chart.draw();
        }
      }
    });
  }

  // A figure is drawn when it comes near the window, on paper all of them: a long page opens as fast as a short one.
  const near = new IntersectionObserver((entries) => {
    const seen = charts.filter((chart) => !chart.drawn && entries.some((one) => one.isIntersecting && one.target === chart.place));
    for (const chart of seen) near.unobserve(chart.place);
    Promise.all(seen.map((chart) => chart.draw())).then(() => { document.documentElement.dataset.ready = "true"; });
  }, { rootMargin: "200px" });
  for (const chart of charts) near.observe(chart.place);
  if (!charts.length) document.documentElement.dataset.ready = "true";

  window.addEventListener("beforeprint", () => {
    printing = true;
    for (const group of groups.values()) group.legend.replaceChildren();
    for (const chart of charts) {
      chart.drawn = false;
      chart.draw();
    }
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    refill();
  });
})();
