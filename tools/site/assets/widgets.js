// The widgets of a lesson: a press on the button puts one where its picture is.
//
// Recorded ones have all of their states in the page, or in a file of recorded/. One with controls asks Python, which its
// first change loads, and the pool asks with each press.

import { ask } from "./python.js";
import { standIn } from "./stand_in.js";

const beside = (path) => new URL(path, import.meta.url).href;

// What record.py wrote: a state a frame, as what has changed in it. [new] takes the place of what was there.
function changed(old, change) {
  if (Array.isArray(change)) return change[0];
  const made = Array.isArray(old) ? [...old] : { ...old };
  for (const [key, one] of Object.entries(change)) made[key] = changed(old[key], one);
  return made;
}

async function fetched({ recorded, ...told }) {
  if (!recorded) return told;
  const answer = await fetch(beside(`./recorded/${recorded}`));
  const found = await answer.json();
  let frame = {};
  return { ...found, frames: found.frames.map((change) => frame = changed(frame, change)) };
}

// The frame of the chosen settings: the last axis changes fastest.
function combination(axes, state) {
  return axes.reduce((place, [key, values]) => place * values.length + Math.max(0, values.indexOf(state[key])), 0);
}

// A slider over the frames of a widget that has none of its own.
function scrubber(frames, start, label, show) {
  const slider = document.createElement("input"), said = document.createElement("output"), box = document.createElement("label");
  Object.assign(slider, { type: "range", min: 0, max: frames.length - 1, value: start });
  const fill = () => {
    said.textContent = ` ${Number(slider.value) + 1} / ${frames.length}`;
    slider.setAttribute("aria-valuetext", said.textContent);
    show(frames[Number(slider.value)]);
  };
  slider.addEventListener("input", fill);
  box.className = "moment";
  box.append(`${label} `, slider, said);
  fill();
  return box;
}

async function put(figure) {
  const status = figure.querySelector(".state"), place = document.createElement("div");
  const { name, traits, live, frames, axes, start } = await fetched(JSON.parse(figure.querySelector("script").textContent));
  let turn = 0;
  const asked = async (call, question, take) => {
    const mine = turn += 1;
    if (mine === 1) status.textContent = figure.dataset.loading;
    try {
      const told = await ask("widgets", call, JSON.stringify(question));
      if (mine === turn) take(told);
      status.textContent = "";
    } catch (error) {
      console.warn(error);
      status.textContent = figure.dataset.failed;
    }
  };
  const model = standIn(traits, () => {
    if (axes) model.set("view", frames[combination(axes, traits.state)]);
    else if (live && !live.presses) asked("answer", { ...live, state: traits.state }, (view) => model.set("view", view));
  }, ({ action, sequence }) => {
    if (!live?.presses) return;
    if (action === "reset") live.presses.length = 0; // nothing before it counts
    live.presses.push([action, sequence]);
    asked("pressed", live, ({ frames, targets }) => {
      traits.step = -1;
      model.set("frames", frames);
      model.set("targets", targets);
    });
  });
  const engine = name === "engine", middle = start || Math.floor((frames?.length ?? 0) / 2);
  if (axes) traits.view = frames[combination(axes, traits.state)];
  else if (engine) Object.assign(traits, { view: frames.at(-1), recent: frames }); // its slider goes up to its view
  else if (frames?.length) traits.view = frames[middle];
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: beside(`./widgets/${name}.css`) });
  document.head.append(style);
  const { default: widget } = await import(`./widgets/${name}.js`);
  figure.querySelector(".scroll").replaceWith(place);
  widget.render({ model, el: place });
  if (!live) place.querySelector(".minikv-actions")?.remove(); // its buttons ask a kernel; the slider is enough here
  if (engine) {
    place.querySelector("select[name=speed]").parentElement.remove(); // nothing runs
    const slider = place.querySelector("input[name=moment]");
    slider.value = middle;
    slider.dispatchEvent(new Event("input"));
  } else if (frames?.length && !axes) {
    place.prepend(scrubber(frames, middle, figure.dataset.moment, (view) => model.set("view", view)));
  }
  for (const [key] of axes ?? []) place.querySelector(`input[name=${key}-exact]`)?.remove(); // other numbers are not recorded
  const title = place.querySelector("h4");
  title?.setAttribute("aria-level", "3");
  (place.querySelector("button, select, input") ?? title)?.focus({ preventScroll: true });
  figure.dataset.ready = "true";
}

for (const figure of document.querySelectorAll("figure.widget")) {
  const start = figure.querySelector("button.start");
  start.parentElement.hidden = false;
  start.addEventListener("click", () => {
    start.parentElement.hidden = true;
    put(figure).catch((error) => {
      console.warn(error);
      figure.querySelector(".state").textContent = figure.dataset.failed;
    });
  });
}
