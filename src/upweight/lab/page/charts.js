// Small charts in SVG. Colours, dashes and patterns are classes, so that light and dark need no second drawing.

const SVG = "http://www.w3.org/2000/svg";
const MINUS = "\u2212";

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// ---- numbers as people read them

const signed = (text) => text.replace(/^-/, MINUS);

function scientific(value, digits) {
  if (value === 0) return "0";
  const [mantissa, exponent] = value.toExponential(digits).split("e");
  const size = String(Math.abs(exponent)).padStart(2, "0");
  return `${signed(mantissa)}e${exponent < 0 ? MINUS : "+"}${size}`;
}

const plus = (value, text) => (value > 0 ? `+${text}` : text);
const fixed = (value, digits) => signed(Number(value.toFixed(digits)) === 0 ? (0).toFixed(digits) : value.toFixed(digits));
const percent = (value, digits = 1) => `${fixed(100 * value, digits)}%`;
const short = (value) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e5)) {
    const [digits] = Number(value.toPrecision(3)).toExponential().split("e");
    return scientific(value, (digits.split(".")[1] || "").length);
  }
  return signed(String(Number(value.toPrecision(4))));
};
const grouped = (value) => String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
const times = (value) => `${value < 1000 ? short(value) : grouped(Math.round(value))} times`;
const tokens = (count) => `${grouped(count)} ${count === 1 ? "token" : "tokens"}`;

// 10^x for an x that no double holds the power of.
function powerOfTen(exponent) {
  let whole = Math.floor(exponent);
  let digit = Math.round(10 ** (exponent - whole));
  if (digit === 10) [digit, whole] = [1, whole + 1];
  return `${digit}e${whole < 0 ? MINUS : "+"}${String(Math.abs(whole)).padStart(2, "0")}`;
}

// ---- axes

function niceTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  const step = Math.ceil(Math.log10(high / low) / 6.5);
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += step) {
    for (const part of high / low < 200 ? [1, 2, 5] : [1]) {
      const tick = Number(`${part}e${power}`);
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks;
}

let plots = 0;

class Plot {
  // x and y: { range: [low, high], label, log, ticks, text: tick -> words }.
  constructor(host, { title, x, y, about, height = 250, below = 44 }) {
    this.id = `plot${++plots}`;
    this.width = Math.max(240, host.clientWidth);
    this.height = height;
    this.margin = { top: 34, right: 18, bottom: below, left: 56 };
    this.x = this._axis(x, this.margin.left, this.width - this.margin.right);
    this.y = this._axis(y, height - this.margin.bottom, this.margin.top);
    this.svg = shape("svg", { width: this.width, height, viewBox: `0 0 ${this.width} ${height}`, role: "img", "aria-label": about });
    const [left, right] = [this.x.start, this.x.end];
    const [bottom, top] = [this.y.start, this.y.end];
    // A little more than the axes, so that markers on an edge stay whole.
    const area = { x: left - 7, y: top - 7, width: right - left + 14, height: bottom - top + 14 };
    this.svg.append(shape("clipPath", { id: this.id }, shape("rect", area)));
    this._drawAxes(x, y);
    this.inside = shape("g", { "clip-path": `url(#${this.id})` });
    this.svg.append(this.inside);
    host.replaceChildren(...(title ? [element("h3", {}, title)] : []), this.svg);
    this.host = host;
  }

  _axis({ range, log, ticks, text }, start, end) {
    const place = log ? Math.log : (value) => value;
    const [low, high] = range.map(place);
    const size = Math.abs(end - start);
    const scale = (value) => start + ((place(value) - low) / (high - low)) * (end - start);
    const chosen = ticks || (log ? logTicks(...range) : niceTicks(...range, Math.max(2, Math.round(size / (start > end ? 36 : 62)))));
    return Object.assign(scale, { start, end, range, ticks: chosen, text: text || short });
  }

  _drawAxes(x, y) {
    const [left, right, bottom, top] = [this.x.start, this.x.end, this.y.start, this.y.end];
    for (const tick of this.y.ticks) {
      const at = this.y(tick);
      this.svg.append(shape("line", { class: tick === 0 ? "zero" : "grid", x1: left, x2: right, y1: at, y2: at }));
      this.svg.append(shape("text", { class: "tick", x: left - 7, y: at + 4, "text-anchor": "end" }, this.y.text(tick)));
    }
    for (const tick of this.x.ticks) {
      const at = this.x(tick);
      this.svg.append(shape("line", { class: "grid", x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
      const lines = String(this.x.text(tick)).split("\n");
      lines.forEach((line, row) => {
        this.svg.append(shape("text", { class: "tick", x: at, y: bottom + 17 + 14 * row, "text-anchor": "middle" }, line));
      });
    }
    this.svg.append(shape("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    this.svg.append(shape("text", { class: "name", x: (left + right) / 2, y: this.height - 6, "text-anchor": "middle" }, x.label));
    this.svg.append(shape("text", { class: "name", x: 2, y: top - 20 }, y.label));
  }

  // Points whose y is not a number break the line.
  line(points, look) {
    let path = "";
    let pen = "M";
    for (const [x, y] of points) {
      if (!Number.isFinite(y)) {
        pen = "M";
        continue;
      }
      path += `${pen}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`;
      pen = "L";
    }
    this.inside.append(shape("path", { class: `line ${look}`, d: path }));
  }

  area(points, look) {
    const path = points.map(([x, y], i) => `${i ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join("");
    this.inside.append(shape("path", { class: `area ${look}`, d: `${path}Z` }));
  }

  upright(x, look) {
    const at = this.x(x);
    this.inside.append(shape("line", { class: look, x1: at, x2: at, y1: this.y.start, y2: this.y.end }));
  }

  level(y, look) {
    const at = this.y(y);
    this.inside.append(shape("line", { class: look, x1: this.x.start, x2: this.x.end, y1: at, y2: at }));
  }

  mark(x, y, look) {
    if (Number.isFinite(y)) this.inside.append(marker(this.x(x), this.y(y), look));
  }

  words(x, y, text, { anchor = "start", dx = 0, dy = 0, look = "note" } = {}) {
    this.svg.append(shape("text", { class: look, x: this.x(x) + dx, y: this.y(y) + dy, "text-anchor": anchor }, text));
  }

  bar(x, width, value, look, base = 0) {
    const [from, to] = [this.y(base), this.y(value)];
    const box = { x: x.toFixed(1), width: width.toFixed(1), y: Math.min(from, to).toFixed(1), height: Math.abs(to - from).toFixed(1) };
    this.inside.append(shape("rect", { class: `solid ${look}`, ...box }), shape("rect", { class: `hatch ${look}`, ...box }));
  }
}

// A marker of its own for each series: circle, square, triangle, diamond.
function marker(x, y, look, size = 4.5) {
  const s = size;
  const forms = {
    s0: () => shape("circle", { cx: x, cy: y, r: s }),
    s1: () => shape("rect", { x: x - s, y: y - s, width: 2 * s, height: 2 * s }),
    s2: () => shape("path", { d: `M${x} ${y - s - 1}L${x + s + 1} ${y + s}L${x - s - 1} ${y + s}Z` }),
    s3: () => shape("path", { d: `M${x} ${y - s - 1.5}L${x + s + 1.5} ${y}L${x} ${y + s + 1.5}L${x - s - 1.5} ${y}Z` }),
  };
  const node = forms[look]();
  node.setAttribute("class", `mark ${look}`);
  return node;
}

// items: [look, words, kind], kind "line", "bar" or "mark".
function legend(host, items) {
  const list = element("ul", { class: "legend" });
  for (const [look, words, kind = "line"] of items) {
    const sample = shape("svg", { width: 30, height: 14, "aria-hidden": "true" });
    if (kind === "bar") {
      const box = { x: 4, y: 1, width: 20, height: 12 };
      sample.append(shape("rect", { class: `solid ${look}`, ...box }), shape("rect", { class: `hatch ${look}`, ...box }));
    } else {
      sample.append(shape("path", { class: `line ${look}`, d: "M0 7L30 7" }));
      if (kind === "mark") sample.append(marker(15, 7, look, 3.5));
    }
    list.append(element("li", {}, sample, words));
  }
  host.append(list);
}

// Cells are words, or [key, value, words]: the value in full precision goes along for whoever reads it by program.
function table(host, caption, head, rows) {
  const line = (cells, name) => cells.map((cell, i) => {
    if (!Array.isArray(cell)) return i === 0 || name === "th" ? element("th", { scope: name === "th" ? "col" : "row" }, cell) : element("td", {}, cell);
    const [key, value, words] = cell;
    return element("td", { "data-key": key, "data-value": String(value) }, words);
  });
  host.append(
    element(
      "table",
      {},
      element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...line(head, "th"))),
      element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...line(cells, "td")))),
    ),
  );
}
