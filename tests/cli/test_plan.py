"""`upweight plan`: what a run takes, from the flags of a run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from upweight.cli.main import main
from upweight.cli.plan import limits_of_groups, read
from upweight.objective.errors import UsageError
from upweight.report.footprint import GB, Setup, footprint
from upweight.report.shapes import SHAPES


def planned(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["plan", *line.split(), "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_a_7b_model_on_eight_gpus_is_planned_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--model Qwen/Qwen2.5-7B --gpus 8 --gpu_memory 80 --dtype bfloat16 --shard full --gradient_checkpointing"
    told = planned(line, capsys)
    setup = Setup(shape=SHAPES["qwen2.5-7b"], dtype="bfloat16", processes=8, shard="full", checkpointing=True)
    assert told["peak_bytes"] == footprint(setup).peak
    assert (told["parameters"], told["memory_bytes"], told["fits"]) == (7_615_616_512, 80 * GB, True)
    (weights,) = [part["size"] for part in told["always"] if part["name"] == "weights"]
    assert weights == 2 * 7_615_616_512 // 8


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("--prompts_per_step 16", "prompts", 16),
        ("--group_size 4", "group_size", 4),
        ("--max_new_tokens 128", "new_tokens", 128),
        ("--prompt_tokens 99", "prompt_tokens", 99),
        ("--micro_batch_tokens 8192", "micro_batch_tokens", 8192),
        ("--dtype bfloat16", "dtype", "bfloat16"),
        ("--dtype bfloat16 --fp32_head true", "float32_head", True),
        ("--fp32_head true", "float32_head", False),
        ("--kl_coef 0", "has_reference", False),
        ("--kl_coef 0.1", "has_reference", True),
        ("--preset dr-grpo", "has_reference", False),
        ("--minibatches 4", "updates", 4),
        ("--gpus 4", "processes", 4),
        ("--gpus 4 --shard full", "shard", "full"),
        ("--gpus 0", "device", "cpu"),
        ("--device cpu", "device", "cpu"),
        ("--gpus 0 --shard full", "shard", "none"),
        ("--shard full", "shard", "none"),
        ("--gradient_checkpointing", "checkpointing", True),
    ],
)
def test_the_flags_of_a_run_decide_its_plan(line: str, field: str, value: object) -> None:
    assert getattr(read(line.split())[1].setup, field) == value


def test_a_file_of_flags_is_read_as_train_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('model = "smollm2-360m"\ngroup_size = 16\nkl_coef = 0\n')
    plan = read(["--config", str(path), "--group_size", "2"])[1]
    assert (plan.name, plan.setup.group_size, plan.setup.has_reference) == ("smollm2-360m", 2, False)


@pytest.mark.parametrize(
    ("line", "passes"),
    [
        ("--kl_coef 0", 0),
        ("", 1),
        ("--minibatches 2", 2),
        ("--minibatches 2 --kl_coef 0", 1),
        ("--minibatches 2 --kl_coef 0 --old_logprobs sampler", 0),
        ("--kl_coef 0.1 --kl_place reward --kl_estimator k1", 2),
    ],
)
def test_passes_without_a_gradient_are_counted_as_a_step_makes_them(line: str, passes: int) -> None:
    time = read(line.split())[1].pace
    assert time.scoring == pytest.approx(passes * time.training / 3)


def test_lengths_that_are_not_given_are_said_to_be_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "1.5b"]) == 0
    shown = capsys.readouterr().out
    assert "prompts of 256 tokens are assumed (--prompt_tokens)" in shown
    assert "answers of 512 tokens are assumed (--max_new_tokens)" in shown
    assert main(["plan", "--model", "1.5b", "--prompt_tokens", "9", "--max_new_tokens", "9"]) == 0
    assert "tokens are assumed" not in capsys.readouterr().out


def test_the_lengths_of_tiny_are_those_of_its_task() -> None:
    from upweight.tasks.registry import make_task

    task = make_task("arithmetic", chat=False)
    setup = read([])[1].setup
    assert setup.new_tokens == task.max_new_tokens
    assert {len(str(draw.prompt.text)) for draw in task.stream(0).take(20)} == {setup.prompt_tokens}


def test_lengths_that_are_assumed_leave_room_for_each_other(tmp_path: Path) -> None:
    """A folder of tiny's shape: 256 tokens and 512 would be beyond its context."""
    sizes = {"hidden_size": 128, "num_hidden_layers": 5, "num_attention_heads": 4}
    config = {**sizes, "intermediate_size": 352, "vocab_size": 258, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for line, lengths in (
        ("", (170, 342)),
        ("--max_new_tokens 500", (12, 500)),
        ("--max_new_tokens 100", (256, 100)),
        ("--prompt_tokens 500", (500, 12)),
    ):
        setup = read(["--model", str(tmp_path), *line.split()])[1].setup
        assert (setup.prompt_tokens, setup.new_tokens) == lengths


@pytest.mark.parametrize(
    ("line", "prompt", "context"),
    [
        ("--max_new_tokens 5000", 6, 512),
        ("--max_new_tokens 512", 6, 512),
        ("--max_new_tokens 8 --prompt_tokens 505", 505, 512),
        ("--prompt_tokens 512", 512, 512),
        ("--model smollm2-135m --prompt_tokens 9000 --max_new_tokens 9000", 9000, 8192),
    ],
)
def test_lengths_beyond_the_context_are_refused_as_train_refuses_them(line: str, prompt: int, context: int) -> None:
    words = (
        rf"A prompt has {prompt} tokens; with max_new_tokens=\d+ that is more than the model's context of {context}\."
    )
    with pytest.raises(UsageError, match=words):
        read(line.split())


def test_lengths_that_fill_the_context_are_planned() -> None:
    setup = read(["--prompt_tokens", "504", "--max_new_tokens", "8"])[1].setup
    assert (setup.prompt_tokens, setup.new_tokens) == (504, 8)
    assert read(["--max_new_tokens", "511"])[1].setup.prompt_tokens == 1


@pytest.mark.parametrize("line", ["--gpus 0 --shard full", "--gpus 1 --shard full", "--device cpu --shard full"])
def test_a_shard_of_one_process_is_left_out_with_a_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As train does, which takes the flag there and divides nothing."""
    assert main(["plan", *line.split()]) == 0
    assert "  --shard full changes nothing in one process\n" in capsys.readouterr().out
    assert main(["plan", *line.replace("--shard full", "").split()]) == 0
    assert "--shard full" not in capsys.readouterr().out


def test_on_a_cpu_the_memory_is_the_machines_unless_it_is_given() -> None:
    memory = read(["--gpus", "0"])[1].memory
    assert memory is not None
    assert memory > GB // 4
    assert read(["--gpus", "0", "--gpu_memory", "2"])[1].memory == 2 * GB
    assert read([])[1].memory is None


@pytest.mark.parametrize(
    ("told", "files", "limits"),
    [
        ("0::/job/step\n", {"job/memory.max": "3000\n", "job/step/memory.max": "max\n"}, [3000]),
        ("0::/job/step\n", {"job/memory.max": "3000\n", "job/step/memory.max": "2000\n"}, [2000, 3000]),
        ("0::/\n", {"memory.max": "5000\n"}, [5000]),
        ("0::/out/of/sight\n", {"memory.max": "5000\n"}, [5000]),
        ("5:cpu,memory:/job\n1:name=systemd:/job\n", {"memory/job/memory.limit_in_bytes": "7000\n"}, [7000]),
        ("0::/\n", {}, []),
    ],
)
def test_a_container_may_use_what_its_groups_allow(
    tmp_path: Path, told: str, files: dict[str, str], limits: list[int]
) -> None:
    """Of the group itself and of all above it, in either version; none where nothing is said."""
    assert limits_of_groups(tmp_path) == []
    for name, text in {"proc/self/cgroup": told, **{f"sys/fs/cgroup/{name}": t for name, t in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert limits_of_groups(tmp_path) == limits


def test_a_container_with_less_than_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    import upweight.cli.plan as room

    monkeypatch.setattr(room, "limits_of_groups", lambda root: [3 * GB, GB // 2])
    assert read(["--gpus", "0"])[1].memory == GB // 2


def test_what_does_not_fit_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    told = planned("--model 7b --gpu_memory 8", capsys)
    assert told["fits"] is False


@pytest.mark.parametrize(
    "line",
    [
        "--tflops 1e-6 --utilisation 1e-6 --sampling_utilisation 1e-6",
        "--tflops 1e6 --gpu_memory 1e6",
        "--gpu_memory 1e-320",
        f"--prompts_per_step {10**12} --group_size {10**12} --prompt_tokens {10**12} --max_new_tokens {10**12}",
        f"--minibatches {10**12} --prompts_per_step {10**12} --epochs_per_batch {10**12} --tflops 1e-6",
        f"--gpus {10**6} --shard full --micro_batch_tokens {10**12} --gpu_memory 80",
    ],
)
def test_the_ends_of_every_range_give_finite_numbers(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert main(["plan", "--model", "400b", *line.split(), "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert main(["plan", "--model", "400b", *line.split()]) == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--gpus -1", "'--gpus' parameter of upweight plan must be at least 0"),
        ("--gpu_memory 0", "must be above 0"),
        ("--gpu_memory much", "must be a number, or none"),
        ("--prompt_tokens 0", "must be at least 1"),
        ("--tflops -3", "must be at least 1e-6 and at most a million"),
        ("--utilisation 40", "must be at least 1e-6 and at most 1"),
        ("--sampling_utilisation 0", "must be at least 1e-6 and at most 1"),
        ("--tflops 1e-320", "must be at least 1e-6 and at most a million"),
        ("--tflops 1e308", "must be at least 1e-6 and at most a million"),
        ("--utilisation 1e-320", "must be at least 1e-6 and at most 1"),
        ("--gpu_memory 1e300", "must be above 0 and at most a million, in GB"),
        (f"--gpus 1{'0' * 400}", "and at most a million"),
        (f"--prompt_tokens 1{'0' * 400}", "at most 10**12"),
        (f"--max_new_tokens 1{'0' * 400}", "at most 10**12"),
        (f"--prompts_per_step 1{'0' * 400}", "at most 10**12"),
        ("--shard half", "must be one of none, full"),
        ("--group_size 0", "must be at least 1"),
        ("--minibatches 4 --prompts_per_step 2", "at most prompts_per_step"),
        ("--model qwen2.5-8b", "Did you mean 'qwen2.5-7b'?"),
        ("--model nowhere/at/all", "is not known"),
        ("--micro_batch_token 3", "Did you mean '--micro_batch_tokens'?"),
        ("--gpuz 8", "Did you mean '--gpus'?"),
        ("--utilization 0.4", "Did you mean '--utilisation'?"),
        ("--json=true", "takes no value"),
        (
            "--model 7b --device cpu --gpus 8 --shard full --gpu_memory 80",
            "--device cpu trains on no GPU, and --gpus 8",
        ),
        ("--gpus 0 --device cuda --shard full", "--device cuda is a GPU, and --gpus 0 plans for the CPU"),
        ("--gpus 0 --device cuda:1", "--device cuda:1 is a GPU, and --gpus 0 plans for the CPU"),
        (
            "--gpus 2 --device cuda:1",
            "--device cuda:1 is one GPU for 2 processes: each takes its own with --device cuda.",
        ),
        ("--device x", "must be auto, cpu, cuda or cuda:N. Got 'x' instead."),
    ],
)
def test_a_wrong_call_is_one_sentence_and_exit_code_2(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *line.split()]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert len(shown.err.splitlines()) == 1


def test_a_file_that_sets_a_flag_of_plan_is_told_where_it_belongs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    for text, words in (
        ("gpus = 8\n", "--gpus is given on the command line, and not in a file. Take 'gpus' out."),
        ('modle = "7b"\n', "'modle' is not a flag of upweight plan. Did you mean 'model'?"),
    ):
        path.write_text(text)
        assert main(["plan", "--config", str(path)]) == 2
        assert capsys.readouterr().err == f"upweight: {path}: {words}\n"


def test_help_and_planning_leave_torch_alone() -> None:
    code = "import sys; from upweight.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    for words in (["plan", "--help"], ["plan", "--model", "7b", "--gpu_memory", "80"]):
        assert subprocess.run([sys.executable, "-c", code, *words], capture_output=True).returncode == 0


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    assert "upweight plan --model smollm2-135m --gpus 0" in capsys.readouterr().out
