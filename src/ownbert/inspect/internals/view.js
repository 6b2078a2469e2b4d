// What all parts of the page use: elements, colours, packed numbers, pictures.
const make = (tag, content, into, kind) => {
  const made = document.createElement(tag);
  if (content !== undefined) made.textContent = content;
  if (kind) made.className = kind;
  if (into) into.append(made);
  return made;
};
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

// Light or dark, and light on paper.
const scheme = matchMedia("(prefers-color-scheme: dark)");
const mode = { printing: false, listeners: new Set(), get dark() { return scheme.matches && !this.printing; } };
const announce = () => mode.listeners.forEach(listener => listener());
// Call `draw` when the colours or the width of a part change, as long as it is in the page.
function redrawn(box, draw) {
  let width = box.clientWidth;
  const listener = () => { if (box.isConnected) draw(); else mode.listeners.delete(listener); };
  mode.listeners.add(listener);
  const later = drawn(listener);
  new ResizeObserver(() => { if (box.clientWidth !== width) { width = box.clientWidth; later(); } }).observe(box);
}
scheme.addEventListener("change", announce);
addEventListener("beforeprint", () => { mode.printing = true; announce(); });
addEventListener("afterprint", () => { mode.printing = false; announce(); });

// Scales are straight lines in OKLab, so that equal steps look equal (Ottosson 2020).
const linear = x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
const gamma = x => x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055;
function lab(hex) {
  const [r, g, b] = [1, 3, 5].map(i => linear(parseInt(hex.slice(i, i + 2), 16) / 255));
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s];
}
function rgb([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s]
    .map(x => Math.round(255 * clamp(gamma(clamp(x, 0, 1)), 0, 1)));
}
const SCALES = {
  // From nothing to much; lightness falls (in the dark it rises) all the way.
  light: ["#f7f9fb", "#cfe1f1", "#86b7dd", "#3a7fc0", "#234a92", "#1d1b54"],
  dark: ["#171c22", "#1d3553", "#2a5f93", "#4d94cb", "#93c9e8", "#f1f8d4"],
  // For and against, from the background: blue and orange, which all readers can tell apart.
  for: ["#ffffff", "#5a96d2"], against: ["#ffffff", "#e58a2c"],
  // Over grey images, as ``ownbert relevance`` has it: viridis (van der Walt and Smith 2015).
  heat: ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"],
  forDark: ["#191f24", "#2767ab"], againstDark: ["#191f24", "#a35a0c"],
};
const made = {};
// 256 colours [r, g, b] of a scale.
function ramp(name) {
  if (made[name]) return made[name];
  const stops = SCALES[name].map(lab), last = stops.length - 1;
  return made[name] = Array.from({ length: 256 }, (_, i) => {
    const at = Math.min(last - 1, Math.floor(i / 255 * last)), share = i / 255 * last - at;
    return rgb(stops[at].map((x, c) => x + share * (stops[at + 1][c] - x)));
  });
}
const css = ([r, g, b]) => `rgb(${r}, ${g}, ${b})`;
const shade = share => css(ramp(mode.dark ? "dark" : "light")[Math.round(255 * clamp(share, 0, 1))]);
const heat = share => css(ramp("heat")[Math.round(255 * clamp(share, 0, 1))]);
// The colour of a value from -1 (against) to 1 (for).
function signed(value) {
  const name = (value < 0 ? "against" : "for") + (mode.dark ? "Dark" : "");
  return css(ramp(name)[Math.round(255 * clamp(Math.abs(value), 0, 1))]);
}
// The same as 32-bit numbers of an ImageData.
function pixels() {
  const bytes = new Uint8ClampedArray(1024);
  ramp(mode.dark ? "dark" : "light").forEach((c, i) => bytes.set([...c, 255], 4 * i));
  return new Uint32Array(bytes.buffer);
}
const inks = () => mode.dark
  ? { text: "#e6e9ec", soft: "#98a3ae", line: "#39424b", back: "#191f24", mark: "#ffb04f", arc: "#6db1ea", other: "#ffb04f" }
  : { text: "#1c2126", soft: "#5c6670", line: "#d3d9df", back: "#ffffff", mark: "#c2570c", arc: "#2563a8", other: "#c2570c" };

// Compressed bytes in base64.
async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// A canvas of a size in CSS pixels, sharp on any screen; its brush counts in CSS pixels.
function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const brush = canvas.getContext("2d");
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  brush.clearRect(0, 0, width, height);
  return brush;
}
// Once in a frame, however often it is called.
function drawn(draw) {
  let waiting = 0;
  return () => { waiting ||= requestAnimationFrame(() => { waiting = 0; draw(); }); };
}
function shortened(brush, words, width) {
  if (brush.measureText(words).width <= width) return words;
  let end = words.length;
  while (end > 1 && brush.measureText(words.slice(0, end) + "…").width > width) end--;
  return words.slice(0, end) + "…";
}
const FONT = "12px system-ui, sans-serif";
const digits = x => x === 0 ? "0" : Math.abs(x) >= 100 ? x.toFixed(0) : Math.abs(x) >= 0.001 ? Number(x.toPrecision(3)).toString() : x.toExponential(1);
const shortNumber = x => x >= 0.0995 ? x.toFixed(3) : digits(Number(x.toPrecision(2)));

// A strip of the scale with its ends.
function legend(into, low, high) {
  const strip = make("span", undefined, into, "legend");
  make("span", low, strip);
  const colours = make("i", undefined, strip), end = make("span", high, strip);
  const paint = () => {
    const stops = Array.from({ length: 9 }, (_, i) => shade(i / 8)).join(", ");
    colours.style.background = `linear-gradient(90deg, ${stops})`;
  };
  mode.listeners.add(paint);
  paint();
  return high => { end.textContent = high; };
}

function save(name, blob) {
  const link = make("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
// One picture of several parts below each other: canvases, or [width, height, function of a brush].
function picture(name, title, parts) {
  const GAP = 16, canvas = make("canvas"), ink = inks();
  const sizes = parts.map(part => Array.isArray(part) ? part : [part.clientWidth, part.clientHeight, brush =>
    brush.drawImage(part, 0, 0, part.clientWidth, part.clientHeight)]);
  const width = Math.max(320, ...sizes.map(size => size[0])) + 2 * GAP;
  const brush = sized(canvas, width, sizes.reduce((sum, size) => sum + size[1] + GAP, 2 * GAP + 20));
  brush.fillStyle = ink.back;
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.fillStyle = ink.text;
  brush.font = "600 15px system-ui, sans-serif";
  brush.fillText(shortened(brush, title, width - 2 * GAP), GAP, GAP + 14);
  brush.translate(GAP, 2 * GAP + 12);
  for (const [, height, draw] of sizes) {
    brush.save();
    draw(brush);
    brush.restore();
    brush.translate(0, height + GAP);
  }
  return new Promise(done => canvas.toBlob(blob => { save(name, blob); done(blob); }));
}
