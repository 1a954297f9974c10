"""Tasks made of rows: validated once, up front, and streamed in a seeded order."""

import copy
import dataclasses
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from upweight.objective.errors import UsageError
from upweight.tasks.keyed import keyed_permutation
from upweight.tasks.layouts import OURS, BadRow, Layout, layout_of
from upweight.tasks.prompt import Draw, Message, Prompt
from upweight.tasks.task import check_state, check_take

DEFAULT_BUDGET = 256
"""Tokens of an answer where nobody says: rows do not tell how long their answers are."""

SHOWN_OFFENDERS = 5
"""Unusable rows that a message spells out; the others are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """The rows of one source, validated."""

    prompts: tuple[Prompt, ...]
    """One per usable row, in order."""

    layout: Layout = OURS
    """How the rows were written down."""

    remarks: tuple[str, ...] = ()
    """What a person should know about them: the layout where it was not ours, rows left out, repeats."""


class PromptsTask:
    """A task over a fixed list of validated prompts; what files, data sets and rows in memory have in common."""

    scorer: Callable[..., object] | None = None
    """None: the default reward is a built-in."""

    def __init__(self, name: str, training: Collected, held_out: Collected | None = None) -> None:
        """Take over what `collect_prompts` has checked.

        Args:
            name: short name, fit for a folder name.
            training: the training rows, at least one.
            held_out: rows for evaluation; None = none.
        """
        self.name = name
        self.prompts = training.prompts
        self.held_out = () if held_out is None else held_out.prompts
        self._layouts = (training.layout, OURS if held_out is None else held_out.layout)
        self.remarks = (
            *training.remarks,
            *(() if held_out is None else (f"held out: {remark}" for remark in held_out.remarks)),
            *_overlap(self.prompts, self.held_out),
        )

    @property
    def reward(self) -> str:
        """What the layout says; else `gsm8k` for chats, and where a gold answer has a `####` line; else `exact`.

        A bare question that becomes a chat is judged by `accuracy`: nothing says which mark its answers will carry.
        """
        if self._layouts[0].reward is not None:
            return self._layouts[0].reward
        # Compared as plain text, a chat model's sentences would score 0 for ever.
        chat = not isinstance(self.prompts[0].text, str)
        if chat and self._layouts[0].questions:
            return "accuracy"
        marked = any(prompt.answer is not None and "####" in prompt.answer for prompt in self.prompts)
        return "gsm8k" if chat or marked else "exact"

    @property
    def max_new_tokens(self) -> int:
        """256: rows do not tell how long their answers are."""
        return DEFAULT_BUDGET

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column of the training rows but the prompt; `answer` where at least one row has it."""
        answer = ("answer",) if any(prompt.answer is not None for prompt in self.prompts) else ()
        return answer + tuple(self.prompts[0].columns)

    @property
    def size(self) -> int | None:
        """The number of rows."""
        return len(self.prompts)

    def stream(self, seed: int) -> "ShuffledStream":
        """All rows in a fresh order every epoch; see `ShuffledStream`."""
        return ShuffledStream(self.prompts, seed)

    def demonstrations(self, count: int, seed: int) -> list[tuple[Prompt, str]]:
        """None: a gold answer is no worked answer."""
        return []

    def for_model(self, *, chat: bool) -> Self:
        """The task as a model is asked it: bare questions become chats where the model has a chat template.

        Args:
            chat: whether it has one. Rows that bring a prompt of their own stay as they are.

        Example:
            >>> task = RowsTask([{"question": "2+2?", "answer": "4"}])
            >>> task.for_model(chat=False).prompts[0].text
            '2+2?'
            >>> task.for_model(chat=True).prompts[0].text
            ({'role': 'user', 'content': '2+2?'},)
        """
        if not chat or not any(layout.questions for layout in self._layouts):
            return self
        task = copy.copy(self)
        task.prompts, task.held_out = (
            tuple(map(_as_chat, prompts)) if layout.questions else prompts
            for prompts, layout in zip((self.prompts, self.held_out), self._layouts, strict=True)
        )
        return task

    def without(self, rows: Collection[int], held_out_rows: Collection[int], remark: str) -> Self:
        """The same task with some rows left out; those that stay keep their ids.

        Args:
            rows: ids of training rows to leave out; at least one other stays.
            held_out_rows: ids of held-out rows to leave out.
            remark: what is said about it.
        """
        task = copy.copy(self)
        task.prompts = tuple(prompt for prompt in self.prompts if prompt.row not in rows)
        task.held_out = tuple(prompt for prompt in self.held_out if prompt.row not in held_out_rows)
        task.remarks = (*self.remarks, remark)
        return task


