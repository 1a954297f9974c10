"""`upweight lab`: names, flags, JSON, figures, and one sentence for a wrong call."""

import importlib
import io
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import upweight
from upweight.cli.lab import NAMES, resolve
from upweight.cli.main import main
from upweight.lab import self_test
from upweight.lab.parameters import SelfTestParameters

QUICK = {"mismatch": ["--batches", "2"], "kl": ["--samples", "100"], "ratio": ["--lengths", "10"]}
HERE = [name for name, row in NAMES.items() if row.parameters.startswith("upweight.lab.parameters:")]


def printed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["lab", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def loaded(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON of a call; what JSON does not have, such as NaN, is refused."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    content: dict[str, Any] = json.loads(printed([*argv, "--json"], capsys), parse_constant=refuse)
    return content


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_names_are_listed_with_a_line_each_and_examples(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(argv, capsys)
    for name, row in NAMES.items():
        assert re.search(rf"^  {name} +{re.escape(row.summary)}$", shown, re.MULTILINE)
    assert "  upweight lab weights --rewards 1,0,0,1 --lengths 200,50,2000,400\n" in shown


@pytest.mark.parametrize("name", HERE)
def test_each_name_has_a_help_with_its_example_and_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed([name, "--help"], capsys)
    assert f"example:\n  upweight lab {name} {NAMES[name].example}" in shown
    assert "--json" in shown


@pytest.mark.parametrize("name", HERE)
def test_each_example_parses(name: str) -> None:
    resolve(name, NAMES[name].example.split())


def test_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    modes = {"seq-mean-token-mean", "token-mean"}
    weights = loaded(["weights", "--rewards", "1,0,0,1", "--lengths", "200,50,2000,400"], capsys)
    assert set(weights) == {"advantages", "rows"}
    assert set(weights["rows"][0]) == {"reward", "length", "token_weight", "answer_weight"}
    assert set(weights["rows"][0]["token_weight"]) == set(weights["rows"][0]["answer_weight"]) == modes
    kl = loaded(["kl", *QUICK["kl"]], capsys)
    assert set(kl) == {"exact", "k1", "k2", "k3"}
    assert set(kl["k1"]) == {"mean", "std", "negative"}
    ratio = loaded(["ratio", *QUICK["ratio"]], capsys)
    assert set(ratio["rows"][0]) == {"sigma", "length", "clipped", "product", "geometric"}
    mismatch = loaded(["mismatch", *QUICK["mismatch"]], capsys)
    assert set(mismatch) == {"ratio", "none", "is", "tis", "mis"}
    assert set(mismatch["ratio"]) == {"median", "max", "min"}
    assert set(mismatch["tis"]) == {"bias", "noise"}
    clip = loaded(["clip-higher"], capsys)
    assert set(clip["rows"][0]) == {"probability", "clip_high", "after_one_update", "limited"}


@pytest.mark.parametrize("argv", [[], ["kl", "--help"], ["mismatch", "--cap", "0"], ["strip", "--plot", "a.pdf"]])
def test_what_computes_nothing_loads_no_torch(argv: list[str]) -> None:
    code = f"""
import sys
from upweight.cli.main import main
code = main({["lab", *argv]!r})
heavy = {{"torch", "transformers", "matplotlib"}} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(upweight.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == (2 if "--cap" in argv or "--plot" in argv else 0), done.stderr


@pytest.mark.parametrize("name", HERE)
def test_a_table_fits_a_terminal_of_80_characters(name: str) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=80)
    experiment: Any = importlib.import_module(NAMES[name].module)
    experiment.show(experiment.run(resolve(name, QUICK.get(name, [])).parameters), console)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "\u2026" not in out.getvalue()


@pytest.mark.parametrize(("cap", "untouched"), [("19", False), ("20", True)])
def test_a_cap_above_every_ratio_is_said_to_change_nothing(
    cap: str, untouched: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = " ".join(printed(["mismatch", "--cap", cap, "--batches", "2"], capsys).split())
    assert ("max 19.7" in shown, f"No ratio is above the cap of {cap}:" in shown) == (True, untouched)
    assert ("at the price of an expected bias" in shown) is not untouched


def test_a_product_too_large_for_a_float_is_still_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = loaded(["ratio", "--sigma", "10", "--lengths", "10000", "--answers", "64"], capsys)["rows"]
    assert rows[0]["product"][1] is None


def test_the_table_shows_the_published_weights(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(["weights"], capsys).splitlines()
    assert lines[4].split() == ["2", "0", "2000", "-0.87", "-1.08e-04", "-3.27e-04", "-0.217", "-0.654"]
    assert "2000 tokens) is pushed 40 times less than one of the shortest (50)" in lines[6]


def test_rewards_of_any_size_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(["weights", "--rewards", "1e200,-1e200", "--lengths", "10,20"], capsys)
    assert "+0.71" in shown
    assert "All rewards are the same" not in shown
    assert "All rewards are the same" in printed(["weights", "--rewards", "-0.0,0", "--lengths", "10,20"], capsys)


def test_the_rarest_token_that_is_accepted_has_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = loaded(["clip-higher", "--probabilities", "1e-300", "--clip_high", "0.28"], capsys)["rows"]
    assert row["after_one_update"] == pytest.approx(1.28e-300, rel=1e-12)
    assert row["limited"]


@pytest.mark.parametrize("name", [name for name in HERE if NAMES[name].figure])
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_figure_is_written_where_it_was_asked_for(
    name: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / f"figure.{ending}"
    assert f"figure: {target}" in printed([name, *QUICK.get(name, []), "--plot", str(target)], capsys)
    start = {"svg": b"<?xml", "png": b"\x89PNG"}[ending]
    assert target.read_bytes().startswith(start)


def test_json_stays_json_beside_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded(["clip-higher", "--plot", str(tmp_path / "a.svg")], capsys)["rows"]
    assert (tmp_path / "a.svg").exists()


@pytest.mark.parametrize("argv", [["clip_higher"], ["Clip-Higher"]])
def test_names_take_underscores_and_either_case(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "updates to 0.5" in printed(argv, capsys)


@pytest.mark.parametrize("words", ["--clip_high 0.3", "--clip-high 0.3", "--clip_high=0.3"])
def test_flags_take_hyphens_and_equals_signs(words: str) -> None:
    assert resolve("ratio", words.split()).parameters.clip_high == 0.3


def test_a_list_may_start_with_a_negative_number() -> None:
    parameters = resolve("weights", ["--rewards", "-1,1", "--lengths", "5,6"]).parameters
    assert parameters.rewards == (-1.0, 1.0)


def test_none_takes_back_a_budget() -> None:
    assert resolve("weights", ["--max_length", "none"]).parameters.max_length is None
    assert resolve("weights", ["--max_length", "4096"]).parameters.max_length == 4096


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("weights --rewards 1", "must be at least two numbers. Got '1' instead. A group of one has no advantage"),
        ("weights --lengths 0,50,2000,400", "must be numbers from 1 to 20,000,000. Got 0 instead."),
        ("weights --rewards 1,0,0,1,1", "must be as many as there are rewards (5). Got '200,50,2000,400' instead."),
        ("weights --rewards 1,nan,0,1", "must be finite numbers with commas between them"),
        ("weights --rewards 1,inf,0,1", "must be finite numbers with commas between them"),
        ("weights --rewards 1e308,0,0,1", "must be numbers from -1e+300 to 1e+300. Got 1e+308 instead."),
        ("weights --rewards 1,,0,1", "must be finite numbers with commas between them"),
        ("weights --rewards 1 0 0 1", "'0' is not a flag of upweight lab weights. A flag starts with --, and a list"),
        ("weights --lengths 1.5,2,3,4", "must be whole numbers with commas between them"),
        ("weights --max_length 100", "must be at least the longest answer (2000 tokens). Got 100 instead."),
        ("weights --adv_norm sdt", "must be one of std, none. Got 'sdt' instead."),
        ("kl --noise -1", "must be from 0 to 10. Got -1.0 instead."),
        ("kl --vocabulary 1", "must be from 2 to 1,000,000. Got 1 instead."),
        ("kl --seed -1", "must be from 0 to 2^62 - 1. Got -1 instead."),
        ("kl --seed 1.5", "must be a whole number. Got '1.5' instead."),
        ("ratio --sigma 0.2,-0.1", "must be numbers from 0 to 10. Got -0.1 instead."),
        ("ratio --lengths 0", "must be numbers from 1 to 39,062. Got 0 instead."),
        ("ratio --clip 1.5", "must be from 0 to 1. Got 1.5 instead."),
        ("mismatch --cap 0", "must be above 0 and at most 1,000,000,000. Got 0.0 instead."),
        ("mismatch --cap nan", "must be a finite number. Got 'nan' instead."),
        ("mismatch --outliers 196", "must be from 0 to 195. Got 196 instead."),
        ("mismatch --batch_size 0", "must be from 1 to 100,000. Got 0 instead."),
        ("clip-higher --probabilities 0", "must be numbers from 1e-300 to 1. Got 0.0 instead."),
        ("clip-higher --probabilities 0.5,1e-320", "must be numbers from 1e-300 to 1. Got 1e-320 instead."),
        ("clip-higher --clip_high -0.1", "must be numbers from 0 to 1,000. Got -0.1 instead."),
        ("kl --plot kl.pdf", "must be a file that ends in .svg or .png. Got 'kl.pdf' instead."),
        ("kl --plot nowhere/kl.svg", "there is no folder 'nowhere'. Make it first, or choose another."),
        ("kl --plot", "'--plot' needs a value: a file."),
        ("kl --plot --json", "'--plot' needs a value: a file."),
        ("kl --json=true", "'--json' takes no value: leave out '=true'."),
        ("kl --noise 0.1 --noise=0.2", "'--noise' is there twice. Keep one of them."),
        ("kl --json --json", "'--json' is there twice. Keep one of them."),
        ("kl --plot a.svg --plot b.svg", "'--plot' is there twice. Keep one of them."),
        ("ratio --clip-high 0.1 --clip_high 0.2", "'--clip_high' is there twice. Keep one of them."),
        ("weights --adv_norm STD", "must be one of std, none. Got 'STD' instead. Did you mean 'std'?"),
        ("kl --nois 1", "'--nois' is not a flag of upweight lab kl. Did you mean '--noise'?"),
        ("kl --xyzzy 1", "`upweight lab kl --help` lists them."),
        ("self-test --plot a.svg", "'--plot' is not a flag of upweight lab self-test."),
        ("mismach", "'mismach' is nothing the laboratory does. Did you mean `upweight lab mismatch`?"),
        ("foo", "'foo' is nothing the laboratory does. There are: weights, kl, "),
    ],
)
def test_a_wrong_call_gets_one_sentence(
    line: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lab", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_folder_is_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.svg").mkdir()
    assert main(["lab", "kl", "--plot", str(tmp_path / "a.svg")]) == 2
    assert "this is a folder. Name a file in it." in capsys.readouterr().err


def test_questions_alone_say_how_to_get_the_answers(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(["self-test"], capsys)
    assert shown.count("?\n") >= 5
    assert "See it:" not in shown
    assert "--answers" in shown


def test_answers_are_printed_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(["self-test", "--answers"], capsys)
    assert shown.count("See it: upweight lab ") == len(self_test.QUESTIONS) == 5
    assert len(loaded(["self-test"], capsys)["questions"]) == 5


def asked(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], str]) -> str:
    """What the five questions print on a terminal where somebody answers like this."""
    out = io.StringIO()
    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: True))
    console = Console(file=out, force_terminal=True, color_system=None, width=80)
    self_test.show(self_test.run(SelfTestParameters()), console)
    return out.getvalue()


def test_enter_opens_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []

    def enter(prompt: str) -> str:
        prompts.append(prompt)
        return ""

    assert asked(monkeypatch, enter).count("See it: upweight lab ") == 5
    assert len(prompts) == 5


def test_the_end_of_the_input_ends_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(prompt: str) -> str:
        raise EOFError

    shown = asked(monkeypatch, end)
    assert "1. " in shown
    assert "2. " not in shown
    assert "See it:" not in shown


@pytest.mark.parametrize("question", self_test.QUESTIONS, ids=lambda item: item.experiment)
def test_the_command_that_an_answer_names_parses(question: self_test.Question) -> None:
    program, verb, name, *flags = question.experiment.split()
    assert (program, verb) == ("upweight", "lab")
    resolve(name, flags)
