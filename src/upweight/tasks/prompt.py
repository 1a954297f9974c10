"""What travels out of `tasks/`: a prompt, and the draw that put it into a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Message = Mapping[str, str]
"""One chat message: `{"role": "user", "content": "..."}`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One row of a task: what the model is asked, and what an answer is judged against."""

    row: int
    """Identity of the row in its data set, unique there, >= 0. Never derived from the text:
    two rows may hold the same words and stay two prompts."""

    text: str | Sequence[Message]
    """A string goes to the tokenizer as it is; a list of messages goes through the chat template."""

    answer: str | None = None
    """The gold answer in the reward function's own terms; None where the row has none."""

    columns: Mapping[str, object] = field(default_factory=dict)
    """Every other column of the row, handed to reward functions by name."""

    where: str = field(default="", compare=False)
    """Where the row stands, for messages: `train.jsonl:7`. Empty where there is nothing better than the row's id."""

    @property
    def place(self) -> str:
        """The row as a message names it: where it stands, or `row 7`.

        Example:
            >>> Prompt(row=7, text="2+2=").place, Prompt(row=7, text="2+2=", where="sums.jsonl:8").place
            ('row 7', 'sums.jsonl:8')
        """
        return self.where or f"row {self.row}"

    @property
    def said(self) -> str | list[dict[str, str]]:
        """`text` as JSON has it: messages as plain dicts, copied, so that whoever changes them changes their own.

        Example:
            >>> Prompt(row=0, text=({"role": "user", "content": "2+2="},)).said
            [{'role': 'user', 'content': '2+2='}]
        """
        return self.text if isinstance(self.text, str) else [dict(message) for message in self.text]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One appearance of a prompt in the training stream. (prompt.row, number) names a group."""

    prompt: Prompt
    """The row that was drawn."""

    number: int
    """Counts all draws of the stream, from 0; unique, so a row drawn twice makes two groups."""
