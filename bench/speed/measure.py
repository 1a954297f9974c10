"""Numbers out of many timings: the median with its spread, ratios turn by turn, growth, tables. Imports no torch."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median, smallest and largest of several measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value.

        Example:
            >>> Spread.of([3.0, 1.0, 2.0, 4.0])
            Spread(median=2.5, low=1.0, high=4.0, count=4)
        """
        if not values:
            raise ValueError("A spread needs at least one measurement: ask for at least one step.")
        return cls(median=statistics.median(values), low=min(values), high=max(values), count=len(values))

    def text(self, digits: int = 2) -> str:
        """As a table shows it.

        Example:
            >>> Spread.of([1.0, 1.5, 4.0]).text()
            '1.50 [1.00, 4.00]'
        """
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def record(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times longer they took, turn by turn: both sides of a turn ran one after the other.

    Example:
        >>> ratio([4.0, 6.0, 9.0], [2.0, 2.0, 3.0])
        Spread(median=3.0, low=2.0, high=3.0, count=3)
    """
    if len(theirs) != len(ours):
        raise ValueError(f"Turns pair both sides: got {len(theirs)} of theirs and {len(ours)} of ours.")
    return Spread.of([b / a for a, b in zip(ours, theirs, strict=True)])


def growth(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Slope of log cost over log size by least squares: 1 is in proportion, 2 is quadratic.

    Example:
        >>> round(growth([1, 2, 4], [10, 40, 160]), 6)
        2.0
    """
    if len(sizes) != len(costs) or len(set(sizes)) < 2:
        raise ValueError(f"A slope needs one cost for each of at least two sizes: got {len(costs)} for {sizes}.")
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def megabytes(size: int | None) -> str:
    """Bytes in units of 1e6, or a dash where they were not measured.

    Example:
        >>> megabytes(1_234_567_890), megabytes(None)
        ('1,235', '-')
    """
    return "-" if size is None else f"{size / 1e6:,.0f}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown.

    Example:
        >>> print(table(["a", "b"], [[1, 2]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"A row of {len(row)} cells does not fit under {len(head)} headings: {list(row)}.")
        lines.append("| " + " | ".join(str(cell) for cell in row) + " |")
    return "\n".join(lines)
