"""Any task of reasoning-gym: its problems, seeded; held-out ones that training never draws; its scorer."""

import ast
import copy
import dataclasses
import functools
import inspect
import logging
import os
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from upweight.objective.errors import UsageError, bad_parameter
from upweight.tasks.extras import optional
from upweight.tasks.keyed import keyed_below, keyed_integer
from upweight.tasks.prompt import Message, Prompt
from upweight.tasks.rows import DEFAULT_BUDGET, Collected, PromptsTask
from upweight.tasks.spelling import unknown_name

_LOGGER = logging.getLogger(__name__)

REWARD = "reasoning-gym"
"""The reward's name in a run's records."""

INSTRUCTION = "Think step by step if it helps, then give the final answer alone between <answer> and </answer>."

SIZE = 2000
"""Problems that are made where nobody says how many."""

HELD_OUT_ONE_IN = 8
"""One question in so many is held out."""

SLOW = 10.0
"""Seconds of making problems from which a warning says how to make fewer."""

_BY_HASH_ORDER = {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
"""Tasks of reasoning-gym 0.1.25 that go through sets of strings, in an order that differs between processes."""

_UNSEEDED = {"list_functions"}
"""And one that draws from Python's global generator."""

_EVALUATORS = {"eval", "exec", "parse_expr", "sympify"}
"""Functions that run their argument as code (sympy's two call eval)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GymScorer:
    """reasoning-gym's own scorer of a task, as a reward function: a number from 0 to 1, often with partial credit.

    It can be sent to another process: the data set that scores is made there.
    """

    task: str
    """Name of the task."""

    config: tuple[tuple[str, object], ...]
    """Its parameters."""

    tagged: bool
    """Whether the answer is what stands in the last `<answer>...</answer>` (none: the scorer gets None), or the whole
    text without the blanks around it."""

    __name__ = REWARD

    def __call__(self, completions: Sequence[Any], entry: Sequence[Mapping[str, Any]], **_: object) -> list[float]:
        """Score answers.

        Args:
            completions: strings, or chats of one assistant message.
            entry: the problems, as reasoning-gym made them, one each.

        Returns:
            One number per completion.
        """
        judge = _dataset(self.task, self.config)
        texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
        answers = [_tagged(text) if self.tagged else text.strip() for text in texts]
        return [float(judge.score_answer(answer, dict(e))) for answer, e in zip(answers, entry, strict=True)]


class GymTask(PromptsTask):
    """Problems of one reasoning-gym task.

    Problem i is a function of the task's parameters and i alone (reasoning-gym's `seed`, 0 here where not given); the
    run's seed decides their order. A keyed hash of the question's words decides whether a problem is held out, one in
    8, whatever the parameters: what is held out under one seed is never trained on under another. (Two seeds alone
    would not do: reasoning-gym makes problem i from seed + i, so seeds 0 and 1 share all problems but one.)

    A model with a chat template gets the question as a user message that asks for `<answer>` tags; any other gets the
    bare question, and its whole answer is scored.

    Example:
        >>> task = GymTask("chain_sum", {"max_terms": 2, "size": 50})
        >>> task.prompts[0].text
        'State the final answer to the following arithmetic problem: 1663 - 5242 ='
    """

    def __init__(
        self,
        task: str,
        config: Mapping[str, object] | None = None,
        *,
        examples: int = 0,
        unsafe_scorer: bool = False,
    ) -> None:
        """Make the problems.

        Args:
            task: a name that reasoning-gym knows (`chain_sum`, `gsm_symbolic`).
            config: the task's own parameters, among them `seed` (0) and `size`, the number of problems (2000).
            examples: worked problems in front of every question of a chat, >= 0; they are taken out of the training
                problems. A small instruct model writes no tags without one, so that no answer earns anything.
            unsafe_scorer: accept a scorer that evaluates the model's answer as code.

        Raises:
            UsageError: reasoning-gym is not installed; an unknown task or parameter, or a value it refuses; a scorer
                that evaluates answers; no problem left to train on.
        """
        chosen = tuple(sorted({"seed": 0, "size": SIZE, **(config or {})}.items()))
        dataset = _dataset(task, chosen)
        if not unsafe_scorer and (evaluator := _evaluates_answers(dataset)):
            raise UsageError(
                f"reasoning-gym's scorer of '{task}' hands the model's answer to {evaluator}(), which can run code. "
                f"Choose another task, or accept that with rg:{task}:unsafe_scorer=true."
            )
        training: list[Prompt] = []
        held_out: dict[str, Prompt] = {}
        for prompt in _problems(task, dataset):
            words = str(prompt.text)
            if keyed_integer("reasoning-gym: held out", words) % HELD_OUT_ONE_IN:
                training.append(prompt)
            else:
                held_out.setdefault(words, prompt)  # an evaluation counts every question once
        shown = [prompt for prompt in training if prompt.answer][:examples]
        if len(shown) < examples or len(shown) == len(training):
            raise UsageError(
                f"rg:{task} has {len(training)} training problems to take {examples} examples from and train on the "
                "others; make more with size=N, or take fewer."
            )
        training = [prompt for prompt in training if prompt not in shown]
        remarks = _fleeting(task)
        super().__init__(
            task, Collected(prompts=tuple(training), remarks=remarks), Collected(prompts=tuple(held_out.values()))
        )
        self._chat = False
        self._turns = tuple(turn for prompt in shown for turn in (_question(prompt), _reply(prompt)))
        self.scorer = GymScorer(task=task, config=chosen, tagged=False)

    @property
    def reward(self) -> str:
        """The task's own scorer."""
        return REWARD

    @property
    def max_new_tokens(self) -> int:
        """256 where the model may think; for bare answers twice the longest gold answer and its end, in characters."""
        longest = max(len(prompt.answer or "") for prompt in self.prompts)
        return DEFAULT_BUDGET if self._chat else min(DEFAULT_BUDGET, 2 * (longest + 1))

    def for_model(self, *, chat: bool) -> Self:
        """The task as a model is asked it; see the class."""
        if not chat:
            return self
        task = copy.copy(self)
        task._chat = True
        task.prompts, task.held_out = (
            tuple(dataclasses.replace(prompt, text=(*self._turns, _question(prompt))) for prompt in part)
            for part in (self.prompts, self.held_out)
        )
        task.scorer = dataclasses.replace(self.scorer, tagged=True) if isinstance(self.scorer, GymScorer) else None
        return task

    def demonstrations(self, count: int, seed: int) -> list[tuple[Prompt, str]]:
        """Training problems with their gold answers, where reasoning-gym gives one; tagged in the chat style.

        Args:
            count: how many, >= 0.
            seed: of the draw.

        Returns:
            `count` pairs, problems may repeat; none where problems have no gold answer.
        """
        known = [prompt for prompt in self.prompts if prompt.answer]
        if not known:
            return []
        chosen = [known[keyed_below(len(known), "reasoning-gym: demonstration", seed, n)] for n in range(count)]
        return [
            (prompt, f"<answer>{prompt.answer}</answer>" if self._chat else str(prompt.answer)) for prompt in chosen
        ]


