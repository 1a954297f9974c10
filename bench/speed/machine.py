"""What the machine is and does: its name, its matrix peak, the memory of processes. Imports torch only for the peak."""

import ctypes
import os
import platform
import time
from pathlib import Path

_PROC = Path("/proc")


def cpu_name() -> str:
    """As /proc/cpuinfo has it, with the matrix units that it names."""
    text = _cpuinfo()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    units = [unit for unit in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if unit in text.split()]
    return f"{names[0] if names else platform.processor() or platform.machine()} ({', '.join(units) or 'no AVX2'})"


def has_amx() -> bool:
    """Whether bfloat16 has matrix units of its own."""
    return "amx_bf16" in _cpuinfo().split()


def _cpuinfo() -> str:
    path = _PROC / "cpuinfo"
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def usable_cores() -> list[int]:
    """Numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def load() -> float | None:
    """Processes that wanted to run over the last minute, on average; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def matrix_peak(dtype: str, sizes: tuple[int, ...] = (1024, 2048, 4096), repeats: int = 5) -> float:
    """Largest FLOP/s of a few products of square matrices in this process, with its threads."""
    import torch

    best = 0.0
    for size in sizes:
        a, b = (torch.randn(size, size).to(getattr(torch, dtype)) for _ in range(2))
        out = a @ b
        for _ in range(repeats):
            started = time.perf_counter()
            torch.mm(a, b, out=out)
            best = max(best, 2.0 * size**3 / (time.perf_counter() - started))
    return best


def status_bytes(text: str, field: str) -> int | None:
    """A field of /proc/PID/status in bytes; None where it is not there.

    Example:
        >>> status_bytes("Name: x\\nVmHWM:\\t    2048 kB\\n", "VmHWM")
        2097152
    """
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None


def own_bytes(field: str) -> int | None:
    """Of this process: `VmRSS` is what it holds now, `VmHWM` the most since the last `forget_peak`."""
    path = _PROC / "self" / "status"
    return status_bytes(path.read_text(encoding="utf-8"), field) if path.exists() else None


def forget_peak() -> bool:
    """Let this process's peak memory start again from what it holds now; False where the system cannot."""
    try:
        (_PROC / "self" / "clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


def give_back_free_memory() -> None:
    """Let the allocator return what it keeps for later, where it can: else a peak is short of what fits in there."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def descendants(pid: int, parents: dict[int, int]) -> list[int]:
    """A process and all that it started, from the parent of each.

    Example:
        >>> descendants(2, {2: 1, 3: 2, 4: 3, 5: 1})
        [2, 3, 4]
    """
    found = [pid]
    for one in found:
        found += sorted(child for child, parent in parents.items() if parent == one)
    return found


def tree_peak(pid: int) -> int | None:
    """Peak memory of a process and of all that it started, each one's own peak added up."""
    if not _PROC.is_dir():
        return None
    peaks = [_status_of(one, "VmHWM") for one in descendants(pid, _parents())]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if known else None


def _status_of(pid: int, field: str) -> int | None:
    try:
        return status_bytes((_PROC / str(pid) / "status").read_text(encoding="utf-8"), field)
    except OSError:  # it has ended
        return None


def _parents() -> dict[int, int]:
    parents = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            # The name in brackets may hold anything, so the fields are read from behind it.
            parents[int(path.parent.name)] = int(path.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except OSError:
            continue
    return parents
