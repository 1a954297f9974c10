"""Configuration files: what they may hold, and what is said of what they may not."""

from pathlib import Path

import pytest

from upweight.cli.config import did_you_mean, read_config
from upweight.objective.errors import UsageError


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'clip-high = 0.28\nkl_coef = 0\nfilter_groups = true\ndata = "none"\nseed = 1\n'),
        ("b.toml", 'seed = 1\ndata = "none"\n[objective]\nclip_high = 0.28\nkl-coef = 0\nfilter_groups = true\n'),
        ("c.yaml", "clip-high: 0.28\nkl_coef: 0\nfilter_groups: true\ndata: null\nseed: 1\n"),
        ("d.yml", "seed: 1\ndata: none\nobjective:\n  clip_high: 28e-2\n  kl_coef: 0\n  filter-groups: true\n"),
    ],
)
def test_keys_are_flags_in_any_of_their_spellings(name: str, text: str, tmp_path: Path) -> None:
    found = read_config(written(tmp_path, name, text))
    assert found == {"clip_high": 0.28, "kl_coef": 0.0, "filter_groups": True, "data": None, "seed": 1}
    assert isinstance(found["kl_coef"], float)


def test_a_learning_rate_without_a_dot_is_a_number_in_yaml(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "a.yaml", "learning_rate: 1e-5\n")) == {"learning_rate": 1e-5}


@pytest.mark.parametrize("name", ["a.toml", "a.yaml"])
def test_an_empty_file_sets_nothing(name: str, tmp_path: Path) -> None:
    assert read_config(written(tmp_path, name, "")) == {}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "cilp_high = 0.28\n", ["'cilp_high' is not a flag", "Did you mean 'clip_high'?"]),
        ("a.toml", "[objective]\nclip_hihg = 1\n", ["'clip_hihg' is not a flag of the objective", "'clip_high'"]),
        ("a.toml", "[objective]\nseed = 1\n", ["'seed' is not a flag of the objective"]),
        ("a.toml", "objective = 3\n", ["'objective' is a table", "int"]),
        ("a.toml", "dry_run = true\n", ["'dry_run' is not a flag of upweight train"]),
        ("a.toml", 'like = "trl"\n', ["--like is given on the command line", "Take 'like' out."]),
        ("a.toml", 'clip = "wide"\n', ["'clip' must be a number. Got 'wide' instead."]),
        ("a.toml", 'dual_clip = "wide"\n', ["'dual_clip' must be a number, or none. Got 'wide' instead."]),
        ("a.toml", 'clip = "none"\n', ["'clip' must be a number. Got 'none' instead."]),
        ("a.toml", "clip = nan\n", ["'clip' must be a finite number"]),
        ("a.toml", "max-steps = 1.5\n", ["'max-steps' must be a whole number. Got 1.5 instead."]),
        ("a.toml", "seed = true\n", ["'seed' must be a whole number. Got True instead."]),
        ("a.toml", "filter_groups = 1\n", ["'filter_groups' must be true or false. Got 1 instead."]),
        ("a.toml", "model = 3\n", ["'model' must be a string. Got 3 instead."]),
        ("a.toml", 'loss_agg = "mean"\n', ["'loss_agg' must be one of token-mean, ", "Got 'mean' instead."]),
        ("a.toml", "clip_high = 1\nclip-high = 2\n", ["'clip-high' is there twice"]),
        ("a.toml", "seed = 1\nseed = 2\n", ["not valid TOML", "line 2"]),
        ("a.toml", "seed = 1\nclip 2\n", ["not valid TOML", "line 2"]),
        ("a.yaml", "seed: 1\nclip: [\n", ["not valid YAML", "line 3"]),
        ("a.yaml", "seed: 1\nseed: 2\n", ["not valid YAML", "'seed' is there twice", "line 2"]),
        ("a.yaml", "- seed\n", ["holds a list"]),
        ("a.yaml", "seed\n", ["holds a text"]),
        ("a.yaml", "when: !!python/object/apply:os.getcwd []\n", ["not valid YAML", "line 1"]),
        ("a.yaml", "seed: \x01\n", ["not valid YAML"]),
        ("a.yaml", "[seed]: 1\n", ["not valid YAML", "a key is a flag's name", "line 1"]),
        ("a.toml", f"clip = 1{'0' * 400}\n", ["'clip' must be a finite number"]),
        ("a.toml", f"seed = 1{'0' * 5000}\n", ["cannot be read", "digits"]),
        ("a.yaml", f"seed: 1{'0' * 5000}\n", ["cannot be read", "digits"]),
        ("a.yaml", "seed: 2020-13-45\n", ["cannot be read", "month"]),
        ("a.toml", f"seed = {'[' * 5000}\n", ["nested too deeply"]),
        ("a.yaml", f"seed: {'[' * 5000}\n", ["nested too deeply"]),
        ("a.ini", "{}", ["ends in .toml, .yaml, .yml or .json"]),
    ],
)
def test_a_mistake_is_one_sentence_with_the_files_name(name: str, text: str, words: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(UsageError) as caught:
        read_config(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


def test_the_verb_that_reads_a_file_is_the_one_that_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a.toml", "dry-run = true\n")
    assert read_config(written(tmp_path, "b.toml", "seed = 1\n"), program="upweight plan", own=("gpus",)) == {"seed": 1}
    with pytest.raises(UsageError, match=r"--dry_run is given on the command line, .* Take 'dry-run' out"):
        read_config(path, own=("like", "dry_run"))
    with pytest.raises(UsageError, match="'dry-run' is not a flag of upweight plan"):
        read_config(path, program="upweight plan")


@pytest.mark.parametrize(("name", "text"), [("a.toml", "seed = 1\n"), ("a.yaml", "seed: 1\n")])
def test_a_byte_order_mark_is_no_part_of_the_first_key(name: str, text: str, tmp_path: Path) -> None:
    assert read_config(written(tmp_path, name, f"\ufeff{text}")) == {"seed": 1}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such configuration file"):
        read_config(str(tmp_path / "a.toml"))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(str(tmp_path / "a.toml"))


def test_a_file_of_bytes_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"seed = \xff")
    with pytest.raises(UsageError, match="UTF-8 text, and byte 7"):
        read_config(str(tmp_path / "a.toml"))


def test_all_names_are_shown_where_none_is_near() -> None:
    assert did_you_mean("zzz", ["clip", "seed"]) == "There are: clip, seed."
