// The growth widget: rows of tokens in a linear cache and in a paged one, side by side and to the same scale.
// It draws and it asks: the numbers, the bytes and every sentence are Python's.
//
//   form   { lang, title, legend, reset, linear, paged, columns, fields, defaults }         written once
//   state  { step, length, max_seq, block_size }                                            written here, read by Python
//   view   { scale, rows: [{ label, look, linear, paged }], table, aria, status, error }    written by Python, drawn here
//            linear = { filled, slots, refused, text }, paged = { filled: [tokens of each block], slots, text }
//
// A filled stretch is known by its pattern and by the words above it, never by its colour alone. Data is set as
// textContent. Nothing is fetched and nothing is animated.

const PANELS = [24, 382], PANEL_WIDTH = 336, HEAD_HEIGHT = 24, ROW_HEIGHT = 42, ROOM_HEIGHT = 16;

// A stretch of slots: what is filled, then the outline of all that is reserved. x and widths in tokens.
function drawRoom(group, left, top, start, filled, slots, scale, fill) {
  const unit = PANEL_WIDTH / scale;
  if (filled) group.append(svgElement("rect", {
    x: left + start * unit, y: top, width: filled * unit, height: ROOM_HEIGHT, fill,
  }));
  group.append(svgElement("rect", {
    x: left + start * unit, y: top, width: slots * unit, height: ROOM_HEIGHT, class: "minikv-room",
  }));
}

function drawGrowth(svg, view, form, paint) {
  const height = HEAD_HEIGHT + ROW_HEIGHT * view.rows.length;
  svg.setAttribute("viewBox", `0 0 720 ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", view.aria);
  svg.replaceChildren(paint.defs);
  [form.linear, form.paged].forEach((name, panel) => svg.append(
    svgElement("text", { x: PANELS[panel], y: 14, class: "minikv-panel" }, name)));
  view.rows.forEach((row, index) => {
    const top = HEAD_HEIGHT + index * ROW_HEIGHT, bar = top + 18;
    const fill = paint.fill(row.look);
    svg.append(svgElement("text", { x: 4, y: bar + 12, class: "minikv-panel" }, row.label));

    const linear = svgElement("g", {
      "data-cache": "linear", "data-row": row.label, "data-tokens": row.linear.filled,
      "data-slots": row.linear.slots, "data-refused": row.linear.refused,
    });
    linear.append(svgElement("text", { x: PANELS[0], y: bar - 5 }, row.linear.text));
    drawRoom(linear, PANELS[0], bar, 0, row.linear.filled, row.linear.slots, view.scale, fill);

    const paged = svgElement("g", {
      "data-cache": "paged", "data-row": row.label, "data-slots": row.paged.slots,
      "data-tokens": row.paged.filled.reduce((sum, tokens) => sum + tokens, 0),
    });
    paged.append(svgElement("text", { x: PANELS[1], y: bar - 5 }, row.paged.text));
    const size = row.paged.slots / Math.max(row.paged.filled.length, 1);
    row.paged.filled.forEach((tokens, block) =>
      drawRoom(paged, PANELS[1], bar, block * size, tokens, size, view.scale, fill));
    svg.append(linear, paged);
  });
}

const render = formWidget("growth", (form) => {
  const paint = paintBox();
  const svg = svgElement("svg");
  const table = htmlElement("table", { class: "minikv-figures" });
  const draw = (view) => {
    drawGrowth(svg, view, form, paint);
    drawTable(table, form.columns, view.table);
  };
  return { above: [svg], below: [table], draw };
});

export default { render };
