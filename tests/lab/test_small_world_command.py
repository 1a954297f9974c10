"""`upweight lab small-world`: tables, JSON, figures, sentences that follow the numbers, refusals."""

import io
import itertools
import json
import re
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from upweight.cli.lab import resolve
from upweight.cli.main import main
from upweight.lab.small_world import experiment, figures
from upweight.lab.small_world.parameters import SmallWorldParameters
from upweight.lab.table import Report

QUICK = "--vocabulary 2 --length 2 --difficulties 0.2,0.7 --group_sizes 2,4 --samples 3 --updates 2 --caps 1.5,3"
FIGURES = ("advantages", "averaging", "kl", "staleness", "sampler")


@pytest.fixture(scope="module")
def result() -> experiment.SmallWorldResult:
    return experiment.run(resolve("small-world", QUICK.split()).parameters)


def called(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["lab", "small-world", *line.split()]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_one_command_writes_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deep" / "folder"
    shown = called(f"{QUICK} --out {folder}", capsys)
    names = {"small-world.md", "small-world.json"}
    names |= {f"small-world-{name}.{ending}" for name in FIGURES for ending in ("svg", "png")}
    assert {path.name for path in folder.iterdir()} == names
    for name in names:
        assert f"written: {folder / name}" in shown
    for name in FIGURES:
        assert (folder / f"small-world-{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"small-world-{name}.svg").read_bytes().startswith(b"<?xml")
    written = json.loads((folder / "small-world.json").read_text())
    assert written == json.loads(called(f"{QUICK} --json", capsys))
    text = (folder / "small-world.md").read_text()
    for sentence in itertools.chain.from_iterable(written["sentences"].values()):
        assert sentence in text
        assert sentence in shown


def test_json_holds_the_world_the_studies_and_their_sentences(result: experiment.SmallWorldResult) -> None:
    content = json.loads(json.dumps(experiment.as_json(result), allow_nan=False))
    assert set(content) == {"world", "advantages", "averaging", "kl", "staleness", "sampler", "sentences"}
    assert content["world"]["answers"] == 3
    assert content["world"]["free_logits"] == 2 * 2 * 2
    assert [prompt["reward"] for prompt in content["world"]["prompts"]] == pytest.approx([0.2, 0.7])
    assert len(content["advantages"]["rows"]) == 6 * 2
    assert len(content["averaging"]["rows"]) == 4 * 2
    assert len(content["staleness"]["rows"]) == 4 * 3
    assert len(content["sampler"]["rows"]) == 1 + 3 + 2 * 3 * 2
    assert set(content["advantages"]["rows"][0]["sampled"][0]) == {"mean", "half", "std"}


def test_the_same_seed_gives_the_same_numbers_and_another_one_others(result: experiment.SmallWorldResult) -> None:
    again = experiment.run(result.parameters)
    assert experiment.as_json(again) == experiment.as_json(result)
    other = experiment.run(resolve("small-world", [*QUICK.split(), "--seed", "1"]).parameters)
    assert other.kl.exact != result.kl.exact


def test_a_table_in_markdown_has_as_many_cells_everywhere(result: experiment.SmallWorldResult) -> None:
    for report in experiment.reports(result).values():
        lines = [line for line in experiment.markdown(report).splitlines() if line.startswith("|")]
        assert len({line.replace("||", "").count(" | ") for line in lines}) == 1
        assert len(lines) == 2 + len(report.rows)


def test_the_printed_tables_keep_the_smallest_and_the_largest_group() -> None:
    asked = resolve("small-world", QUICK.replace("--group_sizes 2,4", "--group_sizes 2,3,4").split()).parameters
    result = experiment.run(asked)
    brief, full = experiment.reports(result, brief=True), experiment.reports(result)
    assert {row[2] for row in brief["advantages"].rows} == {"2", "4"}
    assert {row[2] for row in full["advantages"].rows} == {"2", "3", "4"}
    assert brief["advantages"].sentences == full["advantages"].sentences


@pytest.mark.slow
def test_the_printed_tables_fit_a_terminal_of_80_characters() -> None:
    out = io.StringIO()
    parameters = SmallWorldParameters(group_sizes=(2, 64), samples=2, updates=2)
    console = Console(file=out, force_terminal=True, color_system=None, width=80)
    experiment.show(experiment.run(parameters), console)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "\u2026" not in out.getvalue()


def test_the_written_tables_show_what_was_sampled(result: experiment.SmallWorldResult) -> None:
    full = experiment.reports(result)
    row, found = full["advantages"].rows[0], result.advantages.rows[0]
    assert row[3] == f"{found.weight[0]:.3f} ({found.sampled[0].mean:.2f} +- {found.sampled[0].half:.2f})"
    assert full["averaging"].columns[-1] == "sampled gain"


def sentence(reports: dict[str, Report], name: str, place: int) -> str:
    return reports[name].sentences[place]


def test_sentences_follow_the_numbers() -> None:
    """One token and one prompt: levels agree, nothing is far off, and the sentences say so."""
    asked = "--vocabulary 3 --length 1 --difficulties 0.3 --group_sizes 2 --samples 2 --updates 1"
    one = dict(experiment.reports(experiment.run(resolve("small-world", asked.split()).parameters)))
    said = sentence(one, "sampler", 0)
    assert "unbiased per token and per sequence and by geometric mean; the longest answer has 1 token." in said
    assert "weighs 1.00 times" in sentence(one, "advantages", 1)
    assert "points 0.0 degrees away" in sentence(one, "averaging", 0)
    assert sentence(one, "averaging", 1).endswith("group-mean-token-mean is 0.00 degrees off at G=2.")
    four = dict(
        experiment.reports(experiment.run(SmallWorldParameters(group_sizes=(2, 8), samples=2, difficulties=(0.1, 0.5))))
    )
    assert "depends on each answer. group-mean-token-mean is" in sentence(four, "averaging", 1)
    assert re.search(r"unbiased per sequence, and off by [\d.]+% per token, by [\d.]+% by geometric", sentence(
        four, "sampler", 0
    ))  # fmt: skip
    assert re.search(r"a prompt answered right with p=0.1 weighs 1\.[1-9]\d times what one with p=0.5 does", sentence(
        four, "advantages", 1
    ))  # fmt: skip
    assert "k3 (naive) has the gradient of KL(ref || pi) per position" in sentence(four, "kl-gradients", 2)
    assert "k1 (naive) has no gradient in expectation" in sentence(four, "kl-gradients", 0)


def test_a_kl_sentence_names_no_gradient_where_none_is_equal(result: experiment.SmallWorldResult) -> None:
    place = [(row.estimator, row.use) for row in result.kl.gradients].index(("k2", "reverse"))
    said = experiment.reports(result)["kl-gradients"].sentences[place]
    assert said.startswith("k2 (reverse) has none of these gradients")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--vocabulary 1", "The 'vocabulary' parameter of upweight lab small-world must be from 2 to 50. Got 1"),
        ("--length 0", "must be from 1 to 50. Got 0 instead."),
        ("--length 12", "With a vocabulary of 3 there are 8,191 answers of up to 12 tokens."),
        (
            "--vocabulary 40",
            "at most 1,000 of them. Got 4 instead. With a vocabulary of 40 there are 2,374,321 answers",
        ),
        ("--caps 0", "must be numbers above 0 and at most 1,000,000,000. Got 0.0 instead."),
        ("--caps 2,-1", "must be numbers above 0"),
        ("--difficulties 0,0.5", "one to ten probabilities above 0 and below 1. Got (0.0, 0.5) instead."),
        ("--difficulties 1", "one to ten probabilities above 0 and below 1"),
        ("--group_sizes 1,8", "must be numbers from 2 to 128. Got 1 instead."),
        ("--samples 1", "must be from 2 to 5,000. Got 1 instead."),
        ("--updates 0", "must be from 1 to 64. Got 0 instead."),
        ("--step 0", "must be above 0 and at most 10. Got 0.0 instead."),
        ("--ref_noise 0", "must be above 0 and at most 5. Got 0.0 instead."),
        ("--noise -1", "must be from 0 to 5. Got -1.0 instead."),
        ("--seed -1", "must be from 0 to 2^62 - 1. Got -1 instead."),
        ("--out taken", "--out taken: the folder cannot be made: File exists. Choose another."),
        ("--plot a.svg", "'--plot' is not a flag of upweight lab small-world."),
    ],
)
def test_a_wrong_call_gets_one_sentence_and_code_2(
    line: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    assert main(["lab", "small-world", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_no_torch_is_needed_to_read_the_flags() -> None:
    parameters = resolve("small-world", ["--caps", "2,8", "--group-sizes=2,4", "--out", "none"]).parameters
    assert (parameters.caps, parameters.group_sizes, parameters.out) == ((2.0, 8.0), (2, 4), None)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_labelled_and_nothing_is_printed_over_anything(
    name: str, result: experiment.SmallWorldResult
) -> None:
    drawn: Figure = figures.draw_all(
        result.advantages, result.averaging, result.kl, result.staleness, result.sampler
    )[name]  # fmt: skip
    FigureCanvasAgg(drawn).draw()
    for axes in drawn.axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        assert axes.get_title()
        words = [text for text in [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label] if text.get_text()]
        words += [text for text in axes.get_xticklabels() if text.get_text()]
        words += axes.get_legend().get_texts()
        boxes = [(text.get_text(), text.get_window_extent().padded(-1)) for text in words]
        assert [(a, b) for (a, one), (b, two) in itertools.combinations(boxes, 2) if one.overlaps(two)] == []
        looks = [
            handle.get_hatch() if hasattr(handle, "get_hatch") else (handle.get_linestyle(), handle.get_marker())
            for handle in axes.get_legend().legend_handles
        ]
        assert len(set(map(str, looks))) == len(looks)


DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_shows_every_figure() -> None:
    text = (DOCS / "small-world.md").read_text(encoding="utf-8")
    for name in FIGURES:
        assert f"](lab/small-world-{name}.svg)" in text
        assert (DOCS / "lab" / f"small-world-{name}.svg").stat().st_size < 400_000


@pytest.mark.slow
def test_the_page_quotes_what_the_command_says_at_its_defaults() -> None:
    def settled(words: str) -> str:
        """Without what the rounding of another machine may change."""
        return re.sub(r"\d+e-1\d", "0", words)

    page = (DOCS / "small-world.md").read_text(encoding="utf-8")
    quoted = settled(" ".join(line[2:] for line in page.splitlines() if line.startswith("> ")))
    said = experiment.as_json(experiment.run(SmallWorldParameters()))["sentences"]
    for name in ("advantages", "averaging", "kl-values", "staleness", "sampler"):
        for sentence_said in said[name]:
            assert settled(sentence_said) in quoted
