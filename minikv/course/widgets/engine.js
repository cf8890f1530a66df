// The engine widget: buttons, figures, the sequences with a bar of their tokens, and the blocks with their owners.
// It draws and it asks: what runs where, and every sentence, is Python's.
//
//   form   { lang, title, size, buttons: [[action, label]], figures: [[key, label]], columns, legend, bar_legend: [[key, label]],
//            kinds, cell }                                                                   written once
//   view   { running, status, error, figures: [text], rows: [{ name, look, state, word, parts, words }], scale, more,
//            pools: [{ name, counts, more, cells: [[kind, look, mark, owners]] }] }                         written by Python
//            kind: "own", "shared", "cached", "empty"; parts: tokens cached, computed, to compute, generated
//
// An owner is known by its name and its pattern, what a block is by its mark and its edge: never by colour alone. Data
// is set as textContent. Nothing is fetched and nothing is animated.

const BLOCK_PITCH = 31, BLOCK_WIDTH = 29, BLOCK_HEIGHT = 20, LINE_PITCH = 24, GRID_LEFT = 30;

// The blocks from left to right, as many a line as the page has room for; the number before a line is its first block's.
function drawBlocks(svg, pool, form, paint, width) {
  const columns = Math.max(4, Math.floor((width - GRID_LEFT) / BLOCK_PITCH));
  const height = Math.ceil(pool.cells.length / columns) * LINE_PITCH;
  svg.setAttribute("width", GRID_LEFT + columns * BLOCK_PITCH);
  svg.setAttribute("height", height);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", pool.counts);
  svg.replaceChildren(paint.defs, ...pool.cells.map(([kind, look, mark, owners], index) => {
    const x = GRID_LEFT + (index % columns) * BLOCK_PITCH + 1, y = Math.floor(index / columns) * LINE_PITCH + 1;
    const group = svgElement("g", {
      class: `minikv-owned minikv-${kind}`, "data-block": index, "data-kind": kind, "data-owners": owners,
    });
    const said = form.cell.replace("{block}", index).replace("{what}", owners || form.kinds[kind]);
    const shown = kind === "cached" ? "cached" : look;
    const fill = kind === "empty" ? "none" : paint.fill(shown);
    group.append(svgElement("title", {}, said));
    group.append(svgElement("rect", { x, y, width: BLOCK_WIDTH, height: BLOCK_HEIGHT, fill }));
    group.append(svgElement("text", {
      x: x + BLOCK_WIDTH / 2, y: y + 14.5, "text-anchor": "middle", ...(kind === "empty" ? {} : wordsOn(shown)),
    }, mark));
    return group;
  }));
  for (let index = 0; index < pool.cells.length; index += columns) svg.append(svgElement("text", {
    x: GRID_LEFT - 5, y: index / columns * LINE_PITCH + 15.5, "text-anchor": "end", class: "minikv-first",
  }, String(index)));
}

// A grid for each KV cache group, built once. One drawing's patterns serve one drawing.
function poolGrid(form) {
  const paint = paintBox();
  const label = htmlElement("div", { class: "minikv-pool-label" }), svg = svgElement("svg");
  const more = htmlElement("div");
  const box = htmlElement("div", { class: "minikv-pool" }, label, svg, more);
  const draw = (pool, width) => {
    label.textContent = pool.name;
    more.textContent = pool.more;
    drawBlocks(svg, pool, form, paint, width);
  };
  return { box, draw };
}

// The tokens of a sequence, to one scale for all: cached, computed, to compute, generated.
function tokenBar(row, scale, form, paint) {
  const svg = svgElement("svg", { class: "minikv-tokens", "aria-hidden": "true", width: "100%", height: 12 });
  let from = 0;
  row.parts.forEach((count, index) => {
    if (count) svg.append(barPart(form.bar_legend[index][0], from / scale * 100, count / scale * 100, form, paint));
    from += count;
  });
  return svg;
}

function barPart(key, from, length, form, paint) {
  const rect = svgElement("rect", { x: `${from}%`, y: 0.5, width: `${length}%`, height: 11, class: `minikv-part-${key}` });
  if (key === "cached") rect.setAttribute("fill", paint.fill("cached"));
  return rect;
}

function swatch(fill, name = "rect") {
  const svg = svgElement("svg", { width: 16, height: 16, "aria-hidden": "true" });
  const rect = svgElement("rect", { x: 0.5, y: 0.5, width: 15, height: 15, class: name });
  if (fill) rect.setAttribute("fill", fill);
  svg.append(rect);
  return svg;
}

function drawSequences(body, view, form, paint) {
  body.replaceChildren(...view.rows.map((row) => htmlElement("tr", { "data-state": row.state },
    htmlElement("th", { scope: "row" }, swatch(paint.fill(row.look), "minikv-swatch"), ` ${row.name}`),
    htmlElement("td", {}, row.word),
    htmlElement("td", { "data-parts": row.parts.join(" ") }, tokenBar(row, view.scale, form, paint),
      htmlElement("span", {}, row.words)))));
}

function render({ model, el }) {
  const form = model.get("form");
  const buttons = drawButtons(model, form), { status, speak, hush } = drawReadout();
  const values = form.figures.map(([key]) => htmlElement("dd", { "data-key": key }));
  const list = htmlElement("dl", {}, ...form.figures.map(([, label], index) =>
    htmlElement("div", {}, htmlElement("dt", {}, label), values[index])));
  const paint = paintBox();
  const store = svgElement("svg", { width: 0, height: 0, class: "minikv-store", "aria-hidden": "true" });
  store.append(paint.defs);
  const body = htmlElement("tbody");
  const head = form.columns.map((name) => htmlElement("th", { scope: "col" }, name));
  const table = htmlElement("table", {}, htmlElement("thead", {}, htmlElement("tr", {}, ...head)), body);
  const more = htmlElement("div");
  const barLegend = htmlElement("div", { class: "minikv-legend" }, ...form.bar_legend.map(([key, words]) =>
    htmlElement("span", {}, swatch(key === "cached" ? paint.fill("cached") : "", `minikv-part-${key}`), words)));
  const legend = htmlElement("div", { class: "minikv-legend" },
    ...form.legend.map(([, words]) => htmlElement("span", {}, words)));
  const grids = model.get("view").pools.map(() => poolGrid(form));
  const root = htmlElement("div", { class: "minikv-widget minikv-engine", lang: form.lang },
    htmlElement("h4", {}, form.title, htmlElement("span", {}, form.size)), buttons.bar, status, store, list,
    ...grids.map(({ box }) => box), legend, table, more, barLegend);
  el.append(root);

  let width = 0;
  const drawGrids = () => {
    width = grids[0].box.clientWidth || 700; // a page that is not laid out yet has none
    model.get("view").pools.forEach((pool, group) => grids[group].draw(pool, width));
  };
  const draw = () => {
    const view = model.get("view");
    root.setAttribute("data-running", view.running);
    buttons.fill(view.running);
    speak(view);
    view.figures.forEach((value, index) => { values[index].textContent = value; });
    drawSequences(body, view, form, paint);
    table.hidden = barLegend.hidden = !view.rows.length;
    more.textContent = view.more;
    drawGrids();
  };
  draw();
  const resized = new ResizeObserver(() => { if (grids[0].box.clientWidth !== width) drawGrids(); });
  resized.observe(grids[0].box);
  model.on("change:view", draw);
  return () => {
    hush();
    resized.disconnect();
    model.off("change:view", draw);
  };
}

export default { render };
