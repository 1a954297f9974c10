"""Waiting for a run in a process of its own."""

import subprocess
import time
from pathlib import Path


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    """Until the path is there; fails where the process ends before, or the time is up."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)
