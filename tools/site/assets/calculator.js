// The calculator's page: the budget widget's own script draws, Python in worker.js answers.
//
// The address behind "#" holds the settings, and a pasted config packed: a link opens what its writer saw. Nothing is
// loaded before the button is pressed, or such a link is opened.

import widget from "./widgets/budget.js";
import { ask as askPython } from "./python.js";
import { standIn } from "./stand_in.js";

const place = document.getElementById("calculator");
const lang = document.body.dataset.lang;
const part = (name) => place.querySelector(name);
const [button, state, shown, more] = [".start", ".state", ".widget", ".more"].map(part);
const explained = [...place.querySelectorAll(".explained")];
const ask = (call, ...args) => askPython("calculator", call, ...args);

const traits = {};
const model = standIn(traits, () => answer(traits.state));

let asked = 0;
const configs = {}; // the pasted ones, by name: their text
const files = new Set(); // names of models that were read from GGUF files

async function answer(settings) {
  const turn = asked += 1;
  const told = await ask("answer", JSON.stringify({ lang, state: settings }));
  if (turn !== asked) return; // the reader has moved on
  const drawn = JSON.stringify(told.form);
  model.set("state", told.state);
  model.set("view", told.view);
  if (drawn !== traits.drawn) draw(told.form, drawn);
  explained[0].textContent = told.explained[lang];
  explained[1].textContent = told.explained[lang === "en" ? "zh" : "en"];
  part(".command").textContent = told.command;
  await writeLink(told.state);
}

// Another list of models, or other controls: the widget is drawn anew, and the reader stays at the same control.
let undo = () => {};
function draw(form, drawn) {
  const at = shown.contains(document.activeElement) ? document.activeElement.name : null;
  undo();
  shown.replaceChildren();
  Object.assign(traits, { form, drawn });
  undo = widget.render({ el: shown, model }) ?? (() => {});
  shown.querySelector("h4")?.setAttribute("aria-level", "2"); // in a notebook it stands below the lesson's headings
  if (at) shown.querySelector(`[name="${at}"]`)?.focus();
}

async function packed(text, how) {
  const Through = how === "in" ? CompressionStream : DecompressionStream;
  const bytes = how === "in" ? new TextEncoder().encode(text)
    : Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new Through("deflate-raw"));
  const through = new Uint8Array(await new Response(stream).arrayBuffer());
  if (how === "out") return new TextDecoder().decode(through);
  return btoa(String.fromCharCode(...through)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function writeLink(settings) {
  const held = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) if (value !== null) held.set(name, value);
  if (configs[settings.model]) held.set("config", await packed(configs[settings.model], "in"));
  history.replaceState(null, "", `#${held}`);
  part(".link").value = location.href;
  part(".copied").textContent = files.has(settings.model) ? place.dataset.noLink : "";
}

async function readLink() {
  const held = new URLSearchParams(location.hash.slice(1));
  const settings = {};
  for (const [name, value] of held) {
    if (name === "config") continue;
    settings[name] = ["tp", "context", "batch", "utilization"].includes(name) ? Number(value) : value;
  }
  if (held.has("config")) settings.model = await offerConfig(await packed(held.get("config"), "out"));
  return settings;
}

async function offerConfig(text) {
  const told = await ask("add_config", text, lang);
  part(".refused").textContent = told.error ?? "";
  if (told.error) return undefined;
  configs[told.model] = text;
  return told.model;
}

async function offerFile(file) {
  const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  if (String.fromCharCode(...start) !== "GGUF") return offerConfig(await file.text());
  const told = await ask("add_gguf", file, lang);
  part(".refused").textContent = told.error ?? "";
  if (told.error) return undefined;
  files.add(told.model);
  return told.model;
}

async function choose(offered) {
  const name = await offered;
  if (name) await answer({ ...traits.state, model: name });
}

async function start() {
  button.disabled = true;
  state.textContent = place.dataset.loading;
  try {
    await answer(await readLink());
    state.textContent = "";
    button.parentElement.hidden = true;
    more.hidden = false;
    place.dataset.ready = "true";
  } catch (error) {
    console.warn(error);
    state.textContent = location.protocol === "file:" ? place.dataset.asFile : place.dataset.failed;
  }
}

button.addEventListener("click", start);
part(".add").addEventListener("click", () => choose(offerConfig(part("textarea").value)));
part("input[type=file]").addEventListener("change", (event) => {
  if (event.target.files.length) choose(offerFile(event.target.files[0]));
});
part(".copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(part(".link").value);
  part(".copied").textContent = place.dataset.copied;
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  const [file] = event.dataTransfer.files;
  if (file && place.dataset.ready) choose(offerFile(file));
});
if (location.hash.includes("=")) start();
