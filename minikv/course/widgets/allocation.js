// The allocation widget: used, peak and current after each call of a start-up, and the bar that comes of it.
// It draws and it asks: the numbers, the bytes and every sentence are Python's.
//
//   form   { lang, title, legend, reset, columns, timeline, bar, exact, limit, lines, moment_columns, fields, defaults }
//   state  one value a control                                                      written here, read by Python
//   view   { moments: [{ key, label, does, values: [{ key, bytes, text, exact }] }], scale, limit, aria,
//            bar, rows, sums: [{ key, label, text }], status, error }                written by Python, drawn here
//
// A quantity is known by its place in the group, its pattern and its name in the legend, never by its colour alone.
// Data is set as textContent. Nothing is fetched and nothing is animated.

const CHART_TOP = 60, CHART_HEIGHT = 150, CHART_FLOOR = CHART_TOP + CHART_HEIGHT;
const COLUMN_GAP = 9, LEGEND_PLACES = [LEFT, 232, 470];

function drawTimeline(svg, view, form, paint) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${view.moments.length ? CHART_FLOOR + 22 : 1}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", view.aria);
  svg.replaceChildren(paint.defs);
  if (!view.moments.length) return;
  form.lines.forEach((line, index) => {
    const x = LEGEND_PLACES[index];
    svg.append(svgElement("rect", {
      x, y: 2, width: 12, height: 12, fill: paint.fill(line.look), class: "minikv-mark",
    }));
    svg.append(svgElement("text", { x: x + 18, y: 12 }, line.label));
  });
  svg.append(svgElement("path", { d: `M${LEFT} 28h12`, class: "minikv-limit" }));
  svg.append(svgElement("text", { x: LEFT + 18, y: 32 }, form.limit));
  const height = (bytes) => (bytes / view.scale) * CHART_HEIGHT;
  // One column a quantity, in the order of the legend.
  const room = (RIGHT - LEFT) / view.moments.length, column = (room - 2 * COLUMN_GAP) / form.lines.length;
  const limit = CHART_FLOOR - height(view.limit);
  let dashes = `M${LEFT} ${limit}`; // it makes way for the numbers: a dash before one would read as a minus
  view.moments.forEach((moment, place) => {
    const left = LEFT + place * room + COLUMN_GAP;
    moment.values.forEach((value, index) => {
      const x = left + index * column, top = CHART_FLOOR - height(value.bytes);
      svg.append(svgElement("rect", {
        x, y: top, width: column, height: height(value.bytes), fill: paint.fill(form.lines[index].look),
        class: "minikv-column", "data-call": moment.key, "data-quantity": value.key, "data-size": value.bytes,
      }));
      svg.append(svgElement("text", {
        x: x + column / 2, y: top - 4, "text-anchor": "middle", class: "minikv-size",
      }, value.text));
      if (Math.abs(limit - (top - 8)) < 8) dashes += `H${x}M${x + column} ${limit}`;
    });
    svg.append(svgElement("text", {
      x: LEFT + (place + 0.5) * room, y: CHART_FLOOR + 16, "text-anchor": "middle", class: "minikv-call",
    }, moment.label));
  });
  svg.append(svgElement("path", { d: `${dashes}H${RIGHT}`, class: "minikv-limit" }));
  svg.append(svgElement("path", { d: `M${LEFT} ${CHART_FLOOR}H${RIGHT}`, class: "minikv-floor" }));
}

function drawMoments(table, form, moments) {
  table.hidden = !moments.length;
  const body = moments.map(({ key, label, does, values }) => htmlElement("tr", { "data-call": key },
    htmlElement("th", { scope: "row" }, label),
    ...values.map(({ key: name, exact }) => htmlElement("td", { "data-key": name, class: "minikv-number" }, exact)),
    htmlElement("td", {}, does)));
  table.replaceChildren(tableHead(form.moment_columns), htmlElement("tbody", {}, ...body));
}

// The names of the bar's parts, where the table of their bytes is folded.
function drawNames(legend, rows, paint) {
  legend.replaceChildren(...rows.filter((row) => row.letter).map((row) =>
    htmlElement("span", {}, lookMark(paint, row.look), `${row.letter} ${row.label}`)));
}

function drawSums(table, sums) {
  table.hidden = !sums.length;
  table.replaceChildren(htmlElement("tbody", {}, ...sums.map(({ key, label, text }) => htmlElement("tr", {},
    htmlElement("th", { scope: "row" }, label), htmlElement("td", { "data-key": key }, text)))));
}

const render = formWidget("allocation", (form) => {
  const chartPaint = paintBox(), barPaint = paintBox();
  const chart = svgElement("svg"), bar = svgElement("svg");
  const moments = htmlElement("table", { class: "minikv-moments" });
  const sums = htmlElement("table", { class: "minikv-sums" });
  const parts = htmlElement("table", { class: "minikv-parts" });
  const names = htmlElement("div", { class: "minikv-legend" });
  const fold = htmlElement("summary", { "data-lm-suppress-shortcuts": "true" }, form.exact);
  const exact = htmlElement("details", {}, fold, parts,
    htmlElement("div", { class: "minikv-scroll" }, moments));
  const draw = (view) => {
    drawTimeline(chart, view, form, chartPaint);
    drawMoments(moments, form, view.moments);
    drawSums(sums, view.sums);
    drawBar(bar, view.bar, barPaint);
    drawNames(names, view.rows, barPaint);
    drawParts(parts, form.columns, view.rows, barPaint);
    exact.hidden = !view.rows.length;
  };
  const above = [htmlElement("h5", {}, form.timeline), chart];
  // The bar before the sums: with the sliders beside it, it stands on the first screen.
  const below = [htmlElement("h5", {}, form.bar), bar, names, sums, exact];
  return { above, below, draw };
});

export default { render };
