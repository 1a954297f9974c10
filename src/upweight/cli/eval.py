"""`upweight eval`: how good a model is, with intervals, and which of two is better. Imports torch with the model."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from upweight.cli.words import read_call
from upweight.objective.errors import UsageError, bad_parameter
from upweight.objective.paths import given_path
from upweight.train.check import LARGEST_SEED

if TYPE_CHECKING:
    from upweight.evaluate.compare import Comparison
    from upweight.evaluate.evaluation import Evaluation
    from upweight.tasks.prompt import Prompt
    from upweight.tasks.task import Task

PROGRAM = "upweight eval"

DESCRIPTION = """Greedy accuracy and pass@k of a model on held-out prompts, with 95% intervals over prompts; and, with
--against, whether it can be told apart from another model on the same prompts.

Answers that could not be judged are counted and left out, never taken for wrong ones.

examples:
  upweight eval --model runs/mine/checkpoint-400
  upweight eval --model runs/mine/checkpoint-400 --against runs/mine/checkpoint-100 --limit 200
  upweight eval --model smollm2-135m --data test.jsonl --samples 8 --k 1,4,8 --seeds 3 --out answers.jsonl"""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalCall:
    """One call of `upweight eval`."""

    model: str | None = None
    """The model: a folder (RUN/checkpoint-N), tiny, smollm2-135m, a GGUF file, or a name on the Hugging Face hub."""

    against: str | None = None
    """A second model, answering the same prompts, to compare it with."""

    task: str = "arithmetic"
    """Where held-out prompts come from, as for `upweight train`."""

    data: str | None = None
    """Rows to evaluate on, as for `upweight train`: every one of them. Takes the place of the task."""

    reward: str | None = None
    """accuracy (maths), exact, gsm8k, format, a dotted path (mine.rewards.style) or file.py:function, as for `upweight
    train`; where not given, the task says. An answer is right where its reward is above 0.5."""

    limit: int | None = None
    """Only the first so many prompts; all of them where not given."""

    samples: int | None = None
    """K: answers sampled per prompt and seed for pass@k, beside the greedy one; the largest --k where not given."""

    k: str | None = None
    """Which pass@k, with commas, as in 1,4,8; 1 and K where only --samples is given, none where neither is."""

    seeds: int = 1
    """So many seeds: seed, seed + 1, ...; pass@k is over all their answers, and is shown for each as well."""

    seed: int = 0
    """The first seed of the sampling."""

    temperature: float = 1.0
    """Of the sampled answers."""

    top_p: float = 1.0
    """Nucleus sampling of the sampled answers; 1 = off."""

    top_k: int = 0
    """Top-k sampling of the sampled answers; 0 = off."""

    max_new_tokens: int | None = None
    """Budget of one answer in tokens; where not given, the task says."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights and the passes."""

    device: str = "auto"
    """auto takes a GPU where there is one; or cpu, cuda, cuda:1."""

    out: str | None = None
    """Write every answer with its verdict to this JSONL file."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as JSON."""

    @property
    def ks(self) -> tuple[int, ...]:
        """Which pass@k, in ascending order."""
        if self.k is None:
            return tuple(sorted({1, self.samples})) if self.samples else ()
        return tuple(sorted({int(part) for part in self.k.split(",")}))

    @property
    def answers(self) -> int:
        """Answers sampled per prompt and seed."""
        return max(self.ks, default=0) if self.samples is None else self.samples


def run(argv: Sequence[str]) -> int:
    """Evaluate a model, or two.

    Args:
        argv: what follows `upweight eval`.

    Returns:
        0.

    Raises:
        UsageError: a wrong flag or value, a model or data that cannot be read, no prompts, or an --out that cannot be
            written.
        SystemExit: 0 after `--help`.
    """
    call = read(argv)
    check(call)
    names = [name for name in (call.model, call.against) if name is not None]
    tasks, evaluations = [], []
    for name in names:
        task, evaluation = _evaluate(call, name)
        tasks.append(task)
        evaluations.append(evaluation)
    if call.out is not None:
        _write(call.out, names, evaluations)
    # Only now: what the two have in common decides.
    from upweight.evaluate.evaluation import compare_evaluations

    comparisons = compare_evaluations(*evaluations) if len(evaluations) == 2 else []
    if call.json:
        print(json.dumps(as_json(call, names, tasks, evaluations, comparisons), indent=2, allow_nan=False))
        return 0
    for comparison in comparisons:
        print(compared(comparison, *names))
    if call.out is not None:
        print(f"answers: {call.out}")
    return 0


def read(argv: Sequence[str]) -> EvalCall:
    """What a command line asks for, value by value.

    Raises:
        UsageError: a flag that does not exist or is there twice, or a value of a wrong type.
        SystemExit: 0 after `--help`.

    Example:
        >>> call = read(["--model", "tiny", "--k=1,4", "--top-p", "0.9"])
        >>> call.ks, call.answers, call.top_p
        ((1, 4), 4, 0.9)
    """
    return read_call(argv, EvalCall, PROGRAM, DESCRIPTION)


