// Texts with the relevance of their words, and for the opened row what happens inside of the model.
"use strict";
const { rows, inside, pictures, title } = JSON.parse(document.getElementById("data").textContent);
const { heat, make, mode, picture, save, signed, sized, unpacked, observationView } = inspector;
const say = { gap: "not accounted for", open: "Attention and layers", cut: "the grey end was not read: the text is too long",
  seen: "as the model sees it", patch: "patch", surprising: "surprising" };
const CUT = 20; // characters at the end of a text that belong to no word
const at = id => document.getElementById(id), main = document.querySelector("main");
const methods = [...new Set(rows.flatMap(row => row.map(each => each.method)))];
for (const name of methods) at("method").add(new Option(name.replaceAll("_", " "), name));
at("method").parentElement.hidden = methods.length < 2;

// What the address keeps: numbers and names of the view.
const NUMBERS = ["row", "target", "sequence", "layer", "head", "token", "answer"];
const state = { method: methods[0], row: rows.length === 1 ? 0 : -1, target: 0, sequence: 0, layer: 0, head: 0,
  token: -1, answer: 0, view: "arcs" };
function restore() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of given) {
    if (NUMBERS.includes(name) && /^-?\d{1,6}$/.test(value)) state[name] = Number(value);
    if (name === "method" && methods.includes(value)) state.method = value;
    if (name === "view" && ["arcs", "matrix"].includes(value)) state.view = value;
  }
  if (!inside[state.row]) state.row = -1;
  return given.size > 0;
}
function changed() {
  const kept = Object.entries(state).filter(([name]) => state.row >= 0 || ["method", "row"].includes(name));
  history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
}

const chosen = rows.map(() => 0);
let opened = null;
const ofMethod = index => {
  const own = rows[index].filter(each => each.method === state.method);
  return [own, own[Math.min(chosen[index], own.length - 1)]];
};
function marked(text, number, found) {
  const line = make("p", undefined, undefined, "text");
  const largest = Math.max(...found.words.map(word => Math.abs(word.value)), 1e-12);
  let end = 0;
  for (const word of found.words) {
    if (word.text !== number || word.start < end) continue;
    line.append(text.slice(end, word.start));
    const mark = make("mark", text.slice(word.start, word.end), line);
    mark.dataset.share = (word.value / largest).toFixed(3);
    mark.style.background = signed(word.value / largest);
    mark.title = word.value.toPrecision(3);
    end = word.end;
  }
  const left = text.slice(end);
  if (end && left.trim().length > CUT) {
    make("span", left, line, "unread");
    make("small", ` (${say.cut})`, line);
  } else line.append(left);
  return line;
}
// An image as the model sees it, and in grey under the relevance of its patches.
const COVER = [0.3, 0.78]; // of the least relevant patch and of the most relevant one
const images = pictures.map(async ({ width, height, pixels }) => {
  const bytes = new Uint8Array(await unpacked(pixels));
  return [false, true].map(grey => {
    const canvas = make("canvas"), brush = canvas.getContext("2d");
    Object.assign(canvas, { width, height });
    const data = brush.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      const [r, g, b] = bytes.subarray(3 * i, 3 * i + 3), mean = 38 + 0.8 * (r + g + b) / 3;
      data.data.set(grey ? [mean, mean, mean, 255] : [r, g, b, 255], 4 * i);
    }
    brush.putImageData(data, 0, 0);
    return canvas;
  });
});
async function pictured(index, found) {
  const { width, height } = pictures[index], side = Math.min(340, Math.max(140, main.clientWidth / 2 - 16));
  const wide = Math.round(side * Math.min(1, width / height)), high = Math.round(wide * height / width);
  const box = make("div", undefined, undefined, "pictures"), [plain, grey] = await images[index];
  const largest = Math.max(...found.patches.flat(), 1e-12), down = found.patches.length, across = found.patches[0].length;
  const drawings = [[say.seen, plain], [found.method.replaceAll("_", " "), grey]].map(([name, source]) => {
    const figure = make("figure", undefined, box), canvas = make("canvas", undefined, figure);
    const caption = make("figcaption", name, figure), brush = sized(canvas, wide, high);
    brush.imageSmoothingEnabled = width > 128;
    brush.drawImage(source, 0, 0, wide, high);
    if (source !== grey) return canvas;
    found.patches.forEach((row, i) => row.forEach((value, j) => {
      const share = Math.max(0, value / largest), [x, y] = [j * wide / across, i * high / down];
      brush.globalAlpha = COVER[0] + (COVER[1] - COVER[0]) * share;
      brush.fillStyle = heat(share);
      const [right, bottom] = [(j + 1) * wide / across, (i + 1) * high / down].map(Math.round);
      brush.fillRect(Math.round(x), Math.round(y), right - Math.round(x), bottom - Math.round(y));
    }));
    brush.globalAlpha = 1;
    canvas.dataset.largest = largest;
    canvas.onpointermove = event => {
      const [i, j] = [Math.floor(event.offsetY / high * down), Math.floor(event.offsetX / wide * across)];
      const value = found.patches[i]?.[j];
      if (value !== undefined) caption.textContent = `${say.patch} ${i}, ${j}: ${value.toPrecision(3)}`;
    };
    canvas.onpointerleave = () => { caption.textContent = name; };
    return canvas;
  });
  return [box, drawings];
}
const drawings = {}; // of the images that are shown, for the button PNG
const articles = rows.map(() => make("article", undefined, main));
function show(index) {
  const article = articles[index], [own, found] = ofMethod(index);
  for (const old of article.querySelectorAll(":scope > :not(.inside)")) old.remove();
  const targets = make("div", undefined, undefined, "targets");
  own.forEach((each, number) => {
    const button = make("button", undefined, targets);
    make("b", each.target, button);
    make("span", each.score.toFixed(3), button);
    button.setAttribute("aria-pressed", each === found);
    button.onclick = () => {
      chosen[index] = number;
      show(index);
      if (index === state.row) {
        state.target = number;
        opened?.answer(number);
      }
      changed();
    };
  });
  const texts = make("div", undefined, undefined, "texts"), parts = [targets, texts];
  texts.append(...found.texts.map((text, number) => marked(text, number, found)));
  if (pictures[index]) {
    parts.push(make("div"));
    pictured(index, found).then(([box, own]) => {
      if (ofMethod(index)[1] !== found) return; // another one was chosen in the meantime
      parts.at(-1).replaceWith(box);
      drawings[index] = own;
    });
  }
  if (found.gap !== undefined)
    parts.push(make("p", `${say.gap}: ${(100 * found.gap).toFixed(1)} %`, undefined, "note"));
  if (inside[index] && rows.length > 1) {
    const button = make("button", say.open);
    button.setAttribute("aria-expanded", index === state.row);
    button.onclick = () => open(index === state.row ? -1 : index);
    parts.push(button);
  }
  article.prepend(...parts);
}
async function open(index) {
  const before = state.row;
  state.row = index;
  for (const old of main.querySelectorAll(".inside")) old.remove();
  opened = null;
  for (const each of new Set([before, index])) if (rows[each]) show(each);
  changed();
  if (index < 0) return;
  const box = make("div", undefined, articles[index], "inside");
  opened = await observationView(box, index, inside[index], state, changed);
}
function refresh() {
  at("method").value = state.method;
  rows.forEach((_, index) => show(index));
  const surprisal = state.method === "surprisal"; // of ownbert score: never below 0
  const stops = Array.from({ length: 17 }, (_, i) =>
    pictures.length ? heat(i / 16) : signed(surprisal ? i / 16 : i / 8 - 1)).join(", ");
  at("scale").previousElementSibling.hidden = pictures.length > 0 || surprisal; // nothing is against a class
  if (surprisal) at("scale").nextElementSibling.textContent = say.surprising;
  at("scale").style.background = `linear-gradient(90deg, ${stops})`;
}
at("method").onchange = () => { state.method = at("method").value; refresh(); changed(); };
mode.listeners.add(refresh);

