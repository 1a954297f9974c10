"""Weights and moments in parts: who reads which rows, what a full disk leaves, every way to run a model in parts."""

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.train.conftest import make_policy
from tests.train.rank_jobs import done
from torch import Tensor

import upweight.train.shard as room
from upweight.objective.errors import UsageError
from upweight.policy.policy import Policy
from upweight.train.ranks import Ranks
from upweight.train.saving.checkpoint import CheckpointError
from upweight.train.shard import read_state, rows_of, write_part


class Told(Ranks):
    """A rank whose others say nothing, or what a test lets them say."""

    others: Any = ()

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.others]


def moments_of(policy: Policy) -> dict[str, Tensor]:
    """A state with numbers that tell rows apart."""
    state: dict[str, Tensor] = {}
    for name, parameter in policy.model.named_parameters():
        state[f"step/{name}"] = torch.tensor(3.0)
        state[f"exp_avg/{name}"] = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
    return state


def rows(state: dict[str, Tensor], rank: int, world: int) -> dict[str, Tensor]:
    return {
        key: value if key.startswith("step/") else value[slice(*rows_of(len(value), rank, world))]
        for key, value in state.items()
    }


@pytest.fixture(params=["one piece", "one part", "three parts", "fifty parts"])
def saved(request: pytest.FixtureRequest, tmp_path: Path, policy: Policy) -> tuple[Path, dict[str, Tensor]]:
    """A checkpoint as one process, or several, wrote its moments; of fifty some have no row of a tensor of 48."""
    state = moments_of(policy)
    if request.param == "one piece":
        save_file(state, tmp_path / "optimizer.safetensors")
        return tmp_path, state
    world = {"one part": 1, "three parts": 3, "fifty parts": 50}[request.param]
    for rank in range(world):
        write_part(tmp_path / "optimizer", rows(state, rank, world), policy.model, Told(rank=rank, world=world))
    return tmp_path, state


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [key for key in found if not torch.equal(found[key], expected[key])] == []


@pytest.mark.parametrize("world", [1, 2, 5, 50])
def test_a_rank_reads_its_rows_however_many_wrote_them(saved: tuple[Path, dict[str, Tensor]], world: int) -> None:
    checkpoint, state = saved
    for rank in {0, world // 2, world - 1}:
        assert_equal(read_state(checkpoint, Ranks(rank=rank, world=world), whole=False), rows(state, rank, world))
    assert_equal(read_state(checkpoint, Ranks(rank=0, world=world), whole=True), state)


def test_of_a_divided_run_no_tensor_is_read_as_a_whole(
    saved: tuple[Path, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank's memory is its part's, however large the model: slices of its own rows, and whole only the counters."""
    real, whole = room.safe_open, []

    class Watched:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __getattr__(self, name: str) -> Any:
            if name == "get_tensor":
                return lambda key: whole.append(key) or self.file.get_tensor(key)
            return getattr(self.file, name)

    @contextmanager
    def watched(*args: Any, **more: Any) -> Iterator[Watched]:
        with real(*args, **more) as file:
            yield Watched(file)

    monkeypatch.setattr(room, "safe_open", watched)
    read_state(saved[0], Ranks(rank=1, world=2), whole=False)
    assert whole
    assert {key.partition("/")[0] for key in whole} == {"step"}


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path, policy: Policy) -> None:
    """One missing, one of another run, a table that is none."""
    state, two = moments_of(policy), tmp_path / "optimizer"
    for rank in range(2):
        write_part(two, rows(state, rank, 2), policy.model, Told(rank=rank, world=2))
    second = two / room.PART.format(rank=1, world=2)
    kept = second.read_bytes()
    save_file({key: value[:1] if value.dim() else value for key, value in load_file(second).items()}, second)
    with pytest.raises(UsageError, match="that is not its shape"):
        read_state(tmp_path, Ranks(), whole=True)
    second.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(UsageError, match="does not hold all parts"):
        read_state(tmp_path, Ranks(), whole=True)
    second.unlink()
    with pytest.raises(UsageError, match="does not hold all parts"):
        read_state(tmp_path, Ranks(), whole=True)
    (two / "parts.json").write_text("{}")
    with pytest.raises(UsageError, match="does not hold all parts"):
        read_state(tmp_path, Ranks(), whole=True)


def test_a_full_disk_while_a_part_is_written_is_said_on_every_rank_and_leaves_no_part(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 4, with parts: on the rank it happens to, and on the first, to which it is told."""
    folder, state = tmp_path / "tmp-parts-4", rows(moments_of(policy), 0, 2)
    monkeypatch.setattr(Told, "others", ("No space left on device",))
    with pytest.raises(CheckpointError, match=r"tmp-parts-4 could not be written: No space left .*\(on rank 1\)"):
        write_part(folder, state, policy.model, Told(rank=0, world=2))
    assert not folder.exists()

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Told, "others", (None,))
    monkeypatch.setattr(room, "save_tensors", full)
    with pytest.raises(CheckpointError, match=r"No space left on device \(on rank 0\)"):
        write_part(folder, state, policy.model, Told(rank=0, world=2))
    assert not folder.exists()


def test_another_fault_while_a_part_is_written_is_not_called_a_full_disk(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "save_tensors", lambda *args: (_ for _ in ()).throw(KeyError("ours")))
    with pytest.raises(KeyError, match="ours"):
        write_part(tmp_path / "parts", {}, policy.model, Told(rank=0, world=2))


# Real processes


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Tensor]]:
    """Gradients of two updates and the weights after them, by way of running the model and of holding it."""
    folder = tmp_path_factory.mktemp("variants")
    done("variants", 2, folder)

    def found(variant: str, way: str) -> dict[str, Tensor]:
        parts = [load_file(folder / f"{variant}-{way}-{rank}.safetensors") for rank in range(2)]
        if way == "one":
            parts = parts[:1]
        return {
            key: torch.cat([part[key] for part in parts]) if key[0].isdigit() else parts[0][key] for key in parts[0]
        }

    return found


