"""Whether a run that was killed and went on is the run that nobody killed: hashes of both, and what that costs.

2N steps straight, and N steps, a kill -9 in the middle of the next and N more in a new process, with the same seed. The
hashes of the last checkpoint's weights, moments and metrics row (times left out) have to be equal. `--cost` measures
what a checkpoint and the guards take beside a step.

    python bench/resume.py
    python bench/resume.py --ranks 2
    python bench/resume.py --model smollm2-135m --steps 2 --prompts 2 --answers 4
    python bench/resume.py --cost
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from speed.measure import table

PARTS = ("weights", "moments", "metrics row")

REWARD = """
def letters(completions, **_):
    return [sum(c.islower() for c in str(answer)) / max(1, len(str(answer))) for answer in completions]
"""
"""One that any model earns a part of, with chats as well, so that every step updates the weights."""


def launch(ranks: int, flags: list[str]) -> list[str]:
    """The command that starts a run."""
    start = [sys.executable, "-m"]
    if ranks > 1:
        start += ["torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), "-m"]
    return [*start, "upweight", "train", *flags]


def flags_of(options: argparse.Namespace, place: str) -> list[str]:
    """What both runs are given: 2N steps, a checkpoint every N; the reward is written into a folder."""
    (Path(place) / "mine.py").write_text(REWARD)
    given = {
        "model": options.model,
        "task": "arithmetic:digits=1",
        "sft_steps": 20 if options.model == "tiny" else 0,
        "prompts_per_step": options.prompts,
        "group_size": options.answers,
        "max_new_tokens": options.new_tokens,
        "max_steps": 2 * options.steps,
        "save_every": options.steps,
        "reward": f"{place}/mine.py:letters",
        "device": "cpu",
    }
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def straight(options: argparse.Namespace, folder: Path) -> None:
    """2N steps in one process."""
    command = launch(options.ranks, [*flags_of(options, str(folder.parent)), "--output_dir", str(folder)])
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def killed(options: argparse.Namespace, folder: Path) -> None:
    """N steps, a kill -9 once the checkpoint is there, and the rest in new processes."""
    command = launch(options.ranks, [*flags_of(options, str(folder.parent)), "--output_dir", str(folder)])
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (folder / f"checkpoint-{options.steps}").exists():
        if process.poll() is not None:
            raise SystemExit("the run ended before its first checkpoint")
        time.sleep(0.01)
    kill_all(process)
    late = folder / f"checkpoint-{2 * options.steps}"
    if late.exists():  # the last steps were faster than the look at the folder
        shutil.rmtree(late)
    subprocess.run(
        launch(options.ranks, ["--resume", str(folder / f"checkpoint-{options.steps}")]),
        check=True,
        stdout=subprocess.DEVNULL,
    )


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """End a process and all below it, and wait until they are gone: torchrun's workers have sessions of their own."""
    doomed = below(process.pid)
    os.kill(process.pid, signal.SIGKILL)  # first the one that would start others again
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    while any(is_running(pid) for pid in doomed):
        time.sleep(0.01)


