"""What a person sees of a run: a live table on a terminal, one plain line a step elsewhere."""

import collections
import time
from types import TracebackType

from rich.console import Console as RichConsole
from rich.live import Live
from rich.table import Table

from upweight.train.records import StepReport
from upweight.train.redact import redact

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
