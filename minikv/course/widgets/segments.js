// The segments widget: every segment a row, every block a stretch of it, all rows to one scale. It draws one frame
// of many: what stands where, every figure and every sentence is Python's.
//
//   form     { lang, title, device, setting, step, step_value, back, forward, legend, scale, scale_text, hint, empty,
//              figures: [[key, label]] }                                                             written once
//   map      { blocks: [{ label, short, name, state, look, size }], segments: [{ label, blocks: [place] }],
//              frames: { setting: [{ rows: [place], more, figures, status, error }] } }              written once
//   setting, step   which frame is on display; written here and by Python
//
// A block is known by its words (in it, and where it is pointed at) and by its pattern, never by its colour alone.
// Data is set as textContent. Nothing is fetched and nothing is animated.

const MAP_WIDTH = 864, MAP_LEFT = 2, MAP_SPAN = 860, SEGMENT_PITCH = 38, SEGMENT_TOP = 16, SEGMENT_HEIGHT = 18;
const THIN_SEGMENT = 12, THIN_BLOCK = 6;

// Widths in proportion that fill `span`, none thinner than can be seen; the wide ones pay for the thin.
function blockWidths(sizes, span) {
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const least = Math.min(THIN_BLOCK, span / sizes.length);
  const thin = (size) => size / total * span < least;
  const thinCount = sizes.filter(thin).length;
  const rest = sizes.filter((size) => !thin(size)).reduce((sum, size) => sum + size, 0);
  return sizes.map((size) => thin(size) ? least : size / rest * (span - least * thinCount));
}

// About how wide a text of 12 px is: a Chinese character is as wide as it is high.
function textWidth(text) {
  return [...text].reduce((sum, letter) => sum + (letter.codePointAt(0) > 0x2e7f ? 12.5 : 7), 0);
}

function drawBlock(block, x, y, width, paint) {
  const group = svgElement("g", {
    class: `minikv-place minikv-${block.state}`, role: "option", tabindex: -1, "aria-selected": "false",
    "aria-label": block.label, "data-state": block.state, "data-name": block.name, "data-bytes": block.size,
    "data-lm-suppress-shortcuts": "true", // looked for on the focused element itself
  });
  group.append(svgElement("rect", {
    x, y, width, height: SEGMENT_HEIGHT, fill: paint.fill(block.look), class: "minikv-outline",
  }));
  const fitting = [block.short, block.name].find((words) => words && textWidth(words) + 8 < width);
  if (fitting) group.append(svgElement("text", {
    x: x + width / 2, y: y + 13.5, "text-anchor": "middle", ...wordsOn(block.look),
  }, fitting));
  return group;
}

function drawSegment(segment, row, map, form, paint) {
  const group = svgElement("g", { class: "minikv-segment", role: "group", "aria-label": segment.label });
  const blocks = segment.blocks.map((place) => map.blocks[place]);
  const sizes = blocks.map(({ size }) => size);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  group.setAttribute("data-bytes", total);
  const top = row * SEGMENT_PITCH + SEGMENT_TOP;
  group.append(svgElement("text", { x: MAP_LEFT, y: top - 4, "aria-hidden": "true" }, segment.label));
  let x = MAP_LEFT;
  blockWidths(sizes, Math.max(total / form.scale * MAP_SPAN, THIN_SEGMENT)).forEach((width, index) => {
    group.append(drawBlock(blocks[index], x, top, width, paint));
    x += width;
  });
  return group;
}

function drawMap(svg, frame, map, form, rows, paint) {
  const words = frame.more || (frame.rows.length ? "" : form.empty);
  svg.setAttribute("viewBox", `0 0 ${MAP_WIDTH} ${rows * SEGMENT_PITCH}`);
  svg.setAttribute("role", frame.rows.length ? "listbox" : "img");
  svg.setAttribute("aria-label", `${form.title}, ${form.device}. ${frame.status} ${words}`);
  svg.replaceChildren(paint.defs, ...frame.rows.map(
    (place, row) => drawSegment(map.segments[place], row, map, form, paint)));
  if (words) svg.append(svgElement("text", {
    x: MAP_LEFT, y: frame.rows.length * SEGMENT_PITCH + SEGMENT_TOP - 4, class: "minikv-words",
  }, words));
  svg.querySelector(".minikv-place")?.setAttribute("tabindex", 0);
}

