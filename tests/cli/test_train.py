"""`upweight train`: what a command line means."""

import dataclasses
import json
import re
import sys
import types
from pathlib import Path

import pytest

from upweight.cli.config import FLAG_TYPES
from upweight.cli.main import main
from upweight.cli.train import TrainCall, read
from upweight.objective.errors import UsageError
from upweight.objective.presets import PRESETS, preset
from upweight.objective.spec import Objective
from upweight.train.args import TrainArgs
from upweight.train.launch import Launch
from upweight.train.ranks import Ranks, device_of


def args_of(line: str) -> TrainArgs:
    return read(line.split())[0].args


def test_no_flags_give_the_defaults() -> None:
    assert read([]) == (TrainCall(), None)


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ("--adv_norm std --loss_agg token-mean", {}),
        ("--loss_agg seq-mean-token-mean", {"loss_agg": "seq-mean-token-mean"}),
        (
            "--adv_norm none --loss_agg seq-mean-token-sum-norm",
            {"adv_norm": "none", "loss_agg": "seq-mean-token-sum-norm"},
        ),
        (
            "--clip_high 0.28 --filter_groups true --kl_coef 0",
            {"clip_high": 0.28, "filter_groups": True, "kl_coef": 0.0},
        ),
        (
            "--ratio_level sequence --clip 0.0003 --clip_high 0.0004",
            {"ratio_level": "sequence", "clip": 0.0003, "clip_high": 0.0004},
        ),
    ],
    ids=["grpo", "grpo-paper", "dr-grpo", "dapo", "gspo"],
)
def test_the_published_flags_of_each_variant_work_as_written(flags: str, fields: dict[str, object]) -> None:
    expected = dataclasses.replace(Objective(), **fields)  # type: ignore[arg-type]
    assert args_of(flags).objective == expected
    assert args_of(re.sub(r"(?<=\w)_(?=\w)", "-", flags)).objective == expected
    assert args_of(re.sub(r"(--\w+) ", r"\1=", flags)).objective == expected


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_its_row(name: str) -> None:
    args = args_of(f"--preset {name}")
    assert args.preset == name
    assert args.objective == preset(name)


def test_a_flag_wins_over_the_preset_wherever_it_stands() -> None:
    assert args_of("--clip 0.1 --preset gspo") == args_of("--preset gspo --clip 0.1")
    assert args_of("--clip 0.1 --preset gspo").objective.bounds == (0.9, 1.0004)


def test_a_flag_that_repeats_the_default_still_wins_over_the_preset() -> None:
    assert args_of("--preset gspo --clip 0.2").objective.clip == 0.2


def test_the_overlong_buffer_of_dapo_follows_the_budget() -> None:
    assert args_of("--preset dapo --max_new_tokens 64").objective.overlong_buffer == 12
    assert args_of("--preset dapo --max_new_tokens 64 --overlong_buffer 4").objective.overlong_buffer == 4
    assert not args_of("--preset dapo").objective.overlong_buffer


@pytest.mark.parametrize("word", ["true", "True", "TRUE"])
def test_truth_is_spelled_in_either_case(word: str) -> None:
    assert args_of(f"--filter_groups {word}").objective.filter_groups is True


def test_the_last_of_a_repeated_flag_counts() -> None:
    """A wrapper may add flags behind its own."""
    assert args_of("--filter_groups=true --filter-groups=false").objective.filter_groups is False
    assert args_of("--preset dapo --preset gspo").objective.ratio_level == "sequence"


@pytest.mark.parametrize("word", ["none", "None"])
def test_none_takes_back_what_a_preset_gives(word: str) -> None:
    assert args_of(f"--preset gspo --clip_high {word}").objective.clip_high is None
    assert args_of(f"--data {word} --learning_rate {word}") == TrainArgs()


def test_none_is_a_choice_of_the_objective_where_it_is_one() -> None:
    objective = args_of("--adv_norm none --surrogate none --correction none").objective
    assert (objective.adv_norm, objective.surrogate, objective.correction) == ("none", "none", "none")


