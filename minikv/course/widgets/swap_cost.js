// The swap widget: two bars on one axis of time, and a table of what they are made of.
// It draws and it asks: shares, numbers and every sentence are Python's.
//
//   form   { lang, title, legend, reset, columns, fields, defaults }                      written once
//   state  { model, gpu, tp, link, share, tokens }                                        written here, read by Python
//   view   { bars: [{ key, label, text, parts: [{ key, look, share, seconds, text }] }] or null,
//            table, aria, status, error }                                                 written by Python
//
// A part is known by its word and by its pattern, never by its colour alone. Data is set as textContent. Nothing is
// fetched and nothing is animated.

const SWAP = { left: 2, width: 600, height: 34, gap: 62, top: 22 };

function drawSwapBar(svg, bar, y, paint) {
  svg.append(svgElement("text", { x: SWAP.left, y: y - 7, class: "minikv-letter" }, bar.label));
  let x = SWAP.left;
  for (const part of bar.parts) {
    const width = Math.max(part.share * SWAP.width, THINNEST);
    svg.append(svgElement("rect", {
      x, y, width, height: SWAP.height, fill: paint.fill(part.look),
      "data-key": part.key, "data-seconds": part.seconds,
    }));
    // About 7 units a Latin letter and 13 a Chinese one: a word that does not fit stands in the table alone.
    const room = [...part.text].reduce((sum, letter) => sum + (letter > "\u2e80" ? 13 : 7), 8);
    if (width > room) {
      svg.append(svgElement("text", {
        x: x + width / 2, y: y + 22, "text-anchor": "middle", ...wordsOn(part.look),
      }, part.text));
    }
    x += width;
  }
  svg.append(svgElement("rect", { x: SWAP.left, y, width: x - SWAP.left, height: SWAP.height, class: "minikv-bar-frame" }));
  svg.append(svgElement("text", { x: x + 8, y: y + 22, class: "minikv-time" }, bar.text));
}

function drawSwapBars(svg, view) {
  svg.setAttribute("viewBox", `0 0 720 ${SWAP.top + 2 * SWAP.gap - 20}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", view.aria);
  svg.style.display = view.bars ? "" : "none";
  const paint = paintBox();
  svg.replaceChildren(paint.defs);
  (view.bars ?? []).forEach((bar, index) => drawSwapBar(svg, bar, SWAP.top + index * SWAP.gap, paint));
}

const render = formWidget("swap-cost", (form) => {
  const svg = svgElement("svg");
  const table = htmlElement("table", { class: "minikv-figures" });
  const draw = (view) => {
    drawSwapBars(svg, view);
    drawTable(table, form.columns, view.table);
  };
  return { above: [svg], below: [table], draw };
});

export default { render };
