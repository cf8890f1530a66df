// The memory-budget widget. It draws and it asks: all arithmetic and every sentence is Python's.
//
//   form   { lang, title, legend, reset, columns, fields, defaults }   written once
//   state  { model, gpu, tp, context, batch, kv_dtype, utilization }   written here, read by Python
//   view   { bar, rows, figures, status, error }                       written by Python, drawn here
//
// Data is set as textContent, never as HTML. Nothing is fetched and nothing is animated.

function drawFigures(list, figures) {
  list.replaceChildren(...figures.map((figure) => htmlElement("div", {},
    htmlElement("dt", {}, figure.label), htmlElement("dd", { "data-key": figure.key }, figure.value))));
}

const render = formWidget("budget", (form) => {
  const paint = paintBox();
  const svg = svgElement("svg");
  const table = htmlElement("table", { class: "minikv-parts" });
  const figures = htmlElement("dl");
  const draw = (view) => {
    drawBar(svg, view.bar, paint);
    drawParts(table, form.columns, view.rows, paint);
    drawFigures(figures, view.figures);
  };
  return { above: [svg], below: [figures, table], draw };
});

export default { render };