@pytest.mark.parametrize("flag", ["--dry-run", "--dry_run"])
def test_dry_run_is_spelled_either_way(flag: str) -> None:
    assert read([flag])[0] == TrainCall(dry_run=True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--cilp_high 0.28", "--clip_high"),
        ("--max_step 3", "--max_steps"),
        ("--filter_groups maybe", "true or false"),
        ("--filter_groups", "filter_groups"),
        ("--clip wide", "--clip"),
        ("--max_steps 1.5", "--max_steps"),
        ("--loss_agg mean", "seq-mean-token-mean"),
        ("--preset drgrpo", "Did you mean 'dr-grpo'?"),
        ("--clip -0.1", "The 'clip' parameter of Objective must be at least 0. Got -0.1 instead."),
        ("--minibatches 100", "--minibatches 64"),
        ("--config missing.toml", "missing.toml: there is no such configuration file."),
        ("stray", "stray"),
        ("--learning_rate 1e3x", "The '--learning_rate' parameter of upweight train must be a number, or none."),
        ("--num_generations 8", "--group_size"),
        ("--preset DAPO", "Did you mean 'dapo'?"),
        ("--rezume auto", "Did you mean '--resume'?"),
        ("--device x", "auto, cpu, cuda or cuda:N"),
        ("--rank_timeout 0", "at least 1 and at most 2000000, in seconds"),
    ],
)
def test_a_wrong_call_leaves_with_2_and_the_way_out(
    line: str, said: str, capsys: pytest.CaptureFixture[str], trained: list[object]
) -> None:
    assert main(["train", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert trained == []


def test_a_signal_while_the_flags_are_read_is_no_wrong_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchrun ends the other processes with SIGTERM when one has refused the call."""

    def ended(*_: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr("upweight.cli.flags._read", ended)
    assert main(["train", "--seed", "1"]) == 143
    assert capsys.readouterr().err == ""


def test_help_has_examples_and_every_flag_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    examples = re.findall(r"^  upweight train (.*)$", shown, flags=re.MULTILINE)
    assert len(examples) == 5
    for example in examples:
        if "--config" not in example:
            read(example.split())
    frozen = (Path(__file__).parent / "flags.txt").read_text().split()
    assert re.findall(r"^\W*(--[a-z0-9_]+)", shown, flags=re.MULTILINE) == frozen


def test_a_file_may_set_every_flag_but_those_of_the_command_line() -> None:
    frozen = (Path(__file__).parent / "flags.txt").read_text().split()
    assert {f"--{name}" for name in FLAG_TYPES} == set(frozen) - {
        *("--config", "--like", "--dry_run"),
        *(f"--{field.name}" for field in dataclasses.fields(Launch)),
    }


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Put a trainer in place that only notes what it is asked to do."""
    calls: list[object] = []

    class Trainer:
        def __init__(self, *, args: TrainArgs, launch: Launch) -> None:
            self.args = args

        def check(self) -> None:
            calls.append(("check", self.args))

        def describe(self) -> None:
            calls.append(("describe", self.args))

        def train(self) -> None:
            calls.append(("train", self.args))

    module = types.ModuleType("upweight.train.trainer")
    module.Trainer = Trainer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def test_the_configuration_reaches_the_trainer(trained: list[object]) -> None:
    assert main(["train", "--seed", "7"]) == 0
    assert trained == [("train", TrainArgs(seed=7))]


def test_a_dry_run_checks_and_describes_and_does_not_train(trained: list[object]) -> None:
    assert main(["train", "--dry-run"]) == 0
    assert trained == [("check", TrainArgs()), ("describe", TrainArgs())]


@pytest.mark.parametrize("ending", ["toml", "yaml"])
def test_defaults_then_preset_then_file_then_flags(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"run.{ending}"
    if ending == "toml":
        file.write_text('preset = "gspo"\nclip = 0.1\nseed = 3\nmax-steps = 5\n')
    else:
        file.write_text("preset: gspo\nclip: 0.1\nseed: 3\nmax-steps: 5\n")
    args = args_of(f"--config {file} --seed 4")
    assert args.preset == "gspo"
    assert args.objective == dataclasses.replace(preset("gspo"), clip=0.1)
    assert (args.seed, args.max_steps, args.group_size) == (4, 5, 8)


def test_the_preset_of_the_command_line_wins_over_the_files_also_where_it_is_the_default(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('preset = "gspo"\nkl_coef = 0.5\n')
    args = args_of(f"--config={file} --preset=grpo")
    assert args.preset == "grpo"
    assert args.objective == Objective(kl_coef=0.5)


def test_an_unknown_preset_in_a_file_is_a_wrong_call(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('preset = "drgrpo"\n')
    with pytest.raises(UsageError, match="Did you mean 'dr-grpo'"):
        args_of(f"--config {file}")


def test_the_budget_of_a_file_sizes_the_buffer_of_dapo(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('preset = "dapo"\nmax_new_tokens = 400\n')
    assert args_of(f"--config {file}").objective.overlong_buffer == 80
    assert args_of(f"--config {file} --max_new_tokens 40").objective.overlong_buffer == 8


@pytest.mark.parametrize(
    ("begun", "processes", "device"),
    [
        ("cuda:0", "2", "cuda:3"),
        ("cuda", "2", "cuda:3"),
        ("cuda:1", "1", "cuda:1"),
        ("cuda:1", None, "cuda:1"),
        ("cpu", "2", "cpu"),
    ],
)
def test_a_run_begun_on_one_gpu_goes_on_in_several_processes_each_on_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str, processes: str | None, device: str
) -> None:
    """The command that docs/scale.md gives for a restart; one process stays where it was."""
    (tmp_path / "config.json").write_text(json.dumps({"device": begun}))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if processes is not None:
        monkeypatch.setenv("WORLD_SIZE", processes)
    ranks = Ranks(rank=3, world=int(processes or 1), local=3)
    assert device_of(args_of(f"--resume {tmp_path}").device, ranks) == device
    assert args_of(f"--resume {tmp_path} --device cpu").device == "cpu"
