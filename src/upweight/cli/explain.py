"""`upweight explain`: the objective that flags give, in readable mathematics. Imports no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from upweight.cli.flags import Call, resolve
from upweight.objective.errors import UsageError
from upweight.objective.presets import DAPO_BUFFER_SHARE
from upweight.report.explain import Explanation, explain
from upweight.report.records import Run
from upweight.report.render import as_latex, as_text
from upweight.train.args import TrainArgs
from upweight.train.check import conflicts_of, wrong_values

PROGRAM = "upweight explain"

DESCRIPTION = """Print the objective that these flags give: its formulas and what they leave out, what has no effect in
this combination, its biases, where it differs from the paper it is named after, and what contradicts.

It takes the flags of `upweight train`, so a command can be explained before it is run; an objective that `train`
refuses is explained as well, with exit code 2.

examples:
  upweight explain --preset gspo --minibatches 4
  upweight explain --kl_grad reverse --correction tis --latex
  upweight explain --like trl --loss_type cispo --epsilon_high 5 --beta 0 --json"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainCall(Call):
    """One call of `upweight explain`."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print it as JSON."""

    latex: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print it as a LaTeX fragment (amsmath)."""


def run(argv: Sequence[str]) -> int:
    """Explain an objective.

    Args:
        argv: what follows `upweight explain`.

    Returns:
        0.

    Raises:
        UsageError: a value of a wrong type or out of its range, before anything is printed; or, after the explanation,
            choices that contradict each other.
        SystemExit: 0 after `--help`.
    """
    call, explanation = read(argv)
    if call.json:
        print(json.dumps(explanation.as_json(), indent=2))
    else:
        print(as_latex(explanation) if call.latex else as_text(explanation), end="")
    if explanation.contradictions:
        raise UsageError("\n".join(explanation.contradictions))
    return 0


def read(argv: Sequence[str]) -> tuple[ExplainCall, Explanation]:
    """What a command line asks for, and the explanation it gets.

    Example:
        >>> read(["--preset", "dr-grpo", "--max_new_tokens", "64"])[1].parts[2].formulas[0].plain
        'w_t = 1 / (N 64)'
    """
    call, translation = resolve(argv, ExplainCall, PROGRAM, DESCRIPTION)
    if call.json and call.latex:
        raise UsageError("--json and --latex are two forms of the same thing. Leave one of them out.")
    if problems := wrong_values(call.args):
        raise UsageError("\n".join(problems))
    return call, explain(
        call.args.objective,
        _run_of(call.args, started_from_preset=translation is None),
        preset="" if translation else call.args.preset,
        name=f"like {call.like}" if translation else "",
        translation=translation.says if translation else (),
        unmatched=translation.unmatched if translation else (),
        contradictions=conflicts_of(call.args),
    )


def _run_of(args: TrainArgs, *, started_from_preset: bool) -> Run:
    """What of a run's configuration the objective's meaning depends on."""
    follows_budget = args.preset == "dapo" and started_from_preset and args.objective.overlong_buffer is None
    return Run(
        group_size=args.group_size,
        max_new_tokens=args.max_new_tokens,
        minibatches=args.minibatches,
        epochs_per_batch=args.epochs_per_batch,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        buffer_share=DAPO_BUFFER_SHARE if follows_budget else None,
    )
