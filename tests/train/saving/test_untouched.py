"""A refusal to go on changes nothing: every file is as it was, and the run still goes on where it stood."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs import ROWS, Runs, assert_equal_runs, left_in, letters, rehashed, rewritten, rows_of

import upweight.train.run as run_room
from upweight import TrainArgs, Trainer
from upweight.objective.errors import UsageError
from upweight.policy.policy import Policy
from upweight.rewards.contract import RewardError
from upweight.train.launch import Launch
from upweight.train.saving.begun import flat_config
from upweight.train.saving.checkpoint import DamagedCheckpoint
from upweight.train.saving.resume import find_start

Change = Callable[[Path], object]


@pytest.fixture
def runs(tmp_path: Path, policy_of: Callable[..., Policy]) -> Runs:
    return Runs(tmp_path, policy_of)


TRAINED: list[Path] = []
"""Where the run is that the tests copy, once the first of them has trained it."""


@pytest.fixture
def whole(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, with a checkpoint after each."""
    if not TRAINED:
        trained = Runs(tmp_path_factory.mktemp("trained"), runs.policy_of)
        trained("whole", max_steps=3, save_every=1, keep_checkpoints=0, eval_rows=ROWS[:2])
        TRAINED.append(trained.path / "whole")
    return Path(shutil.copytree(TRAINED[0], runs.path / "whole"))


def appended(name: str, text: str) -> Change:
    def change(run: Path) -> None:
        with (run / name).open("a") as file:
            file.write(text)

    return change


def flipped(run: Path) -> None:
    file = run / "reference" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))


