// Draws the time lines. Their figures are in the attribute data-chart; colours come from the style sheet.
"use strict";
(() => {
  const drawn = new Map();

  function colour(name) {
    const probe = document.createElement("span");
    probe.className = `ink-${name}`;
    probe.hidden = true;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  const KINDS = {
    lags: (ink) => ({
      series: [
        { label: "time" },
        { label: "p50 ms", stroke: ink.accent, width: 1.5, scale: "ms", points: { show: false } },
        { label: "p99 ms", stroke: ink.red, width: 1.5, scale: "ms", points: { show: false } },
        { label: "callbacks/s", stroke: ink.soft, width: 1, dash: [4, 3], scale: "rate", points: { show: false } },
      ],
      axes: [["x"], ["ms", "ms"], ["rate", "/s", 1]],
    }),
    topic: (ink) => ({
      series: [{ label: "due" }, { label: "longest lag ms", stroke: ink.accent, width: 1.5, scale: "ms", points: { show: false } }],
      axes: [["x"], ["ms", "ms"]],
    }),
    live: (ink) => ({
      series: [{ label: "time" }, { label: "lag ms", stroke: ink.accent, width: 1.5, scale: "ms" }],
      axes: [["x"], ["ms", "ms"]],
    }),
  };

  function options(kind, width) {
    const ink = Object.fromEntries(["accent", "red", "soft", "line"].map((name) => [name, colour(name)]));
    const { series, axes } = KINDS[kind](ink);
    const of = ([scale, unit, side]) => ({
      scale, stroke: ink.soft, grid: { stroke: ink.line, width: 1, show: !side }, ticks: { show: false }, font: "12px system-ui", size: scale === "x" ? 30 : 68,
      ...(side ? { side } : {}), ...(unit ? { values: (_, all) => all.map((value) => (value === null ? "" : `${value.toLocaleString("en")} ${unit}`)) } : {}),
    });
    const clock = (second) => new Date(second * 1000).toISOString().slice(11, 19);
    const here = (second) => (new Date().getTimezoneOffset() ? ` (${new Date(second * 1000).toTimeString().slice(0, 8)} here)` : "");
    series[0].value = (_, second) => (second === null ? "–" : `${clock(second)} UTC${here(second)}`);
    const shown = axes.map(of);
    shown[0].values = (_, seconds) => seconds.map(clock);
    shown[0].space = 90;
    return {
      width, height: 220, series, axes: shown, cursor: { y: false },
      scales: { ms: { range: (_, low, high) => [0, Math.max(10, (high || 0) * 1.1)] }, rate: { range: (_, low, high) => [0, Math.max(1, (high || 0) * 1.1)] } },
    };
  }

  function draw(box) {
    const { kind, columns } = JSON.parse(box.dataset.chart);
    drawn.get(box)?.destroy();
    drawn.set(box, new uPlot(options(kind, box.clientWidth), columns, box));
    return drawn.get(box);
  }

  function drawAll() {
    for (const box of drawn.keys()) if (!box.isConnected) { drawn.get(box).destroy(); drawn.delete(box); }
    for (const box of document.querySelectorAll("[data-chart]")) draw(box);
  }

  window.timersCharts = { draw };
  drawAll();
  addEventListener("timers:fresh", (event) => { if (event.target.querySelector("[data-chart]")) drawAll(); });
  addEventListener("timers:theme", drawAll);
  addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