def check(call: EvalCall) -> None:
    """Refuse what cannot work before anything is loaded.

    Raises:
        UsageError: the first thing that is wrong, with the way out.
    """
    if call.model is None:
        raise UsageError("Say which model to evaluate, as in --model RUN/checkpoint-400.")
    for flag, value, least in (
        ("--limit", call.limit, 1),
        ("--samples", call.samples, 0),
        ("--seeds", call.seeds, 1),
        ("--seed", call.seed, 0),
        ("--max_new_tokens", call.max_new_tokens, 1),
        ("--top_k", call.top_k, 0),
    ):
        if value is not None and value < least:
            raise bad_parameter(flag, PROGRAM, f"at least {least}", value)
    if call.seed > LARGEST_SEED:
        raise bad_parameter("--seed", PROGRAM, "at most 2**63 - 1", call.seed)
    if not 0 < call.top_p <= 1:
        raise bad_parameter("--top_p", PROGRAM, "above 0 and at most 1", call.top_p)
    _check_ks(call)
    for flag, name in (("--model", call.model), ("--against", call.against)):
        if name is not None and _is_missing_folder(name, flag):
            raise UsageError(f"{flag} {name}: there is no such model folder. A run's models are RUN/checkpoint-N.")
    if call.out is not None:
        _check_out(given_path(call.out, "--out"))
    # A wrong task, reward or file should not cost the seconds that a model takes.
    _runner(call, _prompts(call, _task(call, chat=False)), _task(call, chat=False))


def _check_ks(call: EvalCall) -> None:
    if call.k is not None and not all(part.strip().isdecimal() and int(part) > 0 for part in call.k.split(",")):
        raise bad_parameter("--k", PROGRAM, "whole numbers above 0 with commas between them, as in 1,4,8", call.k)
    if call.ks and call.ks[-1] > call.answers:
        way_out = f"Set --samples {call.ks[-1]}, or a smaller --k."
        raise bad_parameter("--k", PROGRAM, f"at most --samples, {call.answers}", call.ks[-1], way_out)
    if call.answers and not call.temperature > 0:
        way_out = "At 0 all samples of a prompt are the same; the greedy answer is evaluated anyway."
        raise bad_parameter("--temperature", PROGRAM, "above 0", call.temperature, way_out)
    if call.seeds > 1 and not call.answers:
        raise UsageError("--seeds is for sampled answers, and the greedy one has no seed. Add --samples or --k.")


def _is_missing_folder(name: str, flag: str) -> bool:
    looks_like_a_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    return looks_like_a_path and not given_path(name, flag).exists()


def _check_out(out: Path) -> None:
    if out.is_dir():
        raise UsageError(f"--out {out}: this is a folder. Name a file in it.")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder '{out.parent}'. Make it first, or choose another.")
    there = out.exists()
    try:
        with out.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise _unwritable(out, error) from None
    if not there:
        out.unlink()


def _unwritable(out: str | Path, error: OSError) -> UsageError:
    return UsageError(f"--out {out}: the file cannot be written: {error.strerror}.")


def _task(call: EvalCall, *, chat: bool) -> "Task":
    from upweight.tasks.data import DataTask
    from upweight.tasks.registry import make_task

    return make_task(call.task, chat=chat) if call.data is None else DataTask(call.data).for_model(chat=chat)


def _prompts(call: EvalCall, task: "Task") -> list["Prompt"]:
    """The held-out problems of a task, or every row of a file."""
    if call.data is None:
        prompts = list(itertools.islice(task.held_out, call.limit))
        if not prompts:
            raise UsageError(f"The task {task.name!r} holds no problems out. Give rows with --data FILE.jsonl.")
        return prompts
    rows = sorted((draw.prompt for draw in task.stream(0).take(task.size or 1)), key=lambda prompt: prompt.row)
    return rows[: call.limit]


def _runner(call: EvalCall, prompts: Sequence["Prompt"], task: "Task") -> Any:
    """The reward, tried on one row."""
    from upweight.rewards.runner import make_runner
    from upweight.tasks.task import reward_of

    runner = make_runner(reward_of(task, call.reward))
    runner.check(prompts[0], task.columns)
    return runner


