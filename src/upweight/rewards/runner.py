"""Reward functions are called, retried one answer at a time where they raise, and added up."""

import collections
import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upweight.objective.errors import UsageError, bad_parameter
from upweight.rewards.contract import Completion, RefusedReward, RewardError, RewardFunction, read_rewards
from upweight.rewards.isolated import IsolatedFunction
from upweight.rewards.lookup import Named, find_rewards, source_of
from upweight.rewards.score import FAILURES, Score, Status
from upweight.rewards.waiting import Late, resolved
from upweight.tasks.prompt import Prompt

_LOGGER = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 10.0
"""Seconds an isolated function may take for an answer."""

_OWN = ("prompts", "completions", "completion_ids")
"""What the runner hands over itself; a data column of such a name is left out."""

_PRECEDENCE = (Status.ERROR, Status.TIMEOUT, Status.UNPARSABLE_GOLD)
"""Which status an answer has that several functions failed to judge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """One completion with everything a reward function may ask about it."""

    prompt: Prompt
    """The row it answers."""

    text: str
    """What was answered."""

    token_ids: Sequence[int] | None
    """The sampled ids, where the caller has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """How often a reward function failed on some answers."""

    failed: int
    """Answers that it raised or timed out on."""

    asked: int
    """Answers that it was asked about."""

    why: str
    """Of the first that failed; empty where none did."""


Failures = Mapping[str, Failed]
"""By the function's name."""


