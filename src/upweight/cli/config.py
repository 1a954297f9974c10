"""Configuration files: the flags of a verb, as keys of a TOML or YAML file. Imports no torch."""

import contextlib
import dataclasses
import tomllib
import types
import typing
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import yaml

from upweight.objective.errors import UsageError, nearest
from upweight.objective.fields import must_be
from upweight.objective.spec import Objective
from upweight.train.args import TrainArgs

FLAG_TYPES: Mapping[str, object] = {
    name: hint
    for record in (TrainArgs, Objective)
    for name, hint in typing.get_type_hints(record).items()
    if name != "objective"
}
"""Every flag of `upweight train` that a file may set, with its annotation."""

OBJECTIVE_FLAGS = frozenset(field.name for field in dataclasses.fields(Objective))
"""Those of them that belong to the objective."""


def read_config(path: str, *, program: str = "upweight train", own: Container[str] = ("like",)) -> dict[str, object]:
    """Read the flags that a file sets.

    Keys are the flags' names, with underscores or hyphens, at the top level; those of the objective may stand in
    a table `objective` instead. `none` stands for "not given" where a flag takes it.

    Args:
        path: a `.toml`, `.yaml` or `.yml` file, or a `.json` one, such as a run's config.json (JSON is read as YAML).
        program: the verb that reads it, for messages.
        own: flags of that verb itself, which are given on the command line alone.

    Returns:
        Field name of `TrainArgs` or `Objective` -> a value of the field's type. Ranges are not checked here.

    Raises:
        UsageError: the file is missing, unreadable or of another kind, does not parse (with the line), holds a key
            that is no flag or is there twice, or a value of a wrong type.
    """
    found: dict[str, object] = {}
    for key, value in _flatten(_parse(path), path):
        name = key.replace("-", "_")
        if name in own:
            raise UsageError(f"{path}: --{name} is given on the command line, and not in a file. Take '{key}' out.")
        if name not in FLAG_TYPES:
            raise UsageError(f"{path}: '{key}' is not a flag of {program}. {did_you_mean(name, tuple(FLAG_TYPES))}")
        if name in found:
            raise UsageError(f"{path}: '{key}' is there twice. Keep one of them.")
        found[name] = _converted(path, key, FLAG_TYPES[name], value)
    return found


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A sentence with the nearest known name; with all of them where none is near.

    Example:
        >>> did_you_mean("clip_hihg", ["clip", "clip_high"])
        "Did you mean 'clip_high'?"
    """
    near = nearest(word, known)
    return f"Did you mean '{near}'?" if near else f"There are: {', '.join(known)}."


def _parse(path: str) -> Mapping[object, object]:
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in (".toml", ".yaml", ".yml", ".json"):
        raise UsageError(f"{path}: a configuration file ends in .toml, .yaml, .yml or .json.")
    try:
        text = file.read_text(encoding="utf-8-sig")  # editors on Windows put a byte order mark first
        content: object = tomllib.loads(text) if kind == ".toml" else yaml.load(text, Loader=_StrictLoader)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such configuration file.") from None
    except OSError as error:
        raise UsageError(f"{path}: the configuration file cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: a configuration file is UTF-8 text, and byte {error.start} of this one is not."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: this is not valid TOML: {error}.") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: this is not valid YAML: {_yaml_problem(error)}.") from None
    except RecursionError:
        raise UsageError(f"{path}: the configuration file is nested too deeply; flags are at the top level.") from None
    except ValueError as error:  # an integer beyond Python's limit on digits, a date that is none
        raise UsageError(f"{path}: the configuration file holds a value that cannot be read: {error}.") from None
    if content is None:  # an empty YAML file; an empty TOML file is an empty table already
        return {}
    if not isinstance(content, dict):
        raise UsageError(
            f"{path}: a configuration file holds `flag: value` lines, and this one holds a {_kind(content)}."
        )
    return content


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a key that is there twice is an error, as it is in TOML."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[typing.Any, typing.Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is a flag's name", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _yaml_problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem} (at line {mark.line + 1}, column {mark.column + 1})"
    return " ".join(str(error).split())


def _flatten(content: Mapping[object, object], path: str) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for key, value in content.items():
        if key != "objective":
            pairs.append((str(key), value))
            continue
        if not isinstance(value, dict):
            raise UsageError(
                f"{path}: 'objective' is a table of the objective's flags, and here it is a {_kind(value)}."
            )
        for inner, inner_value in value.items():
            if str(inner).replace("-", "_") not in OBJECTIVE_FLAGS:
                hint = did_you_mean(str(inner).replace("-", "_"), sorted(OBJECTIVE_FLAGS))
                raise UsageError(f"{path}: '{inner}' is not a flag of the objective. {hint}")
            pairs.append((str(inner), inner_value))
    return pairs


def _converted(path: str, key: str, hint: object, value: object) -> object:
    """The value as the field holds it, where the file's way of writing it allows."""
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value == "none" and types.NoneType in members:
        return None
    if float in members and isinstance(value, str):
        # YAML 1.1 reads 1e-5 as a string, for want of a dot.
        with contextlib.suppress(ValueError):
            value = float(value)
    if must := must_be(hint, value):
        raise UsageError(f"{path}: '{key}' must be {must}. Got {value!r} instead.")
    return float(value) if float in members and isinstance(value, int) else value


def _kind(value: object) -> str:
    kinds: Mapping[type, str] = {list: "list", str: "text", dict: "table"}
    return kinds.get(type(value), type(value).__name__)
