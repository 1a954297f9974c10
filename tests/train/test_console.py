"""What a person sees: plain lines in a file, a table on a terminal."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console as RichConsole

import upweight.train.console as room
from upweight.train.console import COLUMNS, ROWS, Console

Report = Callable[..., Any]


def plain(total: int) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(total, console=RichConsole(file=out, width=60)), out


def terminal(total: int) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(total, console=RichConsole(file=out, force_terminal=True, width=120)), out


def test_a_step_is_one_plain_line_where_there_is_no_terminal(report_of: Report) -> None:
    """Whatever the width, without colour codes, every column named."""
    console, out = plain(40)
    with console:
        console.step(report_of(2, reward=0.5, informative=0.75, entropy=1.25, clipfrac=0.125, kl=None))
    [line] = out.getvalue().splitlines()
    assert "\x1b" not in line
    assert [name for name in COLUMNS if f"{name} " not in line] == []
    assert line.startswith("step 2/40  reward 0.500  informative 0.75")
    assert "kl -" in line


def test_a_step_without_numbers_has_dashes(report_of: Report) -> None:
    """Nothing was judged, nothing was trained on."""
    console, out = plain(3)
    console.step(report_of(1, reward=None, entropy=None, clipfrac=None))
    assert "reward -" in out.getvalue()
    assert "entropy -" in out.getvalue()


def test_messages_are_text_and_not_markup() -> None:
    """A path in brackets, an equals sign, a long line: printed as they are."""
    console, out = plain(1)
    message = "[bold]configuration: {'a': [1, 2]} a=3 " + "long " * 40
    console.say(message)
    assert out.getvalue() == message + "\n"


def test_a_terminal_gets_a_table_of_the_last_steps(report_of: Report) -> None:
    """Header, the newest rows, and messages above it."""
    console, out = terminal(50)
    with console:
        for step in range(1, ROWS + 4):
            console.step(report_of(step, reward=step / 100))
        console.say("a message")
    last = out.getvalue().rpartition("a message")[2]
    assert [name for name in COLUMNS if name not in last] == []
    assert f"{ROWS + 3}/50" in last
    assert " 3/50" not in last
    assert last.count("/50") == ROWS


def test_the_table_is_closed_whatever_happens(report_of: Report) -> None:
    """The cursor comes back after an error."""
    console, out = terminal(5)

    def fail() -> None:
        with console:
            console.step(report_of(1))
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert out.getvalue().count("\x1b[?25h") == out.getvalue().count("\x1b[?25l") == 1


def test_the_time_left_is_what_the_steps_so_far_took(report_of: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps in 61 s, three to go: 91.5 s, that is 1:32."""
    now = [100.0]
    monkeypatch.setattr(room.time, "perf_counter", lambda: now[0])
    console, out = plain(5)
    with console:
        now[0] += 61.0
        console.step(report_of(2))
    assert out.getvalue().rstrip().endswith("time left 1:32")
