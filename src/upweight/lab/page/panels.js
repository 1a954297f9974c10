// The first three panels: averaging, KL, clip. A panel computes from checked values and draws what it computed.

const PANELS = {};

const number = (key, label, initial, least, most, more = {}) => ({ kind: "number", key, label, initial, least, most, ...more });
const numbers = (key, label, initial, least, most, more = {}) => ({ kind: "list", key, label, initial, least, most, ...more });
const seed = (initial) => number("seed", "seed", initial, 0, 4294967295, { whole: true });

PANELS.weights = {
  fields: [
    numbers("rewards", "rewards", DEFAULTS.weights.rewards, -1000, 1000, {
      fewest: 2,
      most_numbers: 12,
      alone: "A group of one has no advantage: there is nothing to compare its answer with.",
      hint: "one per answer, with commas between them",
    }),
    numbers("lengths", "lengths", DEFAULTS.weights.lengths, 1, 100000, { whole: true, hint: "tokens of each answer" }),
    numbers("others", "lengths of the other group", [], 1, 100000, {
      whole: true,
      fewest: 0,
      most_numbers: 64,
      hint: "answers to another prompt in the same step; may be empty",
    }),
    { kind: "choice", key: "adv_norm", label: "advantage divided by", initial: "std", options: { std: "the group's std", none: "nothing" } },
    number("max_length", "max_length", DEFAULTS.weights.max_length, 1, 1000000, {
      whole: true,
      slider: [64, 16384, "log"],
      hint: "generation budget in tokens",
    }),
  ],
  check(v) {
    const wrong = {};
    if (v.lengths.length !== v.rewards.length) {
      wrong.lengths = `lengths must be as many as there are rewards (${v.rewards.length}). Got ${v.lengths.length} instead.`;
    }
    const longest = Math.max(...v.lengths, ...v.others);
    if (v.max_length < longest) {
      wrong.max_length = `max_length must be at least the longest answer (${longest} tokens). Got ${v.max_length} instead.`;
    }
    return wrong;
  },
  compute(v) {
    const advantages = groupAdvantages(v.rewards, v.adv_norm, DEFAULTS.weights.eps);
    const token = {};
    const answer = {};
    for (const mode of MODES) {
      token[mode] = tokenWeights(v.lengths, v.others, mode, v.max_length).map((weight, i) => weight * advantages[i]);
      answer[mode] = token[mode].map((value, i) => value * v.lengths[i]);
    }
    return { advantages, token, answer };
  },
  draw(result, v, host) {
    const bars = (name, title, values, unit, label) => {
      const labels = v.rewards.map((reward, i) => `${short(reward)}\n${grouped(v.lengths[i])}`);
      groupedBars(host(name), title, labels, MODES.map((mode) => values[mode].map((value) => value * unit)), label);
    };
    bars("token", "One token", result.token, 1000, "advantage \u00d7 weight of one token, in 1/1000");
    bars("answer", "The whole answer", result.answer, 1, "advantage \u00d7 weight of all its tokens");
    legend(host("legend"), MODES.map((mode, i) => [`s${i}`, mode, "bar"]));
    const rows = (second, values, words, key) => v.rewards.map((_, i) => [
      String(i + 1),
      second[i],
      ...MODES.map((mode) => [`weights.${i}.${key}.${mode}`, values[mode][i], plus(values[mode][i], words(values[mode][i]))]),
    ]);
    const lengths = v.lengths.map((length) => grouped(length));
    const advantages = result.advantages.map((value, i) => [`weights.${i}.advantage`, value, plus(value, fixed(value, 2))]);
    const put = (caption, name, second, values, words, key) => table(host("numbers"), caption, ["#", name, ...MODES], rows(second, values, words, key));
    put("Advantage times weight of one token", "tokens", lengths, result.token, (value) => scientific(value, 2), "token");
    put("Advantage times weight of the whole answer", "adv.", advantages, result.answer, (value) => fixed(value, 3), "answer");
  },
  says(result, v) {
    if (result.advantages.every((value) => value === 0)) {
      return "All rewards are the same, so every advantage is 0: the group was sampled and scored for nothing.";
    }
    const [least, most] = [Math.min(...v.lengths), Math.max(...v.lengths)];
    if (least === most) return "All answers are equally long, so every mode weighs them alike. Make one longer.";
    return `With seq-mean-token-mean a token of the longest answer (${tokens(most)}) is pushed ${times(most / least)} `
      + `less than one of the shortest (${grouped(least)}): a long mistake is cheap per token. With the other three every `
      + `token of the group is pushed alike, and the longest answer counts ${times(most / least)} as much as the shortest.`;
  },
  command: (v) => (v.others.length ? "" : `upweight lab weights --rewards ${v.rewards} --lengths ${v.lengths} --adv_norm ${v.adv_norm} --max_length ${v.max_length}`),
};

