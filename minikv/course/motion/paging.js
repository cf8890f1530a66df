// Paging: logical blocks on the left, each sequence's block table in the middle, physical blocks on the right, or on a
// phone below them. K and V of a token fly to their slot, and the arrow of a table's entry goes to another block when the
// entry does.
//
//   form    and { block_size, num_blocks, logical, table, physical }
//   states  [{ status, sequences: [[name, look, length, table, ids]], blocks: [[kind, look, ids, said]],
//              writes: [[name, position, slot]], copies: [[from, to, tokens]], found: [blocks] }]
//           kind: "used", "shared", "cached", "empty"; ids: what stands in the slots, from the first
//
// A sequence is known by its name and its pattern, a block by its words and its edge: never by colour alone. With many
// blocks each is one cell, and the last entry of a sequence alone has an arrow.

const HEAD_Y = 14, PAGE_TOP = 28, MOST_LINES = 14, LINE = 30, BOX = 23;
const LOGICAL_X = 44, TABLE_WIDTH = 40, SLOTS_WIDTH = 176;
const WIDE = { width: PAGE_WIDTH, table: 362, physical: 650 }, NARROW = { width: 480, table: 300, physical: LOGICAL_X, arrows: 330 };
const CELLS_LEFT = 40, CELLS_RIGHT = 430, GRID_X = 500, GRID_WIDTH = 456, GRID_HEIGHT = 440;

// Where everything stands in all states, so that nothing but a change moves: { slot, home, entry, target, lines, ... }
function detailedPage(form, names, depth, narrow) {
  const { width, table: tableX, physical: poolX, arrows: arrowsX } = narrow ? NARROW : WIDE;
  const wide = Math.min(44, SLOTS_WIDTH / form.block_size), first = new Map();
  let line = 0;
  for (const name of names) {
    first.set(name, line);
    line += depth.get(name);
  }
  const y = (row, gaps) => PAGE_TOP + row * LINE + gaps * 6;
  const rowY = (name, row) => y(first.get(name) + row, names.indexOf(name));
  const poolTop = narrow ? y(line, names.length) + 12 : 0; // how much lower than the logical blocks
  return {
    width, tableX, heads: [[LOGICAL_X, HEAD_Y, form.logical], [tableX, HEAD_Y, form.table], [poolX, HEAD_Y + poolTop, form.physical]],
    wide, tall: BOX, perBlock: form.block_size, arrows: (table) => table.map((_, entry) => entry),
    logical: (name, position) => [LOGICAL_X + (position % form.block_size) * wide, rowY(name, Math.floor(position / form.block_size))],
    name: (name) => [2, rowY(name, 0)],
    entry: (name, entry) => [tableX, rowY(name, entry)],
    start: (name, entry) => [tableX + TABLE_WIDTH + 3, rowY(name, entry) + BOX / 2],
    physical: (slot) => [poolX + (slot % form.block_size) * wide, y(Math.floor(slot / form.block_size), 0) + poolTop],
    target: (block) => [narrow ? arrowsX : poolX - 28, y(block, 0) + poolTop + BOX / 2],
    arrow: narrow ? arrowAround : arrowPath,
    height: Math.max(y(line, names.length), y(form.num_blocks, 0) + poolTop) + 2,
  };
}

function crowdedPage(form, names, depth) {
  const deepest = Math.max(1, ...depth.values());
  const line = Math.min(26, GRID_HEIGHT / Math.max(1, names.length)), wide = Math.min(26, (CELLS_RIGHT - CELLS_LEFT) / deepest);
  const columns = Math.ceil(Math.sqrt(form.num_blocks * GRID_WIDTH / GRID_HEIGHT)), pitch = Math.min(40, GRID_WIDTH / columns);
  const rowY = (name) => PAGE_TOP + names.indexOf(name) * line;
  const cell = (block) => [GRID_X + (block % columns) * pitch, PAGE_TOP + Math.floor(block / columns) * pitch];
  return {
    width: PAGE_WIDTH, heads: [[CELLS_LEFT, HEAD_Y, form.logical], [GRID_X, HEAD_Y, form.physical]], arrow: arrowPath,
    line, wide: pitch - 1.5, tall: pitch - 1.5, logicalWide: wide - 1, logicalTall: line - 1.5, perBlock: 1,
    arrows: (table) => (table.length ? [table.length - 1] : []),
    logical: (name, position) => [CELLS_LEFT + Math.floor(position / form.block_size) * wide, rowY(name)],
    name: (name) => [2, rowY(name)],
    start: (name, entry) => [CELLS_LEFT + (entry + 1) * wide + 1, rowY(name) + line / 2],
    physical: (slot) => cell(Math.floor(slot / form.block_size)),
    target: (block) => { const [x, y] = cell(block); return [x - 1, y + pitch / 2]; },
    height: Math.max(PAGE_TOP + names.length * line, cell(form.num_blocks - 1)[1] + pitch) + 2,
  };
}

