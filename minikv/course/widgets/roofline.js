// The roofline widget: a roof on two logarithmic axes, its ridge point, and three marks that stand on it.
// It draws and it asks: positions (in shares of the plot), numbers and every sentence are Python's.
//
//   form   { lang, title, legend, reset, x_label, y_label, columns, fields, defaults }         written once
//   state  { model, gpu, batch, context, kv_dtype }                                            written here, read by Python
//   view   { plot: { roof: [[x, y]], ridge: { x, value, text }, marks: [{ key, letter, x, y, value, text }],
//            x_ticks: [[x, text]], y_ticks } or null, table, aria, status, error }             written by Python
//
// A mark is known by its letter and by the words that its line leads to, never by its colour alone. Data is set as
// textContent. Nothing is fetched and nothing is animated.

const ROOF = { left: 70, top: 14, width: 622, height: 236 };
const ROOF_FLOOR = ROOF.top + ROOF.height;
const LABEL_ROWS = { ridge: 78, step: 54, weights: 32, attention: 10 }; // above the floor, so that no two words touch

const roofX = (share) => ROOF.left + share * ROOF.width;
const roofY = (share) => ROOF_FLOOR - share * ROOF.height;

function drawAxes(svg, plot, form) {
  for (const [share, label] of plot.x_ticks) {
    svg.append(svgElement("line", { x1: roofX(share), x2: roofX(share), y1: ROOF.top, y2: ROOF_FLOOR, class: "minikv-grid" }));
    svg.append(svgElement("text", { x: roofX(share), y: ROOF_FLOOR + 16, "text-anchor": "middle" }, label));
  }
  for (const [share, label] of plot.y_ticks) {
    svg.append(svgElement("line", { x1: ROOF.left, x2: ROOF.left + ROOF.width, y1: roofY(share), y2: roofY(share), class: "minikv-grid" }));
    svg.append(svgElement("text", { x: ROOF.left - 6, y: roofY(share) + 4, "text-anchor": "end" }, label));
  }
  svg.append(svgElement("text", { x: ROOF.left + ROOF.width / 2, y: ROOF_FLOOR + 34, "text-anchor": "middle" }, form.x_label));
  svg.append(svgElement("text", {
    x: 0, y: 0, "text-anchor": "middle", transform: `translate(13 ${ROOF.top + ROOF.height / 2}) rotate(-90)`,
  }, form.y_label));
}

// Words beside a vertical line: on its right, or on its left where they would leave the picture.
function besideLine(x, y, words) {
  const left = x > ROOF.left + ROOF.width * 0.7;
  return svgElement("text", { x: left ? x - 7 : x + 7, y, "text-anchor": left ? "end" : "start", class: "minikv-said" }, words);
}

function drawMark(mark) {
  const x = roofX(mark.x), y = roofY(mark.y);
  const group = svgElement("g", { class: "minikv-on-roof", "data-key": mark.key, "data-value": mark.value });
  group.append(svgElement("line", { x1: x, x2: x, y1: y, y2: ROOF_FLOOR, class: "minikv-drop" }));
  group.append(svgElement("circle", { cx: x, cy: y, r: mark.key === "step" ? 7 : 4 }));
  return group;
}

function drawRoof(svg, view, form) {
  svg.setAttribute("viewBox", `0 0 720 ${ROOF_FLOOR + 42}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", view.aria);
  svg.replaceChildren();
  svg.style.display = view.plot ? "" : "none";
  if (!view.plot) return;
  const { plot } = view;
  drawAxes(svg, plot, form);
  const ridge = roofX(plot.ridge.x);
  svg.append(svgElement("line", { x1: ridge, x2: ridge, y1: ROOF.top, y2: ROOF_FLOOR, class: "minikv-ridge", "data-value": plot.ridge.value }));
  svg.append(svgElement("polyline", { points: plot.roof.map(([x, y]) => `${roofX(x)},${roofY(y)}`).join(" "), class: "minikv-roof" }));
  // The step last: it is the larger circle, and lies over the others where they meet.
  for (const mark of [...plot.marks].reverse()) svg.append(drawMark(mark));
  // All words after all lines: the halo of a word hides the lines below it.
  for (const mark of plot.marks) svg.append(besideLine(roofX(mark.x), ROOF_FLOOR - LABEL_ROWS[mark.key], mark.text));
  svg.append(besideLine(ridge, ROOF_FLOOR - LABEL_ROWS.ridge, plot.ridge.text));
}

const render = formWidget("roofline", (form) => {
  const svg = svgElement("svg");
  const table = htmlElement("table", { class: "minikv-figures" });
  const draw = (view) => {
    drawRoof(svg, view, form);
    drawTable(table, form.columns, view.table);
  };
  return { above: [svg], below: [table], draw };
});

export default { render };
