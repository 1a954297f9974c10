"""What a run is between two steps, beside its weights: everything that the next step depends on, saved and restored.

The weights are model.safetensors, the optimiser's tensors `TENSORS`, all else is the JSON of `TRAINING`.
"""

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from upweight.objective.errors import UsageError, shown
from upweight.policy.policy import Policy
from upweight.policy.quiet import quiet_transformers
from upweight.tasks.rows import PromptsTask
from upweight.tasks.task import Task
from upweight.train.saving.checkpoint import CONFIG, TENSORS, TRAINING
from upweight.train.saving.held import check_held
from upweight.train.saving.reading import read_object

SAMPLE_OF_ENDLESS = 256
"""Draws of an endless task that its fingerprint is made of."""

SMALL_FILES = 8 << 20
"""Bytes that tokenizer, configuration, JSON and the file system take beside the tensors, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run stands between two steps, as plain JSON values."""

    step: int
    """Steps taken."""

    version: int
    """Of the weights: updates taken."""

    source: Mapping[str, Any]
    """Where the source of groups stands: the position in the data, what it has kept."""

    rewards: Mapping[str, Any]
    """What each reward function was asked so far."""

    in_a_row: int
    """Steps in a row that were not finite, see `Guard`."""

    notes: tuple[str, ...]
    """Notes that are said once and have been said."""

    row: Mapping[str, Any] | None
    """The last row of metrics.jsonl."""

    random: Sequence[Mapping[str, Any]]
    """The global random states of each process, in the order of the ranks, see `random_state`. Sampling and data order
    have none: they are keyed by the seed."""

    identity: Mapping[str, Any]
    """What is trained on what, see `identity_of`."""

    made_with: Mapping[str, Any]
    """Versions, threads, processes, sharding: where one differs, going on is exact no longer."""


