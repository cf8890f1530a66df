// The fleet widget: where the prompts' tokens came from, and how long every request waited for its first token.
// It draws and it asks: positions (in shares of the plot), numbers and every sentence are Python's.
//
//   form   { lang, title, legend, reset, x_label, y_label, columns, fields, defaults }         written once
//   state  { gpu, replicas, router, host_gib, load }                                           written here, read by Python
//   view   { bar: { label, parts: [{ key, look, share, text }] } or null,
//            plot: { curve: [[x, y]], marks: [{ key, x, y, value, text }], bound: { y, value, text },
//            x_ticks: [[x, text]], y_ticks } or null, table, aria, status, error }             written by Python
//
// A part is known by its words and its pattern, never by its colour alone. Data is set as textContent. Nothing is
// fetched and nothing is animated.

const FLEET = { left: 70, width: 604, bar: 24, barHeight: 22, words: 62, top: 84, height: 216 };
const FLEET_FLOOR = FLEET.top + FLEET.height;

const fleetX = (share) => FLEET.left + share * FLEET.width;
const fleetY = (share) => FLEET_FLOOR - share * FLEET.height;

// The bar has no words in it: a part may be too thin for them. They stand below, each behind a mark of its pattern.
function drawFound(svg, bar, paint) {
  svg.append(svgElement("text", { x: LEFT, y: 15, class: "minikv-letter" }, bar.label));
  let x = LEFT, words = LEFT;
  for (const part of bar.parts) {
    const width = part.share * (RIGHT - LEFT);
    svg.append(svgElement("rect", {
      x, y: FLEET.bar, width, height: FLEET.barHeight, fill: paint.fill(part.look), "data-key": part.key, "data-share": part.share,
    }));
    x += width;
    svg.append(svgElement("rect", { x: words, y: FLEET.words - 11, width: 13, height: 13, fill: paint.fill(part.look), class: "minikv-mark" }));
    svg.append(svgElement("text", { x: words + 18, y: FLEET.words }, part.text));
    words += (RIGHT - LEFT) / bar.parts.length;
  }
  svg.append(svgElement("rect", { x: LEFT, y: FLEET.bar, width: RIGHT - LEFT, height: FLEET.barHeight, class: "minikv-bar-frame" }));
}

function drawFleetAxes(svg, plot, form) {
  for (const [share, label] of plot.x_ticks) {
    svg.append(svgElement("line", { x1: fleetX(share), x2: fleetX(share), y1: FLEET.top, y2: FLEET_FLOOR, class: "minikv-grid" }));
    svg.append(svgElement("text", { x: fleetX(share), y: FLEET_FLOOR + 16, "text-anchor": "middle" }, label));
  }
  for (const [share, label] of plot.y_ticks) {
    svg.append(svgElement("line", { x1: FLEET.left, x2: FLEET.left + FLEET.width, y1: fleetY(share), y2: fleetY(share), class: "minikv-grid" }));
    svg.append(svgElement("text", { x: FLEET.left - 6, y: fleetY(share) + 4, "text-anchor": "end" }, label));
  }
  svg.append(svgElement("text", { x: FLEET.left + FLEET.width / 2, y: FLEET_FLOOR + 34, "text-anchor": "middle" }, form.x_label));
  svg.append(svgElement("text", {
    x: 0, y: 0, "text-anchor": "middle", transform: `translate(13 ${FLEET.top + FLEET.height / 2}) rotate(-90)`,
  }, form.y_label));
}

function drawWaits(svg, plot) {
  const bound = fleetY(plot.bound.y);
  svg.append(svgElement("line", { x1: FLEET.left, x2: FLEET.left + FLEET.width, y1: bound, y2: bound, class: "minikv-bound", "data-value": plot.bound.value }));
  svg.append(svgElement("polyline", { points: plot.curve.map(([x, y]) => `${fleetX(x)},${fleetY(y)}`).join(" "), class: "minikv-curve" }));
  for (const mark of plot.marks) {
    const group = svgElement("g", { class: "minikv-percentile", "data-key": mark.key, "data-value": mark.value });
    group.append(svgElement("circle", { cx: fleetX(mark.x), cy: fleetY(mark.y), r: 5 }));
    svg.append(group);
  }
  // All words after all lines: the halo of a word hides the lines below it.
  svg.append(svgElement("text", { x: FLEET.left + 8, y: bound - 6, class: "minikv-said" }, plot.bound.text));
  for (const mark of plot.marks) svg.append(besideMark(mark));
}

// The curve only rises: above and to the left of a mark it is not, nor below and to the right. p90 and p99 may be close,
// so that p90 says its number below.
function besideMark(mark) {
  const below = mark.key === "p90";
  const x = fleetX(mark.x) + (below ? 7 : -7);
  const y = below ? Math.min(fleetY(mark.y) + 17, FLEET_FLOOR - 4) : Math.max(fleetY(mark.y) - 9, FLEET.top + 2);
  return svgElement("text", { x, y, "text-anchor": below ? "start" : "end", class: "minikv-said" }, mark.text);
}

function drawFleet(svg, view, form) {
  svg.setAttribute("viewBox", `0 0 720 ${FLEET_FLOOR + 42}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", view.aria);
  svg.replaceChildren();
  svg.style.display = view.plot ? "" : "none";
  if (!view.plot) return;
  const paint = paintBox();
  svg.append(paint.defs);
  drawFound(svg, view.bar, paint);
  drawFleetAxes(svg, view.plot, form);
  drawWaits(svg, view.plot);
}

const render = formWidget("fleet", (form) => {
  const svg = svgElement("svg");
  const table = htmlElement("table", { class: "minikv-figures" });
  const draw = (view) => {
    drawFleet(svg, view, form);
    drawTable(table, form.columns, view.table);
  };
  return { above: [svg], below: [table], draw };
});

export default { render };
