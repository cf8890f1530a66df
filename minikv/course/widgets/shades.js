// What the heat map and the eviction monitor draw alike: nine shades of a token or a stretch of text, "0" to "8";
// hatching for what is gone, "-"; and the legend that explains the marks. It stands behind form.js.
//
// What is gone is known by its hatching, never by its colour alone.

let hatches = 0; // pattern ids must differ between the drawings of one page

// The <defs> with the pattern, and the fill that names it.
function hatching() {
  const id = `minikv-hatch-${Math.random().toString(36).slice(2)}-${hatches++}`;
  const pattern = svgElement("pattern", { id, width: 5, height: 5, patternUnits: "userSpaceOnUse" });
  pattern.append(svgElement("path", { d: "M0 5L5 0M-1 1L1 -1M4 6L6 4", class: "minikv-hatch" }));
  const defs = svgElement("defs");
  defs.append(pattern);
  return { defs, fill: `url(#${id})` };
}

// The attributes of a shape that is drawn in this shade.
function shaded(shade, hatch) {
  return shade === "-" ? { class: "minikv-gone", fill: hatch.fill } : { class: `minikv-shade-${shade}` };
}

// entries = [[mark, words]]; a mark that is none of these is a letter.
function legendEntries(entries) {
  const hatch = hatching();
  const scale = [...Array(9).keys()].map((shade) =>
    svgElement("rect", { x: shade * 9, y: 2, width: 8.4, height: 12, ...shaded(String(shade)) }));
  const marks = {
    shades: () => legendMark(scale, 81),
    kept: () => legendMark([svgElement("rect", { x: 1.5, y: 1.5, width: 13, height: 13, class: "minikv-kept" })]),
    gone: () => legendMark([hatch.defs, svgElement("rect", { x: 1, y: 2, width: 14, height: 12, ...shaded("-", hatch) })]),
    answer: () => legendMark([svgElement("path", { d: "M2 4H14L8 13z", class: "minikv-answer" })]),
  };
  return entries.map(([mark, words]) => htmlElement("span", {}, marks[mark]?.() ?? htmlElement("b", {}, mark), words));
}
