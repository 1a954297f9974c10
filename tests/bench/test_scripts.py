"""The scripts: unequal work is refused, wrong calls too, and each runs to its table on the tiny model."""

import json
import subprocess
import sys

import pytest
import sample
import step
from growth import cells as growth_cells
from growth import slope
from logprobs import shape_of
from speed.measure import Spread
from speed.sides import QUICK, parsed, parser
from speed.vllm_server import command, counted
from speed.worker import HERE, SideFailed, Turn

BENCH = HERE.parent


def turn(**said: object) -> Turn:
    return Turn(seconds=1.0, said=said)


def test_a_step_with_fewer_tokens_is_not_compared() -> None:
    equal = {"ours": [turn(tokens=8, informative=0.25)], "theirs": [turn(tokens=8, informative=0.25)]}
    step.check_equal(equal, 8, 0.25)
    with pytest.raises(SideFailed, match="theirs sampled 7 tokens in a step instead of 8"):
        step.check_equal(equal | {"theirs": [turn(tokens=7, informative=0.25)]}, 8, 0.25)


def test_a_step_with_another_share_of_informative_groups_is_not_compared() -> None:
    with pytest.raises(SideFailed, match="a signal in 100% of the groups instead of 25%"):
        step.check_equal({"theirs": [turn(tokens=8, informative=1.0)]}, 8, 0.25)


def test_answers_without_their_log_probabilities_are_not_compared() -> None:
    sample.check_equal({"vllm-cpu": [turn(tokens=8, logprobs=8)]}, 8)
    with pytest.raises(SideFailed, match="instead of 8 tokens, each scored"):
        sample.check_equal({"vllm-cpu": [turn(tokens=8, logprobs=7)]}, 8)


def test_a_reply_without_a_log_probability_counts_one_less() -> None:
    choices = [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [None, -1.0]}}]
    assert counted({"choices": choices}) == {"tokens": 2, "logprobs": 1}


def test_an_error_of_the_server_is_told() -> None:
    with pytest.raises(SideFailed, match="no such model"):
        counted({"error": {"message": "no such model"}})


def test_the_server_gives_the_log_probabilities_of_what_it_sampled_from() -> None:
    line = command(BENCH / "python", "folder", "bfloat16", 1234, 64)
    assert "--logprobs-mode=processed_logprobs" in line
    assert {"--model=folder", "--dtype=bfloat16", "--port=1234", "--max-num-seqs=64"} <= set(line)


def test_quick_is_tiny_and_short_whatever_else_is_asked_for() -> None:
    made = parser("?")
    made.add_argument("--prompts", type=int, default=8)
    options = parsed(made, ["--quick", "--steps", "50"])
    assert (options.model, options.steps, options.prompts) == (QUICK["model"], QUICK["steps"], QUICK["prompts"])
    assert options.dtype == ["float32"]
    assert not hasattr(options, "answers")


@pytest.mark.parametrize("flags", [["--steps", "0"], ["--warmup", "0"], ["--threads", "0"], ["--dtype", "int8"]])
def test_a_run_that_would_measure_nothing_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parsed(parser("?"), flags)
    assert stopped.value.code == 2
    assert flags[0] in capsys.readouterr().err


def point(tokens: int, median: float) -> dict[str, object]:
    spread = Spread.of([median]).record()
    return {
        "dtype": "float32",
        "tokens": tokens,
        "seconds": spread,
        "sample_seconds": spread,
        "tokens_per_second": spread,
        "peak_bytes": 3_000_000,
    }


def test_growth_shows_the_slope_from_point_to_point_and_over_all() -> None:
    points = [point(1024, 1.0), point(2048, 2.0), point(4096, 8.0)]
    assert slope(points) == pytest.approx(1.5)
    assert [row[5] for row in growth_cells(points)] == ["-", "1.00", "2.00", "1.50"]


def test_the_shared_prompt_is_one_prompt_and_the_pass_has_eight() -> None:
    shared, several = (shape_of(part, False, 1000) for part in ("shared", "pass"))
    assert [len(shared["prompts"]), len(shared["prompts"][0]), len(shared["completions"][0])] == [8, 1024, 32]
    assert len({tuple(prompt) for prompt in shared["prompts"]}) == 1
    assert [len(several["prompts"]), len({tuple(prompt) for prompt in several["prompts"]})] == [64, 8]
    assert len(several["coefficients"]) == 64 * 64


def run(script: str, *flags: str) -> dict[str, object]:
    """The JSON object of a script's quick run."""
    line = [sys.executable, BENCH / script, "--quick", "--json", "--threads", "1", *flags]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "flags", "tables", "rows"),
    [
        ("step.py", ("--alone", "--kl", "0.04"), 1, 2),
        ("sample.py", ("--peers", "transformers"), 2, 2),
        ("growth.py", (), 1, 1),
        ("ranks.py", (), 1, 3),
        ("logprobs.py", (), 3, 2),
    ],
)
def test_a_script_runs_to_its_table(script: str, flags: tuple[str, ...], tables: int, rows: int) -> None:
    printed = run(script, *flags)
    assert printed["steps"] == QUICK["steps"]
    assert printed["matrix_peak"]["float32"] > 0
    found = list(printed["tables"].values())
    assert len(found) == tables
    assert len(found[0]) == rows


@pytest.mark.slow
@pytest.mark.skipif(not (BENCH.parent / ".git").exists(), reason="not a git checkout: there is no other commit")
def test_the_first_run_of_two_commits_is_compared_seed_by_seed() -> None:
    flags = ("--max_steps", "1", "--sft_steps", "0", "--prompts_per_step", "2", "--group_size", "2")
    line = [sys.executable, BENCH / "first_run.py", "--json", "--against", "HEAD", "--seeds", "3", "4"]
    done = subprocess.run([*line, "--flags", *flags], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = json.loads(done.stdout)
    assert [run["seed"] for run in printed["runs"]["here"]] == [3, 4]
    assert printed["times"]["count"] == 2
    for here, there in zip(*printed["runs"].values(), strict=True):  # the same code, if nothing is uncommitted
        assert 0 <= here["before"] <= 1
        assert here.keys() == there.keys()


def test_a_commit_that_is_not_there_is_refused() -> None:
    line = [sys.executable, BENCH / "first_run.py", "--against", "no-such-commit"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no-such-commit is no commit here" in done.stderr


@pytest.mark.slow
def test_log_probs_and_gradients_are_the_plain_ones_and_a_shared_prompt_changes_nothing() -> None:
    head, shared, _ = run("logprobs.py")["tables"].values()
    for record in head:
        assert max(record["apart"][name] for name in ("logprob", "entropy", "gradient")) < 1e-5
    (apart,) = [record["apart"] for record in shared if record["apart"]]
    assert apart["difference"] < 1e-5 < apart["largest"]
