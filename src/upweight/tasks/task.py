"""What a task is: the protocols that training and evaluation are written against."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from upweight.objective.errors import bad_parameter
from upweight.tasks.prompt import Draw, Prompt


class PromptStream(Protocol):
    """The order in which a run meets its prompts. Resumes exactly from a small state."""

    def take(self, n: int) -> list[Draw]:
        """The next draws.

        Args:
            n: how many, >= 1.

        Returns:
            `n` draws; fewer only where an epoch ends (a chunk never crosses that border), and never none.

        Raises:
            UsageError: n is below 1.
        """
        ...

    def state_dict(self) -> dict[str, int]:
        """What is needed to go on from here: plain integers, ready for JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a saved state.

        Raises:
            UsageError: the state is of a stream over other data or with another seed.
        """
        ...


class Task(Protocol):
    """A source of prompts with what belongs to it: a default reward, a budget, held-out problems."""

    @property
    def name(self) -> str:
        """Short name, fit for a folder name."""
        ...

    @property
    def reward(self) -> str:
        """Name of the reward that fits, what a run uses where none is asked for: a built-in one, or the scorer's."""
        ...

    @property
    def scorer(self) -> Callable[..., object] | None:
        """The task's own reward function, where it brings one; None where `reward` names a built-in."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """What a person should know about the rows before a run: how they were read, what was left out."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """Budget of one answer in tokens, where none is asked for."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns a reward function may ask for; `answer` among them where rows have one."""
        ...

    @property
    def size(self) -> int | None:
        """Rows per epoch; None where the stream never ends."""
        ...

    @property
    def held_out(self) -> Sequence[Prompt]:
        """Problems that training never draws; empty where there are none."""
        ...

    def stream(self, seed: int) -> PromptStream:
        """A fresh stream of training prompts. Streams with the same seed are the same."""
        ...

    def demonstrations(self, count: int, seed: int) -> Sequence[tuple[Prompt, str]]:
        """Worked answers to training problems for a supervised warm-up; empty where the task has none."""
        ...


def reward_of(task: Task, asked: str | None) -> str | Callable[..., object]:
    """What judges a task's answers: the reward that was asked for, else the task's own.

    Args:
        task: the task.
        asked: a reward's name; None = none. The name of the task's own reward, as a run's config.json has it, stands
            for that.

    Returns:
        A name, or the task's own function.
    """
    if asked is not None and asked != task.reward:
        return asked
    return task.reward if task.scorer is None else task.scorer


def check_take(n: int) -> None:
    """Refuse a chunk of fewer than one draw."""
    if n < 1:
        raise bad_parameter("n", "PromptStream.take", "at least 1", n)


def check_state(state: Mapping[str, int], expected: Mapping[str, int], positions: Sequence[str]) -> None:
    """Refuse a stream state that belongs to another stream, or that is no state at all.

    Args:
        state: what was saved.
        expected: entries that must be equal: the identity of the stream.
        positions: entries that must be there and be at least 0.

    Raises:
        UsageError: naming the first entry that does not fit.
    """
    for key, value in expected.items():
        if state.get(key) != value:
            raise bad_parameter(
                key,
                "a prompt stream's state",
                f"{value}, as in this run",
                state.get(key),
                "The state was saved by a run over other data or with another seed.",
            )
    for key in positions:
        if not isinstance(state.get(key), int) or state[key] < 0:
            raise bad_parameter(key, "a prompt stream's state", "an integer of at least 0", state.get(key))
