"""What a person sees of a run: a live table on a terminal, one plain line a step elsewhere."""

import collections
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console as RichConsole
from rich.live import Live
from rich.table import Table

from upweight.objective.advantage import uninformative_share
from upweight.objective.remarks import notes
from upweight.tasks.task import Task
from upweight.train.args import TrainArgs
from upweight.train.intake import EVAL_PROMPTS
from upweight.train.records import StepReport
from upweight.train.redact import redact
from upweight.train.saving.begun import flat_config, spelled

ROWS = 12
"""Steps the live table shows."""

COLUMNS = ("step", "reward", "informative", "resp_len", "clipfrac", "kl", "entropy", "tokens/s", "time left")


class Console:
    """Prints messages and steps; a context manager, so that the live table is closed whatever happens."""

    def __init__(self, total: int, *, console: RichConsole | None = None, quiet: bool = False) -> None:
        self.done = 0
        """Steps that were taken before this process."""
        self._total = total
        self._console = RichConsole(quiet=quiet) if console is None else console
        self._recent: collections.deque[list[str]] = collections.deque(maxlen=ROWS)
        self._live: Live | None = None
        self._started = time.perf_counter()

    def say(self, message: str) -> None:
        """A line of text; above the table where there is one."""
        self._console.print(redact(message), markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> "Console":
        self._started = time.perf_counter()
        if self._console.is_terminal:
            self._live = Live(self._table(), console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def step(self, report: StepReport) -> None:
        """Show a finished step."""
        here = max(1, report.step - self.done)
        left = (time.perf_counter() - self._started) / here * (self._total - report.step)
        cells = _cells(report, self._total, left)
        self._recent.append(cells)
        if self._live is not None:
            self._live.update(self._table())
        else:
            self.say("  ".join(f"{name} {cell}" for name, cell in zip(COLUMNS, cells, strict=True)))

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in COLUMNS:
            table.add_column(name, justify="right")
        for cells in self._recent:
            table.add_row(*cells)
        return table


def _cells(report: StepReport, total: int, seconds_left: float) -> list[str]:
    minutes, seconds = divmod(round(seconds_left), 60)
    return [
        f"{report.step}/{total}",
        _number(report.reward, 3),
        f"{report.informative:.2f}",
        f"{report.resp_len:.1f}",
        _number(report.clipfrac, 3),
        _number(report.kl, 4),
        _number(report.entropy, 3),
        f"{report.tokens_per_second:.0f}",
        f"{minutes}:{seconds:02d}",
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def announce(args: TrainArgs, task: Task) -> None:
    """Print what a run is going to do."""
    console = Console(args.max_steps)
    updates = args.minibatches * args.epochs_per_batch
    rows = "endless" if task.size is None else f"{task.size} rows"
    console.say("configuration: " + " ".join(f"{name}={spelled(value)}" for name, value in flat_config(args).items()))
    evaluated, answers = min(len(task.held_out), EVAL_PROMPTS), args.prompts_per_step * args.group_size
    console.say(
        f"task {task.name} ({rows}, {len(task.held_out)} held out, {evaluated} of them in an evaluation); "
        f"{args.prompts_per_step} prompts x {args.group_size} answers = {answers} answers and {updates} updates a step"
    )
    for remark in task.remarks:
        console.say(f"data: {remark}")
    for note in notes(args.objective, updates_per_step=updates, group_size=args.group_size, preset=args.preset):
        console.say(f"note: {note}")


def remarks_on(report: StepReport, args: TrainArgs, rollouts: Path, said: set[str]) -> list[str]:
    """What a person should know of a step: groups without a signal at the start, a budget that is used up.

    Args:
        report: of the step.
        args: the run's configuration.
        rollouts: the folder that shows what was answered.
        said: what is said once a run and has been said; grows.
    """
    remarks = []
    if report.missing_groups and "starved" not in said:
        said.add("starved")
        what = {
            "stop": "so the run ends here (--when_starved stop), saved",
            "train": "and trains on those there are; so will every later step that does",
            "skip": "and makes no update; they are kept for the next step (--when_starved skip)",
        }[args.when_starved]
        remarks.append(
            f"step {report.step} used up the budget of {args.resample_budget} rounds of sampling (--resample_budget) "
            f"and lacks {report.missing_groups} of {args.prompts_per_step} informative groups, {what}. "
            f"{report.informative:.0%} of {report.sampled_groups} sampled groups carry a signal"
        )
    if report.step != 1 or report.informative >= 0.5 or report.reward is None:
        return remarks
    if report.informative == 0.0:
        remarks.append(
            f"no group carries a signal: the answers to each prompt earned the same, {report.reward:.2f} on average. "
            f"{rollouts} shows what was answered and why it was judged so. An easier task, a warm-up, an example in "
            "the prompt or a larger --group_size gives rewards that differ"
        )
        return remarks
    expected = ""
    if 0.0 <= report.reward <= 1.0:
        share = uninformative_share(report.reward, args.group_size)
        expected = f"; at a success rate of {report.reward:.2f}, G={args.group_size} leads one to expect {share:.0%}"
    remarks.append(f"{1 - report.informative:.0%} of the groups carry no signal{expected}")
    return remarks
