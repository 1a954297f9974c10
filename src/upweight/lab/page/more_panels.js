// The last three panels: Clip-Higher, ratio, mismatch.

const chance = (key, label, initial) => number(key, label, initial, 0, 1, { above: true, slider: [0.0001, 1, "log"], hint: "under the old policy" });
const bound = (key, label, initial) => number(key, label, initial, 0, 1000, { slider: [0, 1, 0.01], hint: "upper bound 1 + clip_high" });

PANELS.higher = {
  fields: [
    chance("rare", "rare token's probability", DEFAULTS.higher.probabilities[0]),
    chance("likely", "likely token's probability", DEFAULTS.higher.probabilities[1]),
    bound("narrow", "clip_high, narrow", DEFAULTS.higher.clip_high[0]),
    bound("wide", "clip_high, wide", DEFAULTS.higher.clip_high[1]),
    number("updates", "updates", DEFAULTS.higher.updates, 1, 1000, { whole: true, slider: [1, 100, 1] }),
  ],
  compute(v) {
    const rows = [];
    for (const token of ["rare", "likely"]) {
      for (const width of ["narrow", "wide"]) {
        const high = 1 + v[width];
        const probability = v[token];
        const one = afterUpdates(probability, high, 1);
        rows.push({
          token, width, probability, high, one, limited: 1 / probability > high,
          last: afterUpdates(probability, high, v.updates), half: updatesTo(0.5, probability, high),
        });
      }
    }
    return rows;
  },
  draw(rows, v, host) {
    const least = Math.min(v.rare, v.likely);
    const plot = new Plot(host("curve"), {
      title: "The fastest that a good token can rise",
      about: "Probability of the rare and the likely token against the number of updates under both bounds; the numbers are in the table below.",
      height: 300,
      x: { range: [0, v.updates], label: "updates, each up to the bound", ticks: niceTicks(0, v.updates, 6).filter(Number.isInteger) },
      y: { range: [least * 0.8, 1.25], log: true, label: "probability (log scale)" },
    });
    rows.forEach((row, place) => {
      const path = Array.from({ length: v.updates + 1 }, (_, n) => [n, n ? afterUpdates(row.probability, row.high, n) : row.probability]);
      plot.line(path, `s${place}`);
      const step = Math.max(1, Math.round(v.updates / 8));
      path.filter(([n]) => n % step === 0).forEach(([n, p]) => plot.mark(n, p, `s${place}`));
    });
    plot.level(0.5, "guide");
    if (!plot.y.ticks.includes(0.5)) plot.words(v.updates, 0.5, "0.5", { anchor: "end", dx: -4, dy: 14 });
    legend(host("legend"), rows.map((row, i) => [`s${i}`, `from ${short(row.probability)}, clip_high ${short(v[row.width])}`, "mark"]));
    table(
      host("numbers"),
      "A token with a positive advantage",
      ["token", "clip_high", "after one update", "limited", `after ${v.updates}`, "updates to 0.5"],
      rows.map((row) => {
        const key = `higher.${row.token}.${row.width}`;
        return [
          short(row.probability),
          short(v[row.width]),
          [`${key}.after_one_update`, row.one, short(row.one)],
          [`${key}.limited`, row.limited, row.limited ? "yes" : "no"],
          [`${key}.last`, row.last, short(row.last)],
          [`${key}.half`, row.half, row.half === null ? "never" : String(row.half)],
        ];
      }),
    );
  },
  says(rows, v) {
    const [narrow, wide, likely] = rows;
    const when = (row) => (row.half === null ? "never" : `after ${row.half} updates`);
    return `The bound limits the relative change: in one update ${short(v.rare)} rises by at most ${short(narrow.one - v.rare)}, `
      + `${short(v.likely)} by ${short(likely.one - v.likely)}. The rare token reaches 0.5 at clip_high ${short(v.narrow)} `
      + `${when(narrow)}, at ${short(v.wide)} ${when(wide)}.`;
  },
  command: (v) => `upweight lab clip-higher --probabilities ${v.rare},${v.likely} --clip_high ${v.narrow},${v.wide}`,
};

