// The memory monitor: a device's bytes by kind over time, and now. The table is the legend of both.
//
//   form   live.js's and { columns }       view   live.js's and { chart, bar, rows }

const render = liveWidget("memory-monitor", (form) => {
  const chartPaint = paintBox(), barPaint = paintBox();
  const chart = svgElement("svg"), bar = svgElement("svg");
  const table = htmlElement("table", { class: "minikv-parts" });
  const draw = (view) => {
    drawChart(chart, view.chart, chartPaint);
    drawBar(bar, view.bar, barPaint);
    drawParts(table, form.columns, view.rows, barPaint);
  };
  return { parts: [chart, bar, table], draw };
});

export default { render };
