"""Draw every figure of docs/lab.md again: `python docs/lab/figures.py`."""

import sys
from pathlib import Path

from upweight.cli.lab import NAMES
from upweight.cli.main import main


def draw_all(folder: Path) -> int:
    """Draw the figure of each experiment that has one, at its defaults, as FOLDER/NAME.svg."""
    for name, row in NAMES.items():
        if row.figure and (code := main(["lab", name, "--plot", str(folder / f"{name}.svg")])):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(draw_all(Path(__file__).parent))