function arrowPath([x, y], [toX, toY]) {
  const bend = (toX - x) / 2;
  const line = `M${x.toFixed(1)} ${y.toFixed(1)}C${(x + bend).toFixed(1)} ${y.toFixed(1)} ${(toX - bend).toFixed(1)} ${toY.toFixed(1)} `
    + `${toX.toFixed(1)} ${toY.toFixed(1)}`;
  return Math.hypot(toX - x, toY - y) < 8 ? line : `${line}m-6 -4l6 4 -6 4`;
}

// To the right of a block that lies below the table: around the words beside it.
function arrowAround([x, y], [toX, toY]) {
  const far = Math.max(x, toX) + 66;
  const line = `M${x.toFixed(1)} ${y.toFixed(1)}C${far} ${y.toFixed(1)} ${far} ${toY.toFixed(1)} ${toX.toFixed(1)} ${toY.toFixed(1)}`;
  return Math.hypot(toX - x, toY - y) < 8 ? line : `${line}m6 -4l-6 4 6 4`;
}

// A box with words in it. Only what changes is written to the page: with a thousand blocks that is what a frame costs.
function pageBox(x, y, wide, tall, small) {
  const rect = svgElement("rect", { x, y, width: wide, height: tall, fill: "none" });
  const words = svgElement("text", { x: x + wide / 2, y: y + tall / 2 + (small ? 3 : 4.5), "text-anchor": "middle" });
  const group = svgElement("g", { class: "minikv-box" });
  group.append(rect, words);
  let drawn = "";
  const draw = (kind, look, said, fill) => {
    const key = `${kind}|${look}|${said}`;
    if (key === drawn) return;
    drawn = key;
    group.setAttribute("class", `minikv-box minikv-${kind}`);
    rect.setAttribute("fill", look === null ? "none" : fill(look));
    words.textContent = said;
    if (look === null || !said) words.removeAttribute("style");
    else {
      const { fill: colour, ink } = lookOf(look);
      words.setAttribute("style", `fill: ${ink}; stroke: ${colour}`);
    }
  };
  return { group, draw };
}

