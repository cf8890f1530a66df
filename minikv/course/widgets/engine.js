// The engine widget: buttons, figures, the sequences with a bar of their tokens, and the blocks with their owners; and
// a slider that goes back through the steps that were seen. At its end the drawing follows the run.
// It draws and it asks: what runs where, and every sentence, is Python's.
//
//   form   { lang, title, size, buttons: [[action, label]], figures: [[key, label]], columns, legend, bar_legend: [[key, label]],
//            kinds, cell, moment, moment_value, speed, speeds: [[steps a second, words]] }     written once
//   speed  steps a second, 0 for no pause between them; written here and by Python
//   recent [view]    the views since the last message; Python answers { action: "history" } with all that it has kept
//   view   { running, steps, status, error, figures: [text], rows: [{ name, look, state, word, parts, words }], scale, more,
//            pools: [{ name, counts, more, cells: [[kind, look, mark, owners]] }] }                         written by Python
//            kind: "own", "shared", "cached", "empty"; parts: tokens cached, computed, to compute, generated
//
// An owner is known by its name and its pattern, what a block is by its mark and its edge: never by colour alone. Data
// is set as textContent. Nothing is fetched. A drawing is a step: between two of them nothing moves.

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

// The steps that were seen, the speed of those to come, and which of them is on display.
function drawMoments(model, form, show) {
  const slider = htmlElement("input", { type: "range", name: "moment", min: 0, step: 1 });
  const said = htmlElement("span", { class: "minikv-said" });
  const speed = htmlElement("select", { name: "speed" });
  for (const [rate, words] of form.speeds) speed.append(htmlElement("option", { value: rate }, words));
  for (const control of [slider, speed]) control.setAttribute("data-lm-suppress-shortcuts", "true");
  const back = htmlElement("label", {}, htmlElement("span", {}, form.moment), slider);
  const bar = htmlElement("div", { class: "minikv-steps" }, htmlElement("label", {}, htmlElement("span", {}, form.speed), speed),
    back, said);
  let seen = [], at = 0;
  const fill = () => {
    back.hidden = said.hidden = seen.length < 2; // nothing to go back to
    slider.max = seen.length - 1;
    slider.value = at;
    const words = form.moment_value.replace("{step}", seen[at].steps).replace("{last}", seen.at(-1).steps);
    said.textContent = words;
    slider.setAttribute("aria-valuetext", words);
    show(seen[at]);
  };
  // A run that begins again, or a step that is told anew, takes the place of what it repeats.
  const take = (views) => {
    const follows = at >= seen.length - 1;
    for (const view of views) seen = [...seen.filter(({ steps }) => steps < view.steps), view];
    at = follows ? seen.length - 1 : Math.min(at, seen.length - 1);
    fill();
  };
  const pace = () => { speed.value = String(model.get("speed")); };
  slider.addEventListener("input", () => {
    at = Number(slider.value);
    fill();
  });
  speed.addEventListener("change", () => {
    model.set("speed", Number(speed.value));
    model.save_changes();
  });
  pace();
  return { bar, take, pace, shown: () => seen[at] };
}

// A monitor shows what is there now: it has neither steps to go back to nor a speed.
function showNewest(show) {
  let view = null;
  const take = (views) => {
    view = views.at(-1);
    show(view);
  };
  return { bar: "", take, pace: () => {}, shown: () => view };
}

function render({ model, el }) {
  const form = model.get("form"), recent = () => model.get("recent") ?? [];
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
  const show = (view) => draw(view);
  const moments = model.get("recent") ? drawMoments(model, form, show) : showNewest(show);
  const root = htmlElement("div", { class: "minikv-widget minikv-engine", lang: form.lang },
    htmlElement("h4", {}, form.title, htmlElement("span", {}, form.size)), buttons.bar, moments.bar, status, store, list,
    ...grids.map(({ box }) => box), legend, table, more, barLegend);
  el.append(root);

  let width = 0;
  const drawGrids = () => {
    width = grids[0].box.clientWidth || 700; // a page that is not laid out yet has none
    moments.shown().pools.forEach((pool, group) => grids[group].draw(pool, width));
  };
  const draw = (view) => {
    const { running } = model.get("view");
    root.setAttribute("data-running", running);
    root.setAttribute("data-step", view.steps);
    buttons.fill(running);
    buttons.bar.querySelector("[name=pause]")?.setAttribute("aria-disabled", !running);
    speak({ ...view, running });
    view.figures.forEach((value, index) => { values[index].textContent = value; });
    drawSequences(body, view, form, paint);
    table.hidden = barLegend.hidden = !view.rows.length;
    more.textContent = view.more;
    drawGrids();
  };
  const follow = () => moments.take([...recent(), model.get("view")]);
  follow();
  if (recent().length && recent()[0].steps > 0) model.send({ action: "history" });
  const resized = new ResizeObserver(() => { if (grids[0].box.clientWidth !== width) drawGrids(); });
  resized.observe(grids[0].box);
  for (const what of ["view", "recent"]) model.on(`change:${what}`, follow);
  model.on("change:speed", moments.pace);
  return () => {
    hush();
    resized.disconnect();
    for (const what of ["view", "recent"]) model.off(`change:${what}`, follow);
    model.off("change:speed", moments.pace);
  };
}

export default { render };
