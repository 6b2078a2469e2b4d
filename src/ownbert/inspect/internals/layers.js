// Through the layers: what each answers, how long hidden states are, what each head writes.
const layerName = number => number ? text("layer", number - 1) : text("embeddings");

function answersView(box, answers, state, changed) {
  make("h3", text("lens"), box);
  make("p", text("lensMeaning"), box, "note");
  const names = make("div", undefined, box, "controls"), body = make("div", undefined, box, "answers");
  const show = () => {
    state.answer = clamp(state.answer, 0, answers.length - 1);
    const { name, probability, values, candidates, settled } = answers[state.answer];
    [...names.children].forEach((button, i) => button.setAttribute("aria-pressed", i === state.answer));
    body.replaceChildren();
    if (settled !== null && candidates.length) {
      const last = candidates[candidates.length - 1][0][0], end = candidates.length - 1;
      const key = settled === 0 ? "settledAtOnce" : settled === end ? "settledLast" : "settled";
      make("p", text(key, settled - 1, last), body);
    }
    const low = probability ? 0 : Math.min(0, ...values), high = probability ? 1 : Math.max(1e-9, ...values);
    const list = make("ol", undefined, body);
    values.forEach((value, layer) => {
      const line = make("li", undefined, list, settled !== null && layer === settled ? "settled" : "");
      make("span", layerName(layer), line);
      const track = make("span", undefined, line, "track"), bar = make("i", undefined, track);
      bar.style.left = `${100 * (Math.min(0, value) - low) / (high - low)}%`;
      bar.style.width = `${100 * Math.abs(value) / (high - low)}%`;
      make("b", probability ? value.toFixed(3) : digits(value), line);
      const others = make("span", undefined, line, "others");
      for (const [other, share] of candidates[layer] ?? []) {
        const chip = make("span", other, others, other === name ? "own" : "");
        make("small", share.toFixed(2), chip);
      }
    });
  };
  answers.forEach(({ name }, i) => {
    const button = make("button", name, names);
    button.onclick = () => { state.answer = i; show(); changed(); };
  });
  show();
  return show;
}

function normsView(box, data) {
  make("h3", text("norms"), box);
  make("p", text("normsMeaning"), box, "note");
  const tokens = data.tokens.flat(), rows = data.written.length ? data.lengths.length / tokens.length : 0;
  const canvas = make("canvas", undefined, box, "picture");
  const foot = make("div", undefined, box, "controls"), readout = make("span", "\u00a0", foot, "readout");
  const values = data.lengths, high = values.reduce((a, b) => Math.max(a, b), 0), least = values.reduce((a, b) => Math.min(a, b), high);
  const low = high - least < 0.02 * high ? 0 : least; // lengths that a norm makes equal look equal
  legend(foot, digits(low), digits(high));
  const LEFT = 28, LINE = Math.max(12, Math.min(22, 260 / rows));
  let wide = 0;
  const draw = () => {
    const ink = inks();
    wide = Math.min(box.clientWidth - LEFT, tokens.length * 28);
    const brush = sized(canvas, LEFT + wide, rows * LINE);
    const columns = Math.min(tokens.length, Math.floor(wide));
    for (let row = 0; row < rows; row++) {
      const most = new Float32Array(columns);
      for (let t = 0; t < tokens.length; t++) {
        const at = Math.floor(t * columns / tokens.length);
        most[at] = Math.max(most[at], values[row * tokens.length + t]);
      }
      for (let c = 0; c < columns; c++) {
        brush.fillStyle = shade((most[c] - low) / Math.max(1e-9, high - low));
        const x = Math.round(c * wide / columns);
        brush.fillRect(LEFT + x, row * LINE, Math.round((c + 1) * wide / columns) - x, LINE - 1);
      }
      brush.fillStyle = ink.soft;
      brush.font = "10px system-ui, sans-serif";
      brush.textAlign = "right";
      brush.textBaseline = "middle";
      if (LINE >= 12) brush.fillText(row ? row - 1 : "E", LEFT - 6, (row + 0.5) * LINE);
    }
  };
  canvas.onpointermove = event => {
    const token = Math.floor((event.offsetX - LEFT) / wide * tokens.length), row = Math.floor(event.offsetY / LINE);
    const inside = token >= 0 && token < tokens.length && row >= 0 && row < rows;
    readout.textContent = inside
      ? text("normOf", layerName(row), `${token} ${tokens[token]}`, digits(values[row * tokens.length + token])) : "\u00a0";
  };
  canvas.onpointerleave = () => { readout.textContent = "\u00a0"; };
  draw();
  return draw;
}

