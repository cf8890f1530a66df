// The page of the playground: paging.js draws what nano did, with a row for each request beside it.
//
// The example is in the page; Python is loaded when the reader's own requests are run, or a link with some is opened.

import { mount } from "./paging.js";
import { ask } from "./python.js";

const place = document.getElementById("playground");
const lang = document.body.dataset.lang;
const part = (name) => place.querySelector(name);
const { first, told: example, limits, most, words } = JSON.parse(part(".first").textContent);
const form = part("form");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

let drawn = null;
function draw({ scene, progress }) {
  drawn?.stop();
  part(".drawing").replaceChildren();
  const rows = (at) => part(".progress tbody").replaceChildren(...progress[at].map(([name, state, stored, total, cached]) =>
    element("tr", { "data-state": state }, element("th", { scope: "row" }, name), element("td", {}, words[state]),
      element("td", {}, `${stored} / ${total}`), element("td", {}, String(cached)))));
  const place = Math.floor(scene.states.length / 2); // in the first states little is to be seen
  drawn = mount(part(".drawing"), scene, { place, onPlace: rows });
  part(".drawing h4").setAttribute("aria-level", "2");
  part(".said-steps").replaceChildren(...scene.states.map(({ status }) => element("li", {}, status)));
  rows(place);
}

function number(name, value) {
  const [min, max] = limits[name];
  return element("label", {}, `${words[name]} `, element("input", { type: "number", name, min, max, value, required: "" }));
}

function add({ prompt = "", answer = limits.answer[2], arrives = limits.arrives[2] } = {}) {
  const remove = element("button", { type: "button", name: "remove" });
  const row = element("fieldset", {}, element("legend"),
    element("label", { class: "prompt" }, `${words.name} `, element("input", { name: "prompt", value: prompt, maxlength: 400, required: "" })),
    number("answer", answer), number("arrives", arrives), remove);
  remove.addEventListener("click", () => {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    name();
    next.querySelector("[name=prompt]").focus();
  });
  part(".requests").append(row);
  name();
  return row;
}

// Requests are A, B, ... in the order of their rows.
function name() {
  const rows = [...part(".requests").children];
  rows.forEach((row, index) => {
    const letter = String.fromCharCode(65 + index);
    row.querySelector("legend").textContent = words.number.replace("{name}", letter);
    const remove = row.querySelector("[name=remove]");
    remove.textContent = words.remove.replace("{name}", letter);
    remove.disabled = rows.length === 1;
  });
  part("[name=add]").disabled = rows.length >= most;
}

function wanted() {
  const sizes = Object.fromEntries(Object.keys(first.sizes).map((key) => [key, Number(part(`[name=${key}]`).value)]));
  const requests = [...part(".requests").children].map((row) => ({
    prompt: row.querySelector("[name=prompt]").value,
    answer: Number(row.querySelector("[name=answer]").value),
    arrives: Number(row.querySelector("[name=arrives]").value),
  }));
  return { lang, sizes, requests };
}

function fill({ sizes, requests }) {
  for (const [key, value] of Object.entries(sizes)) part(`[name=${key}]`).value = value;
  part(".requests").replaceChildren();
  for (const request of requests.slice(0, most)) add(request);
}

function writeLink({ sizes, requests }) {
  const held = new URLSearchParams(sizes);
  for (const request of requests) for (const [key, value] of Object.entries(request)) held.append(key, value);
  history.replaceState(null, "", `#${held}`);
  part(".link").value = location.href;
}

function readLink() {
  const held = new URLSearchParams(location.hash.slice(1));
  const numbers = (key) => held.getAll(key).map((value) => Number.parseInt(value, 10)).map((value) => (Number.isNaN(value) ? undefined : value));
  const [answers, arrivals] = [numbers("answer"), numbers("arrives")];
  return {
    sizes: Object.fromEntries(Object.entries(first.sizes).map(([key, value]) => [key, numbers(key)[0] ?? value])),
    requests: held.getAll("prompt").map((prompt, index) => ({ prompt, answer: answers[index], arrives: arrivals[index] })),
  };
}

let turn = 0;
async function run() {
  const mine = turn += 1, asked = wanted();
  part(".refused").textContent = "";
  part(".state").textContent = place.dataset.loading;
  try {
    const told = await ask("playground", "answer", JSON.stringify(asked));
    if (mine !== turn) return; // the reader has moved on
    part(".state").textContent = "";
    if (told.error) {
      part(".refused").textContent = told.error;
      return;
    }
    draw(told);
    writeLink(asked);
    place.dataset.ready = String(mine);
    part(".drawing h4").scrollIntoView({ block: "nearest" });
  } catch (error) {
    console.warn(error);
    part(".state").textContent = location.protocol === "file:" ? place.dataset.asFile : place.dataset.failed;
  }
}

draw(example);
if (form) {
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  part("[name=add]").addEventListener("click", () => add().querySelector("[name=prompt]").focus());
  const linked = location.hash.includes("prompt=");
  fill(linked ? readLink() : first);
  if (linked) run();
}
