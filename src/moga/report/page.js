"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displayModeBar: false, doubleClick: "reset" };

  // On a touch screen a drag must scroll the page, not zoom the figure.
  const draw = (element, figure) =>
    Plotly.react(element, figure.data, { ...figure.layout, dragmode: touch ? false : "zoom", hovermode: "closest" }, config);

  const transfer = [...document.querySelectorAll(".plot.transfer")];
  const hidden = new Set();
  const drawTransfer = () =>
    transfer.map((element) => {
      const figure = figures.transfer[element.dataset.recipe];
      const data = figure.data.map((trace) => ({ ...trace, visible: !hidden.has(trace.meta.width) }));
      return draw(element, { data, layout: figure.layout });
    });

  for (const button of document.querySelectorAll("button.width")) {
    button.addEventListener("click", () => {
      const width = Number(button.dataset.width);
      if (!hidden.delete(width)) hidden.add(width);
      button.setAttribute("aria-pressed", String(!hidden.has(width)));
      drawTransfer();
    });
  }

  const drawDrift = () => {
    const element = document.getElementById("drift");
    if (figures.drift.data.length) return [draw(element, figures.drift)];
    element.hidden = true;
    document.getElementById("drift-empty").hidden = false;
    return [];
  };

  const view = document.getElementById("view");
  figures.curves.forEach((choice, index) => view.add(new Option(choice.label, String(index))));
  const drawCurves = () =>
    [...document.querySelectorAll(".plot.curves")].map((element) =>
      draw(element, figures.curves[Number(view.value)].panels[element.dataset.recipe]));
  view.addEventListener("change", drawCurves);

  // Paper has another width than the window, and is laid out too late to be measured: half an A4 page between margins.
  const resize = (size) => {
    for (const element of document.querySelectorAll(".plot.js-plotly-plot")) Plotly.relayout(element, size);
  };
  window.addEventListener("beforeprint", () => resize({ autosize: false, width: 325, height: 300 }));
  window.addEventListener("afterprint", () => resize({ autosize: true, width: null, height: null }));

  Promise.all([...drawTransfer(), ...drawDrift(), ...drawCurves()]).then(() => {
    document.documentElement.dataset.ready = "true";
  });
})();
