// Batching: the batch made anew each step. A row is a seat, a column a step, a colour a request; the requests that wait
// stand on the right, and each flies to its seat when it gets one. Several runs stand one below the other, to one scale.
//
//   form    and { seats, steps, runs: [name], seat: [words], waiting }
//   states  [{ status, runs: [{ said, column: [request], prompt: [whether], waiting: [request], ended }] }]
//           column: the request on each seat in this step, null where it computes nothing
//
// A request is known by its number and its pattern, an idle cell by its dashed edge: never by colour alone.

const BATCH_LEFT = 72, BATCH_WIDTH = 700, QUEUE_X = 800, QUEUE_A_ROW = 6, SEAT = 24, RUN_HEAD = 26, RUNS_APART = 18;

function batchingScene(form, states, paint) {
  const wide = Math.min(26, BATCH_WIDTH / Math.max(1, form.steps)), high = RUN_HEAD + form.seats * SEAT + RUNS_APART;
  const svg = svgElement("svg", { viewBox: `0 0 ${PAGE_WIDTH} ${form.runs.length * high}` });
  const flying = svgElement("g", { class: "minikv-flying" });
  svg.append(paint.defs);
  const top = (run, seat) => run * high + RUN_HEAD + seat * SEAT;
  const left = (step) => BATCH_LEFT + (step - 1) * wide;
  const queued = (run, place) => [QUEUE_X + (place % QUEUE_A_ROW) * 25, top(run, Math.floor(place / QUEUE_A_ROW))];

  const token = (number) => {
    const group = svgElement("g");
    group.append(svgElement("rect", { width: 22, height: SEAT - 4, fill: paint.fill(number), class: "minikv-mark" }),
      svgElement("text", { x: 11, y: 14.5, "text-anchor": "middle", ...wordsOn(number) }, String(number)));
    return group;
  };
  const heads = form.runs.map((name, run) => {
    const said = svgElement("text", { x: BATCH_LEFT, y: run * high + 16, class: "minikv-panel" });
    svg.append(said, svgElement("text", { x: QUEUE_X, y: run * high + 16, class: "minikv-panel" }, form.waiting));
    form.seat.forEach((words, seat) => svg.append(svgElement("text", { x: 0, y: top(run, seat) + 15 }, words)));
    return said;
  });
  // A cell for each seat in each step, made once: a state says how many of their columns are seen.
  const columns = form.runs.map((_, run) => states.slice(1).map(({ runs }, index) => {
    const group = svgElement("g", { display: "none" }), { column, prompt, ended } = runs[run];
    if (!ended) column.forEach((number, seat) => {
      const x = left(index + 1), y = top(run, seat), none = number === null;
      const cell = svgElement("g", { class: `minikv-cell minikv-${none ? "idle" : prompt[seat] ? "prompt" : "decode"}` });
      cell.append(svgElement("rect", { x, y, width: wide - 2, height: SEAT - 4, fill: none ? "none" : paint.fill(number) }));
      if (prompt[seat] && wide > 14) cell.append(svgElement("text", {
        x: x + wide / 2 - 1, y: y + 14.5, "text-anchor": "middle", ...wordsOn(number),
      }, String(number)));
      group.append(cell);
    });
    svg.append(group);
    return group;
  }));
  const requests = [...new Set(states.flatMap(({ runs }) => runs.flatMap(({ waiting, column }) =>
    [...waiting, ...column.filter((number) => number !== null)])))];
  const tokens = form.runs.map(() => new Map(requests.map((number) => {
    const group = token(number);
    group.setAttribute("display", "none");
    flying.append(group);
    return [number, group];
  })));
  svg.append(flying);
  const put = (run, number, [x, y]) => {
    const group = tokens[run].get(number);
    group.setAttribute("display", "inline");
    group.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
  };

  const settle = (place) => {
    states[place].runs.forEach(({ said, waiting }, run) => {
      if (heads[run].textContent !== said) heads[run].textContent = said;
      columns[run].forEach((group, index) => {
        group.setAttribute("display", index < place ? "inline" : "none");
        group.setAttribute("opacity", 1);
      });
      for (const group of tokens[run].values()) group.setAttribute("display", "none");
      waiting.forEach((number, rank) => put(run, number, queued(run, rank)));
    });
  };
  // A request that waits no longer flies to its seat; the others move up.
  const change = (place) => {
    settle(place);
    const moves = states[place].runs.flatMap(({ column, waiting }, run) => states[place - 1].runs[run].waiting.flatMap((number, rank) => {
      const still = waiting.indexOf(number), seat = column.indexOf(number);
      const to = still >= 0 ? queued(run, still) : seat >= 0 ? [left(place), top(run, seat)] : null;
      return to ? [[run, number, queued(run, rank), to]] : [];
    }));
    return (share) => {
      columns.forEach((groups) => groups[place - 1].setAttribute("opacity", share.toFixed(2)));
      for (const [run, number, from, to] of moves)
        put(run, number, [between(from[0], to[0], share), between(from[1], to[1], share)]);
    };
  };
  return { svg, settle, change };
}

const mount = (element, data, options) => mountMotion(element, data, batchingScene, options);
