// A memory bar that grows: what a card holds while the sequences get longer, and how far it is too small for them.
//
//   form    and { parts: [[key, look, label]], total, total_text, limit, limit_text, most }      bytes, and bytes in words
//   states  [{ status, sizes: [bytes of each part], texts: [the same in words], over, over_text }]
//
// What is beyond the limit is drawn beyond it, in the colour and the pattern of a warning, with how much it is.

const BAR_LEFT = 4, BAR_RIGHT = 940, BAR_TOP = 58, BAR_HEIGHT = 56, PARTS_TOP = 172, PARTS_A_ROW = 2, PART_WIDTH = 468;

function memoryBarScene(form, states, paint) {
  const svg = svgElement("svg", { viewBox: `0 0 ${PAGE_WIDTH} ${PARTS_TOP + Math.ceil((form.parts.length + 1) / PARTS_A_ROW) * 26}` });
  svg.append(paint.defs);
  const x = (bytes) => BAR_LEFT + bytes / form.most * (BAR_RIGHT - BAR_LEFT);
  const boxes = form.parts.map(([key, look]) => {
    const rect = svgElement("rect", { y: BAR_TOP, height: BAR_HEIGHT, fill: paint.fill(look), class: "minikv-mark", "data-key": key });
    svg.append(rect);
    return rect;
  });
  const over = svgElement("rect", { y: BAR_TOP, height: BAR_HEIGHT, fill: paint.fill("warning"), class: "minikv-over" });
  const overSaid = svgElement("text", { y: 38, class: "minikv-panel" });
  svg.append(over, overSaid, svgElement("rect", { x: BAR_LEFT, y: BAR_TOP, width: x(form.total) - BAR_LEFT, height: BAR_HEIGHT, class: "minikv-bar-frame" }));
  // The card's edge, and before it the share that the engine may use.
  for (const [bytes, words, y, name] of [[form.limit, form.limit_text, 136, "limit"], [form.total, form.total_text, 154, "total"]]) {
    const at = x(bytes);
    svg.append(svgElement("path", { d: `M${at} ${BAR_TOP - 12}V${y - 10}`, class: `minikv-${name}-line` }),
      svgElement("text", { x: Math.min(at, BAR_RIGHT), y: y + 2, "text-anchor": at > 260 ? "end" : "start" }, words));
  }
  const said = [...form.parts, ["over", "warning", ""]].map(([key, look, label], index) => {
    const left = BAR_LEFT + (index % PARTS_A_ROW) * PART_WIDTH, y = PARTS_TOP + Math.floor(index / PARTS_A_ROW) * 26;
    const group = svgElement("g"), words = svgElement("text", { x: left + 22, y: y + 13 });
    group.append(svgElement("rect", { x: left, y, width: 15, height: 15, fill: paint.fill(look), class: "minikv-mark" }), words);
    svg.append(group);
    return { group, words, label };
  });

  const draw = (sizes, excess) => {
    let from = 0;
    sizes.forEach((bytes, index) => {
      boxes[index].setAttribute("x", x(from).toFixed(1));
      boxes[index].setAttribute("width", Math.max(0, x(from + bytes) - x(from)).toFixed(1));
      from += bytes;
    });
    over.setAttribute("x", x(form.limit).toFixed(1));
    over.setAttribute("width", Math.max(0, x(form.limit + excess) - x(form.limit)).toFixed(1));
  };
  const tell = ({ texts, over: excess, over_text: words }) => {
    said.forEach(({ group, words: line, label }, index) => {
      const part = index < texts.length;
      line.textContent = part ? `${label} ${texts[index]}` : words;
      if (!part) group.setAttribute("display", excess ? "inline" : "none");
    });
    overSaid.textContent = words;
    const at = x(form.limit);
    overSaid.setAttribute("x", at.toFixed(1));
    overSaid.setAttribute("text-anchor", at > PAGE_WIDTH / 2 ? "end" : "start");
  };
  const settle = (place) => {
    draw(states[place].sizes, states[place].over);
    tell(states[place]);
  };
  const change = (place) => {
    const before = states[place - 1], after = states[place];
    tell(after);
    return (share) => draw(after.sizes.map((bytes, index) => between(before.sizes[index], bytes, share)), between(before.over, after.over, share));
  };
  return { svg, settle, change };
}

const mount = (element, data, options) => mountMotion(element, data, memoryBarScene, options);
