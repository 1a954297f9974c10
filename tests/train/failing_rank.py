"""A run whose rank 1 goes wrong while it judges: HOW STEP FOLDER [--once | --twice] [--full]. Started by torchrun.

HOW is kill, sleep, raise, or noise: then nobody goes wrong, and every rank rewards by a noise of its own; or held-out:
then rank 1 goes wrong in the evaluation after step STEP. With --full the model is in parts, and nothing is saved on the
way. After the runs, `threads-RANK` beside FOLDER holds the names of the threads that are still there.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from upweight import TrainArgs, Trainer
from upweight.objective.spec import Objective
from upweight.train.launch import Launch

# Collected like any module, for its doctests: it must be possible to import it.
HOW, STEP, FOLDER, *MORE = sys.argv[1:] if __name__ == "__main__" else ("", "0", "")
RANK = os.environ.get("RANK", "0")
judged = 0


def letters(completions: list[str], **_: Any) -> Any:
    """The share of lower-case letters, unless rank 1 goes wrong."""
    global judged
    step = len(completions) == 4
    judged += step
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" or "--once" not in MORE
    if RANK == "1" and judged == int(STEP) and first and step == (HOW != "held-out"):
        if HOW == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if HOW == "sleep":
            time.sleep(3600)
        if HOW in ("raise", "held-out"):
            return "no list"
    if HOW == "noise":
        return [random.random() for _ in completions]
    return [sum(c.islower() for c in text) / max(1, len(text)) for text in completions]


if __name__ == "__main__":
    full = "--full" in MORE
    (Path(FOLDER).parent / f"pid-{RANK}").write_text(str(os.getpid()))
    for folder in [FOLDER, f"{FOLDER}-again"] if "--twice" in MORE else [FOLDER]:
        Trainer(
            model="tiny",
            reward_funcs=letters,
            args=TrainArgs(
                output_dir=folder,
                max_steps=5,
                save_every=0 if full else 1,
                eval_every=1,
                prompts_per_step=2,
                group_size=4,
                max_new_tokens=8,
                sft_steps=0,
                objective=Objective(kl_coef=0.0),
            ),
            train_dataset=[{"prompt": f"say {n}"} for n in range(16)],
            eval_dataset=[{"prompt": "say 1"}, {"prompt": "say 2"}] if HOW == "held-out" else None,
            launch=Launch(resume="auto", rank_timeout=10.0, shard="full" if full else "none"),
        ).train()
    tasks = Path("/proc/self/task")  # Linux's
    names = [task.joinpath("comm").read_text().strip() for task in tasks.iterdir()] if tasks.exists() else []
    (Path(FOLDER).parent / f"threads-{RANK}").write_text("\n".join(names))
