"""The measurements' own modules are found from here; no test says how long anything takes."""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"

sys.path.append(str(BENCH))