def below(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name is in brackets and may hold any; the state and the parent follow.
            if int(place.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(place.parent.name))
    return found + [grandchild for child in found for grandchild in below(child)]


def is_running(pid: int) -> bool:
    """Whether a process is there; one that waits to be reaped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def hashes(folder: Path, step: int) -> dict[str, str]:
    """SHA-256 of the weights, the moments and the last metrics row."""
    checkpoint = folder / f"checkpoint-{step}"
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    plain = {name: value for name, value in row.items() if "second" not in name}
    texts = (
        (checkpoint / "model.safetensors").read_bytes(),
        (checkpoint / "optimizer.safetensors").read_bytes(),
        json.dumps(plain, sort_keys=True).encode(),
    )
    return {part: hashlib.sha256(text).hexdigest() for part, text in zip(PARTS, texts, strict=True)}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Both runs, and whether they are one."""
    with tempfile.TemporaryDirectory() as place:
        folders = {name: Path(place) / name for name in ("straight", "killed")}
        straight(options, folders["straight"])
        killed(options, folders["killed"])
        found = {name: hashes(folder, 2 * options.steps) for name, folder in folders.items()}
    return {
        "model": options.model,
        "ranks": options.ranks,
        "steps": [options.steps, options.steps],
        **found,
        "equal": found["straight"] == found["killed"],
    }


def cost(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step, of a checkpoint after it, and of what the guards do within it."""
    import statistics

    import upweight.train.guards as guards
    import upweight.train.saving.keeper as keeper
    import upweight.train.step as step
    from upweight.train.args import TrainArgs
    from upweight.train.trainer import Trainer

    spent: dict[str, list[float]] = {"checkpoint": [], "guards": []}

    def timed(owner: Any, name: str, part: str) -> None:
        plain = getattr(owner, name)

        def wrapped(*args: Any, **words: Any) -> Any:
            started = time.perf_counter()
            try:
                return plain(*args, **words)
            finally:
                spent[part].append(time.perf_counter() - started)

        setattr(owner, name, wrapped)

    timed(keeper.Keeper, "write", "checkpoint")
    timed(keeper.Keeper, "progress", "guards")
    timed(step, "judge", "guards")
    timed(step, "broken_inputs", "guards")
    timed(guards.Guard, "end", "guards")
    with tempfile.TemporaryDirectory() as place:
        words = iter(flags_of(options, place))
        given = {name.removeprefix("--"): value for name, value in zip(words, words, strict=True)}
        numbers = {name: int(value) if value.isdigit() else value for name, value in given.items()}
        run = Trainer(args=TrainArgs.from_flags(**{**numbers, "save_every": 1, "output_dir": f"{place}/run"})).train()
        rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        size = sum(path.stat().st_size for path in run.checkpoint.rglob("*") if path.is_file())
    seconds = statistics.median(row["seconds"] for row in rows)
    saving, guarding = statistics.median(spent["checkpoint"]), sum(spent["guards"]) / len(rows)
    return {
        "model": options.model,
        "step_seconds": seconds,
        "checkpoint_seconds": saving,
        "checkpoint_bytes": size,
        "checkpoint_share": saving / seconds,
        "guards_seconds": guarding,
        "guards_share": guarding / seconds,
    }


def show_cost(found: dict[str, Any]) -> str:
    """A table with one row."""
    head = ("model", "seconds a step", "a checkpoint", "its size", "of a step", "guards and state", "of a step")
    row = (
        found["model"],
        f"{found['step_seconds']:.3f}",
        f"{found['checkpoint_seconds']:.3f} s",
        f"{found['checkpoint_bytes'] / 1e6:.0f} MB",
        f"{found['checkpoint_share']:.0%}",
        f"{found['guards_seconds'] * 1000:.2f} ms",
        f"{found['guards_share']:.2%}",
    )
    return table(head, [row])


def show(found: dict[str, Any]) -> str:
    """A row for each thing that has to be equal."""
    rows = [(part, found["straight"][part][:16], found["killed"][part][:16]) for part in PARTS]
    steps = found["steps"][0]
    head = (f"{found['model']}, ranks: {found['ranks']}", f"{2 * steps} steps", f"{steps} + kill -9 + {steps}")
    return table(head, rows) + f"\n{'equal' if found['equal'] else 'NOT EQUAL'}, to the bit"


def main() -> None:
    """Exit code 1 where the runs differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--ranks", type=int, default=1, help="processes, started by torchrun where there are several")
    parser.add_argument("--steps", type=int, default=5, help="N")
    parser.add_argument("--prompts", type=int, default=8, help="of a step")
    parser.add_argument("--answers", type=int, default=8, help="to a prompt")
    parser.add_argument("--new_tokens", type=int, default=6, help="of an answer, at most")
    parser.add_argument("--cost", action="store_true", help="measure what a checkpoint and the guards take instead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = cost(options) if options.cost else compare(options)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(show_cost(found) if options.cost else show(found))
    sys.exit(0 if options.cost or found["equal"] else 1)


if __name__ == "__main__":
    main()
