"""One wrong formula each: the text as it stands, which must occur once in its file, and what replaces it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A fault, put into one module of the maths."""

    name: str
    module: str
    """File name in `upweight/objective`, without `.py`."""

    edits: tuple[tuple[str, str], ...]
    """(text as it stands, text instead)."""


def fault(name: str, module: str, *texts: str) -> Mutation:
    """Texts alternate: as it stands, instead."""
    return Mutation(name, module, tuple(zip(texts[::2], texts[1::2], strict=True)))


MUTATIONS = (
    fault("std divides by n", "advantage", "(values.numel() - ddof)).sqrt()", "values.numel()).sqrt()"),
    fault("eps inside the root", "advantage", "torch.where(std > 0, std + eps, 1.0)", "(std.square() + eps).sqrt()"),
    fault("leave-one-out factor upside down", "advantage", "centred * (n / (n - 1))", "centred * ((n - 1) / n)"),
    fault(
        "leave-one-out: std of all instead of the others",
        "advantage",
        "torch.stack([_std(row, ddof) for row in others])",
        "_std(rewards, ddof)",
    ),
    fault(
        "no score is a zero",
        "advantage",
        "scored = ~values.isnan()",
        "values = values.nan_to_num()\n    scored = torch.ones_like(values, dtype=torch.bool)",
    ),
    fault(
        "batch std of the centred rewards", "advantage", "_std(values[scored], ddof)", "_std(advantages[scored], ddof)"
    ),
    fault("equal rewards not compared", "advantage", "if n < 2 or rewards.min() == rewards.max():", "if n < 2:"),
    fault("gae: gamma missing", "advantage", "delta + gamma * lam * next_advantage", "delta + lam * next_advantage"),
    fault(
        "gae: missing mask",
        "advantage",
        "next_value = torch.where(kept[:, t], values[:, t], next_value)",
        "next_value = values[:, t]",
    ),
    fault(
        "token-mean: local denominator",
        "weights",
        "return counted / counted.sum().clamp(min=1)",
        "return counted / counted.new_tensor([(seq_id == one).sum() for one in seq_id])",
    ),
    fault(
        "sum-norm: length from the longest answer",
        "weights",
        "counted / (answers * max_length)",
        "counted / (answers * segment_sum(counted, index, count).amax(0) if count else 1)",
    ),
    fault("answers without a token are counted", "weights", "(sizes > 0).sum().clamp(min=1)", "max(count, 1)"),
    fault(
        "missing clamp of the log-ratio",
        "ratio",
        "log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()",
        "log_ratio.exp()",
    ),
    fault(
        "sequence ratio: product, not geometric mean",
        "ratio",
        "log_ratio = segment_mean(logprobs - old_logprobs, index, count)[index]",
        "log_ratio = (logprobs.new_zeros(count).index_add(0, index, logprobs - old_logprobs))[index]",
    ),
    fault(
        "gspo-token: missing detach",
        "ratio",
        "log_ratio.detach() + (logprobs - logprobs.detach())",
        "log_ratio + (logprobs - logprobs.detach())",
    ),
    fault(
        "clip on the wrong side",
        "surrogate",
        "below = (advantages < 0) & (ratio < low)",
        "below = (advantages > 0) & (ratio < low)",
    ),
    fault(
        "dual clip for A > 0",
        "surrogate",
        "dual = (advantages < 0) & (ratio > dual_clip)",
        "dual = (advantages > 0) & (ratio > dual_clip)",
    ),
    fault(
        "cispo: absolute cap",
        "surrogate",
        "value = ratio.clamp(low, high) * advantages * logprobs",
        "value = ratio.clamp(max=high - 1) * advantages * logprobs",
    ),
    fault(
        "cispo: missing detach",
        "surrogate",
        "advantages, ratio = advantages.detach(), ratio.detach()",
        "advantages = advantages.detach()",
    ),
    fault(
        "high bound ignored", "spec", "return 1.0 - self.clip, 1.0 + high", "return 1.0 - self.clip, 1.0 + self.clip"
    ),
    fault(
        "kl the other way round",
        "kl",
        "log_ratio = ref_logprobs.detach() - logprobs",
        "log_ratio = logprobs - ref_logprobs.detach()",
    ),
    fault("k3: sign", "kl", "log_ratio.expm1() - log_ratio", "log_ratio.expm1() + log_ratio"),
    fault("k3: missing clamp", "kl", "log_ratio = log_ratio.clamp(max=LOG_RATIO_LIMIT)", "log_ratio = log_ratio + 0"),
    fault("k2 without its half", "kl", "log_ratio.square() / 2", "log_ratio.square()"),
    fault(
        "mis drops what is below the cap",
        "correction",
        "torch.where(ratio <= cap, ratio, 0.0), rejected=ratio > cap",
        "torch.where(ratio >= cap, ratio, 0.0), rejected=ratio < cap",
    ),
    fault("tis: max instead of min", "correction", "ratio.clamp(max=cap)", "ratio.clamp(min=cap)"),
    fault(
        "product and geometric mean swapped",
        "correction",
        'segment_sum if level == "sequence" else segment_mean',
        'segment_mean if level == "sequence" else segment_sum',
    ),
    fault(
        "a sampler's NaN is passed on",
        "correction",
        "torch.where(sampler_logprobs.isnan(), 0.0, old_logprobs - sampler_logprobs)",
        "(old_logprobs - sampler_logprobs)",
    ),
    fault(
        "sign of the surrogate",
        "loss",
        "contribution = -correction.weight * torch.where(",
        "contribution = correction.weight * torch.where(",
    ),
    fault(
        "first update: old log-probs not detached",
        "loss",
        "old = logprobs.detach() if old_logprobs is None",
        "old = logprobs if old_logprobs is None",
    ),
    fault(
        "correction not detached: it reads the current policy",
        "loss",
        "correction = correction_terms(\n        old,",
        "correction = correction_terms(\n        logprobs,",
        "contribution = -correction.weight * torch.where(",
        "contribution = -(correction.weight * (logprobs - logprobs.detach()).exp()) * torch.where(",
    ),
    fault("kl not multiplied by c", "loss", "kl = correction.weight * ratio_from_log(", "kl = ratio_from_log("),
    fault(
        "reverse kl: ratio detached",
        "loss",
        "ratio_from_log(token_log_ratio(logprobs, old)) * kl",
        "ratio_from_log(token_log_ratio(logprobs, old)).detach() * kl",
    ),
    fault("rejected tokens keep their kl", "loss", "return torch.where(correction.rejected, 0.0, kl)", "return kl"),
    fault(
        "kl metric counts rejected tokens",
        "loss",
        "objective.kl_estimator)[~correction.rejected]",
        "objective.kl_estimator)",
    ),
    fault(
        "metrics of answers counted by token",
        "loss",
        "share = kept / segment_sum(kept, index, count).clamp(min=1)[index]",
        "share = kept",
    ),
    fault(
        "grpo_loss: missing mask",
        "dense",
        'kept = as_mask(mask, "grpo_loss")',
        'kept = torch.ones_like(as_mask(mask, "grpo_loss"))',
    ),
    fault("masked_tokens valid ignored", "dense", 'if objective.masked_tokens == "valid":', "if False:"),
    fault("overlong: starts at the budget", "shaping", "lengths - (max_length - buffer)", "lengths - max_length"),
    fault("kl in the reward by k3", "shaping", '"k1").detach()', '"k3").detach()'),
    fault("ess: mean not squared", "metrics", "mean * mean / mean_sq", "mean / mean_sq"),
)
