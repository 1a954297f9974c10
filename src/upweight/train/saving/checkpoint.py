"""Folders that are whole or not there: written beside, hashed, renamed; checked before anything in them is read.

Imports no torch, and unpickles nothing: what a checkpoint holds is safetensors and JSON.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from upweight.objective.errors import UsageError
from upweight.train.saving.reading import object_in

MANIFEST = "manifest.json"
"""Sizes and SHA-256 of a folder's files, written last."""

TRAINING = "training.json"
"""Where the run stands: steps, data, random states."""

TENSORS = "optimizer.safetensors"
"""Moments, step counters and float32 masters."""

CONFIG = "run.json"
"""The run's configuration as it was resolved, flat; the model's own is config.json."""

TEMPORARY = "tmp-"
"""What a folder's name begins with while it is written or removed."""

_NAME = re.compile(r"checkpoint-(\d+)")

_LEFTOVER = re.compile(
    re.escape(TEMPORARY)
    + r"(checkpoint-\d+|failed-step-\d+|parts-\d+|step-\d+|reference"
    + r"|(config|rewards)\.json|(metrics|evaluations)\.jsonl)"
)
"""What a run itself leaves half written; anything else that is called so is somebody's."""

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
"""Files that loaders unpickle, which runs whatever code is in them."""

_BLOCK = 1 << 20


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; the ones before it are as they were."""


class DamagedCheckpoint(UsageError):
    """A checkpoint that is not whole: the file, and the check that failed."""


def write_whole(target: Path, save: Callable[[Path], None], *, bytes_needed: int | None = None) -> None:
    """Write a folder so that a kill or a power failure at any moment leaves all of it or nothing.

    The files are written into `tmp-NAME` and flushed to the disk, then a manifest of their sizes and SHA-256, then
    the folder takes its name, and its parent is flushed.

    Args:
        target: where it will be; nothing may be there.
        save: writes into the folder it is given.
        bytes_needed: for the message, where it is known.

    Raises:
        CheckpointError: the disk is full, a file may not grow so large, the disk fails. Nothing is left of the folder;
            only where flushing its parent failed it is there, and whole, and a power failure may take it away.
    """
    partial = target.with_name(TEMPORARY + target.name)
    _discard(partial)
    try:
        partial.mkdir()
        save(partial)
        files = _files_of(partial)
        for file in files:
            sync(file)
        manifest = {str(file.relative_to(partial)): _entry(file) for file in files}
        text = json.dumps({"files": manifest}, indent=2) + "\n"
        (partial / MANIFEST).write_text(text, encoding="utf-8")
        sync(partial / MANIFEST)
        for folder in sorted({file.parent for file in files} | {partial}):
            sync(folder)
        os.replace(partial, target)
        sync(target.parent)
    except Exception as error:
        if (reason := reason_of(error)) is None:
            raise
        raise not_written(target, reason, bytes_needed) from error
    finally:
        _discard(partial)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems flush files only: a folder's entry is then as safe as they make it.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def remove_whole(folder: Path) -> None:
    """Remove a folder so that what is left after a kill does not look whole: it loses its name first."""
    gone = folder.with_name(TEMPORARY + folder.name)
    _discard(gone)
    os.replace(folder, gone)
    _discard(gone)


def remove_leftovers(run: Path) -> list[str]:
    """Remove what a killed run left half written or half removed in its folder and in its dumps; their names."""
    ours = leftovers_of(run)
    for path in ours:
        _discard(path)
    return [path.relative_to(run).as_posix() for path in ours]


def leftovers_of(run: Path) -> list[Path]:
    """What `remove_leftovers` would remove."""
    found = [*run.glob(TEMPORARY + "*"), *run.glob(f"dumps/{TEMPORARY}*")]
    return sorted(path for path in found if _LEFTOVER.fullmatch(path.name))


def bytes_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def checkpoints_of(run: Path) -> list[Path]:
    """The folders checkpoint-N of a run, the newest first; whole or not."""
    if not run.is_dir():
        return []
    found = [(int(match[1]), path) for path in run.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def step_of(checkpoint: Path) -> int:
    """N of checkpoint-N."""
    match = _NAME.fullmatch(checkpoint.name)
    if match is None:
        raise UsageError(f"{str(checkpoint)!r} is not the folder of a checkpoint: those are called checkpoint-N.")
    return int(match[1])


def prune(run: Path, keep: int, best: int | None) -> list[Path]:
    """Remove all but the newest checkpoints and the best one.

    Args:
        run: the run folder, the newest checkpoint in it whole.
        keep: how many of the newest stay; 0 = all.
        best: step of the one that stays whatever its age; None = none.

    Returns:
        What was removed.
    """
    old = [path for path in checkpoints_of(run)[keep:] if step_of(path) != best] if keep else []
    for path in old:
        remove_whole(path)
    return old


def check_whole(folder: Path, needed: Sequence[str] = ()) -> None:
    """Hold a folder against its manifest, before anything in it is loaded.

    Args:
        folder: as `write_whole` left it; a checkpoint, or the reference policy of a run.
        needed: files that have to be there.

    Raises:
        DamagedCheckpoint: the file, and the check that failed: missing, size, SHA-256, not safetensors, a pickle.
    """
    manifest = _manifest_of(folder)
    for name in needed:
        if name not in manifest:
            raise _damaged(folder, name, "missing from the manifest")
    for name, entry in manifest.items():
        file = folder / name
        if not file.is_file():
            raise _damaged(folder, name, "missing")
        if file.stat().st_size != entry["bytes"]:
            raise _damaged(folder, name, f"size: {file.stat().st_size} bytes, {entry['bytes']} were written")
        if _sha256(file) != entry["sha256"]:
            raise _damaged(folder, name, "SHA-256: the contents are not what was written")
    for file in _files_of(folder):
        if file.suffix in _PICKLES:
            raise _damaged(folder, file.name, "a pickle, which may run code when it is loaded; nothing of it was read")
        if file.suffix == ".safetensors":
            _check_safetensors(folder, file)


def fingerprint_of(folder: Path) -> str:
    """SHA-256 over everything a whole folder holds, by way of its manifest."""
    return _sha256(folder / MANIFEST)


def free_bytes(path: Path) -> int:
    """Free on the disk that a folder is on, or will be."""
    there = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    return int(shutil.disk_usage(there).free)


def in_units(count: int) -> str:
    """Bytes as a person reads them, beside the exact number.

    Example:
        >>> in_units(4_638_848)
        '4.6 MB (4638848 bytes)'
    """
    size, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit} ({count} bytes)"


def reason_of(error: Exception) -> str | None:
    """What the disk says about a write that failed; None where it was something else."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # safetensors reports a failed write of its own as an error without an errno.
    return str(error) if type(error).__name__ == "SafetensorError" else None


