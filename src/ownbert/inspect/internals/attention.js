// Attention: all heads at a glance, and one of them as arcs or as a matrix.
const NONE = -1;
// The weights of a head in a sequence of `size` tokens, `most` of each.
class Weights {
  constructor(bytes, size, most, peak) {
    Object.assign(this, { size, most, peak });
    const count = size * most, full = most === size;
    const values = bytes.subarray(0, count);
    this.keys = new Uint16Array(count);
    if (full) for (let i = 0; i < count; i++) this.keys[i] = i % size;
    else for (let i = 0, key = 0; i < count; i++) {
      if (i % most === 0) key = 0;
      key += bytes[count + i] | bytes[2 * count + i] << 8;
      this.keys[i] = key;
    }
    this.values = new Float32Array(count);
    this.rest = new Float32Array(size); // the mean of what is not among the largest
    for (let row = 0; row < size; row++) {
      let sum = 0, least = 1;
      for (let i = row * most; i < (row + 1) * most; i++) {
        const value = this.values[i] = peak * (values[i] / 255) ** 2;
        sum += value;
        least = Math.min(least, value);
      }
      if (!full) this.rest[row] = clamp((1 - sum) / (size - most), 0, least);
    }
  }
  at(row, key) {
    let low = row * this.most, high = low + this.most;
    while (low < high) {
      const middle = low + high >> 1;
      if (this.keys[middle] < key) low = middle + 1; else high = middle;
    }
    return low < (row + 1) * this.most && this.keys[low] === key ? this.values[low] : this.rest[row];
  }
  // [[key, weight], ...] of a row, and [[row, weight], ...] of a key, the largest first.
  from(row) {
    const found = [];
    for (let i = row * this.most; i < (row + 1) * this.most; i++) found.push([this.keys[i], this.values[i]]);
    return found.sort((a, b) => b[1] - a[1]);
  }
  to(key) {
    const found = [];
    for (let i = 0; i < this.keys.length; i++)
      if (this.keys[i] === key) found.push([Math.floor(i / this.most), this.values[i]]);
    return found.sort((a, b) => b[1] - a[1]);
  }
}
const opened = new Map();
// Heads are read when they are opened; a few stay.
function weightsOf(row, sequence, layer, head, size, most, peak) {
  const name = [row, sequence, layer, head].join(".");
  if (!opened.has(name)) {
    if (opened.size > 12) opened.delete(opened.keys().next().value);
    const source = document.querySelector(`script[data-weights="${name}"]`);
    opened.set(name, unpacked(source.textContent)
      .then(bytes => new Weights(new Uint8Array(bytes), size, Math.min(size, most), peak)));
  }
  return opened.get(name);
}