class RewardRunner:
    """Judges answers with one or several reward functions.

    An answer's reward is the weighted sum over the functions that apply to it. Where a function could not judge an
    answer, the answer has no reward at all - a sum with a part missing is not comparable with its group's.

    Example:
        >>> from upweight.rewards.builtin import exact
        >>> runner = RewardRunner([("exact", exact, 1.0)])
        >>> prompt = Prompt(row=0, text="34+57=", answer="91")
        >>> [score.value for score in runner.score([prompt, prompt], ["91", "92"])]
        [1.0, 0.0]
    """

    def __init__(
        self,
        functions: Sequence[tuple[str, RewardFunction, float]],
        *,
        isolated: Mapping[str, str] | None = None,
        timeout: float | None = None,
        max_errors: float = 1.0,
    ) -> None:
        """Take over the functions.

        Args:
            functions: (name, function, weight) each; names are unique, weights finite.
            isolated: where to load those functions from, by name, that run in processes that can be killed.
            timeout: seconds one answer may take in such a process, and one call of a coroutine function in this one.
            max_errors: share of a batch's answers that a function may fail on; above it `score` raises.

        Raises:
            UsageError: no function, a name given twice, a weight that is not finite, something that is not callable.
        """
        owner = "RewardRunner"
        if not functions:
            raise bad_parameter("functions", owner, "at least one reward function", functions)
        names = [name for name, _, _ in functions]
        for name, function, weight in functions:
            if names.count(name) > 1:
                raise bad_parameter("functions", owner, "functions with a name each", names)
            if not callable(function):
                raise bad_parameter("functions", owner, "callables", function)
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
                raise bad_parameter("functions", owner, f"functions with finite weights ('{name}')", weight)
        self._functions = tuple(functions)
        self._timeout = timeout
        self._max_errors = max_errors
        self._isolated = {
            name: IsolatedFunction(name, source, seconds=DEFAULT_TIMEOUT if timeout is None else timeout)
            for name, source in (isolated or {}).items()
        }
        self._traced: set[str] = set()
        self.judged: collections.Counter[str] = collections.Counter()
        """Answers that each function was asked about by `score` and `score_each`, by its name."""
        self.failed: collections.Counter[str] = collections.Counter()
        """Those of them that it raised on or timed out on."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the functions, in order."""
        return tuple(name for name, _, _ in self._functions)

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the functions, in order."""
        return tuple(weight for _, _, weight in self._functions)

    @property
    def spelled(self) -> str:
        """Names and weights in one text, as `--reward` takes it: `accuracy+0.2*format`."""
        return "+".join(
            name if weight == 1 else f"{weight}*{name}" for name, weight in zip(self.names, self.weights, strict=True)
        )

    def check(self, prompt: Prompt, columns: Sequence[str] | None = None) -> None:
        """Try the functions on one row, before anything expensive is loaded. Calls each function once.

        Args:
            prompt: a row; its gold answer, or an empty string, stands in for the model's answer.
            columns: the columns the data set has (`task.columns`); those of the row where None.

        Raises:
            UsageError: a function needs a column that the data does not have: by its signature, or as a `KeyError`.
            RefusedReward: a function returned something that is no reward.

        Any other exception is logged and left to the run: it may be about this one answer.
        """
        available = _columns(prompt) if columns is None else {name: None for name in columns if name not in _OWN}
        for name, function, _ in self._functions:
            for needed in _required(function):
                if needed not in _OWN and needed not in available:
                    raise _missing(name, needed, available)
            answer = _Answer(prompt=prompt, text=prompt.answer or "", token_ids=())
            try:
                if name in self._isolated:
                    self._judge_isolated(name, function, [answer])
                    continue
                returned = self._attempt(name, function, [answer])
            except RewardError as error:
                raise RefusedReward(str(error)) from error
            if isinstance(returned, KeyError) and _takes_everything(function):
                # kwargs["solution"]: no signature shows this need.
                column = returned.args[0] if returned.args else None
                if isinstance(column, str) and column not in available:
                    raise _missing(name, column, available) from returned
            if isinstance(returned, BaseException):
                _LOGGER.warning(
                    "The reward function '%s' raised when it was tried on row %d", name, prompt.row, exc_info=returned
                )

    def score(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[str],
        *,
        completion_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[Score]:
        """Judge answers.

        Args:
            prompts: the row each completion answers.
            completions: what was answered, as text, one per prompt.
            completion_ids: the sampled token ids, for functions that ask for them; None = not available.

        Returns:
            One score per completion, in order. Value: sum of weight * reward over the functions that apply.
            `error` where a function raised on this answer, `unparsable-gold` where a verifier could not read its
            gold answer, `not-applicable` where no function applies.

        Raises:
            RewardError: a function returned something that is no reward, or failed on more than the share of answers
                that it may.
            UsageError: a function needs `completion_ids` and there are none; lists of different lengths.
        """
        scores, failures = self.judge(prompts, completions, completion_ids=completion_ids)
        self.check_failures([failures])
        return scores

    def judge(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[str],
        *,
        completion_ids: Sequence[Sequence[int]] | None = None,
    ) -> tuple[list[Score], Failures]:
        """`score` of a part of a batch, however many failed: `check_failures` takes all of its parts together."""
        parts = self._parts(prompts, completions, completion_ids)
        scores = [_combine(self.names, self.weights, scores) for scores in zip(*parts.values(), strict=True)]
        return scores, _failures(parts)

    def check_failures(self, parts: Sequence[Failures]) -> None:
        """Refuse a batch of which a function failed on more than the share of answers that it may.

        Args:
            parts: of the batch, as `judge` gives them.

        Raises:
            RewardError: naming the function, the counts over all parts and the first cause.
        """
        for name in self.names:
            found = [part[name] for part in parts if name in part]
            failed, asked = sum(part.failed for part in found), sum(part.asked for part in found)
            if failed > self._max_errors * asked:
                first = next(part.why for part in found if part.failed)
                raise RewardError(
                    f"The reward function '{name}' failed on {failed} of {asked} answers, more than "
                    f"--max_reward_errors {self._max_errors:g} allows. The first: {first}"
                )

    def score_each(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[str],
        *,
        completion_ids: Sequence[Sequence[int]] | None = None,
    ) -> dict[str, list[Score]]:
        """Judge answers, function by function: the parts that `score` adds up, unweighted; same arguments, same errors.

        Returns:
            For every function's name its scores.
        """
        parts = self._parts(prompts, completions, completion_ids)
        self.check_failures([_failures(parts)])
        return parts

    def _parts(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]] | None,
    ) -> dict[str, list[Score]]:
        ids: Sequence[Sequence[int] | None] = [None] * len(prompts) if completion_ids is None else completion_ids
        if len(completions) != len(prompts) or len(ids) != len(prompts):
            raise UsageError(
                f"RewardRunner.score takes one completion per prompt. Got {len(completions)} completions for "
                f"{len(prompts)} prompts"
                + ("." if completion_ids is None else f" with {len(completion_ids)} id lists.")
            )
        answers = [
            _Answer(prompt=prompt, text=text, token_ids=token_ids)
            for prompt, text, token_ids in zip(prompts, completions, ids, strict=True)
        ]
        if completion_ids is None and answers:
            for name, function, _ in self._functions:
                if "completion_ids" in _required(function):
                    raise UsageError(
                        f"The reward function '{name}' needs completion_ids, which are not available here."
                    )
        parts = {name: self._judge(name, function, answers) for name, function, _ in self._functions}
        for name, scores in parts.items():
            self.judged[name] += len(scores)
            self.failed[name] += sum(score.status in FAILURES for score in scores)
        return parts

    def close(self) -> None:
        """End the processes of isolated functions; the next call would start them anew."""
        for function in self._isolated.values():
            function.close()

    def _judge(self, name: str, function: RewardFunction, answers: Sequence[_Answer]) -> list[Score]:
        """One function's scores; where it raises, only the answers it raises on are lost."""
        if not answers:
            return []
        if name in self._isolated:
            return self._judge_isolated(name, function, answers)
        returned = self._attempt(name, function, answers)
        if isinstance(returned, Late):
            why = f"{name}: {returned}"
            return [Score(value=math.nan, status=Status.TIMEOUT, why=why) for _ in answers]
        if not isinstance(returned, BaseException):
            return returned
        alone: list[list[Score] | BaseException] = [returned]
        if len(answers) > 1:
            alone = [self._attempt(name, function, [answer]) for answer in answers]
        scores: list[Score] = []
        for outcome in alone:
            if isinstance(outcome, BaseException):
                why = f"{name} raised {type(outcome).__name__}: {outcome}".splitlines()[0][:200]
                scores.append(Score(value=math.nan, status=Status.ERROR, why=why))
            else:
                scores.extend(outcome)
        failures = [(answer, o) for answer, o in zip(answers, alone, strict=True) if isinstance(o, BaseException)]
        self._log(name, failures, returned, len(answers))
        return scores

    def _judge_isolated(self, name: str, function: RewardFunction, answers: Sequence[_Answer]) -> list[Score]:
        arguments = [_arguments(function, [answer]) for answer in answers]
        scores, trace = self._isolated[name].judge(arguments, [answer.prompt.row for answer in answers])
        failed = [(a, s) for a, s in zip(answers, scores, strict=True) if s.status in FAILURES]
        if failed:
            rows = ", ".join(str(answer.prompt.row) for answer, _ in failed[:10])
            shown = "" if name in self._traced or not trace else f"\n{trace}"
            self._traced.add(name)
            _LOGGER.warning(
                "The reward function '%s' failed on %d of %d answers (rows: %s): %s%s",
                name,
                len(failed),
                len(answers),
                rows,
                failed[0][1].why,
                shown,
            )
        return scores

    def _attempt(self, name: str, function: RewardFunction, answers: Sequence[_Answer]) -> list[Score] | BaseException:
        """Call a function; what it raised is returned, what it must not return is raised."""
        try:
            returned = resolved(function(**_arguments(function, answers)), self._timeout)
        # Users' functions raise anything; sys.exit() in a verifier is that answer's error, not the end of the run.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return error
        return read_rewards(name, returned, [answer.prompt.row for answer in answers])

    def _log(
        self, name: str, failures: Sequence[tuple[_Answer, BaseException]], first: BaseException, total: int
    ) -> None:
        """Say which rows were lost; the traceback comes once per function."""
        rows = ", ".join(str(answer.prompt.row) for answer, _ in failures[:10]) or "none when called one by one"
        error = failures[0][1] if failures else first
        trace = None if name in self._traced else error
        self._traced.add(name)
        _LOGGER.warning(
            "The reward function '%s' raised on %d of %d answers (rows: %s)",
            name,
            len(failures),
            total,
            rows,
            exc_info=trace,
        )


