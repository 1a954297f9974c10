"""Reward functions by what a user writes: a name, a dotted path, `file.py:function`, several with weights."""

import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from upweight.objective.errors import UsageError, nearest
from upweight.objective.paths import given_path
from upweight.rewards.builtin import BUILT_IN
from upweight.rewards.contract import RewardFunction
from upweight.rewards.formats import WITH_PARAMETERS
from upweight.tasks.spelling import unknown_name

_WEIGHT = re.compile(r"\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*\*\s*")
_NEXT = re.compile(r"\+(?=\s*(?:-?[0-9.]+(?:[eE]-?[0-9]+)?\s*\*|[A-Za-z_./~]))")


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A reward function that was found by what a user wrote."""

    name: str
    """For metrics and messages: the function's own name."""

    function: RewardFunction
    """The function."""

    weight: float
    """What its rewards are multiplied by."""

    source: str | None
    """`module:function` or `file.py:function`, from which another process can load it; None for built-in rewards."""

    built_in: bool = False
    """Whether it is one of ours."""


def find_rewards(text: str) -> list[Named]:
    """The reward functions that a text names.

    Args:
        text: one or several, joined by `+`, each with a weight in front where it is not 1: `accuracy+0.2*format`. A
            function is a built-in reward, a dotted path (`mine.rewards.style`) or a function in a file
            (`mine/rewards.py:style`). `overlong` and `length` take numbers: `overlong:max_length=512,buffer=64`.

    Raises:
        UsageError: something that does not exist, or a reward without a number that it needs.

    Example:
        >>> [(reward.name, reward.weight) for reward in find_rewards("accuracy + 0.2*think_format")]
        [('accuracy', 1.0), ('think_format', 0.2)]
    """
    return [_one(part) for part in _NEXT.split(text)]


def all_built_in(rewards: str | RewardFunction | Sequence[str | RewardFunction]) -> bool:
    """Whether rewards are all built in: quick, and free of side effects.

    Example:
        >>> all_built_in("accuracy+0.2*format"), all_built_in([lambda completions: [0.0]])
        (True, False)
    """
    several = [rewards] if isinstance(rewards, str) or callable(rewards) else rewards
    return all(isinstance(one, str) and all(named.built_in for named in find_rewards(one)) for one in several)


def load_function(source: str) -> RewardFunction:
    """The function that `module:function` or `file.py:function` stands for.

    Raises:
        UsageError: no such file, module or function; or the module raises as it is imported.
    """
    place, _, name = source.rpartition(":")
    module = _module_of_file(place) if place.endswith(".py") else _module(place, source)
    function = module
    for part in name.split("."):
        function = getattr(function, part, None)  # type: ignore[assignment]
    if not callable(function):
        near = nearest(name, [n for n, value in vars(module).items() if callable(value)])
        hint = f" Did you mean '{near}'?" if near else ""
        raise UsageError(f"'{place}' has no function '{name}'.{hint}")
    return function


def source_of(function: RewardFunction) -> str:
    """Where another process can load a function from.

    Raises:
        UsageError: a function that only this process has: of the script itself, inside another function, or an object.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<object>")
    if module in (None, "__main__") or "<" in name or getattr(sys.modules.get(str(module)), name, None) is not function:
        raise UsageError(
            f"The reward function '{name}' cannot be loaded in a process of its own, because it belongs to the script "
            "itself, to another function or to an object. Move it to the top of a module, or leave --isolate_rewards "
            "out."
        )
    return f"{module}:{name}"


def _one(text: str) -> Named:
    weight = _WEIGHT.match(text)
    name = text[weight.end() :].strip() if weight else text.strip()
    factor = float(weight[1]) if weight else 1.0
    if name in BUILT_IN:
        return Named(name=name, function=BUILT_IN[name], weight=factor, source=None, built_in=True)
    kind, _, parameters = name.partition(":")
    if kind in WITH_PARAMETERS:
        return Named(name=kind, function=_with_parameters(kind, parameters), weight=factor, source=None, built_in=True)
    if ".py:" in name:
        path, _, attribute = name.rpartition(":")
        if not path.endswith(".py"):
            raise UsageError(f"'{name}' has one colon too many: a function in a file is file.py:function.")
        source = f"{given_path(path, 'The reward file').resolve()}:{attribute}"
    elif "." in name.lstrip(".") and not name.startswith(".") and not name.endswith(".py") and ":" not in name:
        source = ":".join(name.rsplit(".", 1))
    elif name.endswith(".py"):
        raise UsageError(f"'{name}' is a file: say which of its functions is the reward, as in {name}:reward.")
    else:
        raise unknown_name("reward", name, [*BUILT_IN, *WITH_PARAMETERS])
    return Named(name=source.rpartition(":")[2], function=load_function(source), weight=factor, source=source)


def _with_parameters(name: str, text: str) -> RewardFunction:
    make, needed = WITH_PARAMETERS[name]
    given = dict(re.findall(r"([a-z_]+)=([0-9]+)(?:,|$)", text))
    example = f"{name}:{','.join(f'{parameter}=512' for parameter in needed[:1])}" + (
        ",buffer=64" if "buffer" in needed else ""
    )
    written = ",".join(f"{key}={value}" for key, value in given.items())
    if set(given) != set(needed) or written != text:
        raise UsageError(
            f"The reward '{name}' needs {' and '.join(needed)}, whole numbers of tokens, as in {example}. "
            f"Got {text or 'none'} instead."
        )
    return make(**{key: int(value) for key, value in given.items()})


def _module(name: str, source: str) -> ModuleType:
    with _from_here():
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                raise UsageError(
                    f"There is no module '{name}' for the reward '{source.replace(':', '.')}'. A module is looked for "
                    f"in the environment and in {Path.cwd()}; a function in a file is file.py:function. Built in: "
                    f"{', '.join([*BUILT_IN, *WITH_PARAMETERS])}."
                ) from error
            raise _broken(name, error) from error
        except (Exception, SystemExit) as error:
            raise _broken(name, error) from error


def _module_of_file(place: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise UsageError(f"There is no file '{place}' to take a reward function from.")
    name = f"upweight_reward_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _from_here(str(path.parent)):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script's sys.exit() would end the run without a word
        del sys.modules[name]
        raise _broken(place, error) from error
    return module


def _broken(place: str, error: Exception | SystemExit) -> UsageError:
    first = str(error).partition("\n")[0]
    return UsageError(f"'{place}' cannot be imported: it raises {type(error).__name__}: {first}")


@contextlib.contextmanager
def _from_here(*folders: str) -> Iterator[None]:
    """Imports look into the working folder too, which a console script's path does not have."""
    added = [str(Path.cwd()), *folders]
    sys.path[:0] = added
    try:
        yield
    finally:
        for folder in added:
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)
