"""The parts of an objective, each as formulas and as sentences. Imports no torch.

Symbols: t is a sampled token, i = i(t) its answer, g = g(i) the answer's group, L_i the answer's trainable tokens;
R reward, A advantage, w weight, rho or s ratio, f surrogate, c correction, k KL; pi the policy, pi_old the one before
the step's first update, pi_ref the reference, mu the sampler. Every function takes the objective and the run.
"""

from collections.abc import Iterator

from upweight.objective.spec import Objective
from upweight.report.records import Formula, Part, Run, latex_number, math, number

RATIO = {"token": math("rho_t", r"\rho_t"), "sequence": math("s_i", "s_i")}
"""The ratio's symbol, by level."""


def reward(o: Objective, run: Run) -> Part:
    """What the advantage is made of."""
    plain, latex, more = "R_i = r_i", "R_i = r_i", []
    says = ["r_i is the task's reward of answer i, as the verifier gave it."]
    if buffer := _buffer(o, run):
        plain, latex = f"{plain} + P_i", f"{latex} + P_i"
        more.append(_overlong(buffer, run))
        says.append("P_i is the overlong penalty: 0 until the buffer begins, then linear down to -1 at the budget.")
        if o.truncated == "mask":
            says.append("Answers that used up the budget are taken out, and get none.")
        if run.max_new_tokens is None:
            says.append("L_max is max_new_tokens, the generation budget in tokens; where not given, the task says.")
    if o.kl_coef > 0 and o.kl_place == "reward":
        plain += f" - {number(o.kl_coef)} sum_{{t in i}} log(pi_old(o_t) / pi_ref(o_t))"
        latex += rf" - {latex_number(o.kl_coef)} \sum_{{t \in i}} \log\frac{{\pi_{{old}}(o_t)}}{{\pi_{{ref}}(o_t)}}"
        says.append("The sum is k1 over the answer's tokens, a number without a gradient: see KL.")
        if o.filter_groups or o.truncated == "mask":
            says.append("Answers that are taken out of the loss have no KL subtracted.")
    return Part(
        name="reward",
        formulas=(math(plain, latex), *more),
        says=tuple(says),
        facts={"overlong_buffer": buffer.plain if buffer else None},
    )


def _buffer(o: Objective, run: Run) -> Formula | None:
    """The overlong buffer in tokens; how it follows from the budget where that is not known; None for none."""
    if o.overlong_buffer is None and run.buffer_share is not None:
        return math(f"floor(L_max / {run.buffer_share})", rf"\lfloor L_{{\max}} / {run.buffer_share} \rfloor")
    return math(str(o.overlong_buffer), str(o.overlong_buffer)) if o.overlong_buffer else None


def _overlong(buffer: Formula, run: Run) -> Formula:
    most = _budget(run)
    return math(
        f"P_i = - clip((L_i - ({most.plain} - B)) / B, 0, 1),  B = {buffer.plain}",
        r"P_i = -\operatorname{clip}\left(\frac{L_i - (" + most.latex + r" - B)}{B},\, 0,\, 1\right),"
        rf"\quad B = {buffer.latex}",
    )


def _budget(run: Run) -> Formula:
    if run.max_new_tokens is None:
        return math("L_max", r"L_{\max}")
    return math(str(run.max_new_tokens), str(run.max_new_tokens))


def advantage(o: Objective, run: Run) -> Part:
    """How much better than expected an answer did."""
    if o.baseline == "critic":
        return _critic(o)
    alone = o.baseline == "leave-one-out"
    others = ("{j in g, j != i}", r"{j \in g,\, j \neq i}") if alone else ("g", "g")
    spread = ("batch", r"{\mathrm{batch}}") if o.adv_norm == "batch" else others
    plain, latex = f"R_i - mean_{others[0]}(R)", rf"R_i - \operatorname{{mean}}_{others[1]}(R)"
    if o.adv_norm != "none":
        eps = (f" + {number(o.adv_eps)}", f" + {latex_number(o.adv_eps)}") if o.adv_eps else ("", "")
        plain = f"({plain}) / (std_{spread[0]}(R){eps[0]})"
        latex = rf"\frac{{{latex}}}{{\operatorname{{std}}_{spread[1]}(R){eps[1]}}}"
    return Part(
        name="advantage",
        formulas=(math(f"A_i = {plain}", f"A_i = {latex}"),),
        says=tuple(_on_advantages(o, run)),
        facts={
            "baseline": o.baseline,
            "std_over": {"std": "the others of the group" if alone else "group", "batch": "step", "none": None}[
                o.adv_norm
            ],
            "ddof": None if o.adv_norm == "none" else o.adv_ddof,
            "eps": None if o.adv_norm == "none" else o.adv_eps,
        },
    )


