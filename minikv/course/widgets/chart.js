// A chart of amounts over time, stacked: the first kind at the bottom. Plain functions; it stands behind form.js.
//
//   chart = { kinds: [{ key, label, look }], seconds, values: { key: [amount] }, top, top_text, end_text, aria }
//
// A kind is known by its pattern and its place in the legend, never by its colour alone.

const SPAN = { top: 18, height: 130, floor: 148 };

// The line that the first `count` kinds reach together, as points of the page.
function reached(chart, count) {
  const end = chart.seconds.at(-1) || 1;
  return chart.seconds.map((second, index) => {
    const sum = chart.kinds.slice(0, count).reduce((total, { key }) => total + chart.values[key][index], 0);
    const x = LEFT + (chart.seconds.length > 1 ? second / end : 0) * (RIGHT - LEFT);
    return [x.toFixed(1), (SPAN.floor - (chart.top ? sum / chart.top : 0) * SPAN.height).toFixed(1)];
  });
}

// A single look fills the whole width: it is all that is known.
function area(lower, upper) {
  const wide = (line) => line.length > 1 ? line : [line[0], [RIGHT, line[0][1]]];
  const way = (line) => line.map(([x, y]) => `${x} ${y}`).join("L");
  return `M${way(wide(upper))}L${way(wide(lower).reverse())}z`;
}

function drawChart(svg, chart, paint) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${SPAN.floor + 20}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", chart.aria);
  svg.replaceChildren(paint.defs);
  let lower = reached(chart, 0);
  chart.kinds.forEach(({ key, look }, index) => {
    const upper = reached(chart, index + 1);
    svg.append(svgElement("path", {
      d: area(lower, upper), fill: paint.fill(look), class: "minikv-area", "data-key": key, "data-last": chart.values[key].at(-1),
    }));
    lower = upper;
  });
  svg.append(svgElement("path", { d: `M${LEFT} ${SPAN.top}V${SPAN.floor}H${RIGHT}`, class: "minikv-axis" }));
  svg.append(svgElement("text", { x: LEFT, y: SPAN.top - 5 }, chart.top_text));
  svg.append(svgElement("text", { x: LEFT, y: SPAN.floor + 15 }, "0"));
  svg.append(svgElement("text", { x: RIGHT, y: SPAN.floor + 15, "text-anchor": "end" }, chart.end_text));
}

function drawChartLegend(box, chart, paint) {
  box.replaceChildren(...chart.kinds.map(({ label, look }) => htmlElement("span", {}, lookMark(paint, look), label)));
}