def _evaluate(call: EvalCall, name: str) -> tuple["Task", "Evaluation"]:
    """Load a model and let it answer; says how it went as it goes."""
    from upweight.evaluate.evaluation import evaluate
    from upweight.policy.load import load_policy
    from upweight.rollout.completion import Sampling
    from upweight.rollout.engine import LocalEngine

    policy = load_policy(name, dtype=call.dtype, device=call.device, seed=call.seed)
    task = _task(call, chat=policy.has_chat_template)
    prompts = _prompts(call, task)
    sampling = Sampling(
        max_new_tokens=call.max_new_tokens or task.max_new_tokens,
        temperature=call.temperature,
        top_p=call.top_p,
        top_k=call.top_k,
        seed=call.seed,
    )
    evaluation = evaluate(
        LocalEngine(policy),
        policy.encode,
        policy.decode,
        prompts,
        _runner(call, prompts, task),
        sampling,
        samples=call.answers,
        ks=call.ks,
        seeds=call.seeds,
    )
    if not call.json:
        print("\n".join(summary(call, name, task, evaluation)), flush=True)
    return task, evaluation


def summary(call: EvalCall, name: str, task: "Task", evaluation: "Evaluation") -> list[str]:
    """A model's result, line by line."""
    greedy = evaluation.greedy
    n, budget = len(evaluation.greedy_answers), call.max_new_tokens or task.max_new_tokens
    lines = [
        f"{name}: {task.name}, {n} prompts, at most {budget} tokens an answer",
        f"  greedy accuracy {_interval(greedy.value, greedy.low, greedy.high)}  {greedy.correct} of {greedy.n} right",
    ]
    if evaluation.pass_rates:
        of = f"  {call.answers} answers to each prompt at temperature {call.temperature:g}"
        lines.append(of + (f", for each of {call.seeds} seeds:" if call.seeds > 1 else ":"))
    for rate in evaluation.pass_rates:
        label = f"pass@{rate.k}"
        line = f"  {label:<15} {_interval(rate.value, rate.low, rate.high)}  over {rate.prompts} prompts"
        if rate.left_out:
            line += f", {rate.left_out} left out with fewer than {rate.k} judged answers"
        if len(rate.by_seed) > 1:
            line += "; by seed " + " ".join(f"{value:.3f}" for value in rate.by_seed)
        lines.append(line)
    truncated = greedy.truncated + evaluation.truncated
    if truncated:
        lines.append(f"  {truncated} answers used up their budget")
    unscored = greedy.unscored + evaluation.unscored
    if unscored:
        lines.append(f"  {unscored} answers could not be judged and are left out; --out shows why")
    return lines


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def compared(comparison: "Comparison", first: str, second: str) -> str:
    """A comparison in words."""
    if comparison.prompts == 0:
        return f"{comparison.measure}: {comparison.verdict(first, second)}"
    said = f"{comparison.measure}: {first} minus {second} {comparison.difference:+.3f}"
    said += f" [{comparison.low:+.3f}, {comparison.high:+.3f}] on {comparison.prompts} prompts"
    if comparison.p_value is not None:
        said += f"; {comparison.only_first} right for the first alone, {comparison.only_second} for the second alone"
        said += f"; exact p = {comparison.p_value:.2g}"
    return f"{said}\n  {comparison.verdict(first, second)}"


def as_json(
    call: EvalCall,
    names: Sequence[str],
    tasks: Sequence["Task"],
    evaluations: Sequence["Evaluation"],
    comparisons: Iterable["Comparison"],
) -> dict[str, Any]:
    """The result for a program; null stands for a number that does not exist."""
    models = [_model(call, *row) for row in zip(names, tasks, evaluations, strict=True)]
    return {
        "model": models[0],
        "against": models[1] if len(models) == 2 else None,
        "comparison": [
            _finite(dataclasses.asdict(one) | {"told_apart": one.told_apart, "verdict": one.verdict(*names)})
            for one in comparisons
        ],
    }


def _model(call: EvalCall, name: str, task: "Task", evaluation: "Evaluation") -> dict[str, Any]:
    greedy = dataclasses.asdict(evaluation.greedy)
    greedy["accuracy"] = greedy.pop("value")
    return {
        "model": name,
        "task": task.name,
        "prompts": len(evaluation.greedy_answers),
        "max_new_tokens": call.max_new_tokens or task.max_new_tokens,
        "greedy": _finite({key: value for key, value in greedy.items() if key not in ("answers", "scores")}),
        "pass_at_k": [
            _finite({key: value for key, value in dataclasses.asdict(rate).items() if key != "estimates"})
            for rate in evaluation.pass_rates
        ],
        "samples": call.answers,
        "seeds": [seed for seed, _ in evaluation.sampled],
        "temperature": call.temperature,
        "unscored": evaluation.unscored,
        "truncated": evaluation.truncated,
    }


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: plain(value) for key, value in row.items()}


def _write(out: str, names: Sequence[str], evaluations: Sequence["Evaluation"]) -> None:
    from upweight.evaluate.evaluation import answer_rows

    try:
        with given_path(out, "--out").open("w", encoding="utf-8") as file:
            for name, evaluation in zip(names, evaluations, strict=True):
                for row in answer_rows(evaluation, name):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except OSError as error:
        raise _unwritable(out, error) from None
