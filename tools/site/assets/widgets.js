// The widgets of a lesson: a press on the button puts one where its picture is.
//
// Recorded ones have all of their states in the page. One with controls asks Python, which its first change loads.

import { ask } from "./python.js";
import { standIn } from "./stand_in.js";

function put(figure) {
  const { name, traits, live } = JSON.parse(figure.querySelector("script").textContent);
  const status = figure.querySelector(".state"), place = document.createElement("div");
  let turn = 0;
  const model = standIn(traits, async () => {
    if (!live) return;
    const mine = turn += 1;
    if (mine === 1) status.textContent = figure.dataset.loading;
    try {
      const view = await ask("widgets", "answer", JSON.stringify({ ...live, state: traits.state }));
      if (mine === turn) model.set("view", view);
      status.textContent = "";
    } catch (error) {
      console.warn(error);
      status.textContent = figure.dataset.failed;
    }
  });
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: new URL(`./widgets/${name}.css`, import.meta.url).href });
  document.head.append(style);
  return import(`./widgets/${name}.js`).then(({ default: widget }) => {
    figure.querySelector(".scroll").replaceWith(place);
    widget.render({ model, el: place });
    if (!live) place.querySelector(".minikv-actions")?.remove(); // its buttons ask a kernel; the slider is enough here
    const title = place.querySelector("h4");
    title?.setAttribute("aria-level", "3");
    (place.querySelector("button, select, input") ?? title)?.focus({ preventScroll: true });
    figure.dataset.ready = "true";
  });
}

for (const figure of document.querySelectorAll("figure.widget")) {
  const start = figure.querySelector("button.start");
  start.parentElement.hidden = false;
  start.addEventListener("click", () => {
    start.parentElement.hidden = true;
    put(figure);
  });
}
