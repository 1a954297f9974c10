"""Figures: labelled, nothing printed over anything, the same file every time."""

import importlib
import itertools
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from upweight.cli.lab import NAMES, resolve
from upweight.lab import weights
from upweight.lab.parameters import WeightsParameters
from upweight.lab.style import save

DOCS = Path(__file__).resolve().parents[2] / "docs"
QUICK_WORLD = "--vocabulary 2 --length 2 --difficulties 0.2,0.7 --group_sizes 2,4 --samples 3 --updates 2 --caps 1.5,3"
HERE = [name for name, row in NAMES.items() if row.figure and row.parameters.startswith("upweight.lab.parameters:")]


@pytest.fixture(scope="module", params=HERE)
def drawn(request: pytest.FixtureRequest) -> Figure:
    return draw(request.param)


def draw(name: str) -> Figure:
    experiment: Any = importlib.import_module(NAMES[name].module)
    figure: Figure = experiment.draw(experiment.run(resolve(name, []).parameters))
    return figure


def test_every_axis_is_labelled(drawn: Figure) -> None:
    assert drawn.axes
    for axes in drawn.axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel()


def test_no_words_lie_over_other_words(drawn: Figure) -> None:
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    for axes in drawn.axes:
        words = [text for text in axes.texts if text.get_text()]
        words += [text for text in (axes.title, axes.xaxis.label, axes.yaxis.label) if text.get_text()]
        words += [text for text in axes.get_xticklabels() if text.get_text()]
        legend = axes.get_legend()
        words += legend.get_texts() if legend else []
        # A pixel of each border may be shared.
        boxes = [(text.get_text(), text.get_window_extent().padded(-1)) for text in words]
        over = [(a, b) for (a, one), (b, other) in itertools.combinations(boxes, 2) if one.overlaps(other)]
        assert over == []


def test_no_number_lies_over_a_bar(drawn: Figure) -> None:
    FigureCanvasAgg(drawn).draw()
    for axes in drawn.axes:
        bars = [bar.get_window_extent() for bars in axes.containers for bar in bars]
        numbers = [(text.get_text(), text.get_window_extent().padded(-1)) for text in axes.texts]
        assert [words for words, box in numbers if any(box.overlaps(bar) for bar in bars)] == []


def test_all_words_are_on_the_paper(drawn: Figure) -> None:
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    paper = drawn.bbox.padded(1)
    for axes in drawn.axes:
        for text in [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]:
            box = text.get_window_extent()
            assert not text.get_text() or (paper.contains(box.x0, box.y0) and paper.contains(box.x1, box.y1))


def test_series_differ_by_more_than_their_colour(drawn: Figure) -> None:
    for axes in drawn.axes:
        legend = axes.get_legend()
        if legend is None:
            continue
        looks = [
            tuple(getattr(handle, f"get_{what}", str)() for what in ("hatch", "linestyle", "marker"))
            for handle in legend.legend_handles
        ]
        assert len(set(looks)) == len(looks)


def test_the_same_figure_is_the_same_svg(tmp_path: Path) -> None:
    for name in ("one.svg", "other.svg"):
        save(draw("clip-higher"), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_a_png_is_a_png(tmp_path: Path) -> None:
    save(draw("weights"), tmp_path / "weights.PNG")
    assert (tmp_path / "weights.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("answers", [2, 64])
def test_small_and_large_groups_stay_drawable(answers: int, tmp_path: Path) -> None:
    parameters = WeightsParameters(
        rewards=tuple(float(i % 2) for i in range(answers)), lengths=tuple(range(1, answers + 1))
    )
    figure = weights.draw(weights.run(parameters))
    assert figure.get_figwidth() <= 24
    save(figure, tmp_path / "group.svg")


def test_the_chapter_shows_every_figure() -> None:
    text = (DOCS / "lab.md").read_text(encoding="utf-8")
    for name in HERE:
        assert f"](lab/{name}.svg)" in text


@pytest.mark.slow
def test_one_script_draws_the_figures_of_both_pages_and_no_other(tmp_path: Path) -> None:
    script: Any = runpy.run_path(str(DOCS / "lab" / "figures.py"))
    assert script["draw_all"](tmp_path, QUICK_WORLD.split()) == 0
    pages = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("lab.md", "small-world.md"))
    shown = set(re.findall(r"\]\(lab/([^)]+\.svg)\)", pages))
    kept = {file.name for file in (DOCS / "lab").glob("*.svg")}
    assert {file.name for file in tmp_path.iterdir()} == shown == kept
    assert all((DOCS / "lab" / name).stat().st_size < 400_000 for name in kept)


def test_the_script_of_the_figures_stops_at_a_command_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script: Any = runpy.run_path(str(DOCS / "lab" / "figures.py"))
    assert script["draw_all"](tmp_path / "nowhere") == 2
    assert "there is no folder" in capsys.readouterr().err
