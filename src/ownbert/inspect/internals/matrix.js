// A head as a matrix: rows attend, columns are attended to. Where tokens are many, a pixel is the
// largest weight of several, and a magnifier shows the place under the pointer.
function matrixView(box, context) {
  const { weights, tokens } = context, size = tokens.length;
  const frame = make("div", undefined, box, "matrix");
  const base = make("canvas", undefined, frame, "picture"), top = make("canvas", undefined, frame);
  const glass = size > 48 ? make("canvas", undefined, frame, "glass") : null;
  const readout = make("p", text("cell"), box, "readout");
  const room = Math.min(box.clientWidth, 620), few = size <= 32;
  const probe = make("canvas").getContext("2d");
  probe.font = FONT;
  const longest = few ? Math.min(90, Math.max(...tokens.map(token => probe.measureText(token).width))) : 0;
  const LEFT = few ? longest + 8 : 34, TOP = few ? longest + 8 : 18;
  const side = few ? Math.min(room - LEFT, size * 44) : room - LEFT, cell = side / size;
  let at = null;
  const drawBase = () => {
    const ink = inks(), brush = sized(base, LEFT + side, TOP + side), colours = pixels();
    const cells = Math.min(size, Math.floor(side * (devicePixelRatio || 1)));
    const image = brush.createImageData(cells, cells), target = new Uint32Array(image.data.buffer);
    const shares = new Uint8Array(cells * cells), share = weight => Math.round(255 * Math.sqrt(weight / weights.peak));
    const scale = cells / size;
    for (let i = 0; i < size; i++) {
      const start = Math.floor(i * scale) * cells, rest = share(weights.rest[i]);
      for (let c = 0; c < cells; c++) if (shares[start + c] < rest) shares[start + c] = rest;
      for (let k = i * weights.most; k < (i + 1) * weights.most; k++) {
        const place = start + Math.floor(weights.keys[k] * scale), value = share(weights.values[k]);
        if (shares[place] < value) shares[place] = value;
      }
    }
    for (let i = 0; i < target.length; i++) target[i] = colours[shares[i]];
    const whole = make("canvas");
    whole.width = whole.height = cells;
    whole.getContext("2d").putImageData(image, 0, 0);
    brush.imageSmoothingEnabled = false;
    brush.drawImage(whole, LEFT, TOP, side, side);
    brush.strokeStyle = ink.line;
    brush.strokeRect(LEFT + 0.5, TOP + 0.5, side - 1, side - 1);
    brush.fillStyle = ink.soft;
    brush.font = few ? FONT : "10px system-ui, sans-serif";
    brush.textBaseline = "middle";
    if (few && cell >= 9) tokens.forEach((token, i) => {
      brush.textAlign = "right";
      brush.fillText(shortened(brush, token, longest), LEFT - 5, TOP + (i + 0.5) * cell);
      brush.save();
      brush.translate(LEFT + (i + 0.5) * cell, TOP - 5);
      brush.rotate(-Math.PI / 2);
      brush.textAlign = "left";
      brush.fillText(shortened(brush, token, longest), 0, 0);
      brush.restore();
    });
    if (!few) {
      const step = [10, 20, 50, 100, 200, 500, 1000].find(each => each * cell >= 34) ?? 2000;
      for (let i = 0; i < size; i += step) {
        brush.textAlign = "right";
        brush.fillText(i, LEFT - 5, TOP + Math.max(5, (i + 0.5) * cell));
        brush.textAlign = "center";
        brush.fillText(i, LEFT + Math.max(4, (i + 0.5) * cell), TOP - 8);
      }
    }
  };
  const drawTop = () => {
    const ink = inks(), brush = sized(top, LEFT + side, TOP + side), row = at ? at[0] : context.token;
    const thick = Math.max(cell, 2);
    brush.lineWidth = 1.2;
    brush.strokeStyle = ink.mark;
    if (row !== NONE) brush.strokeRect(LEFT, TOP + row * cell, side, thick);
    if (at) {
      brush.strokeRect(LEFT + at[1] * cell, TOP, thick, side);
      const weight = weights.at(...at), kept = weight !== weights.rest[at[0]];
      readout.textContent = text("pair", `${at[0]} ${tokens[at[0]]}`, `${at[1]} ${tokens[at[1]]}`,
        kept || weights.most === size ? shortNumber(weight) : `≈ ${shortNumber(weight)}`);
    } else readout.textContent = text("cell");
    if (glass) drawGlass(ink);
  };
  const drawGlass = ink => {
    glass.hidden = !at;
    if (!at) return;
    const REACH = 8, SIDE = 9, wide = (2 * REACH + 1) * SIDE, brush = sized(glass, wide, wide);
    for (let down = -REACH; down <= REACH; down++) for (let right = -REACH; right <= REACH; right++) {
      const i = at[0] + down, j = at[1] + right, inside = i >= 0 && j >= 0 && i < size && j < size;
      brush.fillStyle = inside ? shade(Math.sqrt(weights.at(i, j) / weights.peak)) : ink.back;
      brush.fillRect((right + REACH) * SIDE, (down + REACH) * SIDE, SIDE, SIDE);
    }
    brush.strokeStyle = ink.mark;
    brush.lineWidth = 2;
    brush.strokeRect(REACH * SIDE, REACH * SIDE, SIDE, SIDE);
    const x = LEFT + at[1] * cell, y = TOP + at[0] * cell;
    glass.style.left = `${x > LEFT + side / 2 ? x - wide - 18 : x + 18}px`;
    glass.style.top = `${y > TOP + side / 2 ? y - wide - 18 : y + 18}px`;
  };
  const later = drawn(drawTop);
  const found = event => {
    const j = Math.floor((event.offsetX - LEFT) / cell), i = Math.floor((event.offsetY - TOP) / cell);
    return i >= 0 && j >= 0 && i < size && j < size ? [i, j] : null;
  };
  top.onpointermove = event => {
    at = found(event);
    context.lookAt(at ? at[0] : NONE, at ? at[1] : NONE);
  };
  top.onpointerleave = () => { at = null; context.lookAt(NONE); };
  top.onclick = event => { const one = found(event); if (one) context.choose(one[0]); };
  drawBase();
  drawTop();
  return { mark: later, reveal: later, remove() {} };
}
