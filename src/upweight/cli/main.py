"""The entry point of `upweight`: finds the verb, and turns how it ended into an exit code. Imports no torch."""

import importlib
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from upweight.objective.errors import UsageError, nearest
from upweight.train.redact import redact

DONE, FAILED, WRONG_CALL, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
"""Exit codes: done, the run failed, the call was wrong, stopped by SIGINT, stopped by SIGTERM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """One thing that `upweight` does."""

    module: str
    """Where it lives. The module has `run(argv: Sequence[str]) -> int`, which takes what follows the verb and
    returns an exit code; it is imported only when the verb is called."""

    summary: str
    """Its line in `upweight --help`."""


VERBS: Mapping[str, Verb] = {
    "train": Verb(
        module="upweight.cli.train", summary="train a language model by reinforcement learning on checked answers"
    ),
    "eval": Verb(
        module="upweight.cli.eval", summary="accuracy and pass@k of a model with intervals, and which of two is better"
    ),
    "verify": Verb(
        module="upweight.cli.verify", summary="hold a verifier against cases with a known verdict, ours or your own"
    ),
    "explain": Verb(
        module="upweight.cli.explain", summary="print the objective that flags give, in readable mathematics"
    ),
    "plan": Verb(module="upweight.cli.plan", summary="estimate what memory and time a run takes, and what fits"),
    "lab": Verb(module="upweight.cli.lab", summary="run the experiments of the laboratory, and change them"),
}
"""Every verb, in the order of `upweight --help`."""

_EXAMPLE = "upweight train --preset dr-grpo --max_steps 50"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `upweight` and say how it ended.

    Args:
        argv: what follows the program's name; the process's own arguments where None.

    Returns:
        The exit code: 0 done, 1 the run failed, 2 the call was wrong, 130 stopped by SIGINT, 143 by SIGTERM.
        An exception that nobody expected becomes one line on standard error, which names the file that holds
        its traceback; with UPWEIGHT_DEBUG=1 the traceback is printed instead.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if logging.lastResort is not None:  # where warnings go that nobody else handles: a reward's traceback
        logging.lastResort.setFormatter(_WithoutSecrets())
    try:
        with _sigterm_stops():
            code = _dispatch(words)
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # `upweight train --help | head`: nobody is listening any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except UsageError as error:
        _complain(str(error))
        return WRONG_CALL
    except SystemExit as stop:
        return _exit_code(stop)
    except KeyboardInterrupt:
        _complain("stopped by SIGINT.")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last one to see it: reported with its traceback, exit code 1
        _report_failure(error)
        return FAILED


def _dispatch(words: Sequence[str]) -> int:
    verb = words[0] if words else "--help"
    if verb in ("-h", "--help", "help"):
        print(_help())
        return DONE if words else WRONG_CALL
    if verb in ("--version", "-V"):
        import upweight

        print(f"upweight {upweight.__version__}")
        return DONE
    if verb not in VERBS:
        near = nearest(verb.lower(), VERBS)
        hint = f"Did you mean `upweight {near}`?" if near else f"There are: {', '.join(VERBS)}. See `upweight --help`."
        kind = "a flag of upweight itself" if verb.startswith("-") else "a verb of upweight"
        raise UsageError(f"'{verb}' is not {kind}. {hint}")
    code: int = importlib.import_module(VERBS[verb].module).run(words[1:])
    return code


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    return f"""usage: upweight VERB [flags]

Reinforcement learning on verifiable rewards: the trainer whose maths you can check.

verbs:
{verbs}

example:
  {_EXAMPLE}

`upweight VERB --help` shows the flags of a verb, `upweight --version` the version.
UPWEIGHT_DEBUG=1 in the environment prints the traceback of a failure."""


@contextmanager
def _sigterm_stops() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that `finally` blocks run; the verb may set its own handler."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_code(stop: SystemExit) -> int:
    """What Python itself would leave with: None is 0, a number is itself, anything else is printed and is 1."""
    if stop.code is None:
        return DONE
    if isinstance(stop.code, int):
        return stop.code
    _complain(str(stop.code))
    return FAILED


def _report_failure(error: Exception) -> None:
    details = redact("".join(traceback.format_exception(error)))
    where = ""
    if os.environ.get("UPWEIGHT_DEBUG", "") in ("", "0"):
        try:
            with tempfile.NamedTemporaryFile("w", prefix="upweight-", suffix=".txt", delete=False) as file:
                file.write(details)
            where = f" (traceback: {file.name})"
        except OSError:  # no place to keep it, a full disk perhaps: better a long message than a lost one
            print(details, file=sys.stderr, end="")
    else:
        print(details, file=sys.stderr, end="")
    first = str(error).strip().partition("\n")[0]
    _complain(f"{type(error).__name__}: {first}{where}" if first else f"{type(error).__name__}{where}")


class _WithoutSecrets(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _complain(message: str) -> None:
    rank = os.environ.get("RANK", "") if os.environ.get("WORLD_SIZE", "1") != "1" else ""
    name = f"upweight (rank {rank})" if rank else "upweight"
    for line in redact(message).splitlines():
        print(f"{name}: {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
