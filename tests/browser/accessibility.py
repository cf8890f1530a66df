"""What axe-core finds on a page, and what it does not look at: pictures without a name, words drawn in SVG."""

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LEAST_CONTRAST = 4.5  # of words below 18.66 px, WCAG 2.2, 1.4.3

# Colours as [red, green, blue, alpha]. What stands behind a word of a picture: its own halo, else the shape below it,
# else the page. A halo is a stroke that is painted first, in the colour of what the word stands on.
_WORDS = """(root) => {
  const parse = (text) => {
    const parts = (text.match(/[\\d.]+/g) ?? []).map(Number);
    return text.startsWith("rgb") ? [...parts.slice(0, 3), parts[3] ?? 1] : null;
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = (color) => {
    const [r, g, b] = color.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const page = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => (layer ? over(layer, below) : below), [255, 255, 255, 1]);
  };
  const faint = (element) => {
    let left = 1;
    for (let at = element; at; at = at.parentElement) left *= Number(getComputedStyle(at).opacity);
    return left;
  };
  const paint = (shape) => {
    const style = getComputedStyle(shape);
    const id = style.fill.match(/url\\("?#([^")]+)/)?.[1];
    const source = id ? document.getElementById(id).querySelector("rect") : shape;
    const color = source && parse(getComputedStyle(source).fill);
    if (!color) return null;
    color[3] *= Number(style.fillOpacity) * faint(shape);
    return color;
  };
  const below = (text, x, y) => {
    const shapes = [...text.ownerSVGElement.querySelectorAll("rect, path, circle, polyline")].filter((shape) => {
      const painted = shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING; // before the word
      if (shape.closest("defs") || !painted) return false;
      const point = new DOMPoint(x, y).matrixTransform(shape.getScreenCTM().inverse());
      return getComputedStyle(shape).fill !== "none" && shape.isPointInFill(point);
    });
    return shapes.map(paint).filter(Boolean).reduce((behind, color) => over(color, behind), page(text.ownerSVGElement));
  };
  const found = [];
  for (const text of root.querySelectorAll("svg text")) {
    const box = text.getBoundingClientRect(), style = getComputedStyle(text);
    if (!text.textContent || !box.width) continue;
    const halo = style.paintOrder.startsWith("stroke") && parseFloat(style.strokeWidth) >= 3 && parse(style.stroke);
    const ink = parse(style.fill);
    ink[3] *= Number(style.fillOpacity) * faint(text);
    const places = [0.1, 0.5, 0.9].map((share) => [box.left + share * box.width, box.top + box.height / 2]);
    const grounds = halo ? [over(halo, page(text.ownerSVGElement))] : places.map(([x, y]) => below(text, x, y));
    const least = Math.min(...grounds.map((ground) => contrast(over(ink, ground), ground)));
    found.push([text.textContent, least]);
  }
  return found;
}"""

_PICTURES = """(root) => [...root.querySelectorAll("svg")].filter((svg) =>
  svg.getAttribute("aria-hidden") !== "true" && svg.getBoundingClientRect().height > 0).map((svg) =>
  [svg.getAttribute("role"), svg.getAttribute("aria-label") ?? ""])"""


def violations(page: Any, within: str = "#photo") -> list[str]:
    """Each rule of axe-core that is broken ``within`` a selector, and what it could not judge.

    Words in pictures: ``faint_words``.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    options = {"runOnly": RULES, "resultTypes": ["violations", "incomplete"]}
    found = page.evaluate("([within, options]) => axe.run(within, options)", [within, options])
    told = [(rule["id"], node) for rule in found["violations"] for node in rule["nodes"]]
    told += [
        (rule["id"], node)
        for rule in found["incomplete"]
        for node in rule["nodes"]
        if rule["id"] != "color-contrast" or not (node["html"].startswith("<text") or _one_sign(node))
    ]
    return [f"{rule}: {node['target']} {node['html'][:120]}" for rule, node in told]


def _one_sign(node: dict[str, Any]) -> bool:
    """An arrow between two boxes, a single letter: axe-core asks whether that is text at all."""
    return any(
        (check["data"] or {}).get("messageKey") in ("nonBmp", "shortTextContent") for check in node["any"]
    )


def faint_words(root: Any) -> list[tuple[str, float]]:
    """The words of pictures that have less contrast than they need, with their contrast."""
    return [(words, round(ratio, 2)) for words, ratio in root.evaluate(_WORDS) if ratio < LEAST_CONTRAST]


def pictures(root: Any) -> list[tuple[str, str]]:
    """Role and name of every picture that a reader sees and a screen reader is not told to skip."""
    return [tuple(one) for one in root.evaluate(_PICTURES)]
