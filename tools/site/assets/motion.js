// The home page's drawing that moves: its states are in the page, recorded when the site was built.

import { mount } from "./paging.js";

for (const figure of document.querySelectorAll("figure.motion")) {
  const place = document.createElement("div");
  const scene = JSON.parse(figure.querySelector("script").textContent);
  figure.querySelector("img").replaceWith(place);
  mount(place, scene, { place: Math.floor(scene.states.length / 2) }); // where several sequences share the pool
}
