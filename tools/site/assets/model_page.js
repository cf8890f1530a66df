// The page of the model: what model.js computes, step by step. Nothing is loaded before the button is pressed.

import { Model, Tokenizer, readSafetensors, steps } from "./model.js";

const PAGE = 4, SINKS = 1, RECENT = 3, WRITTEN = 4;
const place = document.getElementById("model");
const part = (name) => place.querySelector(name);
const words = JSON.parse(part(".words").textContent);
const say = (name, values) => words[name].replace(/\{(\w+)\}/g, (_, key) => values[key]);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

let model, tokenizer, states = [], text = [];

async function load() {
  const file = (name) => fetch(new URL(`./tiny-gqa/${name}`, import.meta.url));
  const [config, vocabulary, tensors] = await Promise.all([
    file("config.json").then((answer) => answer.json()),
    file("tokenizer.json").then((answer) => answer.json()),
    file("model.safetensors").then((answer) => answer.arrayBuffer()),
  ]);
  model = new Model(config, readSafetensors(tensors));
  tokenizer = new Tokenizer(vocabulary);
}

// Everything that each forward did, kept as plain data, so that the reader can go back.
function recorded(prompt, rules) {
  const made = [];
  for (const { cache, ...step } of steps(model, prompt, WRITTEN, rules)) {
    made.push({ ...step, slots: cache.map((layer) => layer.slots.map(({ position }) => position)) });
  }
  return made;
}

function writtenBy(made) {
  return made.filter(({ next }) => next !== null).map(({ next }) => tokenizer.words[next]);
}

function run() {
  const unknown = tokenizer.unknown(part("textarea").value);
  part(".unknown").textContent = unknown.length ? say("unknown", { words: unknown.join(", ") }) : "";
  const prompt = tokenizer.encode(part("textarea").value).slice(0, 96);
  const rules = { policy: part("#policy").value, budget: Number(part("#budget").value), sinks: SINKS, recent: RECENT };
  states = recorded(prompt, rules);
  const written = writtenBy(states);
  text = [...prompt.map((token) => tokenizer.words[token]), ...written];
  const all = rules.policy === "full", full = all ? written : writtenBy(recorded(prompt, { policy: "full" }));
  const values = { full: full.join(" "), written: written.join(" ") };
  part(".verdict").textContent = say(all ? "verdict_full" : "verdict", values);
  part("[name=step]").max = states.length - 1;
  show(prompt.length - 1);
}

function show(at) {
  const step = states[at], slot = step.read[0].length - 1;
  part("[name=step]").value = at;
  part("[name=back]").setAttribute("aria-disabled", at === 0);
  part("[name=forward]").setAttribute("aria-disabled", at === states.length - 1);
  const said = [say("now", { place: at + 1, last: states.length, word: text[at], slot, page: Math.floor(slot / PAGE) })];
  if (step.next !== null) said.push(say("next", { word: tokenizer.words[step.next] }));
  step.evicted.forEach((gone, layer) => {
    if (gone.length) said.push(say("evicted", { layer, words: gone.map((position) => text[position]).join(", ") }));
  });
  part(".now").textContent = said.join(document.body.dataset.lang === "zh" ? "" : " ");
  part("[name=step]").setAttribute("aria-valuetext", said[0]);
  part(".pages").replaceChildren(...step.slots.map((slots, layer) => pagesOf(slots, layer, at)));
  showAttention(step);
}

function pagesOf(slots, layer, newest) {
  const pages = Array.from({ length: Math.ceil(slots.length / PAGE) }, (_, page) => {
    const cells = Array.from({ length: PAGE }, (_, at) => {
      const position = slots[page * PAGE + at];
      const kind = position === undefined ? "empty" : position === newest ? "new" : "held";
      return element("span", { class: kind }, position === undefined ? "" : text[position]);
    });
    return element("li", { "aria-label": say("page", { page }) }, ...cells);
  });
  const head = say("layer", { layer, kept: slots.length, pages: pages.length });
  return element("section", {}, element("h2", {}, head), element("ol", {}, ...pages));
}

function showAttention({ attention, read, position }) {
  const columns = Array.from({ length: position + 1 }, (_, at) => at);
  const head = element("tr", {}, element("td"), ...columns.map((at) => element("th", { scope: "col" }, text[at])));
  const rows = attention.flatMap((heads, layer) => heads.map((given, number) => {
    const cells = columns.map((at) => {
      const slot = read[layer].indexOf(at);
      if (slot < 0) return element("td", {}, "–");
      const percent = Math.round(100 * given[slot]);
      return element("td", { style: `--share: ${percent}%` }, String(percent));
    });
    return element("tr", {}, element("th", { scope: "row" }, say("head", { layer, head: number })), ...cells);
  }));
  part(".attention").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

part(".start").addEventListener("click", async () => {
  part(".start").disabled = true;
  part(".state").textContent = words.loading;
  try {
    await load();
  } catch (error) {
    console.warn(error);
    part(".state").textContent = words.failed;
    return;
  }
  part(".start").parentElement.hidden = true;
  part(".run").hidden = false;
  part(".example").remove();
  part(".vocabulary").textContent = tokenizer.words.slice(3).join(" ");
  run();
  place.dataset.ready = "true";
});
part("[name=run]").addEventListener("click", run);
for (const name of ["#policy", "#budget"]) part(name).addEventListener("change", run);
part("[name=step]").addEventListener("input", (event) => show(Number(event.target.value)));
const move = (by) => {
  const at = Number(part("[name=step]").value) + by;
  if (states[at]) show(at);
};
part("[name=back]").addEventListener("click", () => move(-1));
part("[name=forward]").addEventListener("click", () => move(1));
