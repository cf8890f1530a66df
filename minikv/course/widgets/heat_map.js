// The heat-map widget: the scores that an eviction policy sees, a row a step and a column a token; below it one row
// large, with the words. All rows of the chosen policy and share are here, so the step, the layer, the head and the
// shading answer without Python; a policy or a share asks it for other rows.
//
//   form   { lang, title, legend, reset, fields, defaults, words, marks, letters, hint, detail, detail_gone, map_aria,
//            strip_aria, step_label, head_label, row_label }                                      written once
//   state  { policy, share, layer, head (null: all), rows, shade, step }                  written here, read by Python
//   view   { maps: { layer: { head: { score, rank, roles, values, status } } } or null,
//            steps: [{ word, source, right }], status, error }                            written by Python
//            score, rank: a string a step, a character a token: "0" to "8" its shade, "-" evicted, "." not there yet
//            roles: "S" sink, "H" heavy hitter, "R" recent, "x" evicted in this step, "-" before, "." not there yet
//            values: the scores of the step's resident tokens as words
//
// A token's role is known by its letter, what is kept by a frame, what is gone by hatching, never by colour alone.
// Data is set as textContent. Nothing is fetched and nothing is animated.

const HEAT = {
  left: 76, width: 642, top: 4, rows: 288, thinnest: 3, thickest: 14, heads: 22, gap: 0.6,
  mark: 12, strip: 20, letters: 15, words: 58, column: 8.5,
};
const KEPT = "SHR", HERE = "SHRx";

function fillIn(template, values) {
  return template.replace(/\{(\w+)\}/g, (whole, name) => name in values ? values[name] : whole);
}

// What fits of a word that stands upright; the whole word is in the place's label. A Chinese character is a square.
function shortened(word, size) {
  let room = HEAT.words - 4, fitting = "";
  for (const letter of word) {
    room -= size * (letter > "\u2e80" ? 1 : 0.58);
    if (room < 0) return `${fitting.slice(0, -1)}\u2026`;
    fitting += letter;
  }
  return word;
}

// A row of the map: the tokens of one shade are one path.
function heatRow(shades, y, height, unit, hatch) {
  const places = new Map();
  [...shades].forEach((shade, token) => {
    if (shade === ".") return;
    if (!places.has(shade)) places.set(shade, []);
    places.get(shade).push(token);
  });
  const group = svgElement("g");
  const across = (unit - HEAT.gap).toFixed(2), down = Math.max(height - HEAT.gap, 1).toFixed(2);
  for (const [shade, tokens] of places) group.append(svgElement("path", {
    ...shaded(shade, hatch), "data-shade": shade, "data-tokens": tokens.join(" "),
    d: tokens.map((token) => `M${(HEAT.left + token * unit).toFixed(2)} ${y.toFixed(2)}h${across}v${down}h-${across}z`).join(""),
  }));
  return group;
}

// What the map's rows are: all steps, or every head of every layer in the chosen step.
function heatRows(form, state, view) {
  const step = state.step;
  if (state.rows === "steps") {
    return view.maps[state.layer][state.head ?? "all"][state.shade].map((row, index) => ({
      key: String(index), shades: row, chosen: index === step, later: index > step,
      label: fillIn(form.step_label, { step: index, word: view.steps[index].word }),
    }));
  }
  return Object.entries(view.maps).flatMap(([layer, heads]) => {
    const single = Object.keys(heads).filter((head) => head !== "all");
    return (single.length ? single : ["all"]).map((head) => ({
      key: `${layer} ${head}`, shades: heads[head][state.shade][step], later: false,
      chosen: String(state.layer) === layer && (state.head === null || String(state.head) === head),
      label: fillIn(head === "all" ? form.row_label : form.head_label, { layer, head }),
    }));
  });
}

