"""The score and the hints seen, in one small file."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Score:
    """What the score file holds."""

    passed: dict[str, bool] = field(default_factory=dict)
    """Exercise to how it went when it was judged last."""

    hints: dict[str, int] = field(default_factory=dict)
    """Exercise to hints seen."""


def read_score(path: Path) -> Score:
    """The score in a file; an empty one where there is none or it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        passed = {str(name): bool(value) for name, value in content["passed"].items()}
        hints = {str(name): max(0, int(value)) for name, value in content["hints"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Score()
    return Score(passed=passed, hints=hints)


def write_score(path: Path, score: Score) -> str | None:
    """Write the file whole or not at all; a sentence where it cannot be written, which spoils nothing else."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps({"passed": score.passed, "hints": score.hints}, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        return f"The score could not be kept in {path}: {error.strerror}. --score FILE names another place."
    return None
