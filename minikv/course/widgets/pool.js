// The buttons of the pool widget, above what blocks.js draws. A press is a message to Python, which answers with
// a new step; nothing is decided here.
//
//   form.actions, form.aimed   [[action, label]]: buttons for the whole pool, and for the sequence that is chosen
//   form.target                the label of that choice
//   targets                    [[name, text]]; Python writes

function drawActions(model, form) {
  const select = node("select", { name: "target" });
  const press = (action) => model.send({ action, sequence: select.value });
  const button = ([action, label]) => {
    const made = node("button", { type: "button", name: action }, label);
    made.addEventListener("click", () => press(action));
    return made;
  };
  const bar = node("div", { class: "minikv-actions" },
    node("div", {}, ...form.actions.map(button)),
    node("div", {}, node("label", {}, node("span", {}, form.target), select), ...form.aimed.map(button)));
  // JupyterLab binds keys to its cells, even while a control has the focus; this tells it not to.
  for (const control of bar.querySelectorAll("select, button"))
    control.setAttribute("data-lm-suppress-shortcuts", "true");
  const fill = () => {
    const chosen = select.value;
    const options = model.get("targets").map(([name, text]) => node("option", { value: name }, text));
    select.replaceChildren(...options);
    if (options.some((option) => option.value === chosen)) select.value = chosen;
  };
  fill();
  model.on("change:targets", fill);
  return bar;
}
