"""The parts of an objective that compare two policies - KL and correction - and what is left out. Imports no torch."""

from collections.abc import Iterator

from upweight.objective.spec import Objective
from upweight.report.records import Formula, Part, Run, latex_number, math, number

_ESTIMATORS = {
    "k1": math("- log r_t", r"-\log r_t"),
    "k2": math("(log r_t)^2 / 2", r"\tfrac{1}{2} (\log r_t)^2"),
    "k3": math("r_t - 1 - log r_t", r"r_t - 1 - \log r_t"),
}

REVERSE, FORWARD = "reverse KL(pi || pi_ref)", "forward KL(pi_ref || pi)"

_DESCENDS = {
    ("naive", "k2"): REVERSE,
    ("naive", "k3"): FORWARD,
    ("reverse", "k1"): REVERSE,
    ("reverse", "k2"): "expectation of k2 under pi, which is not quite a KL",
    ("reverse", "k3"): REVERSE,
}
"""What the expected gradient of the KL term descends, at each position with the prefix held fixed."""


def kl(o: Objective, run: Run) -> Part:
    """Where the KL enters, by which estimator, and which divergence its gradient descends."""
    if o.kl_coef == 0:
        return Part(name="KL", says=("None: kl_coef is 0, and no reference model is loaded.",), facts={"place": None})
    beta = number(o.kl_coef)
    if o.kl_place == "reward":
        return Part(
            name="KL",
            says=(
                f"In the reward: {beta} times the sum of k1 over the answer's tokens is subtracted, after filtering "
                f"and before {'the critic' if o.baseline == 'critic' else 'the group statistics'}.",
                f"Through the advantage, the policy gradient descends the {REVERSE} of whole answers, up to what the "
                "advantage divides by and to the token weights.",
            ),
            facts={"place": "reward", "estimator": "k1", "coefficient": o.kl_coef, "descends": f"{REVERSE} of answers"},
        )
    descends = _DESCENDS.get((o.kl_grad, o.kl_estimator), "nothing: its expected gradient is 0")
    return Part(
        name="KL",
        formulas=(kl_formula(o), math("r_t = pi_ref(o_t) / pi(o_t)", r"r_t = \frac{\pi_{ref}(o_t)}{\pi(o_t)}")),
        says=tuple(_on_kl(o, run, descends)),
        facts={
            "place": "loss",
            "estimator": o.kl_estimator,
            "coefficient": o.kl_coef,
            "gradient": o.kl_grad,
            "descends": descends,
        },
    )


def kl_formula(o: Objective) -> Formula:
    """k_t of a KL in the loss."""
    estimate = _ESTIMATORS[o.kl_estimator]
    if o.kl_grad == "naive":
        return math(f"k_t = {estimate.plain}", f"k_t = {estimate.latex}")
    c = math("c_t ", "c_t ") if o.correction != "none" else math("", "")
    return math(
        f"k_t = {c.plain}(pi(o_t) / pi_old(o_t)) ({estimate.plain})",
        rf"k_t = {c.latex}\frac{{\pi(o_t)}}{{\pi_{{old}}(o_t)}} \left({estimate.latex}\right)",
    )


def _on_kl(o: Objective, run: Run, descends: str) -> Iterator[str]:
    how = (
        "differentiated as it stands"
        if o.kl_grad == "naive"
        else "multiplied by the token's ratio, unclipped, and differentiated with it"
    )
    yield f"{o.kl_estimator}, in the loss, {how}."
    exact = o.correction == "none" or (o.correction == "is" and o.correction_level != "geometric")
    but = "" if exact or o.kl_grad == "naive" else ", up to the correction's own bias"
    yield f"Its expected gradient descends the {descends}, at each position with the prefix held fixed{but}."
    if o.kl_estimator == "k3":
        yield "log r_t is clamped to at most 20, as a whole: beyond it the term stops growing, and pulling."
    if o.kl_grad == "naive" and (o.ratio_moves(run.updates) or o.correction != "none"):
        yield "That holds for tokens sampled from pi; nothing corrects this term for their coming from pi_old or mu."
    if o.correction == "mis":
        yield "A token that the correction drops contributes no KL."