// A row's text as a picture: words with their colours, in lines.
function drawnText(index, width) {
  const [, found] = ofMethod(index), size = 15, line = 26, probe = make("canvas").getContext("2d");
  probe.font = `${size}px system-ui, sans-serif`;
  const boxes = [];
  let x = 0, y = 0;
  found.texts.forEach((text, number) => {
    for (const node of marked(text, number, found).childNodes)
      for (const piece of node.textContent.match(/\s+|[^\s\u3000-\u9fff]+|[\u3000-\u9fff]/g) ?? []) {
        const wide = probe.measureText(piece).width;
        if (x + wide > width && piece.trim()) { x = 0; y += line; }
        boxes.push([piece, x, y, wide, node.dataset?.share]);
        x += wide;
      }
    x = 0;
    y += line;
  });
  const own = [`${found.target}  ${found.score.toFixed(3)}`, found.method.replaceAll("_", " ")].join("   ");
  return [width, y + line, brush => {
    brush.font = `600 ${size}px system-ui, sans-serif`;
    brush.fillStyle = getComputedStyle(document.body).color;
    brush.fillText(own, 0, size);
    brush.font = probe.font;
    for (const [piece, left, down, wide, share] of boxes) {
      if (share !== undefined && piece.trim()) {
        brush.fillStyle = signed(Number(share));
        brush.beginPath();
        brush.roundRect(left, down + line, wide, 22, 4);
        brush.fill();
      }
      brush.fillStyle = getComputedStyle(document.body).color;
      brush.fillText(piece, left, down + line + size + 1);
    }
  }];
}
at("png").onclick = () => {
  const width = Math.min(760, main.clientWidth), shown = state.row >= 0 ? [state.row] : rows.map((_, i) => i).slice(0, 30);
  picture(`${title}.png`, title, [...shown.flatMap(index => [drawnText(index, width), ...(drawings[index] ?? [])]), ...(opened?.canvases() ?? [])]);
};
at("json").onclick = () => {
  const found = { title, explanations: rows, ...(opened ? { row: state.row, inside: opened.facts() } : {}) };
  save(`${title}.json`, new Blob([JSON.stringify(found)], { type: "application/json" }));
};
addEventListener("hashchange", () => { restore(); refresh(); open(state.row); });
restore();
if (state.row >= 0) chosen[state.row] = state.target;
refresh();
open(state.row);
