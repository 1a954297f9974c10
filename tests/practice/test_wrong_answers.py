"""Classic wrong solutions are refused. Each is the shipped solution with one thing changed."""

import pytest
from judging.case import exercise_file, exercise_names

WRONG = [
    ("group_advantages", "std over n", "(len(scored) - 1)", "len(scored)", "ddof=0"),
    ("group_advantages", "eps left out", "(std + eps)", "max(std, 1e-12)", "eps is missing"),
    ("group_advantages", "equal decimals by subtraction", " or min(scored) == max(scored)", "", "ZeroDivisionError"),
    ("group_advantages", "no score as 0", "if not math.isnan(reward)]", "if 1]", "NaN"),
    ("leave_one_out", "own reward in the baseline", "rewards[:i] + rewards[i + 1 :]", "rewards", "in its baseline"),
    ("leave_one_out", "zero spread decided by subtraction", "min(others) == max(others)", "len(others) < 2", "item 0"),
    ("leave_one_out", "std over n", "(len(others) - 1)", "len(others)", "ddof=0"),
    ("weight_table", "empty answers counted", "sum(length > 0 for length in lengths)", "len(lengths)", "was counted"),
    ("weight_table", "longest answer as budget", "answers * budget]", "answers * max(lengths)]", "from batch to batch"),
    ("weight_table", "unknown mode falls through", 'elif mode == "seq-mean-token-mean":', "elif budget is None:",
     "must raise ValueError"),
    ("scaled_losses", "mean of micro-batch means", "factor * _selected_sum(losses, mask)",
     "_selected_sum(losses, mask) / max(1, sum(mask)) / len(rank)", "mean of micro-batch means"),
    ("scaled_losses", "world size forgotten", "len(ranks) / max", "1 / max", "number of ranks is missing"),
    ("scaled_losses", "mask by multiplication", "loss for loss, counts in zip(losses, mask, strict=True) if counts",
     "loss * counts for loss, counts in zip(losses, mask, strict=True)", "NaN"),
    ("scaled_losses", "denominator before the mask", "sum(sum(mask)", "sum(len(mask)", "still in the denominator"),
    ("clip_higher", "falsy default", "clip if clip_high is None else clip_high", "clip_high or clip", "test for None"),
    ("clip_higher", "probability above 1", "min(1.0, probability * (1 + above))", "probability * (1 + above)",
     "above 1"),
    ("clip_higher", "absolute bound", "probability * (1 + above)", "probability + above", "right is 0.012"),
    ("clip_surrogate", "no min", "if clipped < free:", "if clipped != free:", "min of the two was not taken"),
    ("clip_surrogate", "gradient goes on", "return clipped, 0.0", "return clipped, free", "does not stop"),
    ("clip_surrogate", "no clamp", "min(max(log_ratio, -20.0), 20.0)", "log_ratio", "OverflowError"),
    ("dual_clip", "for good tokens too", "advantage < 0 and min(free, clipped) < ceiling * advantage",
     "ratio > ceiling", "applied to A > 0"),
    ("dual_clip", "any ceiling", "if not ceiling > 1:", "if ceiling < 0:", "must raise ValueError"),
    ("dual_clip", "no floor", "if advantage < 0 and", "if False and", "there is no floor"),
    ("cispo", "absolute cap", "1 + clip_high)", "clip_high)", "0.28 itself"),
    ("cispo", "gradient zero above the cap", "-weight * advantage\n",
     "-weight * advantage * (ratio <= 1 + clip_high)\n", "gradient survives"),
    ("cispo", "log pi forgotten", "return -weight * advantage * logprob", "return -weight * advantage",
     "log pi is missing from"),
    ("cispo", "weight not clipped", "min(max(ratio, 1 - clip), 1 + clip_high)", "ratio", "not clipped"),
    ("sequence_ratio", "product", "math.fsum(log_ratios) / len(log_ratios)", "math.fsum(log_ratios)", "the product"),
    ("sequence_ratio", "padded length", "/ len(log_ratios)", "/ len(mask)", "counted in the length"),
    ("sequence_ratio", "product, then root", "mean = math.fsum(log_ratios) / len(log_ratios)",
     "mean = math.log(math.prod(map(math.exp, log_ratios))) / len(log_ratios)", "is 485165195.4, right is 1.5"),
    ("kl_estimators", "the ratio turned round", "ref_logprob - logprob", "logprob - ref_logprob", "turned round"),
    ("kl_estimators", "digits lost", "math.expm1(bounded)", "math.exp(bounded) - 1", "right is 5e-19"),
    ("kl_estimators", "bound on exp alone", "- bounded", "- log_ratio", "only the exponential"),
    ("expected_gradients", "k3 taken for the KL's", "(1 - reference_chance / chance) * score", "-log_ratio * score",
     "forward KL"),
    ("expected_gradients", "the samples differentiated", "k1 += chance * score", "k1 += chance * score * -log_ratio",
     "item 0"),
    ("correction_weights", "tis drops", 'return cap if kind == "tis" else 0.0', "return 0.0", "which is MIS"),
    ("correction_weights", "mis truncates", 'return cap if kind == "tis" else 0.0', "return cap", "which is TIS"),
    ("correction_weights", "NaN goes on", "0.0 if math.isnan(sampler) else old - sampler", "old - sampler",
     "item 1 is 2.0, right is 1.0"),
    ("correction_weights", "geometric for sequence", "[math.fsum(log_ratios)]",
     "[math.fsum(log_ratios) / len(log_ratios)]", "no importance weight"),
    ("correction_weights", "drops at the cap", "ratio <= cap", "ratio < cap", "right is 2"),
    ("masked_loss", "mask by multiplication", "logprobs[keep] - old_logprobs[keep]).exp()\n    return -(ratio"
     " * advantages[keep])", "logprobs - old_logprobs).exp()\n    return -(ratio * advantages * mask)", "loss is NaN"),
    ("masked_loss", "selected after the arithmetic", "logprobs[keep] - old_logprobs[keep]).exp()\n    return -(ratio"
     " * advantages[keep])", "logprobs - old_logprobs).exp()\n    return -(ratio * advantages).where(keep, 0.0)",
     "gradient, item 1 is NaN"),
    ("masked_loss", "padded length", "keep.sum().clamp(min=1)", "len(keep)", "still in the denominator"),
    ("masked_loss", "ratio detached", ".exp()\n", ".exp().detach()\n", "nothing trains"),
    ("masked_loss", "empty mask divides by 0", ".clamp(min=1)", "", "loss is NaN"),
    ("gae", "the mask is not read", "if mask[t]:", "if True:", "NaN"),
    ("gae", "lambda missing", "gamma * lam * next_advantage", "gamma * next_advantage", "lambda is missing"),
    ("gae", "the pad's value leaks in", "next_value, next_advantage = values[t], delta",
     "next_value, next_advantage = values[max(0, t - 1)], delta", "item 0"),
    ("gae", "the value after a gap", "next_value = next_advantage = 0.0",
     "next_value, next_advantage = (values or [0.0])[-1], 0.0", "leaked in"),
    ("fill_batch", "by the mean", "min(scored) < max(scored)", "0 < sum(scored) / len(scored) < 1", "by the mean"),
    ("fill_batch", "no budget", "for _ in range(budget):", "while True:", "OverBudget"),
    ("fill_batch", "NaN as a value", "if not math.isnan(reward)]", "if 1]", "kept has 0 items"),
    ("fill_batch", "different values by a set", "min(scored) < max(scored)", "len(set(group)) > 1",
     "kept has 2 items, and 1 are right"),
    ("fill_batch", "one call too many", "        if len(kept) >= wanted:\n            break\n", "", "calls is"),
    ("overlong_penalty", "no end", "-1.0 if excess >= buffer else -excess / buffer", "-excess / max(1, buffer)",
     "no end"),
    ("overlong_penalty", "off by one", "length - (max_length - buffer)", "length + 1 - (max_length - buffer)",
     "right is 0"),
    ("overlong_penalty", "no step", "-1.0 if excess >= buffer else -excess / buffer", "max(-1.0, -excess / buffer)",
     "ZeroDivisionError"),
    ("pass_at_k", "with replacement", "(draws - math.comb(n - c, k)) / draws", "1 - (1 - c / n) ** k", "is biased"),
    ("pass_at_k", "floats too early", "(draws - math.comb(n - c, k)) / draws", "1 - float(math.comb(n - c, k)) / draws",
     "OverflowError"),
    ("pass_at_k", "no check", "if not (0 <= c <= n and 1 <= k <= n):", "if n < 0:", "must raise ValueError"),
    ("last_boxed", "first box", "text.rfind", "text.find", "right is '4'"),
    ("last_boxed", "first closing brace", '{"{": 1, "}": -1}', '{"}": -1}', "not the box's"),
    ("last_boxed", "escaped braces counted", '2 if character == "\\\\" else 1', "1", "right is 'x "),
    ("last_boxed", "broken box taken", "    return None\n", "    return text[start:].strip()\n", "never closed"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "label", "old", "new", "said"), WRONG, ids=[f"{row[0]}: {row[1]}" for row in WRONG])
def test_a_classic_mistake_is_refused_and_named(
    name: str, label: str, old: str, new: str, said: str, judge_source
) -> None:
    source = exercise_file(name, "solutions").read_text()
    assert old in source, f"{label}: the solution no longer holds what is to be changed"
    verdict = judge_source(name, source.replace(old, new))
    told = " / ".join(f"{one['message']} (got {one['got']})" for one in verdict["failures"])
    assert verdict["note"] == ""
    assert said in told


def test_every_exercise_has_a_classic_mistake() -> None:
    assert {row[0] for row in WRONG} == set(exercise_names())
