"""Tasks made of rows: validated once, up front, and streamed in a seeded order."""

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence

from upweight.objective.errors import UsageError
from upweight.tasks.keyed import keyed_permutation
from upweight.tasks.prompt import Draw, Message, Prompt
from upweight.tasks.task import check_state, check_take

DEFAULT_BUDGET = 256
"""Tokens of an answer where nobody says: rows do not tell how long their answers are."""

SHOWN_OFFENDERS = 5
"""Unusable rows that the error spells out; the others are counted."""


class BadRow(ValueError):
    """One row cannot be used; the text says why. Collected, and reported together as one UsageError."""


class PromptsTask:
    """A task over a fixed list of validated prompts; what files and rows in memory have in common."""

    def __init__(self, name: str, prompts: Sequence[Prompt], held_out: Sequence[Prompt]) -> None:
        """Take over prompts that `collect_prompts` has checked.

        Args:
            name: short name, fit for a folder name.
            prompts: the training rows, at least one; `row` is the position.
            held_out: rows for evaluation; may be empty.
        """
        self.name = name
        self.prompts = tuple(prompts)
        self.held_out = tuple(held_out)

    @property
    def reward(self) -> str:
        """`gsm8k` for chats, and where a gold answer has a `####` line; otherwise `exact`."""
        # Compared as plain text, a chat model's sentences would score 0 for ever.
        chat = not isinstance(self.prompts[0].text, str)
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


class RowsTask(PromptsTask):
    """A task from rows in memory: a list of dicts, a Hugging Face data set, anything that iterates over mappings.

    A row has a `prompt` - a non-empty string, or a list of messages `{"role", "content"}` of which one that is not
    a system message says something - and usually an `answer` (a string or a number). All other columns are handed
    to reward functions by name. Prompts are all strings or all chats: in a mixture one half would silently skip
    the chat template.

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
            () if held_out is None else collect_prompts(_numbered(held_out), "The held-out data"),
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


def collect_prompts(rows: Iterable[tuple[str, object]], source: str) -> list[Prompt]:
    """Turn rows into prompts, or report everything that is wrong with them in one sentence.

    Args:
        rows: (where the row stands, the row), where a row that could not even be read is a `BadRow`.
        source: what the rows are, as the subject of an error's sentence.

    Returns:
        One prompt per row; `row` is its index. All have the same columns: None where a row has no such column.

    Raises:
        UsageError: no rows, or unusable ones; chained to the first cause.
    """
    prompts: list[Prompt] = []
    offenders: list[tuple[str, BadRow]] = []
    columns: dict[str, None] = {}
    first = ""
    index = -1
    for index, (where, row) in enumerate(rows):
        try:
            prompt = _prompt(index, row)
            if prompts and isinstance(prompt.text, str) is not isinstance(prompts[0].text, str):
                kinds = ("a string", "messages") if isinstance(prompt.text, str) else ("messages", "a string")
                raise BadRow(
                    f"the prompt is {kinds[0]} where {first} has {kinds[1]}; a data set is all one or the other"
                )
        except BadRow as reason:
            offenders.append((where, reason))
            continue
        first = first or where
        prompts.append(prompt)
        columns.update(dict.fromkeys(prompt.columns))
    if index < 0:
        raise UsageError(f"{source} has no rows.")
    if offenders:
        raise _report(source, offenders, index + 1) from offenders[0][1]
    return [_with_columns(prompt, columns) for prompt in prompts]


def _report(source: str, offenders: Sequence[tuple[str, BadRow]], total: int) -> UsageError:
    lines = [f"  {where}: {reason}" for where, reason in offenders[:SHOWN_OFFENDERS]]
    if len(offenders) > SHOWN_OFFENDERS:
        lines.append(f"  and {len(offenders) - SHOWN_OFFENDERS} more")
    return UsageError("\n".join([f"{source} has {len(offenders)} unusable of {total} rows:", *lines]))


def _with_columns(prompt: Prompt, names: Iterable[str]) -> Prompt:
    # A reward function gets every column as a list as long as the batch, whichever rows the batch has.
    columns = {name: prompt.columns.get(name) for name in names}
    return Prompt(row=prompt.row, text=prompt.text, answer=prompt.answer, columns=columns)


def _numbered(rows: Iterable[object]) -> Iterator[tuple[str, object]]:
    for index, row in enumerate(rows):
        yield f"row {index}", row


def _prompt(index: int, row: object) -> Prompt:
    if isinstance(row, BadRow):
        raise row
    if not isinstance(row, Mapping):
        raise BadRow(f"a row is an object with a 'prompt', not {_kind(row)}")
    if "prompt" not in row:
        raise BadRow(f"there is no 'prompt'; the columns are: {', '.join(map(str, row)) or 'none'}")
    columns = {str(name): value for name, value in row.items() if name not in ("prompt", "answer")}
    return Prompt(row=index, text=_text(row["prompt"]), answer=_answer(row.get("answer")), columns=columns)


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
