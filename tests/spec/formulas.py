"""The formulas, one short function each, in plain Python floats: slow, obvious and independent of the library.

Written from the papers. A batch is laid out as lists over its trainable tokens; `answer[t]` and `group[t]` say which
answer and which group token t belongs to. What reads log-probs of the current policy takes a live one, which a
derivative moves, and where the paper writes a stop-gradient a frozen one, which stays.
"""

import math
from collections.abc import Sequence

LIMIT = 20.0
"""Log-ratios are held within +- this before they are exponentiated."""

Floats = Sequence[float]
Ints = Sequence[int]


def average(values: Floats) -> float:
    return math.fsum(values) / len(values)


def deviation(values: Floats, ddof: int) -> float:
    """sqrt(sum (x - mean)^2 / (n - ddof)); 0 for equal values and where no degree of freedom is left."""
    if len(values) < 2 or len(values) <= ddof or len(set(values)) == 1:
        return 0.0
    centre = average(values)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in values) / (len(values) - ddof))


def divided(centred: float, spread: float, eps: float) -> float:
    """centred / (spread + eps), GRPO's normalisation (2402.03300, 4.1.2) with an eps; unscaled without spread."""
    return centred / (spread + eps) if spread > 0 else centred


def advantages(
    rewards: Floats, group: Ints, scale: str, baseline: str, ddof: int = 1, eps: float = 1e-6
) -> list[float]:
    """One advantage per answer. A reward of NaN is no score: it counts nowhere and its answer gets 0."""
    everyone = [r for r in rewards if not math.isnan(r)]
    result = []
    for i, reward in enumerate(rewards):
        members = [j for j, g in enumerate(group) if g == group[i] and not math.isnan(rewards[j])]
        others = [rewards[j] for j in members if j != i]
        if math.isnan(reward) or not others or all(other == reward for other in others):
            result.append(0.0)
            continue
        if baseline == "mean":
            centred, spread = mean_baseline([rewards[j] for j in members], reward, ddof)
        else:
            centred, spread = leave_one_out(others, reward, ddof)
        spread = {"none": 0.0, "std": spread, "batch": deviation(everyone, ddof)}[scale]
        result.append(divided(centred, spread, eps))
    return result


def mean_baseline(group_rewards: Floats, reward: float, ddof: int) -> tuple[float, float]:
    """R_i - mean(R), and std(R): GRPO (2402.03300, 4.1.2); Dr. GRPO leaves the std out (2503.20783, 3.2)."""
    return reward - average(group_rewards), deviation(group_rewards, ddof)


def leave_one_out(others: Floats, reward: float, ddof: int) -> tuple[float, float]:
    """R_i - mean of the other answers' rewards, and their std: RLOO (2402.14740, equation 8)."""
    return reward - average(others), deviation(others, ddof)


def informative(rewards: Floats, group: Ints) -> list[bool]:
    """Whether an answer's group has two different scores: DAPO's dynamic sampling (2503.14476, 3.2)."""
    return [
        len({r for r, other in zip(rewards, group, strict=True) if other == g and not math.isnan(r)}) > 1 for g in group
    ]


def silent_share(accuracy: float, size: int) -> float:
    """Chance that `size` independent answers are all right or all wrong."""
    return math.prod([accuracy] * size) + math.prod([1 - accuracy] * size)


def overlong(length: int, longest: int, buffer: int) -> float:
    """Soft overlong punishment: DAPO (2503.14476, equation 13); a step at `longest` without a buffer."""
    if length <= longest - buffer:
        return 0.0
    if length <= longest:
        return ((longest - buffer) - length) / buffer
    return -1.0


def gae(rewards: Floats, values: Floats, gamma: float, lam: float) -> list[float]:
    """A_t = sum_l (gamma lam)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t (1506.02438, equations 11, 16)."""
    following = [*values, 0.0][1:]
    delta = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [math.fsum((gamma * lam) ** step * d for step, d in enumerate(delta[t:])) for t in range(len(delta))]


def weights(
    answer: Ints, mode: str, group: Ints | None = None, longest: int | None = None, kept: Sequence[bool] | None = None
) -> list[float]:
    """Weight of each token over a whole step; tokens that are not kept weigh nothing and are counted nowhere."""
    kept = [True] * len(answer) if kept is None else kept
    counted = [t for t in range(len(answer)) if kept[t]]
    formula = {
        "token-mean": lambda t: token_mean(counted),
        "seq-mean-token-mean": lambda t: mean_of_means(counted, answer, t),
        "seq-mean-token-sum-norm": lambda t: sum_over_budget(counted, answer, longest),
        "group-mean-token-mean": lambda t: mean_of_means(counted, group, t),
    }[mode]
    return [formula(t) if kept[t] else 0.0 for t in range(len(answer))]


def token_mean(counted: Ints) -> float:
    """1 / sum_j |o_j|: DAPO's token-level loss (2503.14476, equation 12), over the batch."""
    return 1 / len(counted)


