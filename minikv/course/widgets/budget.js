// The memory-budget widget. It draws and it asks: all arithmetic and every sentence is Python's.
//
//   form   { lang, title, legend, reset, columns, fields, defaults }   written once
//   state  { model, gpu, tp, context, batch, kv_dtype, utilization }   written here, read by Python
//   view   { bar, rows, figures, status, error }                       written by Python, drawn here
//
// Data is set as textContent, never as HTML. Nothing is fetched and nothing is animated.

function drawTable(table, form, rows, paint) {
  table.hidden = !rows.length;
  const body = rows.map((row) => {
    const mark = svgElement("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" });
    if (row.letter) {
      mark.append(svgElement("rect", { x: 0.5, y: 0.5, width: 15, height: 15, fill: paint.fill(row.look), class: "minikv-mark" }));
    }
    return htmlElement("tr", row.letter ? {} : { class: "minikv-total" },
      htmlElement("td", {}, mark, ` ${row.letter}`),
      htmlElement("th", { scope: "row" }, row.label),
      htmlElement("td", { class: "minikv-number" }, row.text),
      htmlElement("td", { class: "minikv-number", "data-key": row.key }, row.exact));
  });
  const head = form.columns.map((name) => htmlElement("th", { scope: "col" }, name));
  table.replaceChildren(
    htmlElement("thead", {}, htmlElement("tr", {}, ...head)), htmlElement("tbody", {}, ...body));
}

function drawFigures(list, figures) {
  list.replaceChildren(...figures.map((figure) => htmlElement("div", {},
    htmlElement("dt", {}, figure.label), htmlElement("dd", { "data-key": figure.key }, figure.value))));
}

function render({ model, el }) {
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
  const paint = paintBox();
  const svg = svgElement("svg");
  const table = htmlElement("table");
  const figures = htmlElement("dl");
  // Built once and then changed: a live region that is replaced is not read out.
  const status = htmlElement("p", { role: "status", "aria-live": "polite" });
  el.append(htmlElement("div", { class: "minikv-widget minikv-budget", lang: form.lang },
    htmlElement("h4", {}, form.title), fieldset, svg, status, figures, table));

  const showState = () => fill(model.get("state"));
  const showView = () => {
    const view = model.get("view");
    drawBar(svg, view.bar, paint);
    drawTable(table, form, view.rows, paint);
    drawFigures(figures, view.figures);
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
}

export default { render };