def make_runner(
    reward_funcs: str | RewardFunction | Sequence[str | RewardFunction],
    weights: Sequence[float] | None = None,
    *,
    isolate: bool = False,
    timeout: float | None = None,
    max_errors: float = 1.0,
) -> RewardRunner:
    """Build a runner from what a user passes: texts that name rewards, functions, or a list of both.

    Args:
        reward_funcs: one or several; a text as `find_rewards` reads it, so one text may name several. A function's
            name is its `__name__`, a callable object's that of its class.
        weights: one per function; those in the texts, else 1, where None.
        isolate: run functions that are not built in in processes that can be killed.
        timeout: seconds one answer may take there, and one call of a coroutine function here.
        max_errors: share of a batch's answers that a function may fail on.

    Raises:
        UsageError: an unknown name, the wrong number of weights, or what `RewardRunner` refuses.

    Example:
        >>> make_runner(["exact", "gsm8k"], weights=[1.0, 0.5]).names
        ('exact', 'gsm8k')
        >>> make_runner("accuracy+0.2*format").names
        ('accuracy', 'format')
    """
    several = [reward_funcs] if isinstance(reward_funcs, str) or callable(reward_funcs) else list(reward_funcs)
    found: list[Named] = []
    for one in several:
        if isinstance(one, str):
            found += find_rewards(one)
        else:
            source = source_of(one) if isolate and callable(one) else None
            found.append(Named(name=_name(one), function=one, weight=1.0, source=source))
    shares = [one.weight for one in found] if weights is None else list(weights)
    if len(shares) != len(found):
        raise bad_parameter("weights", "make_runner", f"one weight for each of {len(found)} functions", weights)
    return RewardRunner(
        [(one.name, one.function, share) for one, share in zip(found, shares, strict=True)],
        isolated={one.name: one.source for one in found if one.source is not None} if isolate else None,
        timeout=timeout,
        max_errors=max_errors,
    )