function groupedBars(host, title, labels, series, label) {
  const all = series.flat();
  const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
  const room = (high - low || 1) * 0.06;
  const places = labels.map((_, i) => i + 0.5);
  const roomy = (host.clientWidth - 70) / labels.length > 42;
  const plot = new Plot(host, {
    title,
    about: `${title}: ${label}, as bars for each answer and averaging mode; the numbers are in the table below.`,
    height: 280,
    x: { range: [0, labels.length], label: roomy ? "answer: its reward, its tokens" : "answer", ticks: places, text: (tick) => (roomy ? labels[Math.floor(tick)] : Math.ceil(tick)) },
    y: { range: [low - room, high + room], label },
    below: 58,
  });
  const slot = (plot.x(1) - plot.x(0)) * 0.8;
  series.forEach((values, place) => {
    const width = slot / series.length;
    values.forEach((value, i) => plot.bar(plot.x(i + 0.5) - slot / 2 + place * width, Math.max(1, width - 1.5), value, `s${place}`));
  });
  plot.level(0, "zero");
}

PANELS.kl = {
  fields: [
    number("r", "ratio r = p/q", 1.65, 0.01, 100, { slider: [0.135, 7.4, "log"], hint: "of the token you look at" }),
    number("noise", "noise", DEFAULTS.kl.noise, 0, 10, { slider: [0, 1.5, 0.01], hint: "how far q is from p, in nats" }),
    number("samples", "samples", DEFAULTS.kl.samples, 2, 400000, { whole: true, slider: [100, 400000, "log"] }),
    seed(DEFAULTS.kl.seed),
  ],
  compute(v) {
    const draws = remember("kl", [v.samples, v.seed], () => klDraws(DEFAULTS.kl.vocabulary, v.samples, v.seed));
    const logRatio = Math.log(v.r);
    return { logRatio, at: ESTIMATORS.map((name) => klEstimate(name, logRatio)), ...klExperiment(draws, v.noise) };
  },
  draw(result, v, host) {
    klCurves(host("curves"), result);
    klHistograms(host("histograms"), result);
    legend(host("legend"), ESTIMATORS.map((name, i) => [`s${i}`, ["k1 = \u2212log r", "k2 = (log r)\u00b2/2", "k3 = r \u2212 1 \u2212 log r"][i], "mark"]));
    const rows = ESTIMATORS.map((name, i) => {
      const item = result.estimates[name];
      return [
        name,
        [`kl.${name}.at`, result.at[i], fixed(result.at[i], 4)],
        [`kl.${name}.mean`, item.mean, fixed(item.mean, 4)],
        [`kl.${name}.std`, item.std, fixed(item.std, 4)],
        [`kl.${name}.negative`, item.negative, percent(item.negative, 0)],
      ];
    });
    rows.push(["exact", "", ["kl.exact", result.exact, fixed(result.exact, 4)], "", ""]);
    table(host("numbers"), `In nats, from ${grouped(result.samples)} samples`, ["", `at r = ${short(v.r)}`, "mean", "std", "negative"], rows);
  },
  says(result) {
    const { k1, k2, k3 } = result.estimates;
    if (k1.std < 1e-12) return "The policy is the reference: the ratio is 1 for every token, and every estimate is 0.";
    return `k1 is right on average but negative for ${percent(k1.negative, 0)} of the tokens, with a std of ${fixed(k1.std, 3)}; k3 is right `
      + `on average, never negative, and has ${fixed(k3.std, 3)}. k2 is never negative either, but biased: here it is `
      + `${plus(k2.mean - result.exact, fixed(k2.mean - result.exact, 4))} nats off, where chance alone gives about ${fixed(k2.std / Math.sqrt(result.samples), 4)}.`;
  },
  command: (v) => `upweight lab kl --noise ${v.noise} --samples ${v.samples} --seed ${v.seed}`,
};

function klCurves(host, result) {
  const reach = Math.max(2, 1.1 * Math.abs(result.logRatio));
  const grid = Array.from({ length: 201 }, (_, i) => -reach + (2 * reach * i) / 200);
  const all = ESTIMATORS.flatMap((name) => grid.map((x) => klEstimate(name, x)));
  const plot = new Plot(host, {
    title: "The estimate from one token",
    about: `k1, k2 and k3 against log r; at log r = ${result.logRatio.toFixed(3)} they are ${result.at.map((value) => value.toFixed(4)).join(", ")} nats.`,
    height: 400,
    x: { range: [-reach, reach], label: "log r of the sampled token (nats)" },
    y: { range: [Math.min(...all) * 1.05, Math.max(...all) * 1.05], label: "estimate (nats)" },
  });
  plot.upright(result.logRatio, "guide");
  ESTIMATORS.forEach((name, i) => {
    plot.line(grid.map((x) => [x, klEstimate(name, x)]), `s${i}`);
    plot.mark(result.logRatio, result.at[i], `s${i}`);
  });
}