function writtenView(box, data, state, choose) {
  make("h3", text("written"), box);
  make("p", text("writtenMeaning"), box, "note");
  const canvas = make("canvas", undefined, box, "picture");
  const foot = make("div", undefined, box, "controls"), readout = make("span", "\u00a0", foot, "readout");
  const high = Math.max(...data.written.flat().filter(x => x !== null));
  legend(foot, "0", digits(high));
  const LEFT = 28, TOP = 14, LINE = Math.max(12, Math.min(22, 260 / data.written.length));
  let cell = 0;
  const draw = () => {
    const ink = inks();
    cell = Math.min(40, (box.clientWidth - LEFT) / data.heads);
    const brush = sized(canvas, LEFT + cell * data.heads, TOP + LINE * data.written.length);
    brush.font = "10px system-ui, sans-serif";
    brush.textBaseline = "middle";
    data.written.forEach((layer, row) => {
      layer.forEach((value, head) => {
        brush.fillStyle = value === null ? ink.back : shade(value / high);
        brush.fillRect(LEFT + head * cell, TOP + row * LINE, cell - 1, LINE - 1);
        if (row === 0) {
          brush.fillStyle = ink.soft;
          brush.textAlign = "center";
          brush.fillText(head, LEFT + (head + 0.5) * cell, 6);
        }
      });
      brush.fillStyle = ink.soft;
      brush.textAlign = "right";
      brush.fillText(row, LEFT - 6, TOP + (row + 0.5) * LINE);
    });
  };
  const found = event => {
    const head = Math.floor((event.offsetX - LEFT) / cell), layer = Math.floor((event.offsetY - TOP) / LINE);
    return data.written[layer]?.[head] === undefined ? null : [layer, head];
  };
  canvas.onpointermove = event => {
    const one = found(event), value = one && data.written[one[0]][one[1]];
    canvas.style.cursor = one ? "pointer" : "";
    readout.textContent = one ? text("writtenOf", text("head", ...one), value === null ? text("pruned") : digits(value)) : "\u00a0";
  };
  canvas.onpointerleave = () => { readout.textContent = "\u00a0"; };
  canvas.onclick = event => { const one = found(event); if (one) choose(...one); };
  draw();
  return draw;
}

// All parts for one row of a page. Returns what the page needs for its downloads and keys.
async function observationView(box, row, data, state, changed) {
  const [start] = data.shown, attention = make("section", undefined, box, "part");
  const known = data.shown.some(each => each[1] === state.layer && each[2] === state.head);
  if (start && !known) [, state.layer, state.head] = start;
  if (!(state.sequence in data.tokens)) state.sequence = 0;
  const view = attentionView(attention, row, data, state, changed);
  const rest = make("section", undefined, box, "part");
  make("h2", text("layers"), rest);
  if (view) await view.start();
  data.lengths = new Float32Array(await unpacked(data.norms));
  const showAnswer = data.answers.length && answersView(make("div", undefined, rest), data.answers, state, changed);
  const pair = make("div", undefined, rest, "pair");
  const draws = [
    writtenView(make("div", undefined, pair), data, state, (layer, head) => {
      if (!view || !data.shown.some(each => each[1] === layer && each[2] === head)) return;
      Object.assign(state, { layer, head });
      view.open();
      attention.scrollIntoView({ behavior: "smooth" });
    }),
    normsView(make("div", undefined, pair), data),
  ];
  redrawn(rest, () => draws.forEach(draw => draw()));
  if (document.readyState === "loading") await new Promise(done => addEventListener("DOMContentLoaded", done));
  if (view) await view.open();
  return {
    answer(number) { if (number in data.answers) { state.answer = number; showAnswer(); } },
    canvases: () => [...(view ? view.canvases() : []), ...rest.querySelectorAll("canvas.picture")],
    facts: () => ({
      tokens: data.tokens, layers: data.answers, written: data.written, norms: [...data.lengths].map(x => Number(x.toPrecision(4))),
      ...(view?.weights ? { head: { sequence: state.sequence, layer: state.layer, head: state.head,
        weights: data.tokens[state.sequence].map((_, i) => view.weights.from(i).map(([key, weight]) => [key, Number(weight.toFixed(4))])) } } : {}),
    }),
  };
}