const MOST_DRAWN = 4000000;

PANELS.ratio = {
  fields: [
    number("quiet", "sigma, quiet", DEFAULTS.ratio.sigma[0], 0, 10, { slider: [0, 0.5, 0.01], hint: "std of a token's log-ratio, in nats" }),
    number("noisy", "sigma, noisy", DEFAULTS.ratio.sigma[1], 0, 10, { slider: [0, 0.5, 0.01] }),
    numbers("lengths", "lengths", DEFAULTS.ratio.lengths, 1, 100000, { whole: true, most_numbers: 6, hint: "tokens of an answer; the longest are drawn" }),
    number("answers", "answers", DEFAULTS.ratio.answers, 16, 2048, { whole: true, hint: "drawn for each length" }),
    seed(DEFAULTS.ratio.seed),
  ],
  check(v) {
    const most = Math.floor(MOST_DRAWN / v.answers);
    return sum(v.lengths) > most
      ? { lengths: `lengths must be at most ${grouped(most)} tokens in all with ${v.answers} answers. Got ${grouped(sum(v.lengths))} instead.` }
      : {};
  },
  compute(v) {
    const draws = remember("ratio", [v.lengths, v.answers, v.seed], () => ratioDraws(v.lengths, v.answers, v.seed));
    const { token, sequence } = DEFAULTS.ratio.bounds;
    const rows = ["quiet", "noisy"].flatMap((name, i) => draws[i].map((block) => ({ name, ...ratioRow(block, v[name], token, sequence) })));
    const longest = Math.max(...v.lengths);
    return { rows, funnels: ["quiet", "noisy"].map((name, i) => ({ sigma: v[name], block: draws[i].find((block) => block.length === longest) })) };
  },
  draw({ rows, funnels }, v, host) {
    funnel(host("product"), funnels, {
      title: "The product of the tokens' ratios",
      label: "log10 of the product",
      height: (sigma, total) => (sigma * total) / Math.LN10,
    });
    funnel(host("geometric"), funnels, {
      title: "The geometric mean",
      label: "geometric mean",
      height: (sigma, total, length) => Math.exp((sigma * total) / length),
      from: Math.min(40, Math.max(...v.lengths) / 4),
    });
    legend(host("legend"), [
      ["s1", `sigma ${short(v.noisy)}: least and most of ${v.answers} answers`],
      ["s0", `sigma ${short(v.quiet)}: least and most`],
      ["thin", `${Math.min(PATHS, v.answers)} answers of sigma ${short(v.noisy)}`],
    ]);
    table(
      host("numbers"),
      `Out: a token's ratio outside [${DEFAULTS.ratio.bounds.token.map(short).join(", ")}], an answer's mean outside [${DEFAULTS.ratio.bounds.sequence.join(", ")}]`,
      ["sigma, length", "tokens out", "product", "geometric mean", "answers out"],
      rows.map((row, i) => {
        const key = `ratio.${row.name}.${i % v.lengths.length}`;
        const pair = (name, values, words) => {
          const cell = element("span");
          cell.append(
            element("span", { "data-key": `${key}.${name}.0`, "data-value": String(values[0]) }, words(values[0])),
            " to ",
            element("span", { "data-key": `${key}.${name}.1`, "data-value": String(values[1]) }, words(values[1])),
          );
          return cell;
        };
        return [
          `${short(row.sigma)}, ${grouped(row.length)}`,
          [`${key}.clipped`, row.clipped, percent(row.clipped)],
          pair("product", row.log10Product, powerOfTen),
          pair("geometric", row.geometric, (value) => fixed(value, 4)),
          [`${key}.answers_clipped`, row.answersClipped, percent(row.answersClipped)],
        ];
      }),
    );
  },
  says({ rows }) {
    const widest = rows.reduce((a, b) => (b.log10Product[1] - b.log10Product[0] > a.log10Product[1] - a.log10Product[0] ? b : a));
    const span = widest.log10Product[1] - widest.log10Product[0];
    return `At sigma ${short(widest.sigma)}, ${percent(widest.clipped)} of the tokens are outside the bounds, at any length. At `
      + `${tokens(widest.length)} the product spans ${fixed(span, 0)} orders of magnitude; the geometric mean stays between `
      + `${fixed(widest.geometric[0], 4)} and ${fixed(widest.geometric[1], 4)}, and gets steadier as answers grow.`;
  },
  command: (v) => `upweight lab ratio --sigma ${v.quiet},${v.noisy} --lengths ${v.lengths} --answers ${v.answers} --seed ${v.seed}`,
};