function drawHeat(svg, form, state, view, unit) {
  const rows = heatRows(form, state, view);
  const steps = state.rows === "steps";
  const space = Math.min(Math.max(HEAT.rows / view.steps.length, HEAT.thinnest), HEAT.thickest);
  const height = steps ? space : HEAT.heads;
  svg.setAttribute("viewBox", `0 0 720 ${(HEAT.top + rows.length * height + 4).toFixed(1)}`);
  const hatch = hatching();
  svg.replaceChildren(hatch.defs);
  const every = Math.ceil(12 / height), chosen = rows.findIndex((row) => row.chosen && steps);
  rows.forEach((row, index) => {
    const y = HEAT.top + index * height;
    const group = heatRow(row.shades, y, height, unit, hatch);
    group.setAttribute("data-row", row.key);
    group.setAttribute("data-chosen", row.chosen);
    group.setAttribute("class", row.later ? "minikv-later" : "minikv-sooner");
    svg.append(group);
    if (row.chosen && steps) svg.append(svgElement("rect", {
      x: HEAT.left - 1, y: (y - 0.8).toFixed(2), width: HEAT.width + 1, height: (height + 1).toFixed(2), class: "minikv-now",
    }));
    const near = chosen >= 0 && index !== chosen && Math.abs(index - chosen) < every;
    if (index !== chosen && (index % every || near)) return;
    svg.append(svgElement("text", {
      x: HEAT.left - 6, y: (y + height / 2 + 3.5).toFixed(1), "text-anchor": "end",
      class: row.chosen ? "minikv-chosen" : "minikv-label", style: "font-size: 10px",
    }, row.label));
  });
}

// Neighbours that are kept stand in one frame.
function keptRuns(roles) {
  const runs = [];
  [...roles].forEach((role, token) => {
    if (!KEPT.includes(role)) return;
    if (runs.length && runs.at(-1)[1] === token) runs.at(-1)[1] = token + 1;
    else runs.push([token, token + 1]);
  });
  return runs;
}

function drawStrip(svg, form, state, view, unit) {
  const map = view.maps[state.layer][state.head ?? "all"], roles = map.roles[state.step];
  const shades = map[state.shade][state.step], source = view.steps[state.step].source;
  const top = HEAT.mark, letters = top + HEAT.strip + 4, words = letters + HEAT.letters + 2;
  // Where the columns are narrow the words stand in two lines, in turn.
  const lines = Math.ceil(HEAT.column / unit), size = Math.min(10.5, unit * lines * 1.06);
  const bottom = words + lines * HEAT.words, letter = Math.min(11, Math.max(7, unit * 1.06));
  svg.setAttribute("viewBox", `0 0 720 ${bottom}`);
  const hatch = hatching();
  svg.replaceChildren(hatch.defs, svgElement("text", {
    x: HEAT.left - 6, y: top + 14, "text-anchor": "end", class: "minikv-chosen", style: "font-size: 11px", "aria-hidden": "true",
  }, fillIn(form.step_label, { step: state.step, word: view.steps[state.step].word })));
  let value = 0;
  [...roles].forEach((role, token) => {
    const x = HEAT.left + token * unit, shade = shades[token], word = form.words[token];
    const here = HERE.includes(role);
    const said = fillIn(here ? form.detail : form.detail_gone, {
      word, position: token, role: form.letters[role], score: here ? map.values[state.step][value++] : "",
    });
    const place = svgElement("g", {
      class: "minikv-place", role: "option", tabindex: token ? -1 : 0, "aria-selected": "false", "aria-label": said,
      "data-token": token, "data-role": role, "data-shade": shade, "data-lm-suppress-shortcuts": "true",
    });
    place.append(svgElement("rect", {
      x, y: top - 2, width: unit, height: bottom - top, class: "minikv-reach",
    }));
    if (shade !== ".") place.append(svgElement("rect", {
      x, y: top, width: unit - HEAT.gap, height: HEAT.strip, ...shaded(shade, hatch),
    }));
    if (here) place.append(svgElement("text", {
      x: x + unit / 2, y: letters + 11, "text-anchor": "middle", style: `font-size: ${letter}px`, class: "minikv-role",
    }, role === "x" ? "\u00d7" : role));
    const line = words + (token % lines) * HEAT.words, middle = x + unit / 2;
    if (role !== "." && line > words) place.append(svgElement("path", { d: `M${middle} ${words - 2}V${line - 2}`, class: "minikv-leader" }));
    if (role !== ".") place.append(svgElement("text", {
      transform: `translate(${(middle + size * 0.34).toFixed(2)} ${line}) rotate(-90)`, "text-anchor": "end",
      style: `font-size: ${size}px`, class: KEPT.includes(role) ? "minikv-word" : "minikv-word minikv-lost",
    }, shortened(word, size)));
    svg.append(place);
  });
  for (const [first, end] of keptRuns(roles)) svg.append(svgElement("rect", {
    x: HEAT.left + first * unit - 0.9, y: top - 1.6, width: (end - first) * unit + 1.2, height: HEAT.strip + 3.2,
    class: "minikv-kept", "data-first": first, "data-end": end,
  }));
  if (source !== null) {
    const x = HEAT.left + (source + 0.5) * unit;
    svg.append(svgElement("path", {
      d: `M${x - 5} 0H${x + 5}L${x} 8z`, class: "minikv-answer", "data-source": source,
    }));
  }
}

