// The formulas of upweight.objective and the random numbers of torch, in double precision. tests/lab holds each of them
// to the Python functions.

class Twister {
  // torch's generator on the CPU: MT19937, and how its words become numbers.
  constructor(seed) {
    this.words = new Uint32Array(624);
    this.words[0] = seed;
    for (let i = 1; i < 624; i++) {
      const before = this.words[i - 1] ^ (this.words[i - 1] >>> 30);
      this.words[i] = Math.imul(before, 1812433253) + i;
    }
    this.place = 624;
  }

  _refill() {
    const w = this.words;
    for (let i = 0; i < 624; i++) {
      const mixed = (w[i] & 0x80000000) | (w[(i + 1) % 624] & 0x7fffffff);
      w[i] = w[(i + 397) % 624] ^ (mixed >>> 1) ^ (mixed & 1 ? 0x9908b0df : 0);
    }
    this.place = 0;
  }

  word() {
    if (this.place === 624) this._refill();
    let y = this.words[this.place++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  single() {
    return (this.word() & 0xffffff) / 16777216;
  }

  double() {
    const high = this.word() & 0x1fffff;
    return (high * 4294967296 + this.word()) / 9007199254740992;
  }

  doubles(count) {
    const values = new Float64Array(count);
    for (let i = 0; i < count; i++) values[i] = this.double();
    return values;
  }

  // torch.randn for 16 numbers or more: Box and Muller in blocks of 16; a last block that is not full is drawn anew.
  normals(count) {
    const values = new Float32Array(count);
    for (let i = 0; i < count; i++) values[i] = this.single();
    for (let start = 0; start + 16 <= count; start += 16) boxMuller(values, start);
    if (count % 16) {
      for (let i = count - 16; i < count; i++) values[i] = this.single();
      boxMuller(values, count - 16);
    }
    return values;
  }
}

const TWO_PI = Math.fround(2 * Math.PI);

function boxMuller(values, start) {
  const f = Math.fround;
  for (let i = start; i < start + 8; i++) {
    const radius = f(Math.sqrt(f(-2 * f(Math.log(f(1 - values[i]))))));
    const angle = f(TWO_PI * values[i + 8]);
    values[i] = radius * f(Math.cos(angle));
    values[i + 8] = radius * f(Math.sin(angle));
  }
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

function softmax(logits) {
  const top = logits.reduce((a, b) => Math.max(a, b));
  const raised = Float64Array.from(logits, (value) => Math.exp(value - top));
  const total = sum(raised);
  return raised.map((value) => value / total);
}

// In single precision, as torch adds up what it samples from: the same tokens come out.
function cumulative(probabilities) {
  const f = Math.fround;
  const steps = new Float32Array(probabilities.length);
  let total = 0;
  for (let i = 0; i < steps.length; i++) steps[i] = total = f(total + f(probabilities[i]));
  return steps.map((value) => value / total);
}

// torch.multinomial with replacement: the first step that is not below the uniform number.
function pick(steps, uniform) {
  let left = 0;
  let right = steps.length - 1;
  while (left < right) {
    const middle = (left + right) >> 1;
    if (steps[middle] < uniform) left = middle + 1;
    else right = middle;
  }
  return left;
}

// ---- averaging

function groupAdvantages(rewards, norm, eps) {
  const n = rewards.length;
  if (rewards.every((reward) => reward === rewards[0])) return rewards.map(() => 0);
  const mean = sum(rewards) / n;
  const centred = rewards.map((reward) => reward - mean);
  if (norm === "none") return centred;
  const std = Math.sqrt(sum(centred.map((value) => value * value)) / (n - 1));
  return centred.map((value) => value / (std + eps));
}

const MODES = ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm", "group-mean-token-mean"];

// Weight of one token of each answer of the group; the others of the step are a second group.
function tokenWeights(lengths, others, mode, budget) {
  const group = sum(lengths);
  const answers = lengths.length + others.length;
  const groups = others.length ? 2 : 1;
  const weight = {
    "token-mean": () => 1 / (group + sum(others)),
    "seq-mean-token-mean": (length) => 1 / (answers * length),
    "seq-mean-token-sum-norm": () => 1 / (answers * budget),
    "group-mean-token-mean": () => 1 / (groups * group),
  }[mode];
  return lengths.map(weight);
}

// ---- KL

const ESTIMATORS = ["k1", "k2", "k3"];
const LOG_RATIO_LIMIT = 20;

function klEstimate(name, logRatio) {
  if (name === "k1") return -logRatio;
  if (name === "k2") return (logRatio * logRatio) / 2;
  const limited = Math.min(logRatio, LOG_RATIO_LIMIT);
  return Math.expm1(limited) - limited;
}

function klDraws(vocabulary, samples, seed) {
  const random = new Twister(seed);
  const ref = random.normals(vocabulary);
  const shift = random.normals(vocabulary);
  return { ref, shift, uniforms: random.doubles(samples) };
}

function klExperiment(draws, noise) {
  const ref = softmax(draws.ref);
  const policy = softmax(ref.map((p, i) => Math.log(p) + noise * draws.shift[i]));
  const steps = cumulative(policy);
  const counts = new Uint32Array(ref.length);
  for (const uniform of draws.uniforms) counts[pick(steps, uniform)]++;
  const logRatio = ref.map((p, i) => Math.log(p) - Math.log(policy[i]));
  const exact = sum(policy.map((q, i) => -q * logRatio[i]));
  const n = draws.uniforms.length;
  const estimates = {};
  for (const name of ESTIMATORS) {
    const values = logRatio.map((value) => klEstimate(name, value));
    const mean = sum(values.map((value, i) => value * counts[i])) / n;
    const square = sum(values.map((value, i) => counts[i] * (value - mean) ** 2));
    const negative = sum(counts.filter((_, i) => values[i] < 0)) / n;
    estimates[name] = { values, mean, std: Math.sqrt(square / (n - 1)), negative };
  }
  return { exact, counts, samples: n, estimates };
}

// ---- clip

// Value, and gradient with respect to log pi, of min(rho A, clip(rho) A), with a floor of dual A for A < 0.
function clipSurrogate(ratio, advantage, low, high, dual) {
  const clamped = Math.min(Math.max(ratio, low), high);
  if (advantage < 0 && dual !== null && ratio > dual) return { value: dual * advantage, gradient: 0 };
  const flat = (advantage > 0 && ratio > high) || (advantage < 0 && ratio < low);
  return flat ? { value: clamped * advantage, gradient: 0 } : { value: ratio * advantage, gradient: ratio * advantage };
}

function cispoSurrogate(ratio, advantage, logprob, low, high) {
  const weight = Math.min(Math.max(ratio, low), high);
  return { value: weight * advantage * logprob, gradient: weight * advantage };
}

// ---- Clip-Higher

function afterUpdates(probability, high, updates) {
  if (updates === 1) return Math.min(1, probability * high);
  return Math.exp(Math.min(0, Math.log(probability) + updates * Math.log(high)));
}

function updatesTo(target, probability, high) {
  if (probability >= target) return 0;
  return high === 1 ? null : Math.ceil(Math.log(target / probability) / Math.log(high));
}

// ---- ratio per token and per answer

const STEPS = 72;
const PATHS = 14;

// One block of answers whose tokens' log-ratios are standard normal: everything that does not depend on sigma.
function ratioBlock(random, answers, length, keepPaths) {
  const normals = random.normals(answers * length);
  const sums = new Float64Array(answers);
  const stops = keepPaths ? stopsFor(length) : [length];
  const low = new Float64Array(stops.length).fill(Infinity);
  const high = new Float64Array(stops.length).fill(-Infinity);
  const paths = [];
  for (let i = 0; i < answers; i++) {
    let total = 0;
    let at = i * length;
    const path = [];
    for (let s = 0; s < stops.length; s++) {
      for (const end = i * length + stops[s]; at < end; at++) total += normals[at];
      low[s] = Math.min(low[s], total);
      high[s] = Math.max(high[s], total);
      path.push(total);
    }
    sums[i] = total;
    if (keepPaths && i < PATHS) paths.push(path);
  }
  return { length, normals, sums, stops, low, high, paths };
}

function stopsFor(length) {
  const stops = new Set();
  for (let s = 1; s <= STEPS; s++) stops.add(Math.max(1, Math.round((length * s) / STEPS)));
  return [...stops];
}

// torch draws sigma by sigma and, within it, length by length; only the longest answers are drawn as paths.
function ratioDraws(lengths, answers, seed) {
  const random = new Twister(seed);
  const longest = Math.max(...lengths);
  return [0, 1].map(() => lengths.map((length) => ratioBlock(random, answers, length, length === longest)));
}

function ratioRow(block, sigma, token, sequence) {
  const limited = (value) => Math.min(Math.max(value, -LOG_RATIO_LIMIT), LOG_RATIO_LIMIT);
  const bottom = Math.log(token[0]);
  const top = Math.log(token[1]);
  let outside = 0;
  if (sigma > 0) {
    const below = bottom / sigma;
    const above = top / sigma;
    for (const z of block.normals) if (z < below || z > above) outside++;
  }
  const geometric = block.sums.map((total) => Math.exp(limited((sigma * total) / block.length)));
  const least = geometric.reduce((a, b) => Math.min(a, b));
  const most = geometric.reduce((a, b) => Math.max(a, b));
  const last = block.stops.length - 1;
  return {
    sigma,
    length: block.length,
    clipped: outside / block.normals.length,
    log10Product: [(sigma * block.low[last]) / Math.LN10, (sigma * block.high[last]) / Math.LN10],
    geometric: [least, most],
    answersClipped: geometric.filter((value) => value < sequence[0] || value > sequence[1]).length / geometric.length,
  };
}

// ---- sampler against trainer

const CORRECTIONS = ["none", "is", "tis", "mis"];
const SAFE = 5;

function correctionWeight(kind, ratio, cap) {
  const limited = Math.min(Math.max(ratio, Math.exp(-LOG_RATIO_LIMIT)), Math.exp(LOG_RATIO_LIMIT));
  if (kind === "none") return 1;
  if (kind === "is") return limited;
  if (kind === "tis") return Math.min(limited, cap);
  return limited <= cap ? limited : 0;
}

function mismatchDraws(v) {
  const random = new Twister(v.seed);
  const logits = random.normals(v.vocabulary).map((value) => value * v.spread);
  const error = random.normals(v.vocabulary);
  const advantages = random.normals(v.vocabulary);
  const sampling = new Twister((v.seed + 1) % 4294967296);
  return { logits, error, advantages, uniforms: sampling.doubles(CORRECTIONS.length * v.batches * v.batchSize) };
}

function mismatchWorld(draws, v) {
  const size = v.vocabulary;
  const error = Float64Array.from(draws.error, (value) => v.noise * value);
  const order = [...draws.logits.keys()].sort((a, b) => draws.logits[a] - draws.logits[b]);
  for (const token of order.slice(size - SAFE - v.outliers, size - SAFE)) error[token] -= v.outlierNats;
  const policy = softmax(Float64Array.from(draws.logits));
  const sampler = softmax(error.map((value, i) => value + draws.logits[i]));
  const ratio = policy.map((p, i) => p / sampler[i]);
  const steps = cumulative(sampler);
  // Counts of each token in each batch are all that a gradient needs.
  const counts = {};
  let at = 0;
  for (const kind of CORRECTIONS) {
    counts[kind] = new Uint16Array(v.batches * size);
    for (let batch = 0; batch < v.batches; batch++) {
      for (let i = 0; i < v.batchSize; i++) counts[kind][batch * size + pick(steps, draws.uniforms[at++])]++;
    }
  }
  const world = { policy, sampler, ratio, counts, advantages: draws.advantages, batches: v.batches, batchSize: v.batchSize };
  world.truth = gradientOf(world, (i) => policy[i] * draws.advantages[i]);
  return world;
}

// sum_a f_a (e_a - pi): the policy gradient with respect to the logits where token a counts f_a.
function gradientOf(world, factor) {
  const gradient = new Float64Array(world.policy.length);
  let total = 0;
  for (let i = 0; i < gradient.length; i++) total += gradient[i] = factor(i);
  for (let i = 0; i < gradient.length; i++) gradient[i] -= total * world.policy[i];
  return gradient;
}

const norm = (values) => Math.sqrt(sum(values.map((value) => value * value)));

function correctionRow(world, kind, cap) {
  const { policy, sampler, ratio, advantages, batches, batchSize, truth } = world;
  const size = policy.length;
  const counts = world.counts[kind];
  const pull = ratio.map((r, i) => correctionWeight(kind, r, cap) * advantages[i]);
  const drawn = new Float64Array(size);
  for (let place = 0; place < counts.length; place++) drawn[place % size] += counts[place];
  const share = pull.map((value) => value / batchSize);
  const mean = gradientOf(world, (i) => (drawn[i] * share[i]) / batches);
  let noise = 0;
  for (let start = 0; start < counts.length; start += size) {
    let total = 0;
    for (let i = 0; i < size; i++) total += counts[start + i] * share[i];
    let square = 0;
    for (let i = 0; i < size; i++) {
      const off = counts[start + i] * share[i] - total * policy[i] - mean[i];
      square += off * off;
    }
    noise += Math.sqrt(square);
  }
  const expected = gradientOf(world, (i) => sampler[i] * pull[i]);
  const over = sum(drawn.filter((_, i) => ratio[i] > cap));
  const length = norm(truth);
  return {
    bias: norm(mean.map((value, i) => value - truth[i])) / length,
    noise: noise / batches / length,
    expected: norm(expected.map((value, i) => value - truth[i])) / length,
    touched: kind === "tis" || kind === "mis" ? over / (batches * batchSize) : 0,
  };
}

function median(values) {
  return [...values].sort((a, b) => a - b)[(values.length - 1) >> 1];
}