// Least and most over the answers as they grow, and a few answers on their way.
function funnel(host, funnels, { title, label, height, from = 0 }) {
  const [quiet, noisy] = funnels;
  const shown = (block) => block.stops.map((stop, s) => [stop, s]).filter(([stop]) => stop >= from);
  const edges = ({ sigma, block }) => ["low", "high"].map((side) => shown(block).map(([stop, s]) => [stop, height(sigma, block[side][s], stop)]));
  const all = funnels.flatMap((item) => edges(item).flat().map(([, y]) => y)).filter(Number.isFinite);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const room = 0.07 * (most - least) || 0.1;
  const longest = noisy.block.length;
  const plot = new Plot(host, {
    title,
    about: `${title} against the length of the answer, least and most over the answers for both sigmas; the numbers are in the table below.`,
    height: 280,
    x: { range: [0, Math.max(2, longest)], label: "tokens of the answer so far" },
    y: { range: [least - room, most + room], label },
  });
  for (const path of noisy.block.paths) plot.line(shown(noisy.block).map(([stop, s]) => [stop, height(noisy.sigma, path[s], stop)]), "thin");
  for (const [item, look] of [[noisy, "s1"], [quiet, "s0"]]) for (const edge of edges(item)) plot.line(edge, look);
}

const KIND_WORDS = { none: "none: no correction", is: "is: \u03c0/\u03bc", tis: "tis: cut down to the cap", mis: "mis: dropped above the cap" };