function pagingScene(form, states, paint, narrow) {
  const depth = new Map(), looks = new Map();
  for (const { sequences } of states) for (const [name, look, , table] of sequences) {
    depth.set(name, Math.max(depth.get(name) ?? 0, table.length));
    looks.set(name, look);
  }
  const names = [...depth.keys()], lines = [...depth.values()].reduce((sum, count) => sum + count, 0);
  const size = form.block_size, crowded = lines > MOST_LINES || form.num_blocks > MOST_LINES;
  const page = crowded ? crowdedPage(form, names, depth) : detailedPage(form, names, depth, narrow);
  const fill = crowded ? (look) => lookOf(look).fill : paint.fill;
  const fits = (said) => String(said).length * 7 <= page.wide - 6;

  const kind = crowded ? "minikv-crowded" : narrow ? "minikv-narrow" : "";
  const svg = svgElement("svg", { viewBox: `0 0 ${page.width} ${page.height}`, class: kind });
  svg.append(paint.defs);
  const still = svgElement("g"), arrows = svgElement("g"), flying = svgElement("g", { class: "minikv-flying" });
  for (const [x, y, words] of page.heads) svg.append(svgElement("text", { x, y, class: "minikv-panel" }, words));
  svg.append(still, arrows, flying);

  // Logical blocks and table entries, a row for each that there ever is.
  const rows = new Map(), tags = new Map();
  const nameEvery = crowded ? Math.ceil(11 / page.line) : 1; // where rows are thin, not each has room for its name
  for (const [index, name] of names.entries()) {
    const [x, y] = page.name(name), tag = svgElement("g");
    if (!crowded) tag.append(svgElement("rect", { x, y: y + 4, width: 15, height: 15, fill: fill(looks.get(name)), class: "minikv-mark" }));
    if (index % nameEvery === 0) tag.append(svgElement("text", {
      x: crowded ? x : x + 20, y: y + (crowded ? page.logicalTall / 2 + 3 : 16), class: "minikv-letter",
    }, name));
    still.append(tag);
    tags.set(name, tag);
    rows.set(name, Array.from({ length: depth.get(name) }, (_, entry) => {
      const group = svgElement("g");
      const boxes = Array.from({ length: page.perBlock }, (_, place) => {
        const [left, top] = page.logical(name, entry * size + place);
        return pageBox(left, top, crowded ? page.logicalWide : page.wide, crowded ? page.logicalTall : page.tall, crowded);
      });
      group.append(...boxes.map((box) => box.group));
      let table = null;
      if (!crowded) {
        const [left, top] = page.entry(name, entry);
        table = pageBox(left, top, TABLE_WIDTH, BOX, false);
        const from = LOGICAL_X + size * page.wide + 6;
        group.append(table.group, svgElement("path", { d: arrowPath([from, top + BOX / 2], [page.tableX - 22, top + BOX / 2]), class: "minikv-lead" }),
          svgElement("text", { x: page.tableX - 4, y: top + 16, "text-anchor": "end", class: "minikv-small" }, String(entry)));
      }
      still.append(group);
      return { group, boxes, table, shown: null };
    }));
  }
  const blocks = Array.from({ length: form.num_blocks }, (_, block) => {
    const [left, top] = page.physical(block * size), group = svgElement("g", { "data-block": block });
    const boxes = Array.from({ length: page.perBlock }, (_, place) => {
      const [x, y] = page.physical(block * size + place);
      return pageBox(x, y, page.wide, page.tall, crowded && page.wide < 20);
    });
    const edge = svgElement("rect", { x: left, y: top, width: page.wide * page.perBlock, height: page.tall, class: "minikv-edge" });
    const said = svgElement("text", { x: left + size * page.wide + 10, y: top + 16, class: "minikv-small" });
    group.append(...boxes.map((box) => box.group), edge);
    if (!crowded) group.append(svgElement("text", { x: left - 8, y: top + 16, "text-anchor": "end" }, String(block)), said);
    still.append(group);
    return { group, boxes, said, shown: "" };
  });

  const paths = new Map(); // "name/entry" to its arrow; "name" where there is one for each sequence
  const drawArrow = (key, start, end) => {
    let path = paths.get(key);
    if (!path) {
      path = svgElement("path", { class: "minikv-arrow", "data-entry": key });
      paths.set(key, path);
      arrows.append(path);
    }
    const d = end ? page.arrow(start, end) : "";
    if (path.getAttribute("d") !== d) path.setAttribute("d", d);
  };
  // Where the arrows of a state begin and end.
  const keyOf = (name, entry) => (crowded ? name : `${name}/${entry}`);
  const arrowsOf = (state) => {
    const found = new Map();
    for (const [name, , , table] of state.sequences) for (const entry of page.arrows(table))
      if (table[entry] >= 0) found.set(keyOf(name, entry), [page.start(name, entry), page.target(table[entry])]);
    return found;
  };

  const drawSequences = (state) => {
    const present = new Map(state.sequences.map((sequence) => [sequence[0], sequence]));
    for (const name of names) {
      const [, look, length, table, ids] = present.get(name) ?? [name, null, 0, [], []];
      tags.get(name).setAttribute("display", present.has(name) ? "inline" : "none");
      rows.get(name).forEach((row, entry) => {
        const shown = entry < table.length;
        if (row.shown !== shown) row.group.setAttribute("display", (row.shown = shown) ? "inline" : "none");
        if (!shown) return;
        row.boxes.forEach((box, place) => {
          const position = entry * size + place, filled = position < length, id = ids[position] ?? "";
          box.draw(filled ? "filled" : "open", filled ? look : null, filled && !crowded && fits(id) ? String(id) : "", fill);
        });
        row.table?.draw("entry", null, table[entry] < 0 ? "-" : String(table[entry]), fill);
      });
    }
  };
  // `away`: slots whose K and V are still on their way.
  const drawBlocks = (state, away) => {
    const fresh = new Set([...state.writes.map(([, , slot]) => slot), ...state.copies.flatMap(([, to, tokens]) =>
      Array.from({ length: tokens }, (_, place) => to * size + place))]);
    const found = new Set(state.found);
    state.blocks.forEach(([kind, look, ids, said], block) => {
      const drawn = blocks[block], first = block * size, name = found.has(block) ? `${kind} minikv-found` : kind;
      drawn.boxes.forEach((box, place) => {
        // A cell that is a whole block is filled while one of its slots is, and fresh with its last one.
        const slot = first + (crowded ? Math.max(0, ids.length - 1) : place), here = crowded ? ids.length > 0 : place < ids.length;
        const arrives = away?.has(slot) ?? false, filled = here && (!arrives || (crowded && !away.has(first)));
        const words = crowded ? (said.length * 5.6 <= page.wide ? said : "") : fits(ids[place]) ? String(ids[place]) : "";
        box.draw(filled ? (fresh.has(slot) && !arrives ? "fresh" : "filled") : "open", filled ? look : null, filled ? words : "", fill);
      });
      if (drawn.shown === `${name}|${said}`) return;
      drawn.shown = `${name}|${said}`;
      drawn.group.setAttribute("class", `minikv-physical minikv-${name}`);
      drawn.group.setAttribute("data-kind", kind);
      drawn.said.textContent = said;
    });
  };

  // K and V of one token, in two colours and with their letters.
  const chips = [];
  const chip = (index) => {
    if (!chips[index]) {
      const [wide, tall] = crowded ? [5, 6] : [Math.min(17, page.wide / 2), 17];
      const group = svgElement("g", { display: "none" });
      for (const [left, part, words] of [[-wide, "k", "K"], [0, "v", "V"]]) {
        group.append(svgElement("rect", { x: left, y: -tall / 2, width: wide, height: tall, fill: lookOf(part).fill, class: "minikv-mark" }));
        if (wide >= 12) group.append(svgElement("text", {
          x: left + wide / 2, y: 4.5, "text-anchor": "middle", style: `fill: ${lookOf(part).ink}`, class: "minikv-letter",
        }, words));
      }
      flying.append(group);
      chips.push(group);
    }
    return chips[index];
  };
  let flown = 0; // chips that are in the air
  const land = () => {
    for (let index = 0; index < flown; index++) chips[index].setAttribute("display", "none");
    flown = 0;
  };
  const middle = ([x, y], wide, tall) => [x + wide / 2, y + tall / 2];
  const slotMiddle = (slot) => middle(page.physical(slot), page.wide, page.tall);

  const settle = (place) => {
    const state = states[place], standing = arrowsOf(state);
    land();
    drawSequences(state);
    drawBlocks(state, null);
    for (const key of paths.keys()) if (!standing.has(key)) drawArrow(key, null, null);
    for (const [key, [start, end]] of standing) drawArrow(key, start, end);
  };

  const change = (place) => {
    const before = states[place - 1], after = states[place];
    land();
    const copied = after.copies.flatMap(([from, to, tokens]) => Array.from({ length: tokens }, (_, one) =>
      [slotMiddle(from * size + one), slotMiddle(to * size + one), to * size + one]));
    const written = after.writes.map(([name, position, slot]) =>
      [middle(page.logical(name, position), crowded ? page.logicalWide : page.wide, crowded ? page.logicalTall : page.tall), slotMiddle(slot), slot]);
    const flights = [...copied, ...written];
    // What goes stays until its arrows are back: an arrow never begins at nothing.
    const shown = new Map(after.sequences.map((sequence) => [sequence[0], sequence]));
    for (const sequence of before.sequences)
      if ((shown.get(sequence[0])?.[3].length ?? 0) < sequence[3].length) shown.set(sequence[0], sequence);
    drawSequences({ sequences: [...shown.values()] });
    drawBlocks(after, new Set(flights.map(([, , slot]) => slot)));
    flown = flights.length;
    flights.forEach((_, index) => chip(index).setAttribute("display", "inline"));
    const old = arrowsOf(before), next = arrowsOf(after), bends = [];
    for (const key of new Set([...old.keys(), ...next.keys()])) {
      const [start, end] = next.get(key) ?? [old.get(key)[0], old.get(key)[0]], from = old.get(key)?.[1] ?? start;
      if (next.has(key) && from[0] === end[0] && from[1] === end[1]) drawArrow(key, start, end);
      else bends.push([key, start, from, end]);
    }
    return (share) => {
      for (const [key, start, from, to] of bends)
        drawArrow(key, start, [between(from[0], to[0], share), between(from[1], to[1], share)]);
      flights.forEach(([from, to], index) => chips[index].setAttribute(
        "transform", `translate(${between(from[0], to[0], share).toFixed(1)} ${between(from[1], to[1], share).toFixed(1)})`));
    };
  };
  return { svg, settle, change };
}

const mount = (element, data, options) => mountMotion(element, data, pagingScene, options);