def not_written(target: Path, reason: str, bytes_needed: int | None) -> CheckpointError:
    """The error of a folder that could not be written, and what there is to go on from.

    Args:
        target: the folder.
        reason: of the failure.
        bytes_needed: where it is known.
    """
    needed = "" if bytes_needed is None else f" It needs {in_units(bytes_needed)},"
    free = f"{' and' if needed else ' There are'} {in_units(free_bytes(target.parent))} free there."
    before = [path for path in checkpoints_of(target.parent) if path != target]
    whole = f" {before[0]} is as it was; go on from it with --resume {target.parent}." if before else ""
    return CheckpointError(f"{target} could not be written: {reason}.{needed}{free}{whole}")


def _discard(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (shutil.rmtree if folder.is_dir() and not folder.is_symlink() else os.unlink)(folder)


def _files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)


def _entry(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": _sha256(file)}


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        for block in _blocks(stream):
            digest.update(block)
    return digest.hexdigest()


def _blocks(stream: Any) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block


def _manifest_of(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        text = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise _damaged(folder, MANIFEST, "missing: writing it was the last thing to do") from None
    except OSError as error:
        raise _damaged(folder, MANIFEST, f"cannot be read: {error}") from error
    try:
        files = object_in(text)["files"]
        return {
            str(name): {"bytes": int(entry["bytes"]), "sha256": str(entry["sha256"])} for name, entry in files.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, MANIFEST, "not the JSON that was written") from error


def _check_safetensors(folder: Path, file: Path) -> None:
    """The header: its length in eight bytes, then JSON. A zip or a pickle has neither."""
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        header = stream.read(length) if len(start) == 8 and length < file.stat().st_size else b""
    if start[:2] == b"PK" or start[:1] == b"\x80":
        raise _damaged(folder, file.name, "not safetensors but a pickle, which may run code; nothing of it was loaded")
    try:
        object_in(header)
    except ValueError:
        raise _damaged(folder, file.name, "not safetensors: it has no header") from None


def _damaged(folder: Path, name: str, check: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"The checkpoint {str(folder)!r} is damaged: {name}: {check}.")
