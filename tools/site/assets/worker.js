// Python for a page, in a thread of its own: the page can be used while it loads and computes.
//
// A message { id, module, call, args } names a function of calculator.py or playground.py, whose answer goes back as { id, told } or { id, failed }.
// args that are Files become paths: WORKERFS reads of a file only what Python asks for.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const here = (name) => new URL(name, import.meta.url).href;

async function start() {
  const [python, packed] = await Promise.all([
    loadPyodide({ indexURL: here("./pyodide/") }),
    fetch(here("./minikv.zip")).then((answer) => answer.arrayBuffer()),
  ]);
  python.unpackArchive(packed, "zip", { extractDir: "/home/pyodide" });
  return python;
}

const ready = start();
let mounted = 0;

function asPath(python, file) {
  const folder = `/given/${mounted += 1}`;
  python.FS.mkdirTree(folder);
  python.FS.mount(python.FS.filesystems.WORKERFS, { files: [file] }, folder);
  return `${folder}/${file.name}`;
}

self.addEventListener("message", async ({ data: { id, module, call, args } }) => {
  try {
    const python = await ready;
    const given = args.map((value) => (value instanceof File ? asPath(python, value) : value));
    self.postMessage({ id, told: JSON.parse(python.pyimport(module)[call](...given)) });
  } catch (error) {
    self.postMessage({ id, failed: String(error) });
  }
});
