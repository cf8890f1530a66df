// Run the site's model on the cases of standard input; test_model.py compares the answers with Python's.

import { readFileSync } from "node:fs";

const { module, folder, count, cases } = JSON.parse(readFileSync(0, "utf-8"));
const { Model, Tokenizer, readSafetensors, steps } = await import(module);
const json = (name) => JSON.parse(readFileSync(`${folder}/${name}`, "utf-8"));
const file = readFileSync(`${folder}/model.safetensors`);
const model = new Model(json("config.json"), readSafetensors(file.buffer.slice(file.byteOffset, file.byteOffset + file.length)));
const tokenizer = new Tokenizer(json("tokenizer.json"));
const answers = cases.map(({ text, rules }) => {
  const prompt = tokenizer.encode(text), written = [];
  let cache = null;
  for (const step of steps(model, prompt, count, rules)) {
    if (step.next !== null) written.push(step.next);
    cache = step.cache;
  }
  const kept = cache.map((layer) => layer.slots.map(({ position }) => position).sort((one, other) => one - other));
  return { prompt, written, kept };
});
const logits = cases.slice(0, 3).map(({ text }) => {
  const cache = model.newCache();
  return tokenizer.encode(text).map((token, position) => model.forward(token, position, cache)).map((step) => [...step.logits]).at(-1);
});
console.log(JSON.stringify({ answers, logits }));