def save_training(folder: Path, progress: Progress, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write everything of a checkpoint but model and tokenizer."""
    save_tensors(tensors, folder / TENSORS)
    for name, value in ((TRAINING, dataclasses.asdict(progress)), (CONFIG, config)):
        (folder / name).write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors by name, wherever they are and however they lie."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, file)


def load_progress(folder: Path) -> Progress:
    """Read where a run stood.

    Raises:
        UsageError: the file is of another version of upweight, or was changed: naming it, and what in it.
    """
    file = folder / TRAINING
    way_out = f"Go on from another checkpoint, or start a new run from its weights with --model {folder}."
    found = read_object(file, way_out)
    try:
        return _progress_of(found)
    except ValueError as error:
        raise UsageError(
            f"{str(file)!r} is not as this version of upweight writes it: {error}. Go on with the version that wrote "
            f"it, or from another checkpoint; or start a new run from its weights with --model {folder}."
        ) from error


def _progress_of(found: Mapping[str, Any]) -> Progress:
    """The record that a file holds, every part of it held against its form.

    Raises:
        ValueError: saying what does not fit.
    """
    names = {field.name for field in dataclasses.fields(Progress)}
    if differing := sorted(names ^ found.keys()):
        raise ValueError(f"'{differing[0]}' is {'missing' if differing[0] in names else 'none of its entries'}")
    for name in ("step", "version", "in_a_row"):
        _must(_is_count(found[name]), name, "a whole number of at least 0", found[name])
    for name in ("source", "rewards", "identity", "made_with"):
        _must(isinstance(found[name], dict), name, "an object", found[name])
    notes, row, states = found["notes"], found["row"], found["random"]
    _must(isinstance(notes, list) and all(isinstance(note, str) for note in notes), "notes", "a list of texts", notes)
    step = found["step"]
    _must(row is None or (isinstance(row, dict) and row.get("step") == step), "row", f"the row of step {step}", row)
    for name, counts in found["rewards"].items():
        whole = isinstance(counts, dict) and all(_is_count(counts.get(key)) for key in ("answers", "failed"))
        _must(whole, f"rewards/{name}", "the counts of a reward function, answers and failed", counts)
    for name in ("model", "tokenizer", "data", "reference"):
        value = found["identity"].get(name, 0)
        _must(isinstance(value, str) or (name == "reference" and value is None), f"identity/{name}", "a hash", value)
    source = found["source"]
    _must(isinstance(source.get("stream"), dict), "source/stream", "an object", source.get("stream"))
    _must(isinstance(source.get("held"), list), "source/held", "a list", source.get("held"))
    check_held(source["held"])
    _must(isinstance(states, list) and states != [], "random", "a list with the states of each process", states)
    for state in states:
        _check_random(state)
    return Progress(**{**found, "notes": tuple(notes)})


def _must(fits: bool, name: str, form: str, value: object) -> None:
    if not fits:
        raise ValueError(f"'{name}' must be {form}, and is {shown(value)}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_random(state: Any) -> None:
    """Refuse what generators do not take, by giving it to some that nobody draws from.

    Raises:
        ValueError: saying why.
    """
    try:
        _give(state, random.Random().setstate, np.random.RandomState().set_state, torch.Generator().set_state)
        for text in state["cuda"]:
            _bytes(text)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RuntimeError) as error:
        raise ValueError(f"'random' holds no random state ({error!r})") from error


def load_weights(policy: Policy, folder: Path) -> None:
    """Copy saved weights into a policy that is loaded already.

    Raises:
        UsageError: they are another model's.
    """
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        saved = type(policy.model).from_pretrained(
            folder, dtype=policy.dtype, local_files_only=True, use_safetensors=True
        )
    theirs, ours = dict(saved.named_parameters()), dict(policy.model.named_parameters())
    differing = sorted(
        name for name in theirs.keys() | ours.keys() if _shape(theirs.get(name)) != _shape(ours.get(name))
    )
    if differing:
        raise UsageError(
            f"The weights of {str(folder)!r} are not those of this model: {differing[0]} is "
            f"{_shape(theirs.get(differing[0]))} there and {_shape(ours.get(differing[0]))} here."
        )
    with torch.no_grad():
        for name, parameter in ours.items():
            parameter.copy_(theirs[name])


def checkpoint_bytes(policy: Policy) -> int:
    """Bytes of a checkpoint on the disk: weights, two moments, and the masters of weights below float32."""
    weights = moments = 0
    for parameter in policy.model.parameters():
        weights += parameter.numel() * parameter.element_size()
        if parameter.requires_grad:
            small = parameter.element_size() < 4
            moments += parameter.numel() * (3 * 4 if small else 2 * parameter.element_size())
    return weights + moments + SMALL_FILES


def weights_bytes(policy: Policy) -> int:
    """Bytes of the weights alone, with what lies beside them."""
    weights: int = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    return weights + SMALL_FILES


def identity_of(policy: Policy, task: Task, seed: int, reference: str | None) -> dict[str, Any]:
    """What has to be the same for a run to go on, as hashes.

    Args:
        policy: the model and the tokenizer.
        task: the data.
        seed: of the order of an endless task.
        reference: SHA-256 of the reference policy's folder; None without a KL.
    """
    shapes = [(name, list(p.shape), str(p.dtype)) for name, p in policy.model.named_parameters()]
    tokenizer = policy.tokenizer
    words = [
        sorted(tokenizer.get_vocab().items()),
        {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        getattr(tokenizer, "chat_template", None),
        sorted(policy.end_ids),
    ]
    return {"model": _hash(shapes), "tokenizer": _hash(words), "data": data_of(task, seed), "reference": reference}


def data_of(task: Task, seed: int) -> str:
    """SHA-256 of a task's training data; of a sample of it where it is endless.

    Args:
        task: as the model is asked it, after rows that do not fit were left out.
        seed: of the order of an endless task.
    """
    if isinstance(task, PromptsTask):
        prompts = list(task.prompts)
    else:
        prompts = [draw.prompt for draw in task.stream(seed).take(task.size or SAMPLE_OF_ENDLESS)]
    return _hash([(p.row, p.text, p.answer, dict(p.columns)) for p in prompts])


def made_with(ranks: int, shard: str) -> dict[str, Any]:
    """What besides the state decides the last bit of a step.

    Args:
        ranks: how many processes there are.
        shard: as the flag takes it; one process has nothing to shard.
    """
    parts = shard if ranks > 1 else "none"
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "ranks": ranks, "shard": parts}


def random_state() -> dict[str, Any]:
    """Python's, numpy's and torch's global random states, as JSON values."""
    version, numbers, gauss = random.getstate()
    name, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, np.asarray(key).tolist(), position, has_gauss, cached],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [state.numpy().tobytes().hex() for state in _cuda_states()],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Go on from `random_state`. A GPU that is not there any more is left out."""
    _give(state, random.setstate, np.random.set_state, torch.set_rng_state)
    for device in range(min(len(state["cuda"]), torch.cuda.device_count())):
        torch.cuda.set_rng_state(_bytes(state["cuda"][device]), device)


def _give(
    state: Mapping[str, Any],
    python: Callable[[Any], object],
    numpy: Callable[[Any], object],
    pytorch: Callable[[Tensor], object],
) -> None:
    """Hand the three states to what takes them."""
    version, numbers, gauss = state["python"]
    python((version, tuple(numbers), gauss))
    name, key, *rest = state["numpy"]
    numpy((name, np.array(key, dtype=np.uint32), *rest))
    pytorch(_bytes(state["torch"]))


@contextmanager
def undisturbed() -> Iterator[None]:
    """What happens within leaves the global random states as they were: looking at a run must not change it."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


def _cuda_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)


def _hash(value: object) -> str:
    """SHA-256 of a value that is nearly JSON; what JSON does not have goes in as what it is, with no address in it."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plainly).encode()).hexdigest()


def _plainly(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    text = str(value)
    return type(value).__qualname__ if " at 0x" in text else text
