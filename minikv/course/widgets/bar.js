// A stacked bar in SVG: what a memory of `total` bytes is made of. Plain functions; base.py puts this text in front of
// a widget's own module, behind the palette's lookOf(name), so every widget can draw one.
//
//   bar = { total, total_text, aria, empty, parts: [{ key, letter, label, bytes, text, look }],
//           over: { limit, limit_text, text } }     over: where the parts are more than the memory, its edge
//
// Bytes in, picture out: the texts come from Python, in the reader's language. A part is known by its letter
// and by its pattern, never by its colour alone.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 720, LEFT = 2, RIGHT = 718, TOP = 34, HEIGHT = 38, FLOOR = TOP + HEIGHT;
const LETTER_GAP = 17; // between the letters above the bar, so that neighbours never touch
const THINNEST = 2.5; // a part of the total that is too small to see is still drawn this wide

let paintBoxes = 0; // pattern ids must differ between the drawings of one page

function svgElement(name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG_NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}

// The <defs> of a drawing, and the function that names a look of the palette as a fill: its colour below the lines of
// its tile. A look is put into the <defs> when it is first asked for.
function paintBox() {
  const prefix = `minikv-look-${Math.random().toString(36).slice(2)}-${paintBoxes++}`;
  const defs = svgElement("defs"), made = new Set();
  const fill = (look) => {
    const id = `${prefix}-${look}`;
    if (!made.has(look)) {
      const { fill: color, tile, ink } = lookOf(look);
      const pattern = svgElement("pattern", { id, width: 8, height: 8, patternUnits: "userSpaceOnUse" });
      pattern.append(svgElement("rect", { width: 8, height: 8, fill: color }));
      if (tile) pattern.append(svgElement("path", {
        d: tile, stroke: ink, "stroke-width": 1, "stroke-opacity": 0.35, "stroke-linecap": "round", fill: "none",
      }));
      made.add(look);
      defs.append(pattern);
    }
    return `url(#${id})`;
  };
  return { defs, fill };
}

// Words on a fill have its ink, and a halo in its colour over the lines of the tile.
function wordsOn(look) {
  const { fill, ink } = lookOf(look);
  return { class: "minikv-inside", style: `fill: ${ink}; stroke: ${fill}` };
}

// What stands in front of the words of a legend or of a row, as high as a line of them.
function legendMark(inside, width = 16) {
  const svg = svgElement("svg", { viewBox: `0 0 ${width} 16`, width, height: 16, "aria-hidden": "true" });
  svg.append(...inside);
  return svg;
}

function lookMark(paint, look) {
  const box = { x: 0.5, y: 0.5, width: 15, height: 15, fill: paint.fill(look), class: "minikv-mark" };
  return legendMark([svgElement("rect", box)]);
}

// Widths that add up to the bar: in proportion, but never too thin to see. The widest part pays for it.
function partWidths(parts, total) {
  const widths = parts.map(({ bytes }) => {
    const exact = (bytes / total) * (RIGHT - LEFT);
    return bytes > 0 ? Math.max(exact, THINNEST) : 0;
  });
  const widest = widths.indexOf(Math.max(...widths));
  widths[widest] += RIGHT - LEFT - widths.reduce((sum, width) => sum + width, 0);
  return widths;
}

// Where the letters stand: above their parts, moved apart where two would overlap.
function letterPlaces(centers) {
  const places = [...centers];
  for (let i = 0; i < places.length; i++)
    places[i] = Math.max(places[i], i ? places[i - 1] + LETTER_GAP : LEFT + 8);
  for (let i = places.length - 1; i >= 0; i--)
    places[i] = Math.min(places[i], i < places.length - 1 ? places[i + 1] - LETTER_GAP : RIGHT - 8);
  return places;
}

const edgeOf = (bar) => LEFT + bar.over.limit / bar.total * (RIGHT - LEFT);

// What is beyond the edge, under the warning's lines, and below it how much that is.
function drawOver(svg, bar, paint) {
  const at = edgeOf(bar), anchor = at > WIDTH / 2 ? "end" : "start";
  const box = { x: at, y: TOP, width: RIGHT - at, height: HEIGHT };
  svg.append(
    svgElement("rect", { ...box, fill: paint.fill("warning"), class: "minikv-over", "data-bytes": bar.total - bar.over.limit }),
    svgElement("path", { d: `M${at} ${TOP - 6}V${FLOOR + 20}`, class: "minikv-edge" }),
    svgElement("text", { x: at + (anchor === "end" ? -5 : 5), y: FLOOR + 15, "text-anchor": anchor }, bar.over.limit_text),
    svgElement("text", { x: RIGHT, y: FLOOR + 32, "text-anchor": "end", class: "minikv-letter" }, bar.over.text),
  );
}

function drawBar(svg, bar, paint) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${FLOOR + (bar.over ? 37 : 20)}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", bar.aria);
  svg.replaceChildren(paint.defs);
  const frame = { x: LEFT, y: TOP, width: RIGHT - LEFT, height: HEIGHT, class: "minikv-bar-frame" };

  const parts = bar.parts.filter(({ bytes }) => bytes > 0);
  if (!parts.length) {
    svg.append(svgElement("rect", frame));
    svg.append(svgElement("text", { x: WIDTH / 2, y: TOP + 24, "text-anchor": "middle" }, bar.empty));
    return;
  }
  const widths = partWidths(parts, bar.total);
  const starts = widths.map((_, i) => widths.slice(0, i).reduce((sum, width) => sum + width, LEFT));
  const centers = starts.map((start, i) => start + widths[i] / 2);
  const places = letterPlaces(centers);
  const edge = bar.over ? edgeOf(bar) : RIGHT + 1; // behind it no words: the warning's lines lie there
  parts.forEach((part, i) => {
    svg.append(svgElement("rect", {
      x: starts[i], y: TOP, width: widths[i], height: HEIGHT, fill: paint.fill(part.look),
      "data-key": part.key, "data-bytes": part.bytes,
    }));
    svg.append(svgElement("path", {
      d: `M${places[i]} 17V20L${centers[i]} ${TOP - 4}V${TOP}`, class: "minikv-bar-leader",
    }));
    svg.append(svgElement("text", { x: places[i], y: 13, "text-anchor": "middle", class: "minikv-letter" }, part.letter));
    if (widths[i] > 8 * part.text.length && starts[i] + widths[i] <= edge) {
      svg.append(svgElement("text", {
        x: centers[i], y: TOP + 24, "text-anchor": "middle", ...wordsOn(part.look),
      }, part.text));
    }
  });
  svg.append(svgElement("rect", frame));
  svg.append(svgElement("text", { x: LEFT, y: FLOOR + (bar.over ? 32 : 15) }, "0"));
  if (bar.over) return drawOver(svg, bar, paint);
  svg.append(svgElement("text", { x: RIGHT, y: FLOOR + 15, "text-anchor": "end" }, bar.total_text));
}