class RowsTask(PromptsTask):
    """A task from rows in memory: a list of dicts, a Hugging Face data set, anything that iterates over mappings.

    A row has a `prompt` - a non-empty string, or a list of messages `{"role", "content"}` of which one that is not
    a system message says something - and usually an `answer` (a string or a number). All other columns are handed
    to reward functions by name. Prompts are all strings or all chats: in a mixture one half would silently skip
    the chat template. The rows of GSM8K, MATH, verl and verifiers are read as well; see `layout_of`.

    Raises:
        UsageError: there are no rows, or rows cannot be used: the first five are named as "row 3", counted from 0.

    Example:
        >>> task = RowsTask([{"prompt": "2+2=", "answer": 4, "level": "easy"}])
        >>> task.prompts[0].answer, task.columns
        ('4', ('answer', 'level'))
    """

    def __init__(self, rows: Iterable[object], held_out: Iterable[object] | None = None, *, name: str = "rows") -> None:
        """Validate the rows.

        Args:
            rows: the training rows; gone through once.
            held_out: rows for evaluation, likewise; None = none.
            name: short name, fit for a folder name.
        """
        super().__init__(
            name,
            collect_prompts(_numbered(rows), "The training data"),
            None if held_out is None else collect_prompts(_numbered(held_out), "The held-out data"),
        )


class ShuffledStream:
    """Every row once per epoch, in an order keyed by (seed, epoch). A chunk never crosses the border of an epoch.

    Example:
        >>> stream = RowsTask([{"prompt": str(i)} for i in range(7)]).stream(seed=0)
        >>> [len(stream.take(3)) for _ in range(4)]
        [3, 3, 1, 3]
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        """Start at the first row of epoch 0.

        Args:
            prompts: the rows, at least one.
            seed: of the order.
        """
        self._prompts = prompts
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._order = self._order_of(0)

    def take(self, n: int) -> list[Draw]:
        """The next `n` rows, or what is left of the epoch; see `PromptStream.take`."""
        check_take(n)
        size = len(self._prompts)
        if self._position >= size:
            self._epoch, self._position = self._epoch + 1, 0
            self._order = self._order_of(self._epoch)
        places = range(self._position, min(self._position + n, size))
        self._position = places.stop
        return [Draw(prompt=self._prompts[self._order[place]], number=self._epoch * size + place) for place in places]

    def state_dict(self) -> dict[str, int]:
        """Seed and number of rows, the epoch, and how many of its rows have been drawn."""
        return {"seed": self._seed, "rows": len(self._prompts), "epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a saved state; see `PromptStream.load_state_dict`."""
        check_state(state, {"seed": self._seed, "rows": len(self._prompts)}, ["epoch", "position"])
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._order_of(self._epoch)

    def _order_of(self, epoch: int) -> list[int]:
        return keyed_permutation(len(self._prompts), "epoch order", self._seed, epoch)


def collect_prompts(rows: Iterable[tuple[str, object]], source: str, *, skip_bad_rows: bool = False) -> Collected:
    """Turn rows into prompts, or report everything that is wrong with them in one sentence.

    Args:
        rows: (where the row stands, the row), where a row that could not even be read is a `BadRow`.
        source: what the rows are, as the subject of an error's sentence.
        skip_bad_rows: leave unusable rows out, and say so in a remark, instead of refusing the whole.

    Returns:
        One prompt per usable row; `row` is its index among all of them. All have the same columns: None where a row
        has no such column.

    Raises:
        UsageError: no rows, or unusable ones; chained to the first cause.
    """
    prompts: list[Prompt] = []
    offenders: list[tuple[str, BadRow]] = []
    columns: dict[str, None] = {}
    layout: Layout | None = None
    index = -1
    for index, (where, row) in enumerate(rows):
        try:
            if isinstance(row, BadRow):
                raise row
            if not isinstance(row, Mapping):
                raise BadRow(f"a row is an object with a 'prompt', not {_kind(row)}")
            layout = layout or layout_of(row)
            prompt = _prompt(index, where, layout.convert(row))
            if prompts and isinstance(prompt.text, str) is not isinstance(prompts[0].text, str):
                kinds = ("a string", "messages") if isinstance(prompt.text, str) else ("messages", "a string")
                raise BadRow(
                    f"the prompt is {kinds[0]} where {prompts[0].place} has {kinds[1]}; a data set is all one or the "
                    "other"
                )
        except BadRow as reason:
            offenders.append((where, reason))
            continue
        prompts.append(prompt)
        columns.update(dict.fromkeys(prompt.columns))
    if index < 0:
        raise UsageError(f"{source} has no rows.")
    if offenders and not (skip_bad_rows and prompts):
        raise UsageError(f"{source} has {_unusable(offenders, index + 1)}") from offenders[0][1]
    layout = layout or OURS
    remarks = [
        *([f"{layout.name} rows: {layout.remark}"] if layout.remark else []),
        *([f"left out {_unusable(offenders, index + 1)}"] if offenders else []),
        *_repeats(prompts),
    ]
    return Collected(
        prompts=tuple(_with_columns(prompt, columns) for prompt in prompts), layout=layout, remarks=tuple(remarks)
    )