PANELS.mismatch = {
  fields: [
    number("cap", "cap", DEFAULTS.mismatch.cap, 0, 1e9, { above: true, slider: [0.5, 40, "log"], hint: "of tis and mis on pi/mu" }),
    number("noise", "noise", DEFAULTS.mismatch.noise, 0, 10, { slider: [0, 1, 0.01], hint: "std of the sampler's error on a logit, in nats" }),
    number("outliers", "outliers", DEFAULTS.mismatch.outliers, 0, 20, { whole: true, slider: [0, 20, 1], hint: "likely tokens that it badly underestimates" }),
    number("outlier_nats", "outlier_nats", DEFAULTS.mismatch.outlier_nats, 0, 15, { slider: [0, 6, 0.1], hint: "by how much" }),
    number("batch_size", "batch_size", DEFAULTS.mismatch.batch_size, 2, 1024, { whole: true, slider: [2, 1024, "log"] }),
    number("batches", "batches", DEFAULTS.mismatch.batches, 2, 1000, { whole: true, slider: [2, 1000, "log"] }),
    seed(DEFAULTS.mismatch.seed),
  ],
  compute(v) {
    const settings = {
      vocabulary: DEFAULTS.mismatch.vocabulary, spread: DEFAULTS.mismatch.spread, noise: v.noise, outliers: v.outliers,
      outlierNats: v.outlier_nats, batchSize: v.batch_size, batches: v.batches, seed: v.seed,
    };
    const draws = remember("mismatch", [v.batch_size, v.batches, v.seed], () => mismatchDraws(settings));
    const key = Object.values({ ...v, cap: null });
    const world = remember("world", key, () => mismatchWorld(draws, settings));
    const range = [Math.min(0.5, v.cap), Math.max(40, v.cap)];
    const sweep = remember("sweep", [key, range], () => {
      const caps = Array.from({ length: 41 }, (_, i) => range[0] * (range[1] / range[0]) ** (i / 40));
      return Object.fromEntries(["tis", "mis"].map((kind) => [kind, caps.map((cap) => [cap, correctionRow(world, kind, cap)])]));
    });
    const rows = Object.fromEntries(CORRECTIONS.map((kind) => [kind, correctionRow(world, kind, v.cap)]));
    return { rows, sweep, range, ratio: [median(world.ratio), Math.max(...world.ratio), Math.min(...world.ratio)] };
  },
  draw(result, v, host) {
    const { rows } = result;
    const swept = Object.values(result.sweep).flatMap((points) => points.map(([, row]) => row));
    const top = Math.max(...[...Object.values(rows), ...swept].flatMap((row) => [row.bias, row.noise]));
    for (const [part, title] of [["bias", "Bias"], ["noise", "Noise of one batch"]]) capCurve(host(part), result, v, { part, title, top });
    legend(host("legend"), CORRECTIONS.map((kind, i) => [`s${i}`, KIND_WORDS[kind], "mark"]));
    table(
      host("numbers"),
      `Shares of the true gradient's length, at cap ${short(v.cap)}; \u03c0\u2060/\u2060\u03bc has median ${fixed(result.ratio[0], 2)}, max ${fixed(result.ratio[1], 1)}, min ${fixed(result.ratio[2], 2)}`,
      ["", "bias", "expected bias", "noise", "over the cap"],
      CORRECTIONS.map((kind) => [
        kind,
        ...["bias", "expected", "noise"].map((part) => [`mismatch.${kind}.${part}`, rows[kind][part], percent(rows[kind][part])]),
        kind === "tis" || kind === "mis" ? [`mismatch.${kind}.touched`, rows[kind].touched, percent(rows[kind].touched)] : "",
      ]),
    );
  },
  says(result, v) {
    return `Without a correction the gradient is off by ${percent(result.rows.none.expected)} in expectation. Importance sampling is exact in expectation, `
      + `with a noise of ${percent(result.rows.is.noise)}. A cap of ${short(v.cap)} trades one for the other: tis has a noise of `
      + `${percent(result.rows.tis.noise)} and an expected bias of ${percent(result.rows.tis.expected)}, mis ${percent(result.rows.mis.noise)} and ${percent(result.rows.mis.expected)}.`;
  },
  command: (v) => `upweight lab mismatch --cap ${v.cap} --noise ${v.noise} --outliers ${v.outliers} --outlier_nats ${v.outlier_nats} --batch_size ${v.batch_size} --batches ${v.batches} --seed ${v.seed}`,
};

function capCurve(host, { rows, sweep, range }, v, { part, title, top }) {
  const plot = new Plot(host, {
    title,
    about: `${title} of each correction against the cap, relative to the true gradient's length; the values at the chosen cap are in the table below.`,
    height: 270,
    x: { range, log: true, label: "cap on \u03c0/\u03bc (log scale)" },
    y: { range: [0, 1.06 * top || 1], label: "% of the true gradient's length", text: (tick) => fixed(100 * tick, 0) },
  });
  plot.upright(v.cap, "guide");
  CORRECTIONS.forEach((kind, i) => {
    const points = sweep[kind] && [...sweep[kind], [v.cap, rows[kind]]].sort((a, b) => a[0] - b[0]);
    if (points) plot.line(points.map(([cap, row]) => [cap, row[part]]), `s${i}`);
    else plot.level(rows[kind][part], `line s${i}`);
    plot.mark(v.cap, rows[kind][part], `s${i}`);
  });
}