def gym_parameters(task: str, texts: Mapping[str, str]) -> dict[str, object]:
    """The parameters of a task, from text: by the kind of value that reasoning-gym's own default has.

    Args:
        task: a name that reasoning-gym knows.
        texts: parameter -> value as typed: a number, true or false, a word; several values separated by `|`.

    Raises:
        UsageError: an unknown task or parameter (with the valid ones), or a value of another kind.
    """
    defaults = {field.name: _default(field) for field in dataclasses.fields(_config_class(task))}
    values: dict[str, object] = {}
    for name, text in texts.items():
        if name not in defaults:
            raise unknown_name(f"parameter of rg:{task}", name, defaults)
        values[name] = _read(task, name, text, defaults[name])
    return values


def _gym() -> Any:
    return optional("reasoning_gym", "reasoning-gym", "A task of reasoning-gym")


def _config_class(task: str) -> Any:
    known = _gym().factory.DATASETS
    if task not in known:
        raise unknown_name("task of reasoning-gym", task, known)
    return known[task][1]


@functools.lru_cache(maxsize=8)
def _dataset(task: str, config: tuple[tuple[str, object], ...]) -> Any:
    """The data set of a task; kept, as scoring asks for it with every batch."""
    kind, chosen = _config_class(task), dict(config)
    for name in chosen:
        if name not in {field.name for field in dataclasses.fields(kind)}:
            raise unknown_name(f"parameter of rg:{task}", name, [field.name for field in dataclasses.fields(kind)])
    try:
        return _gym().create_dataset(task, **chosen)
    except (AssertionError, ValueError, TypeError) as error:
        given = ", ".join(f"{name}={value}" for name, value in chosen.items())
        raise UsageError(f"reasoning-gym refuses {given} for '{task}': {error or type(error).__name__}.") from error