// All heads, as rows of small pictures.
function glance(box, data, state, choose) {
  const canvas = make("canvas", undefined, box, "glance");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", text("grid"));
  const readout = make("p", text("choose"), box, "readout");
  const places = new Map(data.shown.map((each, i) => [each.join("."), i]));
  const LEFT = 24, TOP = 16, GAP = 4;
  let cell = 0, pictures = [], over = null;
  const paintPictures = () => {
    const colours = pixels();
    let start = 0;
    pictures = data.sides.map(side => {
      const small = make("canvas"), brush = small.getContext("2d");
      small.width = small.height = side;
      const image = brush.createImageData(side, side), target = new Uint32Array(image.data.buffer);
      for (let i = 0; i < side * side; i++) target[i] = colours[Math.round(Math.sqrt(data.small[start + i] / 255) * 255)];
      start += side * side;
      brush.putImageData(image, 0, 0);
      return small;
    });
  };
  const index = (layer, head) => places.get([state.sequence, layer, head].join("."));
  const outline = (brush, layer, head, colour, wide) => {
    const row = data.layers.indexOf(layer);
    if (row < 0) return;
    brush.strokeStyle = colour;
    brush.lineWidth = wide;
    brush.strokeRect(LEFT + head * cell + 0.5, TOP + row * cell + 0.5, cell - GAP + 1, cell - GAP + 1);
  };
  const draw = () => {
    const ink = inks(), room = box.clientWidth - LEFT;
    cell = clamp(Math.floor(Math.min(room / data.heads, 620 / data.layers.length)), 12, 116);
    cell = Math.min(cell, room / data.heads);
    const brush = sized(canvas, LEFT + data.heads * cell, TOP + data.layers.length * cell);
    brush.font = "10px system-ui, sans-serif";
    brush.fillStyle = ink.soft;
    brush.textAlign = "center";
    const every = cell < 18 ? 2 : 1;
    for (let head = 0; head < data.heads; head += every)
      brush.fillText(head, LEFT + head * cell + (cell - GAP) / 2, 10);
    brush.textAlign = "right";
    data.layers.forEach((layer, row) => {
      brush.fillStyle = ink.soft;
      if (row % every === 0) brush.fillText(layer, LEFT - 7, TOP + row * cell + cell / 2 + 2);
      for (let head = 0; head < data.heads; head++) {
        const x = LEFT + head * cell, y = TOP + row * cell, small = pictures[index(layer, head)];
        if (small) {
          brush.imageSmoothingEnabled = small.width > cell;
          brush.imageSmoothingQuality = "high";
          brush.drawImage(small, x + 1, y + 1, cell - GAP, cell - GAP);
        } else {
          brush.strokeStyle = ink.line;
          brush.lineWidth = 1;
          brush.strokeRect(x + 1.5, y + 1.5, cell - GAP - 1, cell - GAP - 1);
        }
      }
    });
    if (over) outline(brush, ...over, ink.soft, 1.5);
    outline(brush, state.layer, state.head, ink.mark, 2.5);
  };
  const later = drawn(draw);
  const found = event => {
    const head = Math.floor((event.offsetX - LEFT) / cell), row = Math.floor((event.offsetY - TOP) / cell);
    const layer = data.layers[row];
    return index(layer, head) === undefined ? null : [layer, head];
  };
  const told = (layer, head) => { readout.textContent = `${text("head", layer, head)}. ${sharesOf(data, index(layer, head))}`; };
  canvas.onpointermove = event => {
    over = found(event);
    canvas.style.cursor = over ? "pointer" : "";
    if (over) told(...over);
    later();
  };
  canvas.onpointerleave = () => { over = null; readout.textContent = text("choose"); later(); };
  canvas.onclick = event => { const one = found(event); if (one) choose(...one); };
  canvas.onkeydown = event => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!moves) return;
    event.preventDefault();
    const [down, right] = moves;
    let row = data.layers.indexOf(state.layer), head = state.head;
    do { row += down; head += right; } while (data.layers[row] !== undefined && head >= 0 && head < data.heads
      && index(data.layers[row], head) === undefined);
    if (index(data.layers[row], head) !== undefined) { choose(data.layers[row], head); told(data.layers[row], head); }
  };
  return {
    canvas, draw: later, index,
    refresh() { paintPictures(); draw(); },
  };
}
// "to itself 4 %, to the first token 80 %": the largest shares of a head.
function sharesOf(data, index) {
  const { names, values } = data.shares;
  const found = names.map((name, i) => [name, values[index][i]]).filter(each => each[1] >= 0.01);
  found.sort((a, b) => b[1] - a[1]);
  return found.slice(0, 3).map(([name, share]) => `${Math.round(100 * share)} % → ${text(name)}`).join(", ");
}

