"""The specification's modules can be imported, and a run ends with how much of it was checked."""

import sys
from pathlib import Path

import pytest

# At the end: a module of the same name that someone has installed goes first, and the tests then fail at import.
sys.path.append(str(Path(__file__).resolve().parent))

COUNTS = ("combinations", "derivatives", "left_out", "in_float32")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Add up what the tests recorded; reports travel from xdist's workers, so this holds with them as well."""
    properties = [
        (name, value)
        for report in terminalreporter.stats.get("passed", [])
        for name, value in getattr(report, "user_properties", [])
    ]
    total = {name: sum(value for key, value in properties if key == name) for name in COUNTS}
    if total["combinations"]:
        terminalreporter.write_line(
            f"specification: {total['combinations']:,} combinations, {total['derivatives']:,} derivatives, "
            f"{total['left_out']:,} left out near a kink; "
            f"{total['in_float32']:,} of them again in float32"
        )
