"""Many processes: how work is shared, that the sharing changes no number, and that a missing one ends the others."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from tests.train.rank_jobs import REPOSITORY, done, environment, torchrun
from torch import Tensor

import upweight.train.heartbeat as heartbeat_room
from upweight.objective.errors import UsageError
from upweight.objective.spec import Objective
from upweight.train.batch import make_batch
from upweight.train.heartbeat import Heartbeat
from upweight.train.passes import passes_of
from upweight.train.ranks import ALONE, RankError, Ranks, device_of, joined_ranks, share_of, shares
from upweight.train.records import Batch, Group
from upweight.train.shard import rows_of

TWO = [Ranks(rank=rank, world=2) for rank in range(2)]
FAILING = "tests/train/failing_rank.py"


def batch_of(groups: list[Group]) -> Batch:
    return make_batch(groups, Objective(kl_coef=0.0))


# Sharing


def test_every_piece_of_work_has_one_owner_and_the_loads_differ_by_one_piece_at_most() -> None:
    costs = [7, 1, 9, 3, 3, 8, 2, 5]
    for world in (1, 2, 3, 5, 11):
        made = shares(costs, world)
        assert sorted(place for places in made for place in places) == list(range(len(costs)))
        loads = [sum(costs[place] for place in places) for places in made]
        assert max(loads) - min(loads) <= max(costs)
        assert [share_of(costs, Ranks(rank=rank, world=world)) for rank in range(world)] == made


def test_fewer_pieces_than_ranks_leave_some_without_work() -> None:
    assert shares([4, 4], 3) == [[0], [1], []]


def test_three_answers_on_two_ranks_are_two_passes_each_one_of_them_without_weight(
    group: Callable[..., Group],
) -> None:
    """B66, the plan of it."""
    batch = batch_of([group([1.0, 0.0, 0.5], [3, 3, 3])])
    plans = [passes_of(batch, [0, 1, 2], 1, ranks=ranks) for ranks in TWO]
    assert sorted([micro.counts for micro in plan] for plan in plans) == [[True, False], [True, True]]
    assert sorted(b for plan in plans for micro in plan if micro.counts for b in micro.answers) == [0, 1, 2]


@pytest.mark.parametrize("shared", [True, False])
def test_ranks_pass_about_as_many_tokens_and_every_answer_once(group: Callable[..., Group], shared: bool) -> None:
    lengths = [[1, 9, 2, 8], [20, 1, 1, 1], [5, 5, 5, 5], [3, 14, 2, 7]]
    batch = batch_of([group([1.0, 0.0, 0.5, 0.2], sizes, row=g) for g, sizes in enumerate(lengths)])
    for world in (2, 3, 4):
        plans = [
            passes_of(batch, range(16), 40, shared=shared, ranks=Ranks(rank=rank, world=world)) for rank in range(world)
        ]
        assert len({len(plan) for plan in plans}) == 1
        mine = [[b for micro in plan if micro.counts for b in micro.answers] for plan in plans]
        assert sorted(b for answers in mine for b in answers) == list(range(16))
        again = 0 if shared else 3  # the prompt, once for each answer
        tokens = [sum(again + len(batch.completions[b].token_ids) for b in answers) for answers in mine]
        assert max(tokens) - min(tokens) <= 23


def test_an_update_without_an_answer_has_no_pass_on_any_rank(group: Callable[..., Group]) -> None:
    batch = batch_of([group([1.0, 0.0])])
    assert [passes_of(batch, [], 100, ranks=ranks) for ranks in TWO] == [[], []]


def test_parts_of_a_tensor_are_its_rows_in_order() -> None:
    for count in (1, 2, 5, 8):
        for world in (1, 2, 3, 4):
            parts = [torch.arange(count)[slice(*rows_of(count, rank, world))] for rank in range(world)]
            assert torch.equal(torch.cat(parts), torch.arange(count))
            assert [len(part) for part in parts] == [
                len(part) for part in torch.arange(count).chunk(world) + (torch.empty(0),) * world
            ][:world]


def test_each_process_has_a_gpu_of_its_own_and_one_gpu_for_several_is_refused() -> None:
    second = Ranks(rank=3, world=4, local=1)
    assert device_of("cuda", second) == "cuda:1"
    assert device_of("cpu", second) == "cpu"
    assert device_of("cuda:0", ALONE) == "cuda:0"
    with pytest.raises(UsageError, match="one GPU for 4 processes"):
        device_of("cuda:0", second)


def test_one_process_is_alone_whatever_torchrun_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    with joined_ranks() as ranks:
        assert ranks == ALONE
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UsageError, match="start several processes with torchrun"), joined_ranks():
        pass


# What is known of a process that is missing


@pytest.fixture
def beating() -> Any:
    """Heartbeats of three ranks in one process."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = [Heartbeat(store, rank=rank, world=3) for rank in range(3)]
    yield made
    for heartbeat in made:
        heartbeat.stop()