def _on_advantages(o: Objective, run: Run) -> Iterator[str]:
    whom = (
        "the other scored answers of i's group" if o.baseline == "leave-one-out" else "the scored answers of i's group"
    )
    yield f"The mean is over {whom} (G = {run.group_size} are sampled)."
    if o.adv_norm == "none":
        yield "Nothing is divided by a std."
    else:
        divisor = "n" if o.adv_ddof == 0 else f"n - {o.adv_ddof}"
        where = "all scored answers of the step" if o.adv_norm == "batch" else whom
        yield (
            f"The std is over {where}, with ddof = {o.adv_ddof}: the squares are divided by {divisor}. "
            f"eps = {number(o.adv_eps)} is added to the std, not to the variance; where the std is 0, nothing is "
            f"divided."
        )
    yield "Every token of an answer has the answer's advantage. No gradient goes through it."


def _critic(o: Objective) -> Part:
    lam = ("", "") if o.gae_lambda == 1 else (f"{number(o.gae_lambda)}^l ", rf"{number(o.gae_lambda)}^l\, ")
    return Part(
        name="advantage",
        formulas=(
            math(
                f"A_t = sum_{{l >= 0}} {lam[0]}delta_{{t+l}}",
                rf"A_t = \sum_{{l \geq 0}} {lam[1]}\delta_{{t+l}}",
            ),
            math("delta_t = R_t + V_{t+1} - V_t", r"\delta_t = R_t + V_{t+1} - V_t"),
        ),
        says=(
            f"Generalised advantage estimation with gamma = 1, lambda = {number(o.gae_lambda)} over the answer's "
            f"trainable tokens (arXiv 1506.02438, equations 11 and 16): R_t is the answer's reward on its last token "
            f"and 0 before, V the critic's value, 0 after the end.",
        ),
        facts={"baseline": "critic", "gae_lambda": o.gae_lambda, "gamma": 1.0},
    )


def weight(o: Objective, run: Run) -> Part:
    """A token's coefficient, and what its denominator counts."""
    valid = o.correction == "mis" and o.masked_tokens == "valid"
    size, tokens = ("K", "kept tokens") if valid else ("L", "trainable tokens")
    formula, counted = {
        "token-mean": (
            math(f"w_t = 1 / sum_j {size}_j", rf"w_t = \frac{{1}}{{\sum_j {size}_j}}"),
            f"all {tokens} of the update",
        ),
        "seq-mean-token-mean": (
            math(f"w_t = 1 / (N {size}_i)", rf"w_t = \frac{{1}}{{N\, {size}_i}}"),
            f"the N answers of the update, and within an answer its {tokens}",
        ),
        "seq-mean-token-sum-norm": (
            math(f"w_t = 1 / (N {_budget(run).plain})", rf"w_t = \frac{{1}}{{N\, {_budget(run).latex}}}"),
            "the N answers of the update, and a constant, the generation budget in tokens",
        ),
        "group-mean-token-mean": (
            math(f"w_t = 1 / (P sum_{{j in g}} {size}_j)", rf"w_t = \frac{{1}}{{P \sum_{{j \in g}} {size}_j}}"),
            f"the P groups of the update, and within a group its {tokens}",
        ),
    }[o.loss_agg]
    when = "after one pass for pi_old and before the first update" if valid else "before any forward pass"
    kept = ("K_j are the trainable tokens of answer j that the correction keeps; a dropped one has w_t = 0.",)
    return Part(
        name="weight",
        formulas=(formula,),
        says=(
            f"The denominator counts {counted}.",
            *(kept if valid else ()),
            f"An update is {_of_a_batch(run)}. w is made over everything that feeds it, all micro-batches and all "
            f"ranks, {when}: so the gradient does not depend on how the batch is cut.",
            *_not_counted(o, valid),
        ),
        facts={"mode": o.loss_agg, "denominator": counted},
    )


def _of_a_batch(run: Run) -> str:
    if run.minibatches == 1:
        part = "the whole batch"
    else:
        part = f"one of {run.minibatches} parts of the batch, split by prompt"
    return part if run.epochs_per_batch == 1 else f"{part}; each is gone through {run.epochs_per_batch} times"


def _not_counted(o: Objective, valid: bool) -> Iterator[str]:
    out = ["answers without a score"]
    if o.filter_groups:
        out.append("groups without spread")
    if o.truncated == "mask":
        out.append("answers that used up their budget")
    if valid:
        out.append("tokens that the correction drops")
    yield f"Not counted: {', '.join(out)}; and answers or groups without any counted token."


