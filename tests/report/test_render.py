"""The LaTeX of an explanation: what stands in maths, what is something to type, and what is left out."""

import dataclasses
import re

import pytest
from matplotlib.mathtext import MathTextParser

from upweight.cli.explain import read
from upweight.objective.presets import PRESETS
from upweight.report.explain import Explanation
from upweight.report.render import TITLES, as_latex, as_text

ODD = (
    "--surrogate none --minibatches 2",
    "--dual_clip 3 --ratio_level sequence --epochs_per_batch 2",
    "--kl_grad reverse --kl_estimator k1 --correction tis --correction_level sequence",
    "--kl_grad reverse --kl_estimator k2 --correction mis --masked_tokens valid --correction_level geometric",
    "--kl_place reward --overlong_buffer 20 --max_new_tokens 100 --truncated mask",
    "--correction is --correction_level geometric --kl_estimator k2",
    "--baseline leave-one-out --group_size 2 --adv_eps 1e-7",
    "--adv_norm batch --adv_ddof 0 --adv_eps 0",
    "--adv_norm none --old_logprobs sampler --temperature 0.7 --top_p 0.9 --top_k 50",
    "--loss_agg group-mean-token-mean --filter_groups true --resample true --surrogate cispo",
    "--baseline critic --gae_lambda 0.9 --kl_coef 1e-5",
    "--preset gspo --minibatches 4 --clip 1e-10",
    "--like trl --delta 1.1 --loss_type bnpo --gradient_accumulation_steps 4 --beta 0.04 --use_vllm true",
    "--like verl",
    "--like verl rollout_correction.bypass_mode=true rollout_correction.loss_type=reinforce lam=1e-3",
    "--like openrlhf --algo.advantage.estimator group_norm --algo.kl.use_loss true --algo.kl.estimator k3",
)
"""Objectives that between them say nearly everything that can be said."""


def explained(line: str) -> Explanation:
    return read(line.split())[1]


def told(sentence: str) -> str:
    """A sentence as the LaTeX fragment holds it."""
    explanation = dataclasses.replace(explained("--preset grpo"), translation=(sentence,))
    return as_latex(explanation).partition("\\paragraph{Translated.}\n")[2].partition("\n")[0]


@pytest.mark.parametrize("line", [*(f"--preset {name}" for name in PRESETS), *ODD])
def test_the_prose_of_the_latex_has_its_symbols_in_maths_and_nothing_raw(line: str) -> None:
    latex = as_latex(explained(line))
    prose = latex.partition(r"\end{align}")[2]
    formulas = re.findall(r"\$([^$]*)\$", prose)
    assert formulas
    assert prose.count("$") == 2 * len(formulas)
    text = re.sub(r"\\texttt\{(?:\\.|\{-\}|[^{}])*\}|\$[^$]*\$", "", prose)
    raw = r"\|\||[<>|`^~]|\+-|--|\d[eE][+-]?\d|(?<!\\)[%&#_]"
    assert re.findall(raw, text) == []
    assert re.findall(r"\b(?:pi|mu|rho)\b|\bKL\(|\b[A-Za-z]\\_(?:[a-z]|max)\b", text) == []
    parser = MathTextParser("agg")
    for formula in formulas:
        parser.parse(f"${formula}$")
    assert re.findall(r"\|\||\+-|<=|>=|\de-|_\{(?:old|ref)\}", "".join(formulas)) == []


@pytest.mark.parametrize(
    ("sentence", "latex"),
    [
        ("where A_i < 0 and rho_t > 1.2.", r"where $A_i < 0$ and $\rho_t > 1.2$."),
        ("is s_i A_i / L_i times that of log pi(o_u), K_j", r"is $s_i A_i / L_i$ times that of $\log \pi(o_u)$, $K_j$"),
        ("None (c_t = 1): w_t <= 1e-06", r"None ($c_t = 1$): $w_t \leq 10^{-6}$"),
        ("the KL(pi || pi_ref) of mu", r"the $\mathrm{KL}(\pi \,\|\, \pi_{\mathrm{ref}})$ of $\mu$"),
        ("pi_old and pi", r"$\pi_{\mathrm{old}}$ and $\pi$"),
        ("log r_t, k_t and R_i up to L_max", r"$\log r_t$, $k_t$ and $R_i$ up to $L_{\max}$"),
        ("clamped to +-20, down to -1", r"clamped to $\pm 20$, down to $-1$"),
        ("for A > 0, adv_eps=2.5e-07", r"for $A > 0$, adv\_eps=$2.5 \cdot 10^{-7}$"),
        ("as --minibatches 4 or `--top_p 1`", r"as {-}{-}minibatches 4 or \texttt{{-}{-}top\_p 1}"),
        ("kl_penalty=k1+: k_p, a|b, x >= y", r"kl\_penalty=k1+: $k_p$, a\textbar{}b, x $\geq$ y"),
        ("50% of {it} is_wrong & #1 $", r"50\% of \{it\} is\_wrong \& \#1 \$"),
        ("a ^ b ~ c", r"a \textasciicircum{} b \textasciitilde{} c"),
        ("spirals, mutual, top_p, pi-rate", r"spirals, mutual, top\_p, $\pi$-rate"),
    ],
)
def test_a_sentence_is_set_as_a_paper_would(sentence: str, latex: str) -> None:
    assert told(sentence) == latex


@pytest.mark.parametrize("line", [*(f"--preset {name}" for name in PRESETS), *ODD])
def test_the_equations_of_the_latex_are_aligned_and_their_subscripts_upright(line: str) -> None:
    equations = as_latex(explained(line)).partition(r"\begin{align}")[2].partition(r"\end{align}")[0]
    lines = equations.strip().splitlines()
    assert all("&=" in equation for equation in lines)
    assert [equation.endswith(r"\\") for equation in lines] == [True] * (len(lines) - 1) + [False]
    assert re.findall(r"_\{(?:old|ref)\}", equations) == []
    assert r"\pi_{\mathrm{old}}" in equations


def test_what_contradicts_is_in_the_text_and_in_no_paper() -> None:
    explanation = explained("--kl_estimator k1")
    (sentence,) = explanation.contradictions
    assert TITLES["contradictions"] in as_text(explanation)
    assert sentence.split(".")[0] in re.sub(r"\s+", " ", as_text(explanation))
    assert "ontradict" not in as_latex(explanation)
    assert as_latex(dataclasses.replace(explanation, contradictions=())) == as_latex(explanation)