def test_a_rank_that_failed_leaves_the_place_and_the_first_line_of_the_cause(beating: list[Heartbeat]) -> None:
    beating[2].at("in step 3 (sampling)")
    beating[2].failed(ValueError("the reward is broken.\nsecond line"))
    assert beating[0].cause() == "rank 2 failed in step 3 (sampling): ValueError: the reward is broken"


def test_a_rank_without_a_sign_of_life_is_gone(beating: list[Heartbeat]) -> None:
    beating[1].at("in step 7 (training)")
    beating[1].stop()
    said = beating[0].cause()
    assert said is not None
    assert said.startswith("rank 1 is gone in step 7 (training)")


def test_who_left_because_another_is_gone_is_not_taken_for_it(beating: list[Heartbeat]) -> None:
    beating[1].left()
    for rank in (1, 2):
        beating[rank].stop()
    said = beating[0].cause()
    assert said is not None
    assert said.startswith("rank 2 is gone before the first step")


def test_a_rank_that_lives_and_does_not_come_is_late(beating: list[Heartbeat]) -> None:
    for rank in (0, 1):
        beating[rank].meets()
    beating[2].at("in step 2 (sampling)")
    time.sleep(1.2)  # a sign of life of each with the new count
    assert beating[0].cause() == "rank 2 did not come in time; it is alive in step 2 (sampling)"
    assert beating[0].cause(stopping=True) is None


def test_ranks_that_have_left_are_not_missed(beating: list[Heartbeat]) -> None:
    for rank in (1, 2):
        beating[rank].left()
        beating[rank].stop()
    started = time.monotonic()
    assert beating[0].cause(stopping=True) is None
    assert time.monotonic() - started < 1.0


def test_a_rank_that_is_waited_for_is_gone_after_a_while_without_a_sign_of_life(
    beating: list[Heartbeat], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with -9 where no launcher ends the others: who waits for its turn must not wait for ever."""
    monkeypatch.setattr(heartbeat_room, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: beating[1]._store)
    ranks = Ranks(rank=1, world=3, local=1, heartbeat=beating[1])
    beating[0].at("before the first step")
    for _ in range(12):
        assert beating[1].silent(0) is None
        time.sleep(0.2)
    beating[0].stop()
    with pytest.raises(RankError, match="rank 0 is gone before the first step"), ranks.in_turn():
        pass


def test_nothing_is_what_the_first_rank_made_where_it_made_nothing() -> None:
    class Told(Ranks):
        def gather(self, value: Any) -> list[Any]:
            return [None, "the other's"]

    assert Told(rank=1, world=2).from_first(lambda: "not called") is None


# Real processes


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks have done, each way."""
    folder = tmp_path_factory.mktemp("ranks")
    done("everything", 2, folder)
    return folder


def told(folder: Path, job: str) -> dict[str, Any]:
    """What the ranks say, which is the same."""
    said = [json.loads((folder / f"{job}-{rank}.json").read_text()) for rank in range(2)]
    assert said[0] == said[1]
    return dict(said[0])


def gradient(folder: Path, name: str) -> Tensor:
    """Of both updates; parts are put together."""
    parts = [load_file(folder / f"{name}-{rank}.safetensors") for rank in range(2)]
    if not name.endswith("full"):
        assert all(torch.equal(parts[0][key], parts[1][key]) for key in parts[0])
        parts = parts[:1]
    return torch.cat([torch.cat([part[key] for part in parts]).double().flatten() for key in sorted(parts[0])])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "dtype", "allowed"),
    [("decoder", "float32", 1e-5), ("own", "float32", 1e-5), ("decoder", "float64", 1e-10), ("own", "float64", 1e-10)],
)
def test_one_rank_two_ranks_and_two_with_parts_have_the_same_gradient(
    worked: Path, forward: str, dtype: str, allowed: float
) -> None:
    one = gradient(worked, f"{dtype}-{forward}-one")
    assert one.norm() > 1
    for way in ("two", "full") if forward == "own" else ("two",):
        other = gradient(worked, f"{dtype}-{forward}-{way}")
        assert (other - one).norm() <= allowed * one.norm()