def _problems(task: str, dataset: Any) -> Iterator[Prompt]:
    start, warned = time.monotonic(), False
    for row in range(len(dataset)):
        entry = dataset[row]
        answer = entry["answer"]
        yield Prompt(
            row=row,
            text=str(entry["question"]),
            answer=None if answer is None else str(answer),
            columns={"entry": entry},
            where=f"rg:{task}, problem {row}",
        )
        spent = time.monotonic() - start
        if spent > SLOW and not warned:
            warned = True
            _LOGGER.warning(
                "rg:%s takes %.2g s a problem, so %d of them take about %.0f s; size=N makes fewer",
                task,
                spent / (row + 1),
                len(dataset),
                spent / (row + 1) * len(dataset),
            )


def _fleeting(task: str) -> tuple[str, ...]:
    """What to say about problems that are not a function of the task's parameters alone."""
    sentence = f"reasoning-gym makes other problems of {task} in every process"
    if task in _UNSEEDED:
        return (f"{sentence}, whatever the seed",)
    if task in _BY_HASH_ORDER and not os.environ.get("PYTHONHASHSEED", "random").isdecimal():
        return (f"{sentence}; set the environment variable PYTHONHASHSEED=0 for the same ones",)
    return ()


def _question(prompt: Prompt) -> Message:
    entry: Any = prompt.columns["entry"]
    return {"role": "user", "content": f"{str(entry['question']).rstrip()}\n{INSTRUCTION}"}


def _reply(prompt: Prompt) -> Message:
    """A worked answer in the form that is asked for, with the steps where reasoning-gym has them (gsm_symbolic)."""
    entry: Any = prompt.columns["entry"]
    steps = str(entry.get("metadata", {}).get("answer_cot", "")).partition("####")[0].strip()
    return {"role": "assistant", "content": f"{steps}\n<answer>{prompt.answer}</answer>".lstrip()}


def _tagged(text: str) -> str | None:
    """What reasoning-gym itself takes for the answer in a text: the last complete pair of tags."""
    found: str | None = _gym().utils.extract_answer(text)
    return found


def _evaluates_answers(dataset: Any) -> str | None:
    """The function that runs a model's answer as code, where the scorer calls one on anything but its own entry."""
    source = textwrap.dedent(inspect.getsource(type(dataset).score_answer))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in _EVALUATORS and not ast.unparse(node.args[0]).startswith(("entry", "metadata")):
                return name
    return None


def _default(field: "dataclasses.Field[Any]") -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _read(task: str, name: str, text: str, default: object) -> object:
    """A typed word as a value of the default's kind."""
    if isinstance(default, list | tuple):
        parts = text.split("|")
        return type(default)(_read(task, name, part, default[0] if default else part) for part in parts)
    if isinstance(default, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise bad_parameter(name, f"rg:{task}", "true or false", text)
    if isinstance(default, str):
        return text
    for kind in (int, float) if isinstance(default, float) or default is None else (int,):
        try:
            return kind(text)
        except ValueError:
            continue
    raise bad_parameter(name, f"rg:{task}", "a number" if isinstance(default, float) else "a whole number", text)
