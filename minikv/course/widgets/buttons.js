// A row of buttons above a live drawing. A press is a message to Python, { action }; nothing is decided here.
//
//   form.buttons = [[action, label]]       fill(running): while something runs, "stop" alone can be pressed

function drawButtons(model, form) {
  const made = new Map(form.buttons.map(([action, label]) => {
    const button = htmlElement("button", { type: "button", name: action, "data-lm-suppress-shortcuts": "true" }, label);
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-disabled") !== "true") model.send({ action });
    });
    return [action, button];
  }));
  // Not `disabled`: a button that has the focus would lose it.
  const fill = (running) => {
    for (const [action, button] of made) button.setAttribute("aria-disabled", running && action !== "stop");
  };
  return { bar: htmlElement("div", { class: "minikv-run" }, ...made.values()), fill };
}
