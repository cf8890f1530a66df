// The eviction monitor: tokens that are there and gone over time; for each layer, where in the text those are that are
// there; and the figures of each layer.
//
//   form   live.js's and { columns, map_aria, map_legend: [[mark, label]] }
//   view   live.js's and { chart or null, map: [{ label, shades }], map_text, more, rows: [{ key, label, values }] }
//          shades: a letter a stretch of the text, "0" few of its tokens are there to "8" all, "-" none, "." not read yet

const STRIP = { left: 76, pitch: 18, height: 14 };

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
      group.append(svgElement("rect", {
        x: (STRIP.left + place * unit).toFixed(1), y, width: (unit - 0.6).toFixed(1), height: STRIP.height,
        ...shaded(shade, hatch),
      }));
    });
    return group;
  }));
}

const render = liveWidget("heat-map minikv-eviction-monitor", (form) => {
  const paint = paintBox(), legendPaint = paintBox(), hatch = hatching();
  const chart = svgElement("svg"), map = svgElement("svg");
  const store = svgElement("svg", { width: 0, height: 0, class: "minikv-store", "aria-hidden": "true" });
  store.append(legendPaint.defs);
  const legend = htmlElement("div", { class: "minikv-chart-legend" });
  const mapLegend = htmlElement("div", { class: "minikv-chart-legend" }, ...legendEntries(form.map_legend));
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