// What a token of the strip is stands below while the pointer or the focus is on it. The strip is one stop of the Tab
// key; the arrow keys go on from there. The ears are on the whole widget: an <svg> that listens for focus becomes a
// stop itself.
function inspectTokens(root, strip, detail, hint) {
  let at = 0;
  const places = () => [...strip.querySelectorAll(".minikv-place")];
  const of = (event) => event.target.closest?.(".minikv-place");
  const say = (place) => { detail.textContent = place ? place.getAttribute("aria-label") : hint; };
  const mark = () => places().forEach((place, index) => {
    place.setAttribute("tabindex", index === at ? 0 : -1);
    place.setAttribute("aria-selected", index === at && place === document.activeElement);
  });
  root.addEventListener("pointerover", (event) => say(of(event) ?? strip.querySelector(".minikv-place:focus")));
  root.addEventListener("pointerleave", () => say(strip.querySelector(".minikv-place:focus")));
  root.addEventListener("focusin", (event) => {
    const place = of(event);
    say(place);
    if (place) at = places().indexOf(place);
    mark();
  });
  root.addEventListener("focusout", () => say(null));
  root.addEventListener("keydown", (event) => {
    const all = places(), now = all.indexOf(of(event));
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: all.length - 1 }[event.key];
    if (now < 0 || next === undefined) return;
    event.preventDefault();
    all[Math.min(Math.max(next, 0), all.length - 1)].focus();
  });
  return () => {
    mark();
    say(null);
  };
}

function render({ model, el }) {
  const form = model.get("form");
  const write = (state) => {
    model.set("state", state);
    model.save_changes();
  };
  const change = (key, value) => write({ ...model.get("state"), [key]: value });
  const { fieldset, fill } = drawForm(form, change, () => write({ ...form.defaults }));
  const unit = HEAT.width / form.words.length;
  const map = svgElement("svg", { role: "img" }), strip = svgElement("svg", { role: "listbox", "aria-label": form.strip_aria });
  const detail = htmlElement("div", { class: "minikv-detail" }, form.hint);
  // Built once and then changed: a live region that is replaced is not read out.
  const status = htmlElement("p", { role: "status", "aria-live": "polite" });
  const root = htmlElement("div", { class: "minikv-widget minikv-heat-map", lang: form.lang },
    htmlElement("h4", {}, form.title), sides(fieldset,
      htmlElement("p", { class: "minikv-legend" }, ...legendEntries(form.marks)), map, strip, detail, status));
  const forget = inspectTokens(root, strip, detail, form.hint);
  el.append(root);

  const draw = () => {
    const state = model.get("state"), view = model.get("view");
    fill(state);
    for (const svg of [map, strip]) svg.style.display = view.error ? "none" : "";
    const rows = view.error ? { status: { [state.step]: view.status } } : view.maps[state.layer]?.[state.head ?? "all"];
    const said = rows?.status[state.step];
    if (said === undefined) return; // settings that Python is about to refuse
    if (!view.error) {
      drawHeat(map, form, state, view, unit);
      drawStrip(strip, form, state, view, unit);
      map.setAttribute("aria-label", `${form.map_aria} ${said}`);
      forget();
    }
    status.classList.toggle("minikv-error", view.error);
    if (status.textContent !== said) status.textContent = said;
  };
  draw();
  model.on("change:state", draw);
  model.on("change:view", draw);
  return () => {
    model.off("change:state", draw);
    model.off("change:view", draw);
  };
}

export default { render };
