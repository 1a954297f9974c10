// Fields, state and link: reads what is typed, says what is wrong with it, and keeps the last good picture.

const kept = {};

// The last result for a name and its key; draws that a change does not touch are not made again.
function remember(name, key, make) {
  const text = JSON.stringify(key);
  if (!kept[name] || kept[name].text !== text) kept[name] = { text, value: make() };
  return kept[name].value;
}

const plain = (value) => (value === null ? "none" : Array.isArray(value) ? value.join(", ") : String(value));
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

// ---- reading a field: [value, what is wrong]

function read(field, text) {
  if (field.kind === "choice") {
    return Object.hasOwn(field.options, text) ? [text, ""] : [null, sentence(field, `one of ${Object.keys(field.options).join(", ")}`, text)];
  }
  return field.kind === "list" ? readList(field, text) : readNumber(field, text.trim());
}

function readNumber(field, text) {
  if (field.none && text.toLowerCase() === "none") return [null, ""];
  const value = NUMBER.test(text) ? Number(text) : NaN;
  const problem = outside(field, value);
  return [value, problem && sentence(field, field.none ? `${problem}, or none` : problem, text)];
}

function readList(field, text) {
  const fewest = field.fewest ?? 1;
  const parts = text.trim() === "" ? [] : text.trim().replace(/,$/, "").split(/\s*,\s*|\s+/);
  const values = parts.map((part) => (NUMBER.test(part) ? Number(part) : NaN));
  const wrong = values.findIndex((value) => outside(field, value));
  if (wrong >= 0) return [null, sentence(field, `numbers, each ${outside(field, values[wrong])}`, parts[wrong])];
  if (values.length < fewest) {
    return [null, `${sentence(field, fewest === 2 ? "at least two numbers" : "at least one number", text)} ${field.alone || ""}`.trim()];
  }
  const most = field.most_numbers ?? 12;
  if (values.length > most) return [null, sentence(field, `at most ${most} numbers`, `${values.length}`)];
  return [values, ""];
}

function outside(field, value) {
  if (!Number.isFinite(value)) return field.whole ? "a whole number" : "a finite number";
  if (field.whole && !Number.isInteger(value)) return "a whole number";
  if (field.above && !(value > field.least && value <= field.most)) return `above ${grouped(field.least)} and at most ${grouped(field.most)}`;
  if (!(value >= field.least && value <= field.most)) return `from ${grouped(field.least)} to ${grouped(field.most)}`;
  return "";
}

const sentence = (field, must, got) => `${field.label} must be ${must}. Got '${got.length > 40 ? `${got.slice(0, 37)}...` : got}' instead.`;

// ---- sliders: a position on the slider is a number on a linear or a logarithmic scale

const LOG_STEPS = 400;

function toSlider([low, high, step], value) {
  if (step !== "log") return value;
  return Math.round((LOG_STEPS * Math.log(Math.max(value, low) / low)) / Math.log(high / low));
}

function fromSlider(field, [low, high, step], position) {
  const value = step === "log" ? Number((low * (high / low) ** (position / LOG_STEPS)).toPrecision(3)) : Number(position);
  return field.whole ? Math.round(value) : Number(value.toPrecision(12));
}

function slider(limits, label) {
  const [low, high, step] = limits;
  const range = step === "log" ? { min: 0, max: LOG_STEPS, step: 1 } : { min: low, max: high, step };
  return element("input", { type: "range", "aria-label": label, ...range });
}

// ---- a panel on the page

class Panel {
  constructor(id, spec, changed) {
    Object.assign(this, { id, spec, changed, section: document.getElementById(id), good: null, result: null });
    this.inputs = Object.fromEntries(spec.fields.map((field) => [field.key, this._field(field)]));
    const reset = element("button", { type: "button", class: "quiet" }, "Reset this panel");
    reset.addEventListener("click", () => this.reset());
    const box = this.section.querySelector(".controls");
    box.append(...Object.values(this.inputs).map((input) => input.box));
    if (id === "weights") {
      this.answers = element("div", { class: "answers", role: "group", "aria-label": "Each answer by slider" });
      box.insertBefore(this.answers, this.inputs.others.box);
    }
    box.append(reset);
  }

  _field(field) {
    const id = `${this.id}.${field.key}`;
    const about = `${id}-error${field.hint ? ` ${id}-hint` : ""}`;
    const typed = field.kind === "choice"
      ? element("select", { id }, ...Object.entries(field.options).map(([value, words]) => element("option", { value }, words)))
      : element("input", { id, type: "text", autocomplete: "off", spellcheck: "false", inputmode: field.kind === "list" || field.none ? "text" : "decimal" });
    typed.setAttribute("aria-describedby", about);
    const error = element("p", { class: "error", id: `${id}-error`, role: "status" });
    const drag = field.slider ? slider(field.slider, `${field.label}, slider`) : null;
    const box = element("div", { class: `field ${field.kind}` }, element("label", { for: id }, field.label), typed);
    if (drag) box.append(drag);
    if (field.hint) box.append(element("p", { class: "hint", id: `${id}-hint` }, field.hint));
    box.append(error);
    typed.addEventListener("input", () => this.read());
    if (drag) {
      drag.addEventListener("input", () => {
        typed.value = plain(fromSlider(field, field.slider, drag.value));
        this.read();
      });
    }
    return { field, typed, error, drag, box };
  }

  set(texts) {
    for (const { field, typed } of Object.values(this.inputs)) typed.value = texts[field.key] ?? plain(field.initial);
    this.read();
  }

