// A head as arcs: tokens on both sides, each line a weight. Only what is in view is drawn.
function arcsView(box, context) {
  const LINE = 20, PAD = 6, { weights, tokens } = context;
  const scroller = make("div", undefined, box, "scroller");
  const inner = make("div", undefined, scroller);
  const base = make("canvas", undefined, inner, "picture"), top = make("canvas", undefined, inner);
  const width = box.clientWidth, tall = tokens.length * LINE + 2 * PAD;
  const high = Math.min(tall, Math.max(320, Math.min(640, innerHeight * 0.75)));
  const column = clamp(width * 0.3, 70, 170);
  inner.style.height = `${tall}px`;
  scroller.style.height = `${high}px`;
  const x0 = column, x1 = width - column, y = token => token * LINE + PAD + LINE / 2 - scroller.scrollTop;
  const line = (brush, i, j) => {
    const middle = (x0 + x1) / 2;
    brush.beginPath();
    brush.moveTo(x0, y(i));
    brush.bezierCurveTo(middle, y(i), middle, y(j), x1, y(j));
    brush.stroke();
  };
  const names = (brush, ink, first, last, shareOf = null) => {
    brush.font = FONT;
    brush.textBaseline = "middle";
    for (let token = first; token <= last; token++) {
      const special = /^[[<].*[\]>]$/.test(tokens[token]), shares = shareOf ? shareOf(token) : [0, 0];
      [[0, x0 - 8, "right"], [1, x1 + 8, "left"]].forEach(([side, x, align]) => {
        if (shares[side] > 0.01) {
          brush.fillStyle = side ? ink.arc : ink.other;
          brush.globalAlpha = 0.32 * Math.min(1, shares[side]);
          brush.beginPath();
          brush.roundRect(side ? x1 + 3 : 2, y(token) - LINE / 2 + 1, column - 5, LINE - 2, 4);
          brush.fill();
          brush.globalAlpha = 1;
        }
        brush.fillStyle = special && !(shares[side] > 0.3) ? ink.soft : ink.text;
        brush.textAlign = align;
        brush.fillText(shortened(brush, tokens[token], column - 12), x, y(token));
      });
    }
  };
  const visible = () => [
    clamp(Math.floor((scroller.scrollTop - PAD) / LINE), 0, tokens.length - 1),
    clamp(Math.ceil((scroller.scrollTop + high - PAD) / LINE), 0, tokens.length - 1),
  ];
  const drawBase = () => {
    const ink = inks(), brush = sized(base, width, high), [first, last] = visible();
    brush.strokeStyle = ink.arc;
    const low = 0.02 * weights.peak;
    for (let i = first; i <= last; i++)
      for (let at = i * weights.most; at < (i + 1) * weights.most; at++) {
        const weight = weights.values[at];
        if (weight < low) continue;
        const share = Math.sqrt(weight / weights.peak);
        brush.globalAlpha = 0.06 + 0.74 * share * share;
        brush.lineWidth = 0.5 + 2 * share * share;
        line(brush, i, weights.keys[at]);
      }
    brush.globalAlpha = 1;
    names(brush, ink, first, last);
  };
  const drawTop = () => {
    const ink = inks(), brush = sized(top, width, high), token = context.token;
    base.style.opacity = token === NONE ? 1 : 0.16;
    if (token === NONE) return;
    const from = weights.from(token), to = weights.to(token).slice(0, 200), [first, last] = visible();
    const right = new Map(from), left = new Map(to);
    for (const [found, colour, side] of [[to, ink.other, 0], [from, ink.arc, 1]]) {
      brush.strokeStyle = colour;
      for (const [other, weight] of found) {
        const share = Math.sqrt(weight / weights.peak);
        if (share < 0.04) continue;
        brush.globalAlpha = 0.12 + 0.88 * share;
        brush.lineWidth = 0.6 + 3 * share * share;
        side ? line(brush, token, other) : line(brush, other, token);
      }
    }
    brush.globalAlpha = 1;
    names(brush, ink, first, last, other => [
      Math.sqrt((left.get(other) ?? 0) / weights.peak), Math.sqrt((right.get(other) ?? 0) / weights.peak)]);
    brush.strokeStyle = ink.mark;
    brush.lineWidth = 1.5;
    for (const x of [2, x1 + 3]) {
      brush.beginPath();
      brush.roundRect(x, y(token) - LINE / 2 + 1, column - 5, LINE - 2, 4);
      brush.stroke();
    }
  };
  const later = drawn(drawTop), both = () => { drawBase(); drawTop(); };
  const at = event => {
    const token = Math.floor((event.offsetY + scroller.scrollTop - PAD) / LINE);
    return token >= 0 && token < tokens.length ? token : NONE;
  };
  scroller.onscroll = drawn(both);
  top.onpointermove = event => { if (event.pointerType !== "touch") context.lookAt(at(event)); };
  top.onpointerleave = () => context.lookAt(NONE);
  top.onclick = event => { if (at(event) !== NONE) context.choose(at(event)); };
  both();
  return {
    mark: later,
    reveal(token) {
      if (token === NONE) return;
      const place = token * LINE;
      if (place < scroller.scrollTop || place > scroller.scrollTop + high - 2 * LINE)
        scroller.scrollTop = place - high / 2;
      both();
    },
    remove() {},
  };
}
