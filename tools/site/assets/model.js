// tiny-gqa in plain JavaScript: a decoder with grouped-query attention whose cache can be looked at, and forgets on request.
//
// The same forward as transformers' Llama in float32, and the same tokens stay as with `install_kv_eviction(scope="layer")`;
// tests/tools/site/test_model.py compares both with Python. No page, no library: it runs in a browser and in Node.

export const POLICIES = ["full", "streaming", "h2o", "knorm", "keydiff"];

// A safetensors file: 8 bytes with the length of a JSON header, the header, the tensors' bytes. Here all are F16.
export function readSafetensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = {};
  for (const [name, { dtype, data_offsets: place }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (dtype !== "F16") throw new Error(`${name} is ${dtype}`);
    const bits = new Uint16Array(buffer.slice(8 + length + place[0], 8 + length + place[1]));
    tensors[name] = Float32Array.from(bits, fromHalf);
  }
  return tensors;
}

// 1 bit of sign, 5 of exponent (bias 15), 10 of fraction; exponent 0 is a number without the leading 1.
export function fromHalf(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

// One token a word, whatever its case; <bos> comes first.
export class Tokenizer {
  constructor(json) {
    this.ids = json.model.vocab;
    this.words = Object.keys(this.ids).sort((one, other) => this.ids[one] - this.ids[other]);
  }

  split(text) {
    return text.toLowerCase().match(/[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s]+/gu) ?? [];
  }

  // The words of a text that the model reads as "<unk>", each once.
  unknown(text) {
    return [...new Set(this.split(text).filter((word) => this.ids[word] === undefined))];
  }

  encode(text) {
    return [this.ids["<bos>"], ...this.split(text).map((word) => this.ids[word] ?? this.ids["<unk>"])];
  }
}

// y = W x, with W [out, in] by rows.
function product(weight, x) {
  const width = x.length, y = new Float32Array(weight.length / width);
  for (let row = 0, at = 0; row < y.length; row += 1) {
    let sum = 0;
    for (let column = 0; column < width; column += 1, at += 1) sum += weight[at] * x[column];
    y[row] = sum;
  }
  return y;
}

function normed(x, weight, epsilon) {
  let squares = 0;
  for (const value of x) squares += value * value;
  const scale = 1 / Math.sqrt(squares / x.length + epsilon);
  return x.map((value, at) => value * scale * weight[at]);
}

function dot(one, other, begin, width, from = begin) {
  let sum = 0;
  for (let at = 0; at < width; at += 1) sum += one[from + at] * other[begin + at];
  return sum;
}

// Rotary positions: in each head, element i turns with element i + width / 2.
function turned(x, width, position, theta) {
  const y = Float32Array.from(x), half = width / 2;
  for (let head = 0; head < x.length; head += width) {
    for (let at = 0; at < half; at += 1) {
      const angle = position * theta ** (-2 * at / width), cos = Math.cos(angle), sin = Math.sin(angle);
      const [low, high] = [x[head + at], x[head + at + half]];
      y[head + at] = low * cos - high * sin;
      y[head + at + half] = high * cos + low * sin;
    }
  }
  return y;
}

function softmax(scores) {
  const most = Math.max(...scores), powers = scores.map((score) => Math.exp(score - most));
  const sum = powers.reduce((one, other) => one + other, 0);
  return powers.map((power) => power / sum);
}

// One layer's cached tokens, slot by slot: K (already turned) and V of all KV heads, the token's position in its text, and
// the attention that each KV head's queries have given it.
export class LayerCache {
  constructor(heads, width) {
    Object.assign(this, { heads, width, slots: [] });
  }

  append(position, k, v) {
    this.slots.push({ position, k, v, received: new Float64Array(this.heads) });
  }

  // What a policy gives each slot: larger stays. All heads keep the same tokens, by the mean of their scores.
  scores(policy) {
    const each = Array.from({ length: this.heads }, (_, head) => this.#scoresOf(policy, head));
    return this.slots.map((_, slot) => each.reduce((sum, scores) => sum + scores[slot], 0) / this.heads);
  }

  #scoresOf(policy, head) {
    const { slots, width } = this, begin = head * width;
    if (policy === "streaming") return slots.map((slot) => slot.position);
    if (policy === "h2o") return slots.map((slot) => slot.received[head]);
    const lengths = slots.map(({ k }) => Math.sqrt(dot(k, k, begin, width)));
    if (policy === "knorm") return lengths.map((length) => -length);
    const mean = new Float64Array(width); // of the keys of length 1; its own length changes no order, but its sign would
    slots.forEach(({ k }, slot) => {
      for (let at = 0; at < width; at += 1) mean[at] += k[begin + at] / lengths[slot];
    });
    const length = Math.hypot(...mean) || 1;
    return slots.map(({ k }, slot) => -dot(mean, k, begin, width, 0) / length / lengths[slot]);
  }

  // The first `sinks` tokens and the last `recent` stay whatever their score, then the best; of equal ones the earlier.
  // Where one token goes, the last takes its slot; where many go, the kept ones are gathered.
  evict({ policy, budget, sinks, recent }) {
    const keep = sinks + budget + recent;
    if (policy === "full" || this.slots.length <= keep) return [];
    const newest = Math.max(...this.slots.map(({ position }) => position));
    const scores = this.scores(policy);
    const order = this.slots.map((slot, at) => {
      const safe = slot.position < sinks || slot.position > newest - recent;
      return { slot, score: safe ? Infinity : scores[at] };
    });
    order.sort((one, other) => (one.score === other.score ? 0 : other.score - one.score)
      || one.slot.position - other.slot.position);
    const gone = new Set(order.slice(keep).map(({ slot }) => slot));
    if (gone.size === 1) {
      const at = this.slots.findIndex((slot) => gone.has(slot)), last = this.slots.pop();
      if (at < this.slots.length) this.slots[at] = last;
    } else {
      this.slots = this.slots.filter((slot) => !gone.has(slot));
    }
    return [...gone].map(({ position }) => position);
  }
}

export class Model {
  constructor(config, tensors) {
    Object.assign(this, { config, tensors });
    this.width = config.head_dim;
    this.heads = config.num_attention_heads;
    this.kvHeads = config.num_key_value_heads;
  }

  newCache() {
    return Array.from({ length: this.config.num_hidden_layers }, () => new LayerCache(this.kvHeads, this.width));
  }

  // Compute one token and append its K and V; { logits, attention: [layer][head][slot] }.
  forward(token, position, cache) {
    const { config, tensors } = this, size = config.hidden_size, attention = [];
    let x = tensors["model.embed_tokens.weight"].slice(token * size, (token + 1) * size);
    cache.forEach((layer, number) => {
      const of = (name) => tensors[`model.layers.${number}.${name}.weight`];
      const input = normed(x, of("input_layernorm"), config.rms_norm_eps);
      const [q, k, v] = ["q", "k", "v"].map((name) => product(of(`self_attn.${name}_proj`), input));
      const theta = config.rope_parameters.rope_theta;
      layer.append(position, turned(k, this.width, position, theta), v);
      const { out, probs } = this.#attend(turned(q, this.width, position, theta), layer);
      attention.push(probs);
      x = added(x, product(of("self_attn.o_proj"), out));
      const inner = normed(x, of("post_attention_layernorm"), config.rms_norm_eps);
      const gate = product(of("mlp.gate_proj"), inner), up = product(of("mlp.up_proj"), inner);
      x = added(x, product(of("mlp.down_proj"), up.map((value, at) => value * gate[at] / (1 + Math.exp(-gate[at])))));
    });
    const last = normed(x, tensors["model.norm.weight"], config.rms_norm_eps);
    return { logits: product(tensors["lm_head.weight"], last), attention };
  }

  // Query head h reads KV head floor(h / group).
  #attend(q, layer) {
    const { width, heads, kvHeads } = this, out = new Float32Array(heads * width), probs = [];
    for (let head = 0; head < heads; head += 1) {
      const kv = Math.floor(head * kvHeads / heads), begin = kv * width;
      const given = softmax(layer.slots.map(({ k }) => dot(q, k, begin, width, head * width) / Math.sqrt(width)));
      layer.slots.forEach((slot, at) => {
        slot.received[kv] += given[at];
        for (let one = 0; one < width; one += 1) out[head * width + one] += given[at] * slot.v[begin + one];
      });
      probs.push(given);
    }
    return { out, probs };
  }
}

function added(one, other) {
  return one.map((value, at) => value + other[at]);
}

// Read a prompt and write `count` tokens, greedily; yields what each forward did. Tokens go at the end of a forward, and the
// whole prompt is one forward: { token, position, attention, evicted: [layer][position], next, cache }.
export function* steps(model, prompt, count, rules) {
  const cache = model.newCache(), text = [...prompt];
  for (let position = 0; position < prompt.length + count - 1; position += 1) {
    const { logits, attention } = model.forward(text[position], position, cache);
    const ends = position >= prompt.length - 1;
    const read = cache.map((layer) => layer.slots.map((slot) => slot.position));
    const evicted = cache.map((layer) => (ends ? layer.evict(rules) : []));
    const next = ends ? logits.indexOf(Math.max(...logits)) : null;
    if (ends) text.push(next);
    yield { token: text[position], position, attention, read, evicted, next, cache };
  }
}