// One small histogram per estimator, on the same axes.
function klHistograms(host, result) {
  const reach = Math.max(4 * result.estimates.k3.std, 2.5 * result.estimates.k1.std, 0.01);
  const bins = 40;
  const shares = ESTIMATORS.map((name) => {
    const share = new Float64Array(bins);
    result.estimates[name].values.forEach((value, i) => {
      const bin = Math.floor(((value + reach) / (2 * reach)) * bins);
      if (bin >= 0 && bin < bins) share[bin] += result.counts[i] / result.samples;
    });
    return share;
  });
  host.replaceChildren(element("h3", {}, "The samples"));
  ESTIMATORS.forEach((name, i) => {
    const box = element("div");
    host.append(box);
    const item = result.estimates[name];
    const floor = 1 / Math.max(10000, result.samples);
    const plot = new Plot(box, {
      about: `Histogram of ${name}: mean ${item.mean.toFixed(4)}, std ${item.std.toFixed(4)} nats, ${(100 * item.negative).toFixed(0)}% negative.`,
      height: i === 2 ? 150 : 134,
      below: i === 2 ? 44 : 28,
      x: { range: [-reach, reach], label: i === 2 ? "estimate from one token (nats)" : "" },
      y: {
        range: [floor, 40],
        log: true,
        label: i ? "" : "share of the samples (log scale)",
        ticks: [0.0001, 0.01, 1],
        text: (tick) => `${100 * tick}%`,
      },
    });
    const width = (plot.x(reach) - plot.x(-reach)) / bins;
    shares[i].forEach((share, bin) => plot.bar(plot.x.start + bin * width, Math.max(0.8, width - 0.8), Math.max(share, floor), `s${i}`, floor));
    plot.upright(result.exact, "exact");
    plot.mark(result.at[i], floor * 4, `s${i}`);
    plot.words(-reach, 40, `${name}   mean ${fixed(item.mean, 4)}`, { dx: 8, dy: 14, look: "note strong" });
    if (i === 0) plot.words(reach, 40, `exact KL ${fixed(result.exact, 4)}`, { anchor: "end", dx: -4, dy: 14 });
  });
}

