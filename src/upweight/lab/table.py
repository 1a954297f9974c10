"""Tables: ruled on a terminal, plain aligned text elsewhere."""

import textwrap
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

HEADING = 11
"""Characters in a line of a heading, on a terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a person is shown of an experiment."""

    title: str
    """What the table is about, one line."""

    columns: tuple[str, ...]
    """Heading of each column."""

    rows: tuple[tuple[str, ...], ...]
    """Cells, as many a row as there are columns."""

    sentences: tuple[str, ...]
    """What the numbers show."""

    left: tuple[int, ...] = ()
    """Columns of words, which start at the left; numbers end at the right."""


def print_report(report: Report, console: Console) -> None:
    """Print title, table and sentences.

    Args:
        report: what to print.
        console: where. Its lines are wrapped on a terminal only, so that other programs get whole lines.
    """
    say(console, report.title)
    if console.is_terminal:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, name in enumerate(report.columns):
            side: Literal["left", "right"] = "left" if place in report.left else "right"
            table.add_column("\n".join(textwrap.wrap(name, HEADING)), justify=side)
        for cells in report.rows:
            table.add_row(*cells)
        console.print(table, highlight=False)
    else:
        widths = [max(map(len, column)) for column in zip(report.columns, *report.rows, strict=True)]
        for cells in (report.columns, *report.rows):
            padded = [
                cell.ljust(width) if place in report.left else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            say(console, "  ".join(padded).rstrip())
    for sentence in report.sentences:
        say(console, sentence)


def say(console: Console, text: str) -> None:
    """Print a line of text as it stands, wrapped between words on a terminal."""
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)
