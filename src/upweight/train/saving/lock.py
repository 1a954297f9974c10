"""The lock of a run folder: one process at a time, and a dead one's claim is nobody's."""

import contextlib
import errno
import os
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: the number of the process alone has to do there
    fcntl = None  # type: ignore[assignment]

_TRIES = 8
"""How often a lock that its owner takes away meanwhile is opened anew."""

_LOOKS, _LOOK_SECONDS = 25, 0.02
"""How often a lock that is held is tried, and the time between: whoever looks whose it is holds it for a moment too."""


class Taken(Exception):
    """Somebody holds the lock: the process's number, or what is known of it."""


class FolderLock:
    """A file with the number of the process that holds it, and the kernel's lock on it.

    The kernel lets go of a lock when its holder dies, however it dies, so neither a file that is left over nor a number
    that another process has by now can keep a folder shut. Where the file system has no such locks, the number decides.
    """

    def __init__(self, path: Path) -> None:
        """Take it.

        Args:
            path: of the file; its folder is there.

        Raises:
            Taken: another process has it.
            OSError: the file cannot be made.
        """
        self.path = path
        self._descriptor = _take(path)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go of it, and remove the file."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1


def owner_of(path: Path) -> str | None:
    """Who holds a lock, as far as it is known; None where nobody does."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:  # none, a folder, or a file of somebody else's
        return None
    try:
        _lock(descriptor, path, looking=True)
    except Taken as taken:
        return str(taken)
    finally:
        os.close(descriptor)
    return None


def _take(path: Path) -> int:
    for _ in range(_TRIES):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        if _still_there(descriptor, path):
            return descriptor
        os.close(descriptor)  # its last holder has taken the file away meanwhile
    raise Taken("that came and went")


def _lock(descriptor: int, path: Path, *, looking: bool = False) -> None:
    """Lock an open file; by the number in it where there are no locks. Two may look at once."""
    kind = 0 if fcntl is None else fcntl.LOCK_SH if looking else fcntl.LOCK_EX
    for left in range(0 if fcntl is None else _LOOKS, 0, -1):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if looking or left == 1:
                raise Taken(_number_in(path) or "that has not said its number") from None
            time.sleep(_LOOK_SECONDS)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
                raise
            break
    number = _number_in(path)
    if number is not None and number != str(os.getpid()) and _alive(int(number)):
        raise Taken(number)


def _still_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _number_in(path: Path) -> str | None:
    try:
        return str(int(path.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return None


def _alive(number: int) -> bool:
    if os.name == "nt":  # there, os.kill with 0 is a Ctrl-C
        return True
    try:
        os.kill(number, 0)  # signal 0 asks whether it is there
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # there, and somebody else's
        return True
    return True