@pytest.mark.slow
def test_the_report_of_a_step_is_the_same_on_every_rank_and_in_one_process(worked: Path) -> None:
    said = told(worked, "gradients")
    one = said["float32-own-one"]
    assert one["updates"] == 2
    for way in ("two", "full"):
        assert said[f"float32-own-{way}"] == pytest.approx(one, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_every_rank_makes_the_same_number_of_passes_and_joins_with_nothing_to_do(worked: Path) -> None:
    """B66: three answers are two passes on each of two ranks, and the loss is the one process's."""
    said = told(worked, "few")
    for way in ("two", "full"):
        assert (said["three-one"]["trained"], said[f"three-{way}"]["trained"]) == (3, 2)
        assert (said["three-one"]["frozen"], said[f"three-{way}"]["frozen"]) == (3, 2)
        assert (said["one-one"]["trained"], said[f"one-{way}"]["trained"]) == (1, 1)
        for case in ("none", "equal"):
            assert (said[f"{case}-{way}"]["trained"], said[f"{case}-{way}"]["updates"]) == (0, 0)
        for case in ("three", "one", "none", "equal"):
            one, other = said[f"{case}-one"], said[f"{case}-{way}"]
            for name in ("loss", "grad_norm", "updates", "trained_tokens"):
                assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_the_same_ids_are_sampled_in_the_first_three_steps(worked: Path) -> None:
    said = told(worked, "ids")
    assert len(said["one"]) == 3
    assert len({tuple(answer) for step in said["one"] for answer in step}) > 20
    assert said["two"] == said["one"]
    assert said["full"] == said["one"]


def run_to_the_end(command: list[str], seconds: float, **more: str) -> tuple[int, str]:
    """Exit code, and everything that was printed."""
    process = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    return process.returncode, process.stdout


def steps_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("kill", r"rank 1 is gone in step 3 \(sampling\)"),
        (
            "raise",
            r"rank 1 failed in step 3 \(sampling\): RewardError: The reward function 'letters' must return a list",
        ),
        ("sleep", r"rank 1 did not come in time; it is alive in step 3 \(sampling\)"),
    ],
)
def test_a_rank_that_dies_raises_or_sleeps_ends_the_others_which_name_it(tmp_path: Path, how: str, cause: str) -> None:
    """Trial 26: exit code, rank, step, cause; nobody is left, and the last checkpoint is there to go on from."""
    folder = tmp_path / "run"
    code, text = run_to_the_end(torchrun([FAILING, how, "3", str(folder)]), 150)
    assert code != 0
    assert re.search(cause, text), text
    assert all(is_gone(int((tmp_path / f"pid-{rank}").read_text())) for rank in range(2))
    assert (folder / "checkpoint-2").exists()
    assert steps_of(folder) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "step", "stood"), [("held-out", "3", "checkpoint-3"), ("full-raise", "4", "checkpoint-3")]
)
def test_a_failure_that_all_ranks_know_of_costs_no_step_of_a_model_in_parts(
    tmp_path: Path, how: str, step: str, stood: str
) -> None:
    """In the evaluation after step 3 or in step 4: all are still there to write their parts."""
    folder = tmp_path / "run"
    code, text = run_to_the_end(torchrun([FAILING, how.removeprefix("full-"), step, str(folder), "--full"]), 150)
    assert code != 0
    assert "RewardError: The reward function 'letters' must return a list" in text, text
    assert [path.name for path in folder.glob("checkpoint-*")] == [stood]
    assert sorted(path.name for path in (folder / stood / "optimizer").glob("*.safetensors")) == [
        f"part-0000{rank}-of-00002.safetensors" for rank in range(2)
    ]
    code, text = run_to_the_end(torchrun([FAILING, "none", "0", str(folder), "--full"]), 150)
    assert code == 0, text
    assert f"going on from {folder / stood}" in text
    assert steps_of(folder) == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--full"]])
def test_no_thread_of_the_group_outlives_a_run(tmp_path: Path, more: list[str]) -> None:
    """One that drops its last tensor while Python shuts down aborts a process whose run has ended well."""
    code, text = run_to_the_end(torchrun([FAILING, "none", "0", str(tmp_path / "run"), *more]), 150)
    assert code == 0, text
    threads = [(tmp_path / f"threads-{rank}").read_text() for rank in range(2)]
    assert "gloo" not in "".join(threads), threads


