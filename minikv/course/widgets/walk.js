// The walk widget: the tiles of a sequence, its block table below them, and the pool that the entries point into.
// It draws and it asks: what is read when, and every sentence, is Python's.
//
//   form   { lang, title, legend, reset, row_tiles, row_table, row_pool, columns, fields, defaults }     written once
//   state  { step, length, splits, block_size, window }                                 written here, read by Python
//   view   { tiles: [{ entry, block, split, letter, state }], pool, table, aria, status, error }     written by Python
//            state: "behind" (the window), "waiting", "read", "now"
//
// A program is known by its letter and its pattern, never by its colour alone. What is being read has a thick edge.

const ROW_HEIGHT = 24, TILES_TOP = 20, TABLE_TOP = 66, POOL_TOP = 150, WALK_LEFT = 2, WALK_WIDTH = 716;

function walkCell(svg, paint, { x, y, width, look, words, kind, data = {} }) {
  const group = svgElement("g", { class: `minikv-walk-${kind}`, ...data });
  group.append(svgElement("rect", { x, y, width: width - 2, height: ROW_HEIGHT, fill: look === undefined ? "none" : paint.fill(look) }));
  const on = look === undefined ? {} : wordsOn(look);
  group.append(svgElement("text", { x: x + (width - 2) / 2, y: y + 16, "text-anchor": "middle", ...on }, words));
  svg.append(group);
}

function drawWalk(svg, view, form, paint) {
  svg.setAttribute("viewBox", `0 0 720 ${POOL_TOP + ROW_HEIGHT + 4}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", view.aria);
  svg.replaceChildren(paint.defs);
  if (!view.tiles.length) return;
  for (const [y, words] of [[TILES_TOP, form.row_tiles], [TABLE_TOP, form.row_table], [POOL_TOP, form.row_pool]])
    svg.append(svgElement("text", { x: WALK_LEFT, y: y - 6, class: "minikv-panel" }, words));

  const width = Math.min(90, WALK_WIDTH / view.tiles.length), slot = WALK_WIDTH / view.pool;
  const look = (tile) => tile.state === "waiting" || tile.state === "behind" ? undefined : tile.split;
  const held = new Map();
  view.tiles.forEach((tile, place) => {
    const x = WALK_LEFT + place * width;
    const data = { "data-entry": tile.entry, "data-state": tile.state };
    walkCell(svg, paint, { x, y: TILES_TOP, width, look: look(tile), words: tile.letter, kind: tile.state, data });
    walkCell(svg, paint, { x, y: TABLE_TOP, width, words: String(tile.block), kind: tile.state });
    if (tile.state === "behind") return;
    held.set(tile.block, tile);
    if (tile.state !== "now") return;
    const from = x + width / 2 - 1, to = WALK_LEFT + (tile.block + 0.5) * slot - 1;
    svg.append(svgElement("path", {
      d: `M${from} ${TABLE_TOP + ROW_HEIGHT}V${TABLE_TOP + 34}L${to} ${POOL_TOP - 4}V${POOL_TOP}`,
      class: "minikv-walk-arrow",
    }));
  });
  for (let block = 0; block < view.pool; block++) {
    const tile = held.get(block);
    walkCell(svg, paint, {
      x: WALK_LEFT + block * slot, y: POOL_TOP, width: slot, words: String(block), kind: tile ? tile.state : "foreign",
      look: tile ? look(tile) : undefined, data: { "data-block": block, "data-state": tile ? tile.state : "foreign" },
    });
  }
}

const render = formWidget("walk", (form) => {
  const paint = paintBox();
  const svg = svgElement("svg");
  const table = htmlElement("table");
  const draw = (view) => {
    drawWalk(svg, view, form, paint);
    drawTable(table, form.columns, view.table.map(({ key, values: [label, ...values] }) => ({ key, label, values })));
  };
  return { above: [svg], below: [table], draw };
});

export default { render };