def correction(o: Objective, run: Run) -> Part:
    """What is done about a sampler that is not quite pi_old."""
    if o.correction == "none":
        reason = (
            "the ratio starts from the sampler's log-probabilities, so there is nothing left to correct."
            if o.old_logprobs == "sampler"
            else "the difference between sampler and trainer is measured (`mismatch`) and not corrected."
        )
        return Part(name="correction", says=(f"None (c_t = 1): {reason}",), facts={"kind": "none"})
    base = {
        "token": math("q_t = pi_old(o_t) / mu(o_t)", r"q_t = \frac{\pi_{old}(o_t)}{\mu(o_t)}"),
        "sequence": math(
            "q_t = prod_{u in i} pi_old(o_u) / mu(o_u)", r"q_t = \prod_{u \in i} \frac{\pi_{old}(o_u)}{\mu(o_u)}"
        ),
        "geometric": math(
            "q_t = (prod_{u in i} pi_old(o_u) / mu(o_u))^(1 / L_i)",
            r"q_t = \left(\prod_{u \in i} \frac{\pi_{old}(o_u)}{\mu(o_u)}\right)^{1 / L_i}",
        ),
    }[o.correction_level]
    cap = number(o.correction_cap)
    weight = {
        "is": math("c_t = q_t", "c_t = q_t"),
        "tis": math(f"c_t = min(q_t, {cap})", rf"c_t = \min(q_t, {latex_number(o.correction_cap)})"),
        "mis": math(
            f"c_t = q_t where q_t <= {cap}, else the token is dropped",
            rf"c_t = q_t \cdot 1[q_t \leq {latex_number(o.correction_cap)}]",
        ),
    }[o.correction]
    return Part(
        name="correction",
        formulas=(weight, base),
        says=tuple(_on_corrections(o)),
        facts={
            "kind": o.correction,
            "level": o.correction_level,
            "cap": None if o.correction == "is" else o.correction_cap,
            "importance_weight": o.correction == "is" and o.correction_level != "geometric",
        },
    )


def _on_corrections(o: Objective) -> Iterator[str]:
    yield "mu is the sampler's distribution, by the log-probabilities it reported. c_t carries no gradient."
    if o.correction_level != "token":
        yield "All tokens of an answer have the same q, clamped in log space at +-20."
    if o.correction == "mis":
        denominator = (
            "stays in the denominator"
            if o.masked_tokens == "keep"
            else "leaves the denominator: w is made over the rest"
        )
        yield f"A dropped token contributes neither surrogate nor KL, and {denominator}."
        if o.ratio_level == "sequence" and o.correction_level == "token":
            yield "Its log-probability still moves the answer's ratio, and so has a gradient through the other tokens."
    yield "A token that the sampler did not score counts as if mu agreed with pi_old."


def left_out(o: Objective, run: Run) -> Part:
    """Groups without spread, truncated answers, answers without a score."""
    return Part(
        name="special cases",
        says=(
            *_groups(o, run),
            f"A truncated answer (it used up its budget): {_truncated(o, run)}",
            "An answer that could not be judged: out of its group's mean and std, out of the loss, out of the "
            "denominators; reported as `unscored`, never scored 0.",
        ),
        facts={"filter_groups": o.filter_groups, "resample": o.resample, "truncated": o.truncated},
    )


def _groups(o: Objective, run: Run) -> Iterator[str]:
    if o.filter_groups:
        then = (
            " Sampling goes on until the batch is full of others, within resample_budget rounds." if o.resample else ""
        )
        yield (
            "A group without spread: out of the loss and out of the denominators, decided on the task's reward before "
            f"any shaping.{then}"
        )
    if o.baseline == "critic":
        return
    if not o.filter_groups:
        feels = o.kl_coef > 0 and o.kl_place == "loss"
        what = "feels the KL" if feels else "teaches nothing and costs no backward pass"
        yield f"A group without spread in R: its advantages are exactly 0; it stays in the denominators, and {what}."
        if _punishes(o, run) or (o.kl_coef > 0 and o.kl_place == "reward"):
            yield "R is the shaped reward, so a group that is all right or all wrong may have spread."
    yield "A group with fewer than two scored answers: its advantages are exactly 0."


def _truncated(o: Objective, run: Run) -> str:
    if o.truncated == "mask":
        return "out of the loss and the denominators; its task reward still counts in its group's mean and std."
    shaped = ", less the overlong penalty" if _punishes(o, run) else ""
    return f"trained on like any other, with the reward it got{shaped}."


def _punishes(o: Objective, run: Run) -> bool:
    """Whether there is an overlong penalty."""
    return run.buffer_share is not None if o.overlong_buffer is None else o.overlong_buffer > 0
