"""Held-out accuracy during a run: one greedy answer to each problem, divided over the processes, and written down."""

from collections.abc import Callable

from upweight.evaluate.accuracy import Accuracy, accuracy_of, greedy
from upweight.evaluate.answers import Answer, answered
from upweight.policy.policy import Policy
from upweight.rewards.runner import Failures, RewardRunner
from upweight.rollout.completion import Engine
from upweight.tasks.task import Task
from upweight.train.divided import divided
from upweight.train.intake import EVAL_PROMPTS
from upweight.train.saving.folder import RunFolder, read_rows
from upweight.train.saving.state import undisturbed


class HeldOut:
    """Evaluates a policy between two steps, and knows what came of it."""

    def __init__(
        self,
        *,
        task: Task,
        policy: Policy,
        engine: Engine,
        runner: RewardRunner,
        folder: RunFolder,
        max_new_tokens: int,
        say: Callable[[str], None],
    ) -> None:
        """Take what an evaluation needs.

        Args:
            task: its held-out problems, the first `EVAL_PROMPTS` of them.
            policy: encodes and decodes.
            engine: samples from the policy.
            runner: judges.
            folder: has evaluations.jsonl, and the processes of the run.
            max_new_tokens: budget of an answer.
            say: takes a line of text.
        """
        self._prompts = list(task.held_out)[:EVAL_PROMPTS]
        self._policy = policy
        self._engine = engine
        self._runner = runner
        self._folder = folder
        self._budget = max_new_tokens
        self._say = say

    def evaluate(self, step: int) -> Accuracy | None:
        """Accuracy after a step, written down and said; None where the task holds nothing out. A collective.

        Args:
            step: steps taken.

        Raises:
            RewardError: a reward function failed on a larger share of the answers than it may.
            Exception: as `divided` does, on all ranks.
        """
        if not self._prompts:
            return None
        policy, ranks = self._policy, self._folder.ranks
        ranks.at(f"in the evaluation after step {step}")
        sampling = greedy(self._budget)

        def answer(mine: list[int]) -> tuple[list[Answer], Failures]:
            asked = [self._prompts[place] for place in mine]
            groups, failures = answered(self._engine, policy.encode, policy.decode, asked, self._runner, sampling)
            return [group[0] for group in groups], failures

        with undisturbed():
            answers = divided([1] * len(self._prompts), answer, self._runner, ranks)
        accuracy = accuracy_of(answers)
        self._folder.write_evaluation(
            {
                "step": step,
                "accuracy": accuracy.value,
                "low": accuracy.low,
                "high": accuracy.high,
                "n": accuracy.n,
                "unscored": accuracy.unscored,
            }
        )
        self._say(
            f"step {step}: held-out greedy accuracy {accuracy.value:.3f} "
            f"[{accuracy.low:.3f}, {accuracy.high:.3f}] on {accuracy.n} problems"
        )
        return accuracy

    def known(self, step: int) -> float | None:
        """Accuracy after a step, as it was written down; None where it was not. A collective."""
        rows = self._folder.ranks.from_first(lambda: read_rows(self._folder.path / "evaluations.jsonl"))
        return next((row["accuracy"] for row in rows if row["step"] == step), None)