def mean_of_means(counted: Ints, segment: Ints, t: int) -> float:
    """1 / (S |s|): mean within token t's segment, then over the S segments that have a counted token.

    Segments are answers in GRPO (2402.03300, equation 3), groups in DAPO (2503.14476, equation 8).
    """
    own = sum(1 for other in counted if segment[other] == segment[t])
    return 1 / own / len({segment[other] for other in counted})


def sum_over_budget(counted: Ints, answer: Ints, longest: int) -> float:
    """1 / (G L): sum within an answer over a constant, mean over answers: Dr. GRPO (2503.20783, 3.2)."""
    return 1 / (longest * len({answer[other] for other in counted}))


def exp_within_limit(log_ratio: float) -> float:
    return math.exp(max(-LIMIT, min(LIMIT, log_ratio)))


def token_ratio(live: float, old: float) -> float:
    """pi(o_t) / pi_old(o_t): PPO (1707.06347, section 3)."""
    return exp_within_limit(live - old)


def sequence_ratio(live: Floats, old: Floats) -> float:
    """(pi(o) / pi_old(o))^(1/|o|): GSPO (2507.18071, equation 7), over one answer's tokens."""
    return exp_within_limit(average([new - before for new, before in zip(live, old, strict=True)]))


def gspo_token_ratio(live: float, frozen: float, answer_frozen: Floats, answer_old: Floats) -> float:
    """sg[s_i] pi(o_t) / sg[pi(o_t)]: GSPO-token (2507.18071, equation 14)."""
    log_s = average([now - before for now, before in zip(answer_frozen, answer_old, strict=True)])
    return exp_within_limit(log_s + (live - frozen))


def clip(ratio: float, advantage: float, low: float, high: float) -> float:
    """min(rho A, clip(rho, low, high) A): PPO (1707.06347, equation 7), DAPO's high bound (2503.14476, 10)."""
    return min(ratio * advantage, max(low, min(high, ratio)) * advantage)


def dual_clip(ratio: float, advantage: float, low: float, high: float, floor: float) -> float:
    """max(clipped, c A) where A < 0 (1912.09729, equation 5)."""
    clipped = clip(ratio, advantage, low, high)
    return max(clipped, floor * advantage) if advantage < 0 else clipped


def cispo(frozen_ratio: float, advantage: float, live: float, low: float, high: float) -> float:
    """sg(clip(rho)) A log pi: CISPO (2506.13585, equations 4 and 5)."""
    return max(low, min(high, frozen_ratio)) * advantage * live


def unclipped(ratio: float, advantage: float) -> float:
    """rho A: the conservative policy iteration objective (1707.06347, equation 6)."""
    return ratio * advantage


def kl(live: float, reference: float, estimator: str) -> float:
    """k1, k2 or k3 of KL(pi || ref) from one token (Schulman 2020): r = ref / pi; k3 is level where log r > 20."""
    log_r = reference - live
    if estimator == "k1":
        return -log_r
    if estimator == "k2":
        return log_r**2 / 2
    log_r = min(log_r, LIMIT)
    return (math.exp(log_r) - 1) - log_r


def reverse_kl(correction: float, live: float, old: float, reference: float, estimator: str) -> float:
    """c rho k: its derivative under samples from pi_old is that of a position's KL(pi || ref)."""
    return correction * token_ratio(live, old) * kl(live, reference, estimator)


def kl_of_answer(old: Floats, reference: Floats) -> float:
    """sum_t k1_t = log pi_old(o) - log ref(o), subtracted from the reward (2009.01325, section 3.4)."""
    return math.fsum(kl(before, there, "k1") for before, there in zip(old, reference, strict=True))


def mismatch(old: float, sampler: float) -> float:
    """log pi_old - log mu; a token whose sampler log-prob is NaN counts as agreed upon."""
    return 0.0 if math.isnan(sampler) else old - sampler


def log_correction_ratio(gaps: Floats, t: int, level: str) -> float:
    """Log of pi_old / mu of token t, of its whole answer, or of that per token; gaps are the answer's mismatches."""
    return {"token": gaps[t], "sequence": math.fsum(gaps), "geometric": average(gaps)}[level]


def correction(ratio: float, kind: str, cap: float) -> float | None:
    """c_t: importance sampling; truncated, min(r, C) (Yao et al. 2025); masked, None = rejected where r > C."""
    if kind == "none":
        return 1.0
    if kind == "is":
        return ratio
    if kind == "tis":
        return min(ratio, cap)
    return ratio if ratio <= cap else None


def effective_share(importance: Floats) -> float:
    """(sum u)^2 / (N sum u^2) (Kish 1965): the effective sample size as a share; 0 where all weights are 0."""
    squares = math.fsum(u * u for u in importance)
    return math.fsum(importance) ** 2 / (len(importance) * squares) if squares else 0.0
