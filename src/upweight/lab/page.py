"""The laboratory as one HTML file: six experiments to change by hand. Imports no torch."""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from upweight.lab.parameters import (
    ClipHigherParameters,
    KLParameters,
    MismatchParameters,
    Parameters,
    RatioParameters,
    WeightsParameters,
)
from upweight.lab.table import say
from upweight.objective.errors import UsageError
from upweight.objective.presets import preset
from upweight.objective.spec import Objective

SCRIPTS = ("maths.js", "charts.js", "panels.js", "more_panels.js", "page.js")
"""The page's scripts, in the order in which they need each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageParameters(Parameters):
    """Where the page goes, for `upweight lab page`."""

    OWNER: ClassVar[str] = "upweight lab page"

    out: str = "lab.html"
    """Write the page to this file, which a browser opens from disk."""

    def _check(self) -> None:
        target = Path(self.out)
        if target.suffix.lower() not in (".html", ".htm"):
            raise self._bad("out", "a file that ends in .html", self.out)
        if target.is_dir():
            raise UsageError(f"--out {target}: this is a folder. Name a file in it.")
        if not target.parent.is_dir():
            raise UsageError(f"--out {target}: there is no folder '{target.parent}'. Make it first, or choose another.")


@dataclass(frozen=True, kw_only=True, slots=True)
class PageResult:
    """A page that was written."""

    out: str
    """Its file."""

    size: int
    """Bytes."""


def run(parameters: PageParameters) -> PageResult:
    """Write the page.

    Args:
        parameters: the file.

    Returns:
        The file and its size.

    Raises:
        UsageError: the file cannot be written.
    """
    content = page().encode("ascii")
    try:
        Path(parameters.out).write_bytes(content)
    except OSError as error:
        raise UsageError(f"--out {parameters.out}: the page cannot be written: {error.strerror}.") from None
    return PageResult(out=parameters.out, size=len(content))


def page() -> str:
    """The page: styles, scripts and the experiments' defaults in one HTML text, which asks nothing of any network.

    Example:
        >>> text = page()
        >>> text.startswith("<!doctype html>"), len(text) < 400_000, "{{" in text
        (True, True, False)
    """
    parts = {
        "css": _part("page.css"),
        "defaults": json.dumps(defaults(), indent=1, sort_keys=True),
        "js": "\n".join(map(_part, SCRIPTS)),
    }
    text = _part("template.html")
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return text


def defaults() -> dict[str, Any]:
    """What the page starts with: the experiments' own defaults, and the presets' bounds.

    Example:
        >>> defaults()["clip"]["cispo_clip_high"]
        4.0
    """
    weights, kl, ratio = WeightsParameters(), KLParameters(), RatioParameters()
    mismatch, higher = MismatchParameters(), ClipHigherParameters()
    dapo, cispo = preset("dapo"), preset("cispo")
    token = Objective(clip=ratio.clip, clip_high=ratio.clip_high).bounds
    sequence = Objective(clip=ratio.sequence_clip, clip_high=ratio.sequence_clip_high).bounds
    return {
        "weights": {
            "rewards": weights.rewards,
            "lengths": weights.lengths,
            "max_length": 4096,
            "eps": Objective().adv_eps,
        },
        "kl": _fields(kl, "vocabulary", "noise", "samples", "seed"),
        "clip": {
            "clip": dapo.clip,
            "clip_high": dapo.clip_high,
            "dual_clip": 3.0,
            "cispo_clip": cispo.clip,
            "cispo_clip_high": cispo.clip_high,
        },
        "higher": _fields(higher, "probabilities", "clip_high", "updates"),
        "ratio": {
            **_fields(ratio, "sigma", "lengths", "answers", "seed"),
            "bounds": {"token": token, "sequence": sequence},
        },
        "mismatch": _fields(
            mismatch,
            *("vocabulary", "spread", "noise", "outliers", "outlier_nats", "batch_size", "batches", "cap", "seed"),
        ),
    }


def as_json(result: PageResult) -> dict[str, Any]:
    """`{"out", "bytes"}`."""
    return {"out": result.out, "bytes": result.size}


def show(result: PageResult, console: Console) -> None:
    """Say where the page is."""
    say(console, f"page: {result.out} ({result.size / 1000:.0f} KB). Open it in a browser; it needs no network.")


def _fields(parameters: Parameters, *names: str) -> dict[str, Any]:
    return {name: getattr(parameters, name) for name in names}


def _part(name: str) -> str:
    return (files("upweight.lab") / "page" / name).read_text(encoding="ascii")
