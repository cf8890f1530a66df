// A widget's controls: native selects and sliders with labels, reachable by keyboard. Plain functions, no dependency;
// base.py puts this text in front of a widget's own module.
//
//   form = { legend, reset, fields: [{ key, label, options: [[value, text]] } | { key, label, exact, value_text, steps,
//            min, max, step }] }

let controls = 0; // ids join a label to its control, and must differ between the widgets of one page

function htmlElement(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// The head of a table. The corner above the rows' own names is no heading: an empty one would be read aloud.
function tableHead(names) {
  return htmlElement("thead", {}, htmlElement("tr", {}, ...names.map((name) =>
    name ? htmlElement("th", { scope: "col" }, name) : htmlElement("td"))));
}

// A select: its options are [value, text] pairs, and a value may be a number or null.
function selectField(field, id, change) {
  const select = htmlElement("select", { id, name: field.key });
  field.options.forEach(([, text], index) => select.append(htmlElement("option", { value: index }, text)));
  select.addEventListener("change", () => change(field.options[select.selectedIndex][0]));
  const show = (value) => { select.selectedIndex = field.options.findIndex(([known]) => known === value); };
  return { parts: [select], show };
}

// A slider that walks along `steps` (its own value is an index), and a box for any exact number.
function sliderField(field, id, change) {
  const slider = htmlElement("input", {
    id, name: field.key, type: "range", min: 0, max: field.steps.length - 1, step: 1,
  });
  const box = htmlElement("input", {
    name: `${field.key}-exact`, type: "number", min: field.min, max: field.max, step: field.step,
    required: "", "aria-label": field.exact,
  });
  let current = field.min;
  const nearest = (value) => field.steps.reduce(
    (best, step, index) => Math.abs(step - value) < Math.abs(field.steps[best] - value) ? index : best, 0);
  const show = (value) => {
    current = value;
    slider.value = nearest(value);
    slider.setAttribute("aria-valuetext", field.value_text.replace("{value}", value.toLocaleString("en-US")));
    if (Number(box.value) !== value || !box.value) box.value = value;
    box.removeAttribute("aria-invalid");
  };
  slider.addEventListener("input", () => change(field.steps[Number(slider.value)]));
  box.addEventListener("input", () => {
    if (box.checkValidity()) change(Number(box.value));
    else box.setAttribute("aria-invalid", "true");
  });
  // Half a number is no error while it is being typed; when the reader leaves it, the last good one comes back.
  box.addEventListener("change", () => { if (!box.checkValidity()) show(current); });
  return { parts: [slider, box], show };
}

function drawForm(form, change, reset) {
  const fieldset = htmlElement("fieldset", {}, htmlElement("legend", {}, form.legend));
  const shows = {};
  for (const field of form.fields) {
    const id = `minikv-control-${Math.random().toString(36).slice(2)}-${controls++}`;
    const build = field.steps ? sliderField : selectField;
    const { parts, show } = build(field, id, (value) => change(field.key, value));
    shows[field.key] = show;
    const label = htmlElement("label", { for: id }, field.label);
    fieldset.append(htmlElement("div", { class: `minikv-field minikv-${field.steps ? "slider" : "select"}` }, label, ...parts));
  }
  const button = htmlElement("button", { type: "button" }, form.reset);
  button.addEventListener("click", reset);
  fieldset.append(htmlElement("div", { class: "minikv-field" }, button));
  // JupyterLab binds the arrow keys to its cells, even while a slider has the focus. This attribute tells it not
  // to, and it is looked for on the focused element first: on the widget's outermost element it would do nothing.
  for (const control of fieldset.querySelectorAll("select, input, button"))
    control.setAttribute("data-lm-suppress-shortcuts", "true");
  const fill = (state) => { for (const key in shows) shows[key](state[key]); };
  return { fieldset, fill };
}

// The controls beside what they change, or above it where the widget is narrow (style.css).
function sides(fieldset, ...stage) {
  return htmlElement("div", { class: "minikv-sides" }, htmlElement("div", { class: "minikv-side" }, fieldset),
    htmlElement("div", { class: "minikv-stage" }, ...stage));
}

// What a widget with controls exports as `render`: its title, the controls, and beside them what `build` draws with
// the readout that a screen reader speaks in its middle. The controls write `state`, Python answers with `view`.
//
//   build(form) = { above: [elements], below: [elements], draw(view) }       view has { status, error }
function formWidget(name, build) {
  return ({ model, el }) => {
    const form = model.get("form");
    const change = (key, value) => {
      model.set("state", { ...model.get("state"), [key]: value });
      model.save_changes();
    };
    const reset = () => {
      model.set("state", { ...form.defaults });
      model.save_changes();
    };
    const { fieldset, fill } = drawForm(form, change, reset);
    const { above, below, draw } = build(form);
    // Built once and then changed: a live region that is replaced is not read out.
    const status = htmlElement("p", { role: "status", "aria-live": "polite" });
    el.append(htmlElement("div", { class: `minikv-widget minikv-${name}`, lang: form.lang },
      htmlElement("h4", {}, form.title), sides(fieldset, ...above, status, ...below)));

    const showState = () => fill(model.get("state"));
    const showView = () => {
      const view = model.get("view");
      draw(view);
      status.classList.toggle("minikv-error", view.error);
      if (status.textContent !== view.status) status.textContent = view.status;
    };
    showState();
    showView();
    model.on("change:state", showState);
    model.on("change:view", showView);
    return () => {
      model.off("change:state", showState);
      model.off("change:view", showView);
    };
  };
}
