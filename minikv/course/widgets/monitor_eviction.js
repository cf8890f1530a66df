// The eviction monitor: tokens that are there and gone over time; for each layer, where in the text those are that are
// there; and the figures of each layer.
//
//   form   live.js's and { columns, map_aria, map_legend: [[key, label]] }
//   view   live.js's and { chart or null, map: [{ label, shades }], map_text, more, rows: [{ key, label, values }] }
//          shades: a letter a stretch of the text, "0" few of its tokens are there to "8" all, "-" none, "." not read yet
//
// What is gone is known by its hatching, never by its colour alone.

const STRIP = { left: 76, pitch: 18, height: 14 };

let hatchings = 0; // pattern ids must differ between the drawings of one page

function hatching() {
  const id = `minikv-hatching-${Math.random().toString(36).slice(2)}-${hatchings++}`;
  const pattern = svgElement("pattern", { id, width: 5, height: 5, patternUnits: "userSpaceOnUse" });
  pattern.append(svgElement("path", { d: "M0 5L5 0M-1 1L1 -1M4 6L6 4", class: "minikv-hatch" }));
  const defs = svgElement("defs");
  defs.append(pattern);
  return { defs, fill: `url(#${id})` };
}

function drawMap(svg, view, form, hatch) {
  svg.style.display = view.map.length ? "" : "none";
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${view.map.length * STRIP.pitch + 2}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${form.map_aria} ${view.map_text}`);
  svg.replaceChildren(hatch.defs, ...view.map.map(({ label, shades }, row) => {
    const unit = (RIGHT - STRIP.left) / shades.length, y = row * STRIP.pitch + 1;
    const group = svgElement("g", { "data-layer": label, "data-shades": shades });
    group.append(svgElement("text", { x: STRIP.left - 6, y: y + 11.5, "text-anchor": "end" }, label));
    [...shades].forEach((shade, place) => {
      if (shade === ".") return;
      const gone = shade === "-";
      group.append(svgElement("rect", {
        x: (STRIP.left + place * unit).toFixed(1), y, width: (unit - 0.6).toFixed(1), height: STRIP.height,
        class: gone ? "minikv-gone" : `minikv-shade-${shade}`, ...(gone ? { fill: hatch.fill } : {}),
      }));
    });
    return group;
  }));
}

function drawMapLegend(form) {
  const hatch = hatching();
  const box = (width, ...inside) => {
    const svg = svgElement("svg", { viewBox: `0 0 ${width} 16`, width, height: 16, "aria-hidden": "true" });
    svg.append(...inside);
    return svg;
  };
  const scale = [...Array(9).keys()].map((shade) =>
    svgElement("rect", { x: shade * 9, y: 2, width: 8.4, height: 12, class: `minikv-shade-${shade}` }));
  const marks = {
    kept: () => box(81, ...scale),
    gone: () => box(16, hatch.defs, svgElement("rect", { x: 1, y: 2, width: 14, height: 12, fill: hatch.fill })),
  };
  return htmlElement("div", { class: "minikv-chart-legend" },
    ...form.map_legend.map(([mark, words]) => htmlElement("span", {}, marks[mark](), words)));
}

const render = liveWidget("heat-map minikv-eviction-monitor", (form) => {
  const paint = paintBox(), legendPaint = paintBox(), hatch = hatching();
  const chart = svgElement("svg"), map = svgElement("svg");
  const store = svgElement("svg", { width: 0, height: 0, class: "minikv-store", "aria-hidden": "true" });
  store.append(legendPaint.defs);
  const legend = htmlElement("div", { class: "minikv-chart-legend" }), mapLegend = drawMapLegend(form);
  const mapText = htmlElement("div", {}), more = htmlElement("div", {});
  const table = htmlElement("table", { class: "minikv-figures" });
  const draw = (view) => {
    for (const part of [chart, legend]) part.style.display = view.chart ? "" : "none";
    if (view.chart) {
      drawChart(chart, view.chart, paint);
      drawChartLegend(legend, view.chart, legendPaint);
    }
    drawMap(map, view, form, hatch);
    mapText.textContent = view.map_text;
    mapText.style.display = mapLegend.style.display = view.map.length ? "" : "none";
    more.textContent = view.more;
    drawTable(table, form.columns, view.rows);
  };
  return { parts: [store, chart, legend, mapText, map, mapLegend, table, more], draw };
});

export default { render };
