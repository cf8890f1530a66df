// What the monitors share: the title, the buttons, a readout that a screen reader speaks, and below it what `build`
// draws. It draws and it asks: what is seen, and every sentence, is Python's.
//
//   form   { lang, title, buttons: [[action, label]] }         written once
//   view   { running, status, error }                          written by Python
//   build(form) = { parts: [elements], draw(view) }
//
// Nothing is fetched. A new view is drawn at once: what moves between two states is in minikv/course/motion.

function liveWidget(name, build) {
  return ({ model, el }) => {
    const form = model.get("form");
    const buttons = drawButtons(model, form), { status, speak, hush } = drawReadout();
    const { parts, draw } = build(form);
    const root = htmlElement("div", { class: `minikv-widget minikv-${name}`, lang: form.lang },
      htmlElement("h4", {}, form.title), buttons.bar, status, ...parts);
    el.append(root);

    const show = () => {
      const view = model.get("view");
      root.setAttribute("data-running", view.running);
      buttons.fill(view.running);
      draw(view);
      speak(view);
    };
    show();
    model.on("change:view", show);
    return () => {
      hush();
      model.off("change:view", show);
    };
  };
}