// The whole part: `state` is what the page's address keeps; `changed` is called after each change.
function attentionView(box, row, data, state, changed) {
  make("h2", text("attention"), box);
  const tokens = () => data.tokens[state.sequence];
  const note = make("p", undefined, box, "note");
  if (data.note) make("p", data.note, box, "note");
  if (!data.shown.length) {
    note.remove();
    return null;
  }
  const part = make("p", undefined, box, "controls");
  if (data.tokens.length > 1) {
    const select = make("select", undefined, part);
    data.tokens.forEach((_, i) => select.add(new Option(text("sequence", i + 1, data.tokens.length), i)));
    select.value = state.sequence;
    select.onchange = () => { state.sequence = Number(select.value); state.token = NONE; open(); };
  } else part.remove();
  const columns = make("div", undefined, box, "attention");
  columns.style.setProperty("--all", `${24 + data.heads * Math.min(116, 620 / data.layers.length)}px`);
  const left = make("div", undefined, columns, "all"), stage = make("div", undefined, columns, "stage");
  const bar = make("div", undefined, stage, "controls");
  const name = make("h3", undefined, bar);
  const views = { arcs: make("button", text("arcs"), bar), matrix: make("button", text("matrix"), bar) };
  const setPeak = legend(bar, "0", "1");
  const body = make("div", undefined, stage, "body");
  const place = make("div", undefined, body, "place"), panel = make("aside", undefined, body);
  stage.tabIndex = 0;
  make("p", text("hint"), stage, "note hint");
  const all = glance(left, data, state, (layer, head) => { Object.assign(state, { layer, head }); open(); });
  let weights = null, view = null, hovered = NONE, turn = 0;
  const lookAt = (token, key = NONE, redraw = true) => {
    hovered = token;
    const shown = token === NONE ? state.token : token;
    if (shown === NONE) showShares(panel, data, all.index(state.layer, state.head));
    else showPanel(panel, weights, tokens(), shown, key, choose);
    if (redraw && view) view.mark();
  };
  const choose = token => {
    state.token = token;
    hovered = NONE;
    lookAt(NONE);
    view.reveal(token);
    changed();
  };
  const context = {
    get weights() { return weights; }, get tokens() { return tokens(); },
    get token() { return hovered === NONE ? state.token : hovered; }, get kept() { return state.token; }, lookAt,
    choose: token => choose(token === state.token ? NONE : token),
  };
  const show = () => {
    for (const [kind, button] of Object.entries(views)) button.setAttribute("aria-pressed", kind === state.view);
    view?.remove();
    place.replaceChildren();
    stage.dataset.view = state.view;
    view = state.view === "matrix" ? matrixView(place, context) : arcsView(place, context);
    lookAt(NONE);
    if (state.token !== NONE) view.reveal(state.token);
  };
  const toggle = kind => { state.view = kind; show(); changed(); };
  for (const [kind, button] of Object.entries(views)) button.onclick = () => toggle(kind);
  async function open() {
    const mine = ++turn, size = tokens().length, kept = Math.min(size, data.most);
    const index = all.index(state.layer, state.head);
    if (index === undefined) [state.sequence, state.layer, state.head] = data.shown.find(each => each[0] === state.sequence);
    if (state.token >= size) state.token = NONE;
    note.textContent = [text("size", data.kept.length, data.heads, size),
      kept < size ? text("largest", kept) : text("exact")].join(" ");
    name.textContent = text("head", state.layer, state.head);
    all.draw();
    changed();
    const found = await weightsOf(row, state.sequence, state.layer, state.head, size, data.most,
      data.peaks[all.index(state.layer, state.head)]);
    if (mine !== turn) return;
    weights = found;
    setPeak(digits(weights.peak));
    hovered = NONE;
    show();
  }
  stage.onkeydown = event => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step && weights && !(event.target instanceof HTMLSelectElement)) {
      event.preventDefault();
      choose(clamp(state.token === NONE ? 0 : state.token + step, 0, tokens().length - 1));
    } else if (event.key === "Escape") choose(NONE);
    else if (event.key === "m" || event.key === "M") toggle(state.view === "matrix" ? "arcs" : "matrix");
  };
  return {
    open, lookAt, choose,
    async start() {
      data.small = new Uint8Array(await unpacked(data.thumbnails));
      all.refresh();
      redrawn(box, () => { all.refresh(); if (weights) show(); });
    },
    canvases: () => [all.canvas, ...place.querySelectorAll("canvas.picture")],
    get weights() { return weights; },
  };
}

// Where the weights of a head go, in bars.
function showShares(panel, data, index) {
  panel.replaceChildren();
  make("h5", text("shares"), panel);
  const rows = make("ol", undefined, panel, "shares");
  data.shares.names.forEach((name, i) => {
    const line = make("li", undefined, rows);
    make("span", text(name), line);
    make("i", undefined, line).style.setProperty("--share", data.shares.values[index][i]);
    make("span", `${Math.round(100 * data.shares.values[index][i])} %`, line);
  });
}
// What a token attends to and is attended to by, in bars.
function showPanel(panel, weights, tokens, token, key, choose) {
  panel.replaceChildren();
  const title = make("h4", undefined, panel);
  make("small", `${token} `, title);
  title.append(tokens[token]);
  const list = (name, found, rest) => {
    make("h5", name, panel);
    const rows = make("ol", undefined, panel);
    for (const [other, weight] of found.slice(0, 7)) {
      if (weight <= 0) break;
      const line = make("li", undefined, rows);
      const button = make("button", tokens[other], line, other === key ? "here" : "");
      button.title = `${other}`;
      button.onclick = () => choose(other);
      make("i", undefined, line).style.setProperty("--share", weight / weights.peak);
      make("span", shortNumber(weight), line);
    }
    if (rest > 0.0005) {
      const line = make("li", undefined, rows, "rest");
      make("span", text("rest"), line);
      make("i", undefined, line).style.setProperty("--share", 0);
      make("span", shortNumber(rest), line);
    }
  };
  const from = weights.from(token);
  if (key !== NONE && !from.slice(0, 7).some(each => each[0] === key)) from.splice(6, 0, [key, weights.at(token, key)]);
  const shown = from.slice(0, 7).reduce((sum, each) => sum + each[1], 0);
  list(text("from"), from, Math.max(0, 1 - shown));
  list(text("to"), weights.to(token), 0);
}