def listed(offenders: Sequence[tuple[str, object]]) -> list[str]:
    """Indented lines for a message: where and why, the first five; the others as a count.

    Example:
        >>> listed([("row 3", "too long")])
        ['  row 3: too long']
    """
    lines = [f"  {where}: {reason}" for where, reason in offenders[:SHOWN_OFFENDERS]]
    if len(offenders) > SHOWN_OFFENDERS:
        lines.append(f"  and {len(offenders) - SHOWN_OFFENDERS} more")
    return lines


def _unusable(offenders: Sequence[tuple[str, BadRow]], total: int) -> str:
    return "\n".join([f"{len(offenders)} unusable of {total} rows:", *listed(offenders)])


def _repeats(prompts: Sequence[Prompt]) -> list[str]:
    """Rows with the same prompt are legal: told apart by their ids, they make groups of their own."""
    again = len(prompts) - len({_words(prompt) for prompt in prompts})
    return [f"{again} of {len(prompts)} rows repeat an earlier prompt; each makes groups of its own"] if again else []


def _overlap(prompts: Sequence[Prompt], held_out: Sequence[Prompt]) -> list[str]:
    trained = {_words(prompt) for prompt in prompts} if held_out else set()
    both = sum(_words(prompt) in trained for prompt in held_out)
    return [f"{both} of {len(held_out)} held-out prompts are among the training prompts as well"] if both else []


def _words(prompt: Prompt) -> str:
    return prompt.text if isinstance(prompt.text, str) else repr([sorted(message.items()) for message in prompt.text])


def _as_chat(prompt: Prompt) -> Prompt:
    return dataclasses.replace(prompt, text=({"role": "user", "content": str(prompt.text)},))


def _with_columns(prompt: Prompt, names: Iterable[str]) -> Prompt:
    # A reward function gets every column as a list as long as the batch, whichever rows the batch has.
    columns = {name: prompt.columns.get(name) for name in names}
    return dataclasses.replace(prompt, columns=columns)


def _numbered(rows: Iterable[object]) -> Iterator[tuple[str, object]]:
    for index, row in enumerate(rows):
        yield f"row {index}", row


def _prompt(index: int, where: str, row: Mapping[str, object]) -> Prompt:
    columns = {str(name): value for name, value in row.items() if name not in ("prompt", "answer")}
    text, answer = _text(row["prompt"]), _answer(row.get("answer"))
    return Prompt(row=index, text=text, answer=answer, columns=columns, where=where)


def _text(value: object) -> str | tuple[Message, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise BadRow("the prompt is empty")
        return _encodable(value, "prompt")
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise BadRow(f"the prompt is a string or a list of messages, not {_kind(value)}")
    if not value:
        raise BadRow("the prompt is an empty list of messages")
    messages = tuple(_message(number, message) for number, message in enumerate(value))
    if not any(message["role"] != "system" and message["content"].strip() for message in messages):
        raise BadRow("the prompt has no message but the system's that says anything")
    return messages


def _message(number: int, value: object) -> Message:
    if not isinstance(value, Mapping):
        raise BadRow(f"message {number} of the prompt is {_kind(value)}, not an object with 'role' and 'content'")
    # Data sets with a fixed schema fill fields that a message does not have (tool calls) with None.
    message = {str(name): content for name, content in value.items() if content is not None}
    for name in ("role", "content"):
        if name not in message:
            raise BadRow(f"message {number} of the prompt has no '{name}'")
    for name, content in message.items():
        if not isinstance(content, str):
            raise BadRow(f"'{name}' of message {number} of the prompt is {_kind(content)}, not a string")
        _encodable(content, "prompt")
    if not message["role"].strip():
        raise BadRow(f"'role' of message {number} of the prompt is empty")
    return message


def _answer(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _encodable(value, "answer")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise BadRow(f"the answer is a string or a number, not {_kind(value)}")
    if not math.isfinite(value):
        raise BadRow(f"the answer is {value}, which no answer can equal")
    return str(value)


def _encodable(text: str, name: str) -> str:
    """Half of a surrogate pair is legal in JSON and no text: tokenizers and files refuse it, far from its cause."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"the {name} holds half a surrogate pair at character {error.start}") from error
    return text


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), f"a {type(value).__name__}")