def _name(function: RewardFunction) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _failures(parts: Mapping[str, Sequence[Score]]) -> Failures:
    found = {}
    for name, scores in parts.items():
        failed = [score for score in scores if score.status in FAILURES]
        found[name] = Failed(failed=len(failed), asked=len(scores), why=failed[0].why if failed else "")
    return found


def _combine(names: Sequence[str], weights: Sequence[float], scores: Sequence[Score]) -> Score:
    """One answer's reward from what each function said."""
    if len(scores) == 1 and weights[0] == 1 and scores[0].status is Status.SCORED:
        return scores[0]
    why = "; ".join(
        f"{name}: {s.why}" if len(names) > 1 else s.why for name, s in zip(names, scores, strict=True) if s.why
    )
    statuses = {score.status for score in scores}
    for status in _PRECEDENCE:
        if status in statuses:
            return Score(value=math.nan, status=status, why=why)
    applicable = [(w, s.value) for w, s in zip(weights, scores, strict=True) if s.status is Status.SCORED]
    if not applicable:
        return Score(value=math.nan, status=Status.NOT_APPLICABLE, why=why)
    return Score(value=math.fsum(weight * value for weight, value in applicable), why=why)


def _arguments(function: RewardFunction, answers: Sequence[_Answer]) -> dict[str, list[object]]:
    """The keyword arguments of a call: fresh lists, so that a function that sorts its input sorts its own."""
    rows = [_columns(answer.prompt) for answer in answers]
    columns = dict.fromkeys(name for row in rows for name in row)
    named = _parameters(function)
    if "answer" in named:
        columns["answer"] = None  # also where no row of this batch has one: a verifier then says so, row by row
    arguments: dict[str, list[object]] = {
        "prompts": [answer.prompt.said for answer in answers],
        "completions": [_shown_completion(answer) for answer in answers],
        **{name: [row.get(name) for row in rows] for name in columns},
    }
    if all(answer.token_ids is not None for answer in answers):
        arguments["completion_ids"] = [list(answer.token_ids or ()) for answer in answers]
    if _takes_everything(function):
        return arguments
    return {name: value for name, value in arguments.items() if name in named}


def _columns(prompt: Prompt) -> Mapping[str, object]:
    answer = {} if prompt.answer is None else {"answer": prompt.answer}
    return answer | {name: value for name, value in prompt.columns.items() if name not in _OWN}


def _shown_completion(answer: _Answer) -> Completion:
    return answer.text if isinstance(answer.prompt.text, str) else [{"role": "assistant", "content": answer.text}]


def _parameters(function: RewardFunction) -> Mapping[str, inspect.Parameter]:
    """What a function takes by name; empty where its signature cannot be read."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _takes_everything(function: RewardFunction) -> bool:
    """Whether every column may be passed: the function has a `**kwargs`, or hides its signature."""
    parameters = _parameters(function).values()
    return not parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _required(function: RewardFunction) -> list[str]:
    """Names a function cannot be called without."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = _parameters(function).values()
    return [p.name for p in parameters if p.kind in by_name and p.default is inspect.Parameter.empty]


def _missing(name: str, column: str, available: Mapping[str, object]) -> UsageError:
    return UsageError(
        f"The reward function '{name}' needs the column '{column}', which the data does not have. "
        f"Available: {', '.join(available) or 'none'}."
    )
