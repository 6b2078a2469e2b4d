// Draws the matrices of a trace.
"use strict";
const { steps, inside, start } = JSON.parse(document.getElementById("data").textContent), by = {};
for (const step of steps) {
  const [rows, columns] = step.shape;
  if (typeof step.values === "string") {
    const bytes = Uint8Array.from(atob(step.values), c => c.charCodeAt(0));
    const flat = new Float32Array(bytes.buffer);
    step.values = Array.from({length: rows}, (_, i) =>
      flat.subarray(i * columns, (i + 1) * columns));
  } else step.values = step.values.map(row => row.map(x => x === null ? -Infinity : x));
  by[step.key] = step;
}
const TERMS = 6, LARGE = 20, TABLE = 24, TALL = 100;
function num(x) {
  if (!isFinite(x)) return "hidden";
  if (x && Math.abs(x) < 5e-5) return x.toExponential(0);
  const text = x.toFixed(4).replace(/0+$/, "").replace(/\.$/, "");
  return text === "-0" ? "0" : text;
}
const short = x => Math.abs(x) < 1e6 ? num(x) : x.toExponential(3);
const signed = x => x < 0 && isFinite(x) ? `(${num(x)})` : num(x);
function sum(terms) {
  if (terms.length <= TERMS) return terms.join(" + ");
  const left = terms.length - TERMS + 2;
  return terms.slice(0, TERMS - 2).join(" + ") + ` + ... (${left} more)`;
}
// References of a pattern (see trace.py) to a number, a row or a column: [key, row or null for all, column or null].
const REFERENCE = /(\w+)\[(:|\d+)\](?:\[(\d+)\])?/g;
const reference = ([, key, row, column]) => [key, row === ":" ? null : Number(row), column === undefined ? null : Number(column)];
function valuesOf([key, row, column]) {
  const values = by[key].values;
  if (row === null) return values.map(each => each[column]);
  return column === null ? Array.from(values[row]) : values[row][column];
}
function patternOf(step, r, c) {
  const n = step.made.kind === "weigh" ? by[step.made.right].shape[0] : 1;
  const places = { r, c, i: Math.floor(r / n), j: r % n };
  return step.pattern.replace(/\[([rcij])\]/g, (_, letter) => `[${places[letter]}]`);
}
const parts = (step, r, c) => [...patternOf(step, r, c).matchAll(REFERENCE)].map(reference);
function filled(term) {
  if (!term.includes(" . ")) return term.replace(REFERENCE, (...found) => signed(valuesOf(reference(found))));
  const [left, right] = [...term.matchAll(REFERENCE)].map(found => valuesOf(reference(found)));
  return sum(left.map((x, i) => `${signed(x)}*${signed(right[i])}`));
}
function softmax(scores, c) {
  const top = Math.max(...scores), off = Math.abs(top) > LARGE ? top : 0;
  const less = off > 0 ? ` - ${num(top)}` : off ? ` + ${num(-top)}` : "";
  const exps = scores.map(s => isFinite(s) ? `exp(${num(s)}${less})` : "0");
  const powers = scores.map(s => Math.exp(s - off));
  return [`${exps[c]} / (${sum(exps)})`, `${short(powers[c])} / ${short(powers.reduce((a, b) => a + b, 0))}`];
}
function explain(step, r, c) {
  const pattern = patternOf(step, r, c), [found] = parts(step, r, c).map(valuesOf);
  const terms = step.made.kind === "softmax" ? softmax(found, c)
    : pattern.includes("(=)") ? [pattern.replace("(=)", `(${num(found)})`)]
    : pattern ? [pattern, pattern.split(" + ").map(filled).join(" + ")] : [];
  return [`${step.key}[${r}][${c}]`, ...terms, num(step.values[r][c])].join(" = ");
}
function color(x, top) {
  if (!isFinite(x)) return "rgba(128, 128, 128, .25)";
  const strong = top ? Math.abs(x) / top : 0;
  return `rgba(var(--${x < 0 ? "minus" : "plus"}), ${(0.65 * strong).toFixed(3)})`;
}
function largest(step) {
  let top = 0;
  for (const row of step.values)
    for (const x of row) if (isFinite(x)) top = Math.max(top, Math.abs(x));
  return top;
}
function decimals(step) {
  for (let d = 0; d < 4; d++)
    if (step.values.every(row => row.every(x => !isFinite(x) || Math.abs(x - x.toFixed(d)) < 1e-9)))
      return d;
  return 4;
}
const { make, mode, observationView } = inspector;
const named = (names, i) => names.length && names[i] !== String(i) ? `${i}: ${names[i]}` : `${i}`;
function drawTable(step, box) {
  const table = make("table", undefined, box), top = largest(step), d = decimals(step);
  const head = make("tr", undefined, make("thead", undefined, table));
  make("th", "", head);
  for (let c = 0; c < step.shape[1]; c++) make("th", named(step.columns, c), head);
  const body = make("tbody", undefined, table);
  step.cells = step.values.map((row, r) => {
    const line = make("tr", undefined, body);
    make("th", named(step.rows, r), line);
    return Array.from(row, (x, c) => {
      const tiny = x && Math.abs(x) < 5e-5 || !isFinite(x);
      const cell = make("td", tiny ? num(x) : x.toFixed(d), line);
      cell.style.background = color(x, top);
      cell.dataset.place = `${step.key}.${r}.${c}`;
      return cell;
    });
  });
}
function drawMap(step, box) {
  const [rows, columns] = step.shape, top = largest(step);
  const wide = Math.max(1, Math.min(14, Math.floor(900 / columns)));
  const high = rows <= 40 ? 14 : Math.max(1, Math.min(14, Math.floor(400 / rows)));
  const map = make("div", undefined, box, "map");
  if (step.rows.length && high === 14) {
    const names = make("div", undefined, map);
    for (let r = 0; r < rows; r++) make("span", named(step.rows, r), names).style.height = "14px";
    names.style.lineHeight = "14px";
  }
  const frame = make("div", undefined, map, "frame"), canvas = make("canvas", undefined, frame);
  canvas.width = columns * wide;
  canvas.height = rows * high;
  const style = getComputedStyle(document.documentElement), brush = canvas.getContext("2d");
  step.paint = () => {
    brush.clearRect(0, 0, canvas.width, canvas.height);
    const tones = ["--minus", "--plus"].map(name => style.getPropertyValue(name));
    step.values.forEach((row, r) => row.forEach((x, c) => {
      const strong = isFinite(x) && top ? Math.abs(x) / top : 0.2;
      brush.fillStyle = isFinite(x) ? `rgba(${tones[x < 0 ? 0 : 1]}, ${strong})` : "#8884";
      brush.fillRect(c * wide, r * high, wide, high);
    }));
  };
  step.paint();
  step.frame = frame;
  const at = (x, size, count) => Math.max(0, Math.min(count - 1, Math.floor(x / size * count)));
  const place = e => `${step.key}.${at(e.offsetY, canvas.clientHeight, rows)}.` +
    at(e.offsetX, canvas.clientWidth, columns);
  canvas.onmousemove = e => kept || show(place(e));
  canvas.onclick = e => keep(place(e));
}
const main = document.querySelector("main"), bar = document.getElementById("sum");
// Tables as wide as the screen; what is wider is a map.
const widest = Math.min(TABLE, Math.floor((main.clientWidth - 120) / 70));
steps.forEach((step, i) => {
  // Of a model, steps are folded, since its attention is shown above, and drawn when they are opened.
  const box = make(inside ? "details" : "section", undefined, main);
  const title = make("h2", `${i + 1}. ${step.title} `, inside ? make("summary", undefined, box) : box);
  make("small", step.shape.join(" x "), title);
  if (step.formula !== step.key) make("p", step.formula, box, "formula");
  make("p", step.meaning, box, "meaning");
  step.open = () => {
    box.open = true;
    if (step.cells || step.frame) return;
    const scroll = make("div", undefined, box, "scroll");
    (step.shape[1] > widest || step.shape[0] > TALL ? drawMap : drawTable)(step, scroll);
  };
  box.ontoggle = () => { if (box.open) step.open(); };
  if (!inside || step.key === "weights") step.open();
});
let kept = null, shown = null;
function mark(key, r, c, kind) {
  const step = by[key], [rows, columns] = step.shape;
  if (step.frame) {
    const box = make("b", undefined, step.frame, kind).style;
    box.left = `${(c ?? 0) / columns * 100}%`;
    box.top = `${(r ?? 0) / rows * 100}%`;
    box.width = `${(c === null ? 1 : 1 / columns) * 100}%`;
    box.height = `${(r === null ? 1 : 1 / rows) * 100}%`;
    return;
  }
  step.cells?.forEach((row, i) => row.forEach((cell, j) => {
    if ((r === null || r === i) && (c === null || c === j)) cell.classList.add(kind);
  }));
}
function show(place) {
  if (place === shown) return;
  const [key, r, c] = place.split(".").map((x, i) => i ? Number(x) : x), step = by[key];
  if (!step || !(r in step.values) || !(c in step.values[r])) return;
  shown = place;
  for (const cell of document.querySelectorAll("td.part, td.here"))
    cell.classList.remove("part", "here");
  for (const box of document.querySelectorAll(".map b")) box.remove();
  for (const [name, i, j] of parts(step, r, c)) mark(name, i, j, "part");
  mark(key, r, c, "here");
  const names = [step.rows[r], step.columns[c]].filter(Boolean).join(", ");
  bar.textContent = explain(step, r, c) + (names ? `   (${names})` : "");
}
function keep(place) {
  by[place.split(".")[0]]?.open();
  kept = kept === place ? null : place;
  show(place);
  history.replaceState(null, "", kept ? `#${kept}` : "#");
}
main.addEventListener("mouseover", e => {
  if (e.target.dataset.place && !kept) show(e.target.dataset.place);
});
main.addEventListener("click", e => e.target.dataset.place && keep(e.target.dataset.place));
const moves = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
document.addEventListener("keydown", e => {
  if (e.key === "Escape") { kept = null; return; }
  if (!kept || !moves[e.key]) return;
  e.preventDefault();
  const [key, r, c] = kept.split("."), [down, right] = moves[e.key], step = by[key];
  const within = (x, size) => Math.max(0, Math.min(size - 1, x));
  kept = [key, within(Number(r) + down, step.shape[0]),
    within(Number(c) + right, step.shape[1])].join(".");
  show(kept);
  history.replaceState(null, "", `#${kept}`);
});
mode.listeners.add(() => steps.forEach(step => step.paint && step.paint()));
const place = decodeURIComponent(location.hash.slice(1));
if (place && !place.includes("=")) keep(place);
if (inside) {
  const state = { sequence: 0, layer: start.layer, head: start.head, token: -1, answer: 0, view: "arcs" };
  for (const [name, value] of new URLSearchParams(place.includes("=") ? place : "")) {
    if (name === "view" && ["arcs", "matrix"].includes(value)) state.view = value;
    else if (typeof state[name] === "number" && /^-?\d{1,6}$/.test(value)) state[name] = Number(value);
  }
  observationView(document.getElementById("inside"), 0, inside, state, () => {
    if (!kept) history.replaceState(null, "", `#${new URLSearchParams(Object.entries(state))}`);
  });
  const head = document.getElementById("steps");
  head.textContent += `: ${inspector.text("head", start.layer, start.head)}`;
} else document.getElementById("steps").hidden = true;