// What a block is stands below the map while the pointer or the focus is on it. One block is in the order of the
// Tab key; the arrow keys go on from it: left and right along the blocks, up and down to the next segment.
// The ears are on the whole widget: an <svg> that listens for focus becomes a stop of the Tab key itself.
function inspectBlocks(root, svg, detail, hint) {
  const say = (block) => { detail.textContent = block ? block.getAttribute("aria-label") : hint; };
  const of = (event) => event.target.closest?.(".minikv-place");
  root.addEventListener("pointerover", (event) => say(of(event) ?? svg.querySelector(".minikv-place:focus")));
  root.addEventListener("pointerleave", () => say(svg.querySelector(".minikv-place:focus")));
  root.addEventListener("focusin", (event) => {
    const focused = of(event);
    say(focused);
    if (focused) for (const block of svg.querySelectorAll(".minikv-place")) {
      block.setAttribute("tabindex", block === focused ? 0 : -1);
      block.setAttribute("aria-selected", block === focused);
    }
  });
  root.addEventListener("focusout", () => say(null));
  root.addEventListener("keydown", (event) => {
    const blocks = [...svg.querySelectorAll(".minikv-place")], at = blocks.indexOf(of(event));
    const segments = [...svg.querySelectorAll(".minikv-segment")];
    const segment = (by) => segments[segments.indexOf(blocks[at].parentNode) + by]?.querySelector(".minikv-place");
    const next = {
      ArrowLeft: () => blocks[at - 1], ArrowRight: () => blocks[at + 1], ArrowUp: () => segment(-1),
      ArrowDown: () => segment(1), Home: () => blocks[0], End: () => blocks.at(-1),
    }[event.key];
    if (at < 0 || !next) return;
    event.preventDefault();
    next()?.focus();
  });
  return () => say(null);
}

function drawLegend(form, paint) {
  const box = { x: 0.5, y: 0.5, width: 15, height: 15, class: "minikv-outline" };
  return htmlElement("p", { class: "minikv-legend" }, ...form.legend.map(([look, words]) => htmlElement("span", {},
    ...(look !== null ? [legendMark([svgElement("rect", { ...box, fill: paint.fill(look) })])] : []), words)));
}

// The choice of settings, and the slider over the steps between its two buttons.
function drawSteps(model, form, last) {
  const id = `minikv-control-${Math.random().toString(36).slice(2)}-${controls++}`;
  const write = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const choice = selectField(form.setting, id, (value) => write("setting", value));
  const slider = htmlElement("input", { type: "range", name: "step", min: 0, max: last, step: 1 });
  const said = htmlElement("span", { class: "minikv-said" });
  const button = (name, by) => {
    const made = htmlElement("button", { type: "button", name }, form[name]);
    made.addEventListener("click", () => write("step", Math.min(Math.max(model.get("step") + by, 0), last)));
    return made;
  };
  slider.addEventListener("input", () => write("step", Number(slider.value)));
  const bar = htmlElement("div", { class: "minikv-controls" },
    htmlElement("div", {}, htmlElement("label", { for: id }, form.setting.label), ...choice.parts),
    htmlElement("div", {}, button("back", -1), button("forward", 1),
      htmlElement("label", {}, htmlElement("span", {}, form.step), slider), said));
  // JupyterLab binds keys to its cells, even while a control has the focus; this tells it not to.
  for (const control of bar.querySelectorAll("select, input, button"))
    control.setAttribute("data-lm-suppress-shortcuts", "true");
  const fill = (setting, step) => {
    choice.show(setting);
    slider.value = step;
    said.textContent = form.step_value.replace("{step}", step).replace("{last}", last);
    slider.setAttribute("aria-valuetext", said.textContent);
  };
  return { bar, fill };
}

function render({ model, el }) {
  const form = model.get("form"), map = model.get("map");
  const frames = () => map.frames[model.get("setting")];
  // The map is as high as the fullest frame that the reader has seen: it makes room for what it shows, and what is below
  // it never jumps back. What changes with every step stands above it.
  let rows = 1;
  const { bar, fill } = drawSteps(model, form, frames().length - 1);
  const paint = paintBox();
  const svg = svgElement("svg");
  const detail = htmlElement("div", { class: "minikv-detail" }, form.hint);
  // Built once and then changed: a live region that is replaced is not read out.
  const status = htmlElement("p", { role: "status", "aria-live": "polite" });
  const values = form.figures.map(([key]) => htmlElement("dd", { "data-key": key }));
  const list = htmlElement("dl", {}, ...form.figures.map(([, label], index) =>
    htmlElement("div", {}, htmlElement("dt", {}, label), values[index])));
  const root = htmlElement("div", { class: "minikv-widget minikv-segments", lang: form.lang },
    htmlElement("h4", {}, form.title, htmlElement("span", {}, form.device)), bar, status, list, drawLegend(form, paint),
    svg, detail, htmlElement("div", { class: "minikv-scale" }, form.scale_text));
  const forget = inspectBlocks(root, svg, detail, form.hint);
  el.append(root);

  const draw = () => {
    const frame = frames()[model.get("step")];
    rows = Math.max(rows, frame.rows.length + (frame.more ? 0.5 : 0));
    drawMap(svg, frame, map, form, rows, paint);
    forget();
    frame.figures.forEach((value, index) => { values[index].textContent = value; });
    fill(model.get("setting"), model.get("step"));
    status.classList.toggle("minikv-error", frame.error);
    if (status.textContent !== frame.status) status.textContent = frame.status;
  };
  draw();
  model.on("change:setting", draw);
  model.on("change:step", draw);
  return () => {
    model.off("change:setting", draw);
    model.off("change:step", draw);
  };
}

export default { render };