PANELS.clip = {
  fields: [
    number("rho", "ratio rho", 1.4, 0, 100, { above: true, slider: [0.01, 6, 0.01], hint: "new probability / old probability" }),
    number("clip", "clip", DEFAULTS.clip.clip, 0, 1, { slider: [0, 1, 0.01], hint: "lower bound 1 - clip" }),
    number("clip_high", "clip_high", DEFAULTS.clip.clip_high, 0, 1000, { slider: [0, 2, 0.01], hint: "upper bound 1 + clip_high" }),
    number("dual_clip", "dual_clip", DEFAULTS.clip.dual_clip, 1, 1000, {
      slider: [1.05, 6, 0.05],
      above: true,
      none: true,
      hint: "floor at dual_clip times A for A < 0; none turns it off",
    }),
    number("cispo_clip", "CISPO's clip", DEFAULTS.clip.cispo_clip, 0, 1, { slider: [0, 1, 0.01], hint: "least weight 1 - clip" }),
    number("cispo_clip_high", "CISPO's clip_high", DEFAULTS.clip.cispo_clip_high, 0, 1000, {
      slider: [0, 6, 0.05],
      hint: "largest weight 1 + clip_high",
    }),
    number("p_old", "old probability", 0.1, 0, 1, {
      slider: [0.001, 1, "log"],
      above: true,
      hint: "CISPO's objective contains the log-probability itself",
    }),
  ],
  check: (v) => (v.rho * v.p_old > 1
    ? { rho: `rho must be at most 1 / ${v.p_old}, as a probability ends at 1. Got ${v.rho} instead.` }
    : {}),
  compute(v) {
    const result = { bounds: [1 - v.clip, 1 + v.clip_high], weights: [1 - v.cispo_clip, 1 + v.cispo_clip_high] };
    result.of = (name, ratio, advantage) => {
      if (name === "cispo") return cispoSurrogate(ratio, advantage, Math.log(ratio * v.p_old), ...result.weights);
      return clipSurrogate(ratio, advantage, ...result.bounds, name === "dual" ? v.dual_clip : null);
    };
    return result;
  },
  draw(result, v, host) {
    const reach = Math.max(3.6, 1.1 * v.rho, v.dual_clip === null ? 0 : 1.2 * v.dual_clip);
    for (const [sign, name] of [[1, "good"], [-1, "bad"]]) {
      for (const part of ["value", "gradient"]) clipCurve(host(`${name}-${part}`), result, v, { sign, part, reach });
    }
    legend(host("legend"), CLIPS.map(([, words], i) => [`s${i}`, words, "mark"]));
    const rows = [];
    for (const [sign, words] of [[1, "A = +1"], [-1, `A = ${MINUS}1`]]) {
      for (const part of ["value", "gradient"]) {
        rows.push([
          `${part === "value" ? "objective" : "gradient"}, ${words}`,
          ...CLIPS.map(([name]) => {
            const value = result.of(name, v.rho, sign)[part];
            return [`clip.${name}.${sign > 0 ? "good" : "bad"}.${part}`, value, fixed(value, 4)];
          }),
        ]);
      }
    }
    table(host("numbers"), `At rho = ${short(v.rho)}; the gradient is with respect to the token's log-probability`, ["", "clip", "with dual clip", "CISPO"], rows);
  },
  says(result, v) {
    const [low, high] = result.bounds;
    const stopped = (advantage, name) => result.of(name, v.rho, advantage).gradient === 0;
    const good = stopped(1, "clip") ? `the clip holds it: the ratio is above ${short(high)}` : "the clip lets it through";
    const bad = stopped(-1, "clip") ? `the clip holds it: the ratio is below ${short(low)}`
      : stopped(-1, "dual") ? "only dual clip holds it: the plain clip has no bound on this side" : "the clip lets it through";
    return `At rho = ${short(v.rho)}, for a good token ${good}; for a bad one ${bad}. CISPO goes on pulling both, with the weight `
      + `${short(result.of("cispo", v.rho, 1).gradient)}: it bounds the weight and never the gradient's presence.`;
  },
  command: (v) => `upweight explain --clip ${v.clip} --clip_high ${v.clip_high} --dual_clip ${v.dual_clip === null ? "none" : v.dual_clip}`,
};

const CLIPS = [
  ["clip", "clip: min(\u03c1A, clip(\u03c1)A)"],
  ["dual", "with dual clip"],
  ["cispo", "CISPO: sg(clip(\u03c1)) A log \u03c0"],
];

function clipCurve(host, result, v, { sign, part, reach }) {
  const [low, high] = result.bounds;
  const kinks = [low, high, ...result.weights, v.dual_clip].filter((x) => x !== null && x > 0 && x < reach);
  const grid = Array.from({ length: 361 }, (_, i) => (reach * i) / 360);
  for (const kink of kinks) grid.push(kink, kink * (1 + 1e-9), kink * (1 - 1e-9));
  grid.sort((a, b) => a - b);
  const curves = CLIPS.map(([name]) => grid.map((x) => [x, name === "cispo" && (x < 0.02 || x * v.p_old > 1) ? NaN : result.of(name, x, sign)[part]]));
  const all = curves.flat().map(([, y]) => y).filter(Number.isFinite);
  const [bottom, top] = [Math.min(0, ...all), Math.max(0, ...all)];
  const room = 0.08 * (top - bottom || 1);
  const who = sign > 0 ? "A = +1" : `A = ${MINUS}1`;
  const what = part === "value" ? "objective" : "gradient";
  const plot = new Plot(host, {
    title: `${who}: ${what}`,
    about: `${what} against the ratio for ${who}: the plain clip, dual clip and CISPO; the values at the chosen ratio are in the table below.`,
    height: 220,
    x: { range: [0, reach], label: "ratio \u03c1" },
    y: { range: [bottom - room, top + room], label: part === "value" ? "objective f(\u03c1, A)" : "df / d log \u03c0" },
  });
  for (const bound of [low, high]) plot.upright(bound, "bound");
  plot.upright(v.rho, "guide");
  const order = [1, 0, 2];
  for (const i of order) plot.line(curves[i], `s${i}${i === 1 ? " wide" : ""}`);
  for (const i of order) plot.mark(v.rho, result.of(CLIPS[i][0], v.rho, sign)[part], `s${i}`);
  if (part === "value") {
    const apart = plot.x(high) - plot.x(low) > 44 ? 4 : -3;
    plot.words(low, top + room, short(low), { anchor: "end", dx: apart, dy: -4 });
    plot.words(high, top + room, short(high), { dx: -apart, dy: -4 });
  }
}
