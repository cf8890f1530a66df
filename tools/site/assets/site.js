// What a page does beyond being read: theme, search, plots that move. Without this script everything can be read.

const { up, lang } = document.body.dataset;

function keep(name, value) {
  try { localStorage.setItem(name, value); } catch { /* a browser that keeps nothing */ }
}

function load(name) {
  return new Promise((done, failed) => {
    const script = document.createElement("script");
    Object.assign(script, { src: `${up}/assets/${name}`, onload: done, onerror: failed });
    document.head.append(script);
  });
}

keep("minikv-lang", lang);

// The list of lessons stands open beside the text, and is folded above it on a narrow screen.
const wide = matchMedia("(min-width: 1000px)");
const lessons = document.getElementById("lessons");
const unfold = () => { lessons.open = wide.matches; };
wide.addEventListener("change", unfold);
unfold();
if (wide.matches) lessons.querySelector("[aria-current]")?.scrollIntoView({ block: "center" });

const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  keep("minikv-theme", root.dataset.theme);
});

// Plots: plotly is loaded when the first one comes near the screen, on a phone when it is touched.
const plots = [...document.querySelectorAll("figure.plot")];
let plotly = null;

async function drawPlot(figure) {
  plotly ??= load("plotly.js");
  await plotly;
  const { data, layout } = JSON.parse(figure.querySelector("script").textContent);
  const place = document.createElement("div");
  place.style.minHeight = `${layout.height ?? 340}px`;
  figure.firstElementChild.replaceChildren(place);
  delete layout.width;
  window.Plotly.newPlot(place, data, { ...layout, autosize: true }, { responsive: true, displaylogo: false });
}

if (plots.length) {
  const thrifty = navigator.connection?.saveData || !matchMedia("(min-width: 700px)").matches;
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      drawPlot(target);
    }
  }, { rootMargin: "200px" });
  for (const figure of plots) {
    if (thrifty) figure.firstElementChild.addEventListener("click", () => drawPlot(figure), { once: true });
    else near.observe(figure);
  }
}

// Search. Each word is looked for as it is written, an English one at the beginning of a word ("oom" is not in "room"); a
// word that no word begins with, anywhere. One of Chinese that is nowhere is looked for by pairs of letters. Questions as
// people ask them ("minikv ask") are entries of their own, and lead to their lesson.
const dialog = document.getElementById("search");
const field = dialog.querySelector("input");
const status = dialog.querySelector("[role=status]");
const list = dialog.querySelector("ol");
const MOST = 30; // results that are shown

function wordsOf(asked) {
  return asked.toLowerCase().split(/[\s，。、；：]+/).filter(Boolean);
}

function pairs(word) {
  const letters = [...word];
  const chinese = letters.length > 2 && /^[\u4e00-\u9fff]+$/.test(word);
  return chinese ? letters.slice(1).map((letter, at) => letters[at] + letter) : [word];
}

// Where a term stands from `from` on; -1: nowhere. One that `begins` stands at the beginning of a word.
function placeOf({ word, begins }, text, from = 0) {
  let at = text.indexOf(word, from);
  while (begins && at > 0 && /[a-z0-9]/.test(text[at - 1])) at = text.indexOf(word, at + 1);
  return at;
}

function count(text, term) {
  let found = 0;
  for (let at = placeOf(term, text); at >= 0 && found < 5; at = placeOf(term, text, at + 1)) found += 1;
  return found;
}

function search(asked) {
  const index = window.minikvIndex, phrase = asked.trim().toLowerCase();
  const words = wordsOf(asked);
  const stands = (term) => index.some(({ low }) => [low[0], low[1], low[3]].some((text) => placeOf(term, text) >= 0));
  const terms = words.flatMap((word) => {
    const whole = [{ word, begins: /^[a-z0-9]/.test(word) }, { word, begins: false }].find(stands);
    return whole ? [whole] : pairs(word).map((each) => ({ word: each, begins: false }));
  });
  if (!terms.length) return { terms, found: [] };
  const found = [];
  for (const entry of index) {
    const [title, heading, address, text] = entry.low;
    let score = 0;
    for (const term of terms) {
      const here = 8 * (placeOf(term, title) >= 0) + 12 * (placeOf(term, heading) >= 0) + count(text, term);
      if (!here) { score = 0; break; }
      score += here;
    }
    if (address.includes("api/")) score /= 2; // a lesson explains, a signature answers where all is known already
    if (score && entry.entry[4] && `${heading} ${text}`.includes(phrase)) score += 40; // the very wording of a question
    if (score) found.push([score, entry]);
  }
  found.sort((one, other) => other[0] - one[0]);
  return { terms, found: found.map(([, entry]) => entry) };
}

// Some words around the first one found, which are set apart.
function excerpt(text, low, terms) {
  const places = terms.map((term) => placeOf(term, low)).filter((at) => at >= 0);
  let begin = Math.max(0, Math.min(...places, text.length) - 40);
  if (/\w\w/.test(text.slice(begin - 1, begin + 1))) begin += text.slice(begin).search(/\W/) + 1; // not within a word
  const shown = text.slice(begin, begin + 160);
  const part = document.createElement("p");
  let at = 0;
  while (at < shown.length) {
    const next = terms.map((term) => [placeOf(term, shown.toLowerCase(), at), term.word]).filter(([where]) => where >= 0)
      .sort((one, other) => one[0] - other[0])[0];
    if (!next) break;
    part.append(shown.slice(at, next[0]));
    const mark = document.createElement("mark");
    mark.textContent = shown.slice(next[0], next[0] + next[1].length);
    part.append(mark);
    at = next[0] + next[1].length;
  }
  part.append(shown.slice(at));
  return part;
}

function showFound() {
  const { terms, found } = search(field.value);
  list.replaceChildren(...found.slice(0, MOST).map(({ entry, low }) => {
    const [title, heading, address, text] = entry;
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `${up}/${address}`;
    link.textContent = heading && heading !== title ? `${title} › ${heading}` : title;
    link.addEventListener("click", () => dialog.close());
    item.append(link, excerpt(text, low[3], terms));
    return item;
  }));
  const said = found.length ? status.dataset.some.replace("{count}", found.length) : status.dataset.none;
  status.textContent = terms.length ? said : "";
}

async function openSearch() {
  dialog.showModal();
  field.focus();
  if (!window.minikvIndex) {
    await load(`search.${lang}.js`);
    window.minikvIndex = window.minikvIndex.map((entry) => ({ entry, low: entry.map((part) => part.toLowerCase()) }));
  }
  showFound();
}

const find = document.getElementById("find");
find.hidden = false;
find.addEventListener("click", openSearch);
field.addEventListener("input", () => { if (window.minikvIndex) showFound(); });
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  list.querySelector("a")?.click();
});
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !dialog.open) {
    event.preventDefault();
    openSearch();
  }
});
