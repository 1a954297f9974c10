"""Put one wrong formula at a time into a copy of the package and show which test notices it.

Run it as `python tests/spec/mutate.py`; it leaves with 1 if a mutation survives.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from mutations import MUTATIONS, Mutation

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "upweight"
TESTS = ("tests/spec/test_advantages.py", "tests/spec/test_every_combination.py")  # the quick one first
AT_ONCE = 2


@dataclass(frozen=True)
class Verdict:
    """What the tests said to a mutation."""

    test: str | None
    """Id of the first red test; None = all were green."""

    by_assertion: bool
    """It is red because an assertion failed, not because something could not run."""

    output: str


def apply(mutation: Mutation, folder: Path) -> None:
    """Copy the package into the folder and mutate it.

    Raises:
        ValueError: a text does not occur exactly once: the mutation has to follow a change of the source.
    """
    shutil.copytree(PACKAGE, folder / "upweight", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "upweight" / "objective" / f"{mutation.module}.py"
    source = path.read_text(encoding="utf-8")
    for before, after in mutation.edits:
        found = source.count(before)
        if found != 1:
            raise ValueError(f"mutation '{mutation.name}': {path.name} has {found} times, not once: {before!r}")
        source = source.replace(before, after)
    path.write_text(source, encoding="utf-8")
    # Loaded on its own, beside the package as it is: a mutation that cannot be imported proves nothing.
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{mutation.module}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]


def judge(mutation: Mutation) -> Verdict:
    """Run the specification against the mutated package until its first red test."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apply(mutation, folder)
        command = [sys.executable, "-m", "pytest", *TESTS, "-x", "-m", "not slow", "--tb=no", "-rfE"]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider"],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "PYTHONPATH": name,
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1",
                "COLUMNS": "400",  # the reason of a failure is cut at the width of the terminal
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
    output = done.stdout + done.stderr
    red = re.search(r"^(FAILED|ERROR) (\S+)( - .*)?$", output, re.MULTILINE)
    if red is None:
        return Verdict(test=None if done.returncode == 0 else "no test ran", by_assertion=False, output=output)
    reason = (red[3] or "").removeprefix(" - ")
    return Verdict(test=red[2], by_assertion=reason.startswith(("AssertionError", "assert ")), output=output)


def judge_all() -> list[tuple[Mutation, Verdict]]:
    """Two at a time, in the order of the list.

    Raises:
        RuntimeError: the package as it is does not pass: then a red test says nothing about a mutation.
    """
    unchanged = Mutation("none", "loss", ())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        first, *verdicts = pool.map(judge, (unchanged, *MUTATIONS))
    if first.test is not None:
        raise RuntimeError(f"the specification is red without any mutation: {first.test}\n{first.output}")
    return list(zip(MUTATIONS, verdicts, strict=True))


def main() -> int:
    """Print the table; 1 if a mutation survived or was noticed by anything but a value."""
    verdicts = judge_all()
    for mutation, verdict in verdicts:
        caught = "SURVIVED" if verdict.test is None else verdict.test.removeprefix("tests/spec/")
        note = "" if verdict.by_assertion or verdict.test is None else "  (not an assertion)"
        print(f"{mutation.name:52}  {mutation.module:10}  {caught}{note}")
    caught = sum(verdict.by_assertion for _, verdict in verdicts)
    print(f"{caught} of {len(verdicts)} mutations caught by a failed assertion")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
