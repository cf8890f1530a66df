// A report's bar and the table of its bytes. It draws once: nothing of it changes.
//
//   form   { lang, title, columns }       view   { bar, rows, status }       both written by Python

function render({ model, el }) {
  const form = model.get("form"), view = model.get("view");
  const paint = paintBox();
  const svg = svgElement("svg");
  const table = htmlElement("table", { class: "minikv-parts" });
  drawBar(svg, view.bar, paint);
  drawParts(table, form.columns, view.rows, paint);
  el.append(htmlElement("div", { class: "minikv-widget minikv-report-bar", lang: form.lang },
    htmlElement("h4", {}, form.title), svg, htmlElement("p", {}, view.status), table));
}

export default { render };
