"""Weights, gradients and moments in parts, one part a rank (FSDP2), and the ways between the parts and the whole."""

import contextlib
import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from upweight.objective.errors import UsageError
from upweight.policy.policy import Policy
from upweight.train.ranks import Ranks
from upweight.train.saving.checkpoint import TENSORS, not_written, reason_of
from upweight.train.saving.state import save_tensors

PARTS = "optimizer"
"""Folder of a checkpoint that holds the optimiser's state in parts."""

PART = "part-{rank:05d}-of-{world:05d}.safetensors"

SLICES = "parts.json"
"""Which rows of which tensor each part holds."""


def sharded(policy: Policy, ranks: Ranks) -> Policy:
    """A copy of a policy whose weights lie in parts on the ranks; a collective.

    Layer by layer, a pass gathers a layer's weights and drops them again. Gradients are summed over the ranks, not
    averaged: the weights of the loss are those of the whole batch. Below float32 the sum is made in float32.

    Args:
        policy: whole, the same on every rank; it stays as it is.
        ranks: two or more.
    """
    model = copy.deepcopy(policy.model)
    mesh = init_device_mesh(policy.device.type, (ranks.world,))
    # Of use while a model is being compiled only. DTensor's caches keep the mesh for good, and it would keep the group.
    mesh._pg_registry.clear()
    narrow = policy.dtype.itemsize < 4
    precision = MixedPrecisionPolicy(reduce_dtype=torch.float32) if narrow else MixedPrecisionPolicy()
    for module in (*_layers(model), model):
        # The root too gives its weights back after a forward pass: whoever reads parameters finds the parts.
        fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo divides by itself otherwise, and not exactly
    twin = Policy(model=model, tokenizer=policy.tokenizer, name=policy.name)
    twin.version = policy.version
    return twin


def gather_weights(parts: Policy, whole: Policy) -> None:
    """Bring the whole copy up to date with the sharded policy; a collective, and nothing where it is up to date."""
    if whole.version == parts.version:
        return
    mine = dict(parts.model.named_parameters())
    with torch.no_grad():
        for name, parameter in whole.model.named_parameters():
            parameter.copy_(mine[name].full_tensor())
    whole.version = parts.version


def write_part(folder: Path, state: Mapping[str, Tensor], model: Any, ranks: Ranks) -> None:
    """Write this rank's part of the optimiser's state, and on rank 0 which rows each part holds; a collective.

    Args:
        folder: is made; on several machines, one that all of them see.
        state: of `MasterAdamW.state_tensors`.
        model: whose sharded parameters they belong to.
        ranks: this process among the others.

    Raises:
        CheckpointError: on every rank, where the disk was full or failed for one of them; no part is left.
    """
    reason = None
    try:
        _write(folder, state, model, ranks)
    except Exception as error:
        if (reason := reason_of(error)) is None:
            raise
    told = ranks.gather(reason)
    for rank, found in enumerate(told):
        if found is not None:
            if ranks.first:
                shutil.rmtree(folder, ignore_errors=True)
            raise not_written(folder, f"{found} (on rank {rank})", None)


def _write(folder: Path, state: Mapping[str, Tensor], model: Any, ranks: Ranks) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / PART.format(rank=ranks.rank, world=ranks.world)
    save_tensors(state, file)
    if ranks.first:
        shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
        slices = [
            {name: rows_of(shape[0], rank, ranks.world) for name, shape in shapes.items()}
            for rank in range(ranks.world)
        ]
        text = json.dumps({"world": ranks.world, "shapes": shapes, "rows": slices}, indent=1)
        (folder / SLICES).write_text(text + "\n", encoding="utf-8")


def read_state(checkpoint: Path, ranks: Ranks, *, whole: bool) -> dict[str, Tensor]:
    """The optimiser's state out of a checkpoint, in one piece or in parts, however many ranks wrote it.

    Args:
        checkpoint: its folder.
        ranks: this process among those of today.
        whole: all rows of every tensor, for a run that does not shard; else the rows of this rank, and no others are
            read.

    Raises:
        UsageError: the parts do not belong together.
    """
    folder = checkpoint / PARTS
    share = None if whole else ranks
    if not folder.exists():
        return _rows_in([checkpoint / TENSORS], share, None)
    try:
        table = json.loads((folder / SLICES).read_text(encoding="utf-8"))
        world, shapes = int(table["world"]), dict(table["shapes"])
        return _rows_in([folder / PART.format(rank=rank, world=world) for rank in range(world)], share, shapes)
    except UsageError:
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder} does not hold all parts of the optimiser's state: {error}.") from error


def _rows_in(files: Sequence[Path], share: Ranks | None, shapes: Mapping[str, list[int]] | None) -> dict[str, Tensor]:
    """A rank's rows of every tensor whose rows lie in the files one after the other; None = all rows."""
    with contextlib.ExitStack() as stack:
        parts = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
        state = {}
        for key in parts[0].keys():  # noqa: SIM118 - it is no mapping
            if key.startswith("step/") or (share is None and len(parts) == 1):
                state[key] = parts[0].get_tensor(key)
                continue
            slices = [part.get_slice(key) for part in parts]
            counts = [piece.get_shape()[0] for piece in slices]
            shape = [sum(counts), *slices[0].get_shape()[1:]]
            if shapes is not None and shape != shapes.get(key.partition("/")[2]):
                raise UsageError(f"The parts of {key!r} in {files[0].parent} make {shape}, and that is not its shape.")
            start, stop = (0, shape[0]) if share is None else rows_of(shape[0], share.rank, share.world)
            firsts = [sum(counts[:number]) for number in range(len(counts))]
            found = [
                piece[max(0, start - first) : min(count, stop - first)]
                for piece, count, first in zip(slices, counts, firsts, strict=True)
                if max(start, first) < min(stop, first + count)
            ]
            state[key] = torch.cat(found) if found else parts[0].get_tensor(key)[:0].clone()
    return state


def rows_of(count: int, rank: int, world: int) -> tuple[int, int]:
    """First and last row (exclusive) of a rank's part of a tensor, as FSDP2 cuts it.

    Example:
        >>> [rows_of(5, rank, 4) for rank in range(4)]
        [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    each = -(-count // world)
    return min(count, rank * each), min(count, (rank + 1) * each)


def _layers(model: Any) -> Sequence[nn.Module]:
    """The decoder layers of a causal LM; none where its shape is not known, and then it is gathered as a whole."""
    count = model.config.get_text_config().num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count)
    return list(next(lists, ()))
