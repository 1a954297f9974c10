"""Draw every figure of docs/lab.md and docs/small-world.md again: `python docs/lab/figures.py`."""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from upweight.cli.lab import NAMES
from upweight.cli.main import main


def draw_all(folder: Path, small_world: Sequence[str] = ()) -> int:
    """Draw each experiment at its defaults as FOLDER/NAME.svg, and the small world as FOLDER/small-world-NAME.svg.

    Args:
        folder: where the figures go.
        small_world: flags of `upweight lab small-world` that make its world another than the pages'.

    Returns:
        0, or the exit code of the first command that failed.
    """
    for name, row in NAMES.items():
        if row.figure and (code := main(["lab", name, "--plot", str(folder / f"{name}.svg")])):
            return code
    with tempfile.TemporaryDirectory() as written:
        if code := main(["lab", "small-world", *small_world, "--out", written]):
            return code
        for figure in Path(written).glob("*.svg"):
            shutil.copy(figure, folder)
    return 0


if __name__ == "__main__":
    sys.exit(draw_all(Path(__file__).parent))
