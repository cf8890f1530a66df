// What the moving drawings share: a place among recorded states, the controls that lead through them, and the change
// from one state to the next. A drawing is a plain module: `mount(element, { form, states })` needs JSON and nothing else.
//
//   form     { lang, name, title, size, back, play, pause, forward, step, step_value, speed, speeds: [[states a second, words]] }
//   states   [{ status, ... }]                    in the order in which they were; the sentences are Python's
//   makeScene(form, states, paint, narrow) = { svg, settle(place), change(place) }    narrow: drawn for a phone
//            settle draws the state at `place` with nothing moving; change prepares what leads there from the one before,
//            and gives move(share), 0 to 1
//   mounted  { show(place), seek(at), stop() }    seek(2.4): 0.4 of the way from state 2 to state 3, for a camera
//
// Motion shows a change of state, 150 to 400 ms long, and nothing else moves. A reader who asks for less of it
// (prefers-reduced-motion) sees the end of each change at once: what stands in a state stands there too.

const PAGE_WIDTH = 960; // of every scene, but for one that is made for a page less than NARROWEST px wide
const NARROWEST = 600;
const CHANGE_MS = 350, SHORTEST_MS = 150, SHARE_OF_A_STATE = 0.8;

// Slow at both ends, so that an eye finds what begins to move.
function eased(share) { return share * share * (3 - 2 * share); }

function between(from, to, share) { return from + (to - from) * share; }

function motionControls(form, last) {
  const button = (name, words) => htmlElement("button", { type: "button", name }, words);
  const back = button("back", form.back), play = button("play", form.play), forward = button("forward", form.forward);
  play.setAttribute("aria-pressed", "false");
  const slider = htmlElement("input", { type: "range", name: "step", min: 0, max: last, step: 1 });
  const said = htmlElement("span", { class: "minikv-said" });
  const speed = htmlElement("select", { name: "speed" });
  for (const [rate, words] of form.speeds) speed.append(htmlElement("option", { value: rate }, words));
  // JupyterLab binds the arrow keys to its cells, even while a slider has the focus; this tells it not to.
  for (const control of [back, play, forward, slider, speed]) control.setAttribute("data-lm-suppress-shortcuts", "true");
  const bar = htmlElement("div", { class: "minikv-steps" }, back, play, forward,
    htmlElement("label", {}, htmlElement("span", {}, form.step), slider), said,
    htmlElement("label", {}, htmlElement("span", {}, form.speed), speed));
  const fill = (place, playing) => {
    slider.value = place;
    said.textContent = form.step_value.replace("{step}", place).replace("{last}", last);
    slider.setAttribute("aria-valuetext", said.textContent);
    // Not `disabled`: a button that has the focus would lose it.
    back.setAttribute("aria-disabled", place === 0);
    forward.setAttribute("aria-disabled", place === last);
    play.textContent = playing ? form.pause : form.play;
    play.setAttribute("aria-pressed", playing);
  };
  return { bar, back, play, forward, slider, speed, fill };
}

function mountMotion(element, { form, states }, makeScene, { place = 0, onPlace = () => {} } = {}) {
  const last = states.length - 1, paint = paintBox();
  const scene = makeScene(form, states, paint, element.clientWidth > 0 && element.clientWidth < NARROWEST);
  const { bar, back, play, forward, slider, speed, fill } = motionControls(form, last);
  // Built once and then changed: a live region that is replaced is not read out.
  const status = htmlElement("p", { role: "status", "aria-live": "polite" });
  const root = htmlElement("div", { class: `minikv-widget minikv-motion minikv-${form.name.replaceAll("_", "-")}`, lang: form.lang },
    htmlElement("h4", {}, form.title, htmlElement("span", {}, form.size)), bar, scene.svg, status);
  scene.svg.setAttribute("role", "img");
  element.append(root);

  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  let at = Math.max(0, Math.min(place, last)), moving = null, playing = false, due = 0, frame = 0;

  const tell = () => {
    const sentence = states[at].status;
    fill(at, playing);
    scene.svg.setAttribute("aria-label", `${form.title}, ${form.size}. ${sentence}`);
    status.setAttribute("aria-live", playing ? "off" : "polite"); // a screen reader cannot follow at this pace
    if (status.textContent !== sentence) status.textContent = sentence;
    root.dataset.place = at;
    root.dataset.moving = moving !== null;
  };
  const settle = () => {
    moving = null;
    scene.settle(at);
    tell();
  };
  const changeMs = () => (playing ? Math.min(CHANGE_MS, SHARE_OF_A_STATE * 1000 / Number(speed.value)) : CHANGE_MS);
  const later = () => { if (!frame) frame = requestAnimationFrame(tick); };
  // To a neighbour with the change between them, to any other state at once.
  const go = (to) => {
    if (moving) settle();
    const from = at;
    at = to;
    if (Math.abs(to - from) !== 1 || calm.matches || changeMs() < SHORTEST_MS) settle();
    else {
      moving = { move: scene.change(Math.max(from, to)), backwards: to < from, began: null };
      moving.move(moving.backwards ? 1 : 0);
      tell();
      later();
    }
  };
  const halt = () => {
    playing = false;
    tell();
  };
  const tick = (now) => {
    frame = 0;
    if (moving) {
      moving.began ??= now;
      const share = (now - moving.began) / changeMs();
      if (share >= 1) settle();
      else moving.move(eased(moving.backwards ? 1 - share : share));
    }
    if (playing && !moving && now >= due) {
      if (at === last) halt();
      else {
        due = now + 1000 / Number(speed.value);
        go(at + 1);
        onPlace(at);
      }
    }
    if (playing || moving) later();
  };
  const chosen = (to) => {
    playing = false;
    if (to < 0 || to > last) return tell();
    go(to);
    onPlace(at);
  };
  const start = () => {
    if (at === last) {
      go(0);
      onPlace(at);
    }
    playing = true;
    due = 0;
    tell();
    later();
  };
  bar.hidden = last === 0;
  back.addEventListener("click", () => chosen(at - 1));
  forward.addEventListener("click", () => chosen(at + 1));
  play.addEventListener("click", () => (playing ? halt() : start()));
  slider.addEventListener("input", () => chosen(Number(slider.value)));
  settle();

  return {
    show(to) { if (to !== at) go(to); },
    seek(where) {
      at = Math.ceil(where);
      if (where === at) return settle();
      scene.change(at)(eased(where - at + 1));
      tell();
    },
    stop() {
      cancelAnimationFrame(frame);
      playing = false;
    },
  };
}