def ratio(o: Objective, run: Run) -> Part:
    """The importance ratio and its bounds."""
    token = o.ratio_level == "token"
    formula = (
        math("rho_t = pi(o_t) / pi_old(o_t)", r"\rho_t = \frac{\pi(o_t)}{\pi_{old}(o_t)}")
        if token
        else math(
            "s_i = (prod_{t in i} pi(o_t) / pi_old(o_t))^(1 / L_i)",
            r"s_i = \left(\prod_{t \in i} \frac{\pi(o_t)}{\pi_{old}(o_t)}\right)^{1 / L_i}",
        )
    )
    low, high = o.bounds
    return Part(
        name="ratio",
        formulas=(formula,),
        says=(
            "One ratio per token." if token else "One ratio per answer, the geometric mean over its tokens (GSPO).",
            _old_policy(o, run),
            f"Probabilities are those of the distribution that was sampled from: {_sampled_from(run)}.",
            "The log-ratio is clamped to +-20 before exp.",
            "Nothing bounds it." if o.surrogate == "none" else f"Bounds: {number(low)} and {number(high)}.",
        ),
        facts={
            "level": o.ratio_level,
            "low": None if o.surrogate == "none" else low,
            "high": None if o.surrogate == "none" else high,
            "always_1": not o.ratio_moves(run.updates),
            "pi_old": "sampler" if o.old_logprobs == "sampler" else "trainer",
        },
    )


def _old_policy(o: Objective, run: Run) -> str:
    if o.old_logprobs == "sampler":
        return "pi_old is the sampler's own log-probabilities: its difference from the trainer's is in the ratio."
    if run.updates == 1 and o.asks_for_old_logprobs:
        return "pi_old is a pass before the update: with one update per batch the ratio is 1 up to rounding."
    if run.updates == 1:
        return "pi_old is the pass's own log-probabilities, detached: with one update per batch the ratio is exactly 1."
    return "pi_old is the trainer's own forward pass before the first update, not what the sampler reported."


def _sampled_from(run: Run) -> str:
    words = f"temperature {number(run.temperature)}"
    if run.top_p < 1:
        words += f", top_p {number(run.top_p)}"
    if run.top_k > 0:
        words += f", top_k {run.top_k}"
    return words if run.top_p == 1 and run.top_k == 0 else f"{words}, over the tokens that each one was chosen among"


def surrogate(o: Objective, run: Run) -> Part:
    """What is maximised, and where its gradient stops."""
    return Part(
        name="surrogate",
        formulas=(surrogate_formula(o),),
        says=tuple(_on_surrogates(o)),
        facts={"kind": o.surrogate, "dual_clip": o.dual_clip if o.surrogate == "clip" else None},
    )


def surrogate_formula(o: Objective) -> Formula:
    """f_t, with its bounds in numbers."""
    rho, value = RATIO[o.ratio_level], "A_t" if o.baseline == "critic" else "A_i"
    low, high = map(number, o.bounds)
    cut = math(f"clip({rho.plain}, {low}, {high})", rf"\operatorname{{clip}}({rho.latex},\, {low},\, {high})")
    if o.surrogate == "none":
        return math(f"f_t = {rho.plain} {value}", f"f_t = {rho.latex} {value}")
    if o.surrogate == "cispo":
        return math(
            f"f_t = sg[{cut.plain}] {value} log pi(o_t)",
            rf"f_t = \mathrm{{sg}}\left[{cut.latex}\right] {value} \log \pi(o_t)",
        )
    plain = f"min({rho.plain} {value}, {cut.plain} {value})"
    latex = rf"\min\left({rho.latex} {value},\, {cut.latex}\, {value}\right)"
    if o.dual_clip is not None:
        floor = number(o.dual_clip)
        plain = f"max({plain}, {floor} {value}) where {value} < 0, else {plain}"
        latex = (
            rf"\max\left({latex},\, {floor} {value}\right) \;\mathrm{{where}}\; {value} < 0,\;\mathrm{{else}}\; {latex}"
        )
    return math(f"f_t = {plain}", f"f_t = {latex}")


def _on_surrogates(o: Objective) -> Iterator[str]:
    rho, value = RATIO[o.ratio_level].plain, "A_t" if o.baseline == "critic" else "A_i"
    low, high = map(number, o.bounds)
    if o.surrogate == "cispo":
        yield (
            f"The weight is cut to [{low}, {high}] and carries no gradient (sg), so every token keeps its own: the cut "
            f"weight times {value} times that of log pi(o_t). It stops nowhere."
        )
        return
    if o.ratio_level == "sequence":
        yield (
            f"The gradient of f is {rho} {value} / L_i times that of log pi(o_u), summed over the answer's tokens u: "
            f"an answer moves as a whole."
        )
    else:
        yield f"The gradient of f is {rho} {value} times that of log pi(o_t)."
    if o.surrogate == "none":
        yield "It stops nowhere but at the clamp of the log-ratio."
        return
    other = "" if o.dual_clip is not None else " On the other side nothing stops it."
    never = " The lower bound is never met, as no ratio is below 0." if float(low) <= 0 else ""
    whole = "whole answer" if o.ratio_level == "sequence" else "token"
    yield (
        f"It stops, for the {whole}, where {value} > 0 and {rho} > {high}, or {value} < 0 and {rho} < {low}: past the "
        f"bound on the side it is pushed to.{other}{never}"
    )
    if o.dual_clip is not None:
        yield f"Dual clip: it stops as well where {value} < 0 and {rho} > {number(o.dual_clip)} (arXiv 1912.09729)."
