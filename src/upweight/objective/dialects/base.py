"""What a dialect is made of: settings under their trainer's names, and what becomes of them. Imports no torch."""

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn, get_args, get_origin

from upweight.objective.errors import bad_parameter, nearest
from upweight.objective.fields import must_be
from upweight.objective.spec import Objective


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A setting of another trainer that decides its objective."""

    name: str
    """As that trainer spells it, without the part of its path that says nothing (`clip_ratio_low`)."""

    kind: object
    """What it holds: an annotation that `upweight.objective.fields.must_be` reads."""

    default: object
    """That trainer's own default."""

    meaning: str
    """One line, in that trainer's meaning."""

    path: str = ""
    """Its whole name where that is longer (`actor_rollout_ref.actor.clip_ratio_low`); accepted as well."""

    at_least: float | None = None
    """Smallest number it may be; None where any will do."""

    at_most: float | None = None
    """Largest number it may be, together with `at_least`; None where any will do."""

    def out_of_range(self, value: object) -> str:
        """What the setting must be, where a number is outside its range; "" where it is not."""
        if not isinstance(value, int | float) or self.at_least is None:
            return ""
        if self.at_most is None:
            return f"at least {shown(self.at_least)}" if value < self.at_least else ""
        within = self.at_least <= value <= self.at_most
        return "" if within else f"between {shown(self.at_least)} and {shown(self.at_most)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """The objective that another trainer's settings stand for, and in which words."""

    objective: Objective
    """Ours, every field decided."""

    says: tuple[str, ...]
    """One sentence per convention or setting: what that trainer does, and the fields that do it here."""

    unmatched: tuple[str, ...]
    """One sentence for each thing that cannot be matched here, and what happens instead."""


@dataclass(slots=True)
class Reader:
    """One trainer's settings, its defaults filled in, while they are turned into an objective."""

    trainer: str
    values: Mapping[str, object]
    given: frozenset[str]
    max_new_tokens: int | None
    fields: dict[str, object] = field(default_factory=dict)
    says: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        """A setting that holds a name."""
        value = self.values[name]
        assert isinstance(value, str)
        return value

    def flag(self, name: str) -> bool:
        """A setting that is on or off."""
        return self.values[name] is True

    def number(self, name: str) -> float:
        """A setting that holds a number."""
        value = self.values[name]
        assert isinstance(value, int | float)
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        """A setting that holds a number or nothing."""
        return None if self.values[name] is None else self.number(name)

    def those_given(self, *names: str) -> str:
        """Which of these settings were given, as `a=1 and b=2`; "" for none."""
        return " and ".join(f"{name}={shown(self.values[name])}" for name in names if name in self.given)

    def say(self, sentence: str, **fields: object) -> None:
        """Set fields of the objective; the sentence ends with them."""
        self.fields.update(fields)
        ours = ", ".join(f"{name}={shown(value)}" for name, value in fields.items())
        self.says.append(f"{sentence} ({ours})." if ours else f"{sentence}.")

    def miss(self, sentence: str) -> None:
        """Note something that cannot be matched."""
        self.unmatched.append(f"{sentence}.")

    def refuse(self, name: str, must: str, way_out: str) -> NoReturn:
        """Stop at a value that nothing here can stand for.

        Raises:
            UsageError: always.
        """
        raise bad_parameter(name, f"--like {self.trainer}", must, self.values[name], way_out)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """A trainer's conventions."""

    name: str
    """As `--like` takes it."""

    version: str
    """The release whose source was read, and against which the translation is tested."""

    settings: tuple[Setting, ...]
    """What decides its objective, under its names and with its defaults."""

    read: Callable[[Reader], None]
    """Turns the settings into fields and sentences."""

    def setting(self, name: str) -> Setting:
        """The setting of that name, short or whole.

        Raises:
            UsageError: there is none; the nearest name is offered.
        """
        for known in self.settings:
            if name in (known.name, known.path):
                return known
        offer = self.nearest(name)
        known_names = ", ".join(known.name for known in self.settings)
        way_out = f"Did you mean '{offer}'?" if offer else f"It knows {known_names}; leave out what is none of them."
        must = f"a setting of {self.name} {self.version} that decides the objective"
        raise bad_parameter("settings", f"--like {self.name}", must, name, way_out)

    def nearest(self, name: str) -> str | None:
        """The setting that was probably meant; None where none is near.

        The last part of a name says most (`clip_ratio`), so it is looked for first, and the whole name decides
        between settings that share it.
        """
        last_parts = {known.name: last_part(known.name) for known in self.settings}
        last = nearest(last_part(name), dict.fromkeys(last_parts.values()))
        if last is None:
            return nearest(name, last_parts)
        whole = {known.path or known.name: known.name for known in self.settings if last_parts[known.name] == last}
        return whole[difflib.get_close_matches(name, whole, n=1, cutoff=0)[0]]

    def translate(self, settings: Mapping[str, object], max_new_tokens: int | None) -> Translation:
        """See `upweight.objective.dialects.translate`."""
        values = {known.name: known.default for known in self.settings}
        given = set()
        for name, value in settings.items():
            known = self.setting(name)
            values[known.name] = self._checked(known, value)
            given.add(known.name)
        reader = Reader(trainer=self.name, values=values, given=frozenset(given), max_new_tokens=max_new_tokens)
        self.read(reader)
        objective = dataclasses.replace(Objective(), **reader.fields)  # type: ignore[arg-type]
        return Translation(objective=objective, says=tuple(reader.says), unmatched=tuple(reader.unmatched))

    def _checked(self, known: Setting, value: object) -> object:
        owner = f"--like {self.name}"
        if isinstance(value, list | tuple):  # a pair of numbers, as its command line takes it
            value = " ".join(str(part) for part in value)
        if isinstance(value, bool) and get_origin(known.kind) is Literal:
            value = shown(value)
        if must := must_be(known.kind, value):
            raise bad_parameter(known.name, owner, must, value, choice_meant(known.kind, value))
        if must := known.out_of_range(value):
            raise bad_parameter(known.name, owner, must, value)
        return value


def last_part(name: str) -> str:
    """What follows the last dot of a name."""
    return name.rpartition(".")[2]


def choice_meant(kind: object, value: object) -> str:
    """A sentence with the choice that was probably meant; "" where the kind has no choices or none is near.

    Example:
        >>> choice_meant(Literal["std", "none"] | None, "STD")
        "Did you mean 'std'?"
    """
    members = (kind,) if get_origin(kind) is Literal else get_args(kind)
    choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    near = nearest(value.lower(), choices) if isinstance(value, str) else None
    return f"Did you mean '{near}'?" if near else ""


def shown(value: object) -> str:
    """A value as the command line takes it.

    Example:
        >>> shown(True), shown(1e-4), shown(None), shown("std")
        ('true', '0.0001', 'none', 'std')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def two_numbers(reader: Reader, name: str) -> tuple[float, float]:
    """A setting that holds a pair, or one number, which is the upper of a pair that starts at 0.

    Raises:
        UsageError: it holds something else, NaN and infinity among it.
    """
    parts = reader.text(name).replace(",", " ").split()
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(map(math.isfinite, numbers)):
        reader.refuse(name, "two numbers, as in '0.2 0.28'", "")
    return (0.0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
