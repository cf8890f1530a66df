// Asks the Python in worker.js: ask("calculator", "answer", text) is a promise of what that function of that module returns.
//
// The worker starts, and Python is loaded, with the first question.

let worker = null;
let asked = 0;
const waiting = new Map();

function start() {
  worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  worker.addEventListener("message", ({ data: { id, told, failed } }) => {
    const one = waiting.get(id);
    waiting.delete(id);
    if (failed) one.failed(new Error(failed));
    else one.done(told);
  });
  worker.addEventListener("error", () => {
    for (const one of waiting.values()) one.failed(new Error("worker"));
    waiting.clear();
  });
}

export function ask(module, call, ...args) {
  if (!worker) start();
  const id = asked += 1;
  worker.postMessage({ id, module, call, args });
  return new Promise((done, failed) => waiting.set(id, { done, failed }));
}
