"""Where things that are costly to make are kept, and how they get there whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from upweight.objective.paths import given_path


def cache_root() -> Path:
    """`UPWEIGHT_CACHE`, else `XDG_CACHE_HOME/upweight`, else `~/.cache/upweight`; not created."""
    if own := os.environ.get("UPWEIGHT_CACHE"):
        return given_path(own, "UPWEIGHT_CACHE")
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return given_path(xdg, "XDG_CACHE_HOME") / "upweight"
    return Path.home() / ".cache" / "upweight"


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A scratch folder that becomes `target` when the block ends well, and vanishes when it does not.

    Renaming is atomic, so another process sees all of the folder or none. If it won the race, its result stays.

    Args:
        target: the folder to appear; a folder that is there already is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield scratch
        if target.exists():
            stale = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
            target.rename(stale / "old")
            shutil.rmtree(stale)
        try:
            os.replace(scratch, target)
        except OSError:
            # A race between two writers: the folder that got there first holds the same thing.
            if not target.exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