@pytest.mark.slow
def test_torchrun_starts_them_again_and_they_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, text = run_to_the_end(torchrun([FAILING, "kill", "3", str(folder), "--once"], "--max-restarts", "1"), 200)
    assert code == 0, text
    assert "rank 1 is gone in step 3" in text
    assert f"going on from {folder / 'checkpoint-2'}" in text
    assert steps_of(folder) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_two_runs_of_one_script_are_two_runs(tmp_path: Path) -> None:
    """The second finds nothing of the first: no old address, nobody who has left."""
    code, text = run_to_the_end(torchrun([FAILING, "none", "0", str(tmp_path / "run"), "--twice"]), 150)
    assert code == 0, text
    assert steps_of(tmp_path / "run") == steps_of(tmp_path / "run-again") == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_sigterm_stops_all_ranks_at_one_step_and_saves_it_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ["--max_steps", "5000", "--sft_steps", "0", "--prompts_per_step", "2", "--group_size", "4"]
    command = torchrun(["-m", "upweight", "train", *flags, "--output_dir", str(folder)])
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=file, stderr=file)
        waiter = threading.Timer(150, process.kill)
        waiter.start()
        while not (folder / "metrics.jsonl").exists() and process.poll() is None:
            time.sleep(0.2)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        process.wait()
        waiter.cancel()
    text = log.read_text()
    last = steps_of(folder)[-1]
    assert text.count("stopped by SIGTERM") == 1
    assert f"stopped by SIGTERM after step {last}" in text
    assert [path.name for path in folder.glob("checkpoint-*")] == [f"checkpoint-{last}"]
    assert "RankError" not in text


@pytest.mark.slow
def test_parts_written_by_two_ranks_are_gone_on_from_in_one_process_and_back(tmp_path: Path) -> None:
    """The consolidated weights load with from_pretrained; both ways sample what an uninterrupted run samples."""
    flags = ["--learning_rate", "1e-4", "--prompts_per_step", "4", "--group_size", "4", "--kl_coef", "0.1"]
    straight, parts, whole = (tmp_path / name for name in ("straight", "parts", "whole"))
    one, two = ["-m", "upweight", "train"], torchrun(["-m", "upweight", "train"])
    python = torchrun([])[:1]
    for command, folder, steps, more in (
        ([*python, *one], straight, "4", []),
        (two, parts, "2", ["--shard", "full"]),
        ([*python, *one], whole, "2", []),
    ):
        code, text = run_to_the_end(
            [*command, *flags, "--max_steps", steps, *more, "--lr_schedule", "constant", "--output_dir", str(folder)],
            150,
        )
        assert code == 0, text
    saved = parts / "checkpoint-2"
    assert sorted(path.name for path in (saved / "optimizer").iterdir()) == [
        "part-00000-of-00002.safetensors",
        "part-00001-of-00002.safetensors",
        "parts.json",
    ]
    assert {key.partition("/")[0] for key in load_file(saved / "optimizer" / "part-00001-of-00002.safetensors")} == {
        "step",
        "exp_avg",
        "exp_avg_sq",
    }
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(saved).num_parameters() > 1e6
    for command, folder, more in (([*python, *one], parts, []), (two, whole, ["--shard", "full"])):
        code, text = run_to_the_end([*command, "--resume", str(folder), "--max_steps", "4", *more], 150)
        assert code == 0, text
        for step in (1, 2, 3, 4):
            name = f"rollouts/step-{step:05d}.jsonl"
            assert (folder / name).read_bytes() == (straight / name).read_bytes()


def accuracy(folder: Path) -> float:
    """Held out, after the last step."""
    rows = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    return float(rows[-1]["accuracy"])


@pytest.mark.slow
def test_what_two_ranks_learn_lies_within_the_spread_of_seeds(tmp_path: Path) -> None:
    python, train = torchrun([])[:1], ["-m", "upweight", "train", "--preset", "dr-grpo"]
    start = tmp_path / "start"
    still = ["--max_steps", "1", "--learning_rate", "1e-7"]
    code, text = run_to_the_end([*python, *train, *still, "--output_dir", str(start)], 300)
    assert code == 0, text
    flags = ["--model", str(start / "checkpoint-1"), "--sft_steps", "0", "--learning_rate", "1e-4", "--max_steps", "25"]
    flags += ["--prompts_per_step", "24", "--group_size", "8"]
    found: dict[str, float] = {}
    for name, command, seed in (
        ("0", [*python, *train], "0"),
        ("1", [*python, *train], "1"),
        ("2", [*python, *train], "2"),
        ("none", torchrun(train), "0"),
        ("full", [*torchrun(train), "--shard", "full"], "0"),
    ):
        folder = tmp_path / name
        code, text = run_to_the_end([*command, *flags, "--seed", seed, "--output_dir", str(folder)], 200)
        assert code == 0, text
        found[name] = accuracy(folder)
    seeds = [found[name] for name in ("0", "1", "2")]
    error = 0.03  # standard, of 256 problems
    for name in ("none", "full"):
        assert min(seeds) - error <= found[name] <= max(seeds) + error, found


def test_rank_error_is_a_failure_of_the_run_and_not_of_the_call() -> None:
    assert issubclass(RankError, RuntimeError)
    assert not issubclass(RankError, UsageError)