def distance(one: dict[str, Tensor], other: dict[str, Tensor], kind: str) -> float:
    """Of the gradients of an update, or of the weights, beside their size."""
    keys = [key for key in one if key.startswith(kind)]
    assert keys
    assert one.keys() == other.keys()
    a, b = (torch.cat([found[key].double().flatten() for key in keys]) for found in (one, other))
    return float((a - b).norm() / a.norm())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "gradients"),
    [("bfloat16", 0.02), ("float32-head", 0.02), ("recomputed", 1e-5), ("recomputed-bfloat16", 0.02)],
)
def test_a_model_in_parts_learns_what_the_whole_one_learns(
    variants: Callable[[str, str], dict[str, Tensor]], variant: str, gradients: float
) -> None:
    """FSDP2 over bfloat16, over a head in float32, over layers that are recomputed: gradients and masters."""
    one, full = variants(variant, "one"), variants(variant, "full")
    for update in ("0/", "1/"):
        assert distance(one, full, update) <= gradients
    # AdamW's first steps have one size whatever the gradient's: where rounding turns a sign, they differ.
    kind = "2/" if "bfloat16" in variant or variant == "float32-head" else "weights/"
    start = dict(make_policy(dtype=torch.float32 if kind == "weights/" else torch.bfloat16).model.named_parameters())
    moved = [
        {key: (value - start[key.removeprefix(kind)]).detach() for key, value in found.items() if key.startswith(kind)}
        for found in (one, full)
    ]
    assert distance(*moved, kind) <= 20 * gradients
    if variant == "float32-head":
        assert distance(full, variants("bfloat16", "full"), "0/") > 1e-4


@pytest.mark.slow
def test_masters_of_a_divided_bfloat16_model_hold_more_than_its_weights(
    variants: Callable[[str, str], dict[str, Tensor]],
) -> None:
    """In float32, rounded to the weights that every process gathers."""
    full = variants("bfloat16", "full")
    for name in [key.removeprefix("weights/") for key in full if key.startswith("weights/")]:
        assert full[f"2/{name}"].dtype == torch.float32
        assert torch.equal(full[f"2/{name}"].bfloat16(), full[f"weights/{name}"])
    assert any(not torch.equal(v, v.bfloat16().float()) for key, v in full.items() if key.startswith("2/"))


def test_the_table_of_the_parts_names_the_rows_of_each(tmp_path: Path, policy: Policy) -> None:
    write_part(tmp_path, {}, policy.model, Told(rank=0, world=2))
    table = json.loads((tmp_path / "parts.json").read_text())
    assert table["rows"][1]["model.norm.weight"] == [16, 32]
