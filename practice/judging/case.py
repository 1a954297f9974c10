"""A case: one input of an exercise with the value that is right for it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PRACTICE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Raises:
    """As the right value of a case: the call is refused with this exception, or with one derived from it."""

    exception: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input and what is right for it, worked out by hand or in exact arithmetic, never by the solution."""

    name: str
    """What the case is about, in a few words."""

    inputs: dict[str, object]
    """Keyword arguments of the call, made of plain values."""

    right: object
    """The right value, or `Raises`."""

    why: str = ""
    """How one gets there."""

    traps: dict[str, object] = field(default_factory=dict)
    """What a known mistake would give: a sentence about the mistake, and its value."""

    rel: float = 1e-9
    """Relative tolerance per number."""

    abs: float = 1e-12
    """Absolute tolerance per number; 0 where a value must be exact."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Everything the judge knows about one exercise."""

    name: str
    """Name of the exercise, of its files, and of the function that the person writes."""

    title: str
    """First line of the statement."""

    hints: tuple[str, ...]
    """Asked for one at a time, from a nudge to nearly the solution."""

    cases: tuple[Case, ...]

    needs_torch: bool
    """Whether the exercise cannot be judged without PyTorch."""

    call: Callable[..., object]
    """Calls the person's function with a case's inputs, and returns what is compared."""


def _plain_call(function: Callable[..., object], **inputs: object) -> object:
    return function(**inputs)


def exercise_names() -> list[str]:
    """All exercises, in the order in which they build on each other."""
    return list(load_module(PRACTICE / "cases" / "order.py").ORDER)


def exercise_file(name: str, folder: str = "exercises") -> Path:
    """Where an exercise's stub, or with folder "solutions" its solution, lies."""
    return PRACTICE / folder / f"{name}.py"


def load_module(path: Path, name: str | None = None) -> ModuleType:
    """The module in a file, whatever folder it lies in."""
    spec = spec_from_file_location(name or f"practice_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_sheet(name: str) -> Sheet:
    """The cases and hints of an exercise."""
    module = load_module(PRACTICE / "cases" / f"{name}.py")
    return Sheet(
        name=name,
        title=module.TITLE,
        hints=tuple(module.HINTS),
        cases=tuple(module.CASES),
        needs_torch=getattr(module, "NEEDS_TORCH", False),
        call=getattr(module, "call", _plain_call),
    )
