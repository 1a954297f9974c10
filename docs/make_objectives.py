"""Writes docs/objectives.md: what `upweight explain` prints for every preset, and for every trainer of `--like`.

python docs/make_objectives.py
"""

import sys
from pathlib import Path

from upweight.cli.explain import read
from upweight.objective.dialects import DIALECTS
from upweight.objective.presets import PRESETS
from upweight.report.render import as_text, title

FILE = Path(__file__).parent / "objectives.md"

HEAD = """# Objectives

What each preset trains, as `upweight explain` prints it; then where `--like` starts from. Any flag of
`upweight train` can be added to the commands. Made by `python docs/make_objectives.py`; a test holds it up to date.

"""


def page() -> str:
    """The whole document."""
    calls = [["--preset", name] for name in PRESETS] + [["--like", name] for name in DIALECTS]
    sections, contents = [], []
    for call in calls:
        _, explanation = read(call)
        command = " ".join(["upweight explain", *call])
        contents.append(f"- `{command}`: {title(explanation).partition(': ')[2] or DIALECTS[call[1]].version}")
        sections.append(f"## {call[1]}\n\n```\n$ {command}\n{as_text(explanation)}```\n")
    return HEAD + "\n".join(contents) + "\n\n" + "\n".join(sections)


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    print(f"wrote {FILE.name}", file=sys.stderr)