def replaced_by_a_folder(name: str) -> Change:
    def change(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()

    return change


DAMAGES: dict[str, tuple[Change, str]] = {
    "no reference": (
        lambda run: shutil.rmtree(run / "reference"),
        r"The run's reference policy '.*' is damaged: it is not there\. .*a copy of the run's folder.*--model",
    ),
    "a reference without its weights": (
        lambda run: (run / "reference" / "model.safetensors").unlink(),
        r"The run's reference policy .*model\.safetensors: missing",
    ),
    "a flipped bit of the reference": (flipped, r"The run's reference policy .*SHA-256"),
    "garbage among the evaluations": (appended("evaluations.jsonl", "garbage\n"), r"evaluations\.jsonl, line 3"),
    "an evaluation without its accuracy": (appended("evaluations.jsonl", '{"step": 1}\n'), "it has no 'accuracy'"),
    "a row that is a list": (appended("metrics.jsonl", "[]\n"), r"metrics\.jsonl, line 4"),
    "a folder for metrics": (replaced_by_a_folder("metrics.jsonl"), r"metrics\.jsonl' is a folder"),
    "a folder for the configuration": (replaced_by_a_folder("config.json"), r"config\.json' is a folder"),
    "a folder for the lock": (replaced_by_a_folder("lock"), r"lock' is a folder"),
    "a file for rollouts": (
        lambda run: (shutil.rmtree(run / "rollouts"), (run / "rollouts").touch()),
        r"rollouts' is no folder",
    ),
    "another program's configuration": (
        lambda run: (run / "config.json").write_text('{"name": "my web app"}'),
        r"config\.json' is not one that a run wrote",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("resume", ["whole/checkpoint-1", "whole", "auto"])
def test_a_run_that_is_not_as_it_was_left_is_refused_and_not_touched(
    runs: Runs, whole: Path, damage: str, resume: str
) -> None:
    """From an older checkpoint and from the newest, with other flags that are harmless in themselves."""
    change, words = DAMAGES[damage]
    change(whole)
    before = left_in(runs.path)
    with pytest.raises(UsageError, match=words):
        runs("whole", resume, max_steps=5, eval_rows=ROWS[:2])
    assert left_in(runs.path) == before


def test_other_data_are_refused_before_anything_is_cut_back(runs: Runs, whole: Path) -> None:
    """Given back, the run goes on from the newest checkpoint, as it would have."""
    before = left_in(runs.path)
    for fields in ({"rows": ROWS[:9]}, {"seed": 1}, {"max_new_tokens": 5}):
        with pytest.raises(UsageError, match="not the run that was begun"):
            runs("whole", "whole/checkpoint-1", **{"max_steps": 5, "eval_rows": ROWS[:2], **fields})
        assert left_in(runs.path) == before
    runs("whole", "whole", max_steps=4, lr_schedule="constant", eval_rows=ROWS[:2])
    assert [row["step"] for row in rows_of(whole / "metrics.jsonl")] == [1, 2, 3, 4]
    assert not (whole / "old-checkpoint-3").exists()


def test_a_dry_run_refuses_other_data_too(runs: Runs, whole: Path) -> None:
    """As far as it is known without a model: data and configuration."""
    launch = Launch(resume=str(whole / "checkpoint-1"))
    policy = runs.policy_of()
    begun = {**json.loads((whole / "config.json").read_text()), "output_dir": None}
    for rows, fields, words in ((ROWS[:9], {}, "another data"), (ROWS, {"group_size": 2}, "group_size: 4 -> 2")):
        args = TrainArgs.from_flags(**{**begun, **fields})
        trainer = Trainer(policy.model, letters, args, rows, ROWS[:2], policy.tokenizer, launch=launch)
        with pytest.raises(UsageError, match=words):
            trainer.check()
    Trainer(
        policy.model, letters, TrainArgs.from_flags(**begun), ROWS, ROWS[:2], policy.tokenizer, launch=launch
    ).check()


def test_a_handshake_that_fails_leaves_the_run_as_it_was(
    runs: Runs, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held again before the run goes on, on this machine and with this version."""

    def fails(*_: Any) -> None:
        raise RuntimeError("sampler and trainer differ")

    monkeypatch.setattr(run_room, "shake_hands", fails)
    before = left_in(runs.path)
    with pytest.raises(RuntimeError, match="sampler and trainer differ"):
        runs("whole", "whole/checkpoint-1", max_steps=5, eval_rows=ROWS[:2])
    assert left_in(runs.path) == before


@pytest.mark.parametrize(
    ("way", "named", "held"),
    [
        (lambda run: (run / "checkpoint-3").rename(run / "checkpoint-7"), 7, 3),
        (lambda run: (run / "checkpoint-2").rename(run / "checkpoint-7"), 7, 2),
        (lambda run: (run / "checkpoint-9").symlink_to("checkpoint-3"), 9, 3),
    ],
)
def test_a_checkpoint_with_anothers_name_is_refused(
    runs: Runs, whole: Path, way: Change, named: int, held: int
) -> None:
    """The run would take it for what came after the step it goes on from, and set it aside."""
    way(whole)
    before = left_in(runs.path)
    for resume in ("auto", "whole", f"whole/checkpoint-{named}"):
        with pytest.raises(UsageError, match=rf"checkpoint-{named}' holds step {held}, and its name says {named}"):
            runs("whole", resume, max_steps=8, eval_rows=ROWS[:2])
    assert left_in(runs.path) == before


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"step": "3"}, "'step' must be a whole number of at least 0, and is '3'"),
        ({"version": -1}, "'version' must be"),
        ({"source": {}}, "'source/stream' must be an object"),
        ({"source": {"stream": {}, "held": [{}]}}, "groups that wait for the next step cannot be read"),
        ({"random": []}, "'random' must be a list with the states of each process"),
        ({"random": [{}]}, "'random' holds no random state"),
        ({"random": [{"python": [3, [1], None], "numpy": [], "torch": "", "cuda": []}]}, "holds no random state"),
        ({"identity": {}}, "'identity/model' must be a hash"),
        ({"rewards": {"letters": {"answers": "many"}}}, "'rewards/letters' must be the counts"),
        ({"row": {"step": 1}}, "'row' must be the row of step 3"),
        ({"notes": 1}, "'notes' must be a list of texts"),
        ({"more": 1}, "'more' is none of its entries"),
    ],
)
def test_a_state_that_no_run_wrote_is_refused_with_the_entry(
    runs: Runs, whole: Path, fields: dict[str, Any], words: str
) -> None:
    """Also where the manifest vouches for it."""
    rewritten(whole / "checkpoint-3", **fields)
    before = left_in(runs.path)
    with pytest.raises(UsageError, match=rf"training\.json' is not as this version of upweight writes it: .*{words}"):
        runs("whole", "auto", max_steps=5, eval_rows=ROWS[:2])
    assert left_in(runs.path) == before


def test_a_position_that_means_nothing_in_the_data_is_refused(runs: Runs, whole: Path) -> None:
    rewritten(whole / "checkpoint-3", source={"stream": {"seed": 0, "rows": 10, "epoch": 0}, "held": []})
    before = left_in(runs.path)
    with pytest.raises(UsageError, match="position"):
        runs("whole", "auto", max_steps=5, eval_rows=ROWS[:2])
    assert left_in(runs.path) == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not as a run writes it"),
        ("[]", "it is a list"),
        ("{}", "lacks 'preset'"),
        (None, "lacks 'group_size'"),
    ],
)
def test_a_checkpoints_configuration_is_whole_or_refused(runs: Runs, whole: Path, text: str | None, words: str) -> None:
    """Defaults would be another run."""
    file = whole / "checkpoint-3" / "run.json"
    begun = json.loads(file.read_text())
    del begun["group_size"]
    file.write_text(json.dumps(begun) if text is None else text)
    rehashed(whole / "checkpoint-3")
    before = left_in(runs.path)
    for resume in (str(whole), "auto"):
        with pytest.raises(UsageError, match=rf"run\.json'.* {words}"):
            find_start(resume, str(whole))
    assert left_in(runs.path) == before


@pytest.mark.parametrize(
    "manifest", ["[" * 100_000, '{"files": {"a": {"bytes": Infinity, "sha256": ""}}}', "[]", '{"files": 1}']
)
def test_an_edited_manifest_is_damage_that_auto_passes_over(whole: Path, manifest: str) -> None:
    (whole / "checkpoint-3" / "manifest.json").write_text(manifest)
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json: not the JSON that was written"):
        find_start(str(whole / "checkpoint-3"), None)
    start = find_start("auto", str(whole))
    assert start.checkpoint == whole / "checkpoint-2"
    assert start.remarks[0].endswith("It is passed over, and the one before it is taken.")


def test_where_no_checkpoint_is_whole_none_is_said_to_be_taken(whole: Path) -> None:
    for checkpoint in whole.glob("checkpoint-*"):
        (checkpoint / "model.safetensors").unlink()
    with pytest.raises(
        DamagedCheckpoint, match=r"is whole\. Of the newest: .*checkpoint-3' is damaged.*--model\.$"
    ) as it:
        find_start("auto", str(whole))
    assert "passed over" not in str(it.value)


BEGUN = flat_config(TrainArgs())

FOREIGN: dict[str, dict[str, str]] = {
    "a model": {"config.json": '{"model_type": "llama", "dtype": "bfloat16"}', "model.safetensors": "w"},
    "a web app": {"config.json": '{"name": "my web app"}', "metrics.jsonl": "{}", "rollouts/step-7.jsonl": "mine"},
    "rollouts without a configuration": {"rollouts/step-00007.jsonl": "mine"},
    "a reference alone": {"reference/model.safetensors": "w"},
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_folder_is_a_runs_only_by_a_configuration_that_a_run_wrote(tmp_path: Path, kind: str) -> None:
    """Auto would start afresh there, over what is in it."""
    for name, text in FOREIGN[kind].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="is not empty, and a run never writes over another"):
        find_start("auto", str(tmp_path))


def test_a_checkpoint_is_no_run_folder(runs: Runs, whole: Path) -> None:
    """Its config.json is the model's."""
    before = left_in(runs.path)
    with pytest.raises(UsageError, match="is not empty, and a run never writes over another"):
        runs("whole/checkpoint-3", "auto")
    with pytest.raises(UsageError, match="is not empty, and a run never writes over another"):
        runs("whole/reference", "auto")
    assert left_in(runs.path) == before


@pytest.mark.parametrize("names", [["lock"], ["lock", "rollouts/"], ["rollouts/", "tmp-config.json"]])
def test_a_run_that_was_killed_in_its_first_moment_is_started_again(tmp_path: Path, names: list[str]) -> None:
    """Before its configuration was written."""
    for name in names:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    start = find_start("auto", str(tmp_path))
    assert (start.folder, start.checkpoint) == (tmp_path, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[1, 2]", "it is a list"),
        (json.dumps({**BEGUN, "sede": 1}), "has no 'sede'"),
        (json.dumps({**BEGUN, "seed": "x"}), "'seed' must be a whole number"),
    ],
)
def test_a_broken_configuration_is_named_where_nothing_else_says_how_the_run_was_begun(
    tmp_path: Path, text: str, words: str
) -> None:
    """A power failure, or a slip of the hand."""
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "rollouts").mkdir()
    with pytest.raises(UsageError, match=rf"config\.json'.*{words}.*put it back"):
        find_start("auto", str(tmp_path))


def test_a_start_afresh_that_fails_has_lost_nothing_and_can_be_started_again(runs: Runs) -> None:
    """No checkpoint yet, and a reward that raises in the evaluation before the first step; twice."""
    fields: dict[str, Any] = {"eval_rows": ROWS[:2], "save_every": 0}
    runs("straight", **fields)
    runs("run", **fields)
    run = runs.path / "run"
    shutil.rmtree(run / "checkpoint-4")
    (run / "notes.txt").write_text("mine")
    earlier = left_in(run)
    del earlier["notes.txt"], earlier["rollouts"]

    def breaks(completions: list[str], **_: Any) -> list[float]:
        raise ValueError("broken")

    breaks.__name__ = "letters"
    for _ in range(2):
        with pytest.raises(RewardError):
            runs("run", "auto", reward=breaks, **fields)
        kept = left_in(run / "old-start")
        assert {name: kept[name] for name in earlier if name.split("/")[0] != "reference"} == {
            name: value for name, value in earlier.items() if name.split("/")[0] != "reference"
        }
        assert {name: left_in(run)[name] for name in earlier if name.startswith("reference")} == {
            name: value for name, value in earlier.items() if name.startswith("reference")
        }
        assert not (run / "old-start" / "reference").exists()  # the same, file by file
        assert (run / "notes.txt").read_text() == "mine"
    runs("run", "auto", noise=5, **fields)
    assert_equal_runs(runs.path / "straight", run, 4)
    assert [row["step"] for row in rows_of(run / "evaluations.jsonl")] == [0, 4]
