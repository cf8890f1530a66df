// The block widget. It draws one step of many; what a step holds, and every sentence, is Python's.
//
//   form    { lang, title, size, block_size, columns, wide, step, step_value, play, pause, head }   written once;
//           with `actions` it has buttons as well, which pool.js draws
//   frames  [{ cells, rows, status }]   a step each; Python appends
//   step    which one is on display, -1 for the latest; written here and by Python
//
// A cell is known by its words and by how far its strip is filled, never by its colour alone. Data is set as
// textContent. Nothing is fetched, and nothing moves unless the reader presses Play.

const GRID_WIDTH = 720, STRIP_HEIGHT = 18, CELL_GAP = 6, PLAY_MS = 350;

function node(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// One block: its words, and below them a strip with a mark for every slot.
function drawCell(cell, index, form, paint) {
  const pitch = GRID_WIDTH / form.columns, strip = pitch - CELL_GAP, slot = strip / form.block_size;
  const x = (index % form.columns) * pitch + CELL_GAP / 2;
  const y = Math.floor(index / form.columns) * cellHeight(form);
  const top = y + (form.wide ? 19 : 15);
  const group = svgElement("g", {
    "data-block": index, "data-kind": cell.kind, "data-filled": cell.filled, "data-owners": cell.owners,
    class: `minikv-block minikv-${cell.kind}`,
  });
  group.append(svgElement("title", {}, cell.label));
  group.append(svgElement("text", { x: x + strip / 2, y: top - 5, "text-anchor": "middle" },
    form.wide ? cell.short : cell.owners || "-"));
  if (cell.filled)
    group.append(svgElement("rect", {
      x, y: top, width: slot * cell.filled, height: STRIP_HEIGHT, fill: paint.fill(cell.look),
    }));
  if (slot >= 3 && cell.kind !== "free") {
    let marks = "";
    for (let i = 1; i < form.block_size; i++) marks += `M${x + i * slot} ${top}v${STRIP_HEIGHT}`;
    group.append(svgElement("path", { d: marks, class: "minikv-slots" }));
  }
  group.append(svgElement("rect", { x, y: top, width: strip, height: STRIP_HEIGHT, class: "minikv-outline" }));
  return group;
}

function cellHeight(form) { return (form.wide ? 19 : 15) + STRIP_HEIGHT + 8; }

function drawGrid(svg, frame, form, paint) {
  const height = Math.ceil(frame.cells.length / form.columns) * cellHeight(form);
  svg.setAttribute("viewBox", `0 0 ${GRID_WIDTH} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${form.title}, ${form.size}. ${frame.status}`);
  svg.replaceChildren(paint.defs, ...frame.cells.map((cell, index) => drawCell(cell, index, form, paint)));
}

function drawRows(table, frame, form) {
  table.hidden = !frame.rows.length;
  const head = form.head.map((name) => node("th", { scope: "col" }, name));
  const body = frame.rows.map(([name, ...rest]) => node("tr", {},
    node("th", { scope: "row" }, name), ...rest.map((value) => node("td", {}, value))));
  table.replaceChildren(node("thead", {}, node("tr", {}, ...head)), node("tbody", {}, ...body));
}

// The slider over the steps, and the button that walks along them.
function drawControls(form, show) {
  const slider = node("input", { type: "range", name: "step", min: 0, step: 1 });
  const said = node("span", { class: "minikv-said" });
  const button = node("button", { type: "button", "aria-pressed": "false" }, form.play);
  // JupyterLab binds the arrow keys to its cells, even while a slider has the focus; this tells it not to.
  for (const control of [slider, button]) control.setAttribute("data-lm-suppress-shortcuts", "true");
  const bar = node("div", { class: "minikv-steps" },
    button, node("label", {}, node("span", {}, form.step), slider), said);
  slider.addEventListener("input", () => show(Number(slider.value)));
  const fill = (step, last) => {
    bar.hidden = last === 0;
    slider.max = last;
    slider.value = step;
    said.textContent = form.step_value.replace("{step}", step).replace("{last}", last);
    slider.setAttribute("aria-valuetext", said.textContent);
  };
  return { bar, slider, button, fill };
}

function render({ model, el }) {
  const form = model.get("form");
  const last = () => model.get("frames").length - 1;
  const shown = () => (model.get("step") < 0 ? last() : Math.min(model.get("step"), last()));
  const show = (step) => {
    model.set("step", step < last() ? step : -1); // at the last step the reader follows what comes
    model.save_changes();
  };
  const { bar, slider, button, fill } = drawControls(form, show);
  const actions = form.actions ? [drawActions(model, form)] : [];
  const paint = paintBox();
  const svg = svgElement("svg");
  const table = node("table");
  // Built once and then changed: a live region that is replaced is not read out.
  const status = node("p", { role: "status", "aria-live": "polite" });
  el.append(node("div", { class: "minikv-widget minikv-blocks", lang: form.lang },
    node("h4", {}, form.title, node("span", {}, form.size)), ...actions, bar, svg, status, table));

  const draw = () => {
    const frame = model.get("frames")[shown()];
    drawGrid(svg, frame, form, paint);
    drawRows(table, frame, form);
    fill(shown(), last());
    if (status.textContent !== frame.status) status.textContent = frame.status;
  };

  let playing = 0;
  const stop = () => {
    clearInterval(playing);
    playing = 0;
    button.textContent = form.play;
    button.setAttribute("aria-pressed", "false");
    status.setAttribute("aria-live", "polite");
  };
  const play = () => {
    if (shown() === last()) show(0);
    playing = setInterval(() => {
      show(shown() + 1);
      if (shown() === last()) stop();
    }, PLAY_MS);
    button.textContent = form.pause;
    button.setAttribute("aria-pressed", "true");
    status.setAttribute("aria-live", "off"); // a screen reader cannot follow at this pace
  };
  button.addEventListener("click", () => (playing ? stop() : play()));
  slider.addEventListener("input", stop);

  draw();
  model.on("change:frames", draw);
  model.on("change:step", draw);
  return () => {
    stop();
    model.off("change:frames", draw);
    model.off("change:step", draw);
  };
}

export default { render };