  reset() {
    this.set({});
  }

  // What is typed, checked: where all of it is good it becomes the picture.
  read() {
    const values = {};
    const problems = {};
    for (const [key, { field, typed }] of Object.entries(this.inputs)) {
      const [value, problem] = read(field, typed.value);
      values[key] = value;
      if (problem) problems[key] = problem;
    }
    if (!Object.keys(problems).length && this.spec.check) Object.assign(problems, this.spec.check(values));
    for (const [key, input] of Object.entries(this.inputs)) this._mark(input, problems[key] || "", values[key]);
    this.section.classList.toggle("stale", Object.keys(problems).length > 0);
    if (Object.keys(problems).length) return;
    this.good = values;
    if (this.answers) this._sliders(values);
    this.schedule();
    this.changed();
  }

  _mark({ field, typed, error, drag }, problem, value) {
    // Text that stays is left alone, or a screen reader would say it again at each key.
    if (error.textContent !== problem) error.textContent = problem;
    if (problem) typed.setAttribute("aria-invalid", "true");
    else typed.removeAttribute("aria-invalid");
    if (!drag || problem || value === null) return;
    drag.value = toSlider(field.slider, value);
    drag.setAttribute("aria-valuetext", plain(value));
  }

  // A reward and a length slider for each answer, made anew only where their number changes: the focus stays.
  _sliders(values) {
    const rows = [["rewards", [0, 1, 0.05], "reward"], ["lengths", [1, 4096, "log"], "length"]];
    const count = values.rewards.length;
    if (this.answers.children.length !== count + 1) {
      this.answers.replaceChildren(...values.rewards.map((_, i) => {
        const drags = rows.map(([key, limits, name]) => {
          const drag = slider(limits, `${name} of answer ${i + 1}`);
          drag.addEventListener("input", () => {
            const now = [...this.good[key]];
            now[i] = fromSlider(this.inputs[key].field, limits, drag.value);
            this.inputs[key].typed.value = plain(now);
            this.read();
          });
          return drag;
        });
        return element("div", { class: "answer" }, element("span", { "aria-hidden": "true" }, String(i + 1)), ...drags);
      }));
      const head = ["", "reward", "tokens"].map((words) => element("span", {}, words));
      this.answers.prepend(element("div", { class: "answer", "aria-hidden": "true" }, ...head));
    }
    rows.forEach(([key, limits], place) => values[key].forEach((value, i) => {
      const drag = this.answers.children[i + 1].querySelectorAll("input")[place];
      drag.value = toSlider(limits, value);
      drag.setAttribute("aria-valuetext", plain(value));
    }));
  }

  schedule() {
    if (this.due) return;
    this.due = true;
    this.section.setAttribute("aria-busy", "true");
    setTimeout(() => {
      this.due = false;
      this.result = this.spec.compute(this.good);
      this.draw();
      this.section.setAttribute("aria-busy", "false");
    }, 0);
  }

  draw() {
    if (!this.result) return;
    const hosts = {};
    const host = (name) => {
      if (!hosts[name]) {
        hosts[name] = this.section.querySelector(`[data-part="${name}"]`);
        if (name === "legend" || name === "numbers") hosts[name].replaceChildren();
      }
      return hosts[name];
    };
    this.spec.draw(this.result, this.good, host);
    this.section.querySelector(".says").textContent = this.spec.says(this.result, this.good);
    const command = this.spec.command(this.good);
    // A flag stays with its value where the line breaks.
    const words = command.split(" --").map((part, i) => element("span", {}, i ? `--${part}` : part));
    this.section.querySelector(".command code").replaceChildren(...words.flatMap((word) => [word, " "]).slice(0, -1));
    this.section.querySelector(".command").hidden = !command;
  }

  // What differs from the start, for the link.
  *differences() {
    for (const [key, { field }] of Object.entries(this.inputs)) {
      const [now, initial] = [plain(this.good[key]), plain(field.initial)];
      if (now !== initial) yield `${this.id}.${key}=${encodeURIComponent(now.replace(/\s/g, "")).replace(/%2C/g, ",")}`;
    }
  }
}

// ---- the page

const panels = [];
let pending = 0;

// Browsers refuse more than about a hundred changes of the address in half a minute.
function writeLink() {
  clearTimeout(pending);
  pending = setTimeout(() => {
    const hash = panels.flatMap((panel) => (panel.good ? [...panel.differences()] : [])).join("&");
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
    document.getElementById("link").href = `#${hash}`;
  }, 200);
}

function readLink() {
  const given = {};
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    const [id, key] = name.split(".");
    (given[id] ??= {})[key] = text.includes(",") ? text.split(",").join(", ") : text;
  }
  for (const panel of panels) {
    if (!panel.good) panel.set({});
    panel.set(given[panel.id] || {});
  }
}

function start() {
  for (const [id, spec] of Object.entries(PANELS)) panels.push(new Panel(id, spec, writeLink));
  for (const link of document.querySelectorAll("[data-to]")) {
    // The address holds the state, so a jump may not write itself into it.
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const title = document.getElementById(link.dataset.to).querySelector("h2");
      title.scrollIntoView({ block: "start" });
      title.focus({ preventScroll: true });
    });
  }
  document.getElementById("reset").addEventListener("click", () => panels.forEach((panel) => panel.reset()));
  addEventListener("hashchange", readLink);
  readLink();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    panels.forEach((panel) => panel.draw());
  });
}

start();
