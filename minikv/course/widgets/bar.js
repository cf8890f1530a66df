// A stacked bar in SVG: what a memory of `total` bytes is made of. Plain functions, no dependency;
// base.py puts this text in front of a widget's own module, so every widget can draw one.
//
//   bar = { total, total_text, aria, empty, parts: [{ key, letter, label, bytes, text, look }] }
//
// Bytes in, picture out: the texts come from Python, in the reader's language. A part is known by its letter
// and by its pattern, never by its colour alone.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 720, LEFT = 2, RIGHT = 718, TOP = 34, HEIGHT = 38, FLOOR = TOP + HEIGHT;
const LETTER_GAP = 17; // between the letters above the bar, so that neighbours never touch
const THINNEST = 2.5; // a part of the total that is too small to see is still drawn this wide

// One look a part: a light fill that carries dark text, and the lines of an 8 x 8 tile over it.
const LOOKS = [
  { fill: "#8cc4ee", tile: "" },
  { fill: "#f3e36b", tile: "M2 2h.01M6 6h.01" },
  { fill: "#f2b95c", tile: "M4 0V8" },
  { fill: "#dba6c6", tile: "M0 4H8M4 0V8" },
  { fill: "#5cc2a0", tile: "M0 8L8 0M-1 1L1 -1M7 9L9 7" },
  { fill: "#d5efe4", tile: "M4 4h.01" },
  { fill: "#dcdcdc", tile: "M0 0L8 8M-1 7L1 9M7 -1L9 1" },
  { fill: "#bdb7ea", tile: "M0 4H8" },
  { fill: "#f3c6bb", tile: "M2 2h3v3h-3z" },
  { fill: "#ced8a4", tile: "M0 2L4 6L8 2" },
];

let paintBoxes = 0; // pattern ids must differ between the drawings of one page

function svgElement(name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG_NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}

// The <defs> with every look, and the function that names one as a fill.
function paintBox() {
  const prefix = `minikv-look-${Math.random().toString(36).slice(2)}-${paintBoxes++}`;
  const defs = svgElement("defs");
  LOOKS.forEach(({ fill, tile }, index) => {
    const pattern = svgElement("pattern", {
      id: `${prefix}-${index}`, width: 8, height: 8, patternUnits: "userSpaceOnUse",
    });
    pattern.append(svgElement("rect", { width: 8, height: 8, fill }));
    pattern.append(svgElement("path", {
      d: tile, stroke: "#1b1b1b", "stroke-width": 1, "stroke-opacity": 0.5, "stroke-linecap": "round", fill: "none",
    }));
    defs.append(pattern);
  });
  return { defs, fill: (look) => `url(#${prefix}-${look % LOOKS.length})` };
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

function drawBar(svg, bar, paint) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${FLOOR + 20}`);
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
  parts.forEach((part, i) => {
    svg.append(svgElement("rect", {
      x: starts[i], y: TOP, width: widths[i], height: HEIGHT, fill: paint.fill(part.look),
      "data-key": part.key, "data-bytes": part.bytes,
    }));
    svg.append(svgElement("path", {
      d: `M${places[i]} 17V20L${centers[i]} ${TOP - 4}V${TOP}`, class: "minikv-bar-leader",
    }));
    svg.append(svgElement("text", { x: places[i], y: 13, "text-anchor": "middle", class: "minikv-letter" }, part.letter));
    if (widths[i] > 8 * part.text.length) {
      svg.append(svgElement("text", {
        x: centers[i], y: TOP + 24, "text-anchor": "middle", class: "minikv-bar-value",
        stroke: LOOKS[part.look % LOOKS.length].fill,
      }, part.text));
    }
  });
  svg.append(svgElement("rect", frame));
  svg.append(svgElement("text", { x: LEFT, y: FLOOR + 15 }, "0"));
  svg.append(svgElement("text", { x: RIGHT, y: FLOOR + 15, "text-anchor": "end" }, bar.total_text));
}
