"""The entry point: verbs, help, and what the exit code means."""

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import upweight
from upweight.cli import main as entry
from upweight.cli.main import Verb, main
from upweight.objective.errors import UsageError


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Sequence[str]], int]], None]:
    """Add the verb `try`, which does what it is given."""

    def install(run: Callable[[Sequence[str]], int]) -> None:
        module = types.ModuleType("verb_for_a_test")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(entry, "VERBS", {**entry.VERBS, "try": Verb(module=module.__name__, summary="for a test")})

    return install


@pytest.mark.parametrize("flag", ["--help", "-h", "help"])
def test_help_lists_the_verbs_with_an_example(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    shown = capsys.readouterr().out
    assert "example:\n  upweight train " in shown
    for name, verb in entry.VERBS.items():
        assert f"  {name}" in shown
        assert verb.summary in shown


def test_the_example_of_the_help_parses() -> None:
    from upweight.cli.train import read

    program, verb, *flags = entry._EXAMPLE.split()
    assert (program, verb) == ("upweight", "train")
    assert read(flags)[0].args.preset == "dr-grpo"


def test_no_verb_at_all_shows_the_help_and_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "verbs:" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"upweight {upweight.__version__}\n"


def test_arguments_come_from_the_process_where_none_are_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["upweight", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("upweight ")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("trian", "'trian' is not a verb of upweight. Did you mean `upweight train`?"),
        ("Train", "Did you mean `upweight train`?"),
        ("xyz", "'xyz' is not a verb of upweight. There are: train"),
        ("--clip", "'--clip' is not a flag of upweight itself."),
    ],
)
def test_an_unknown_verb_gets_the_nearest_one(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_what_follows_the_verb_reaches_it(verb: Callable[..., None]) -> None:
    seen: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> int:
        seen.append(argv)
        return 0

    verb(run)
    assert main(["try", "--a", "b"]) == 0
    assert seen == [["--a", "b"]]


def raising(error: BaseException) -> Callable[[Sequence[str]], int]:
    def run(argv: Sequence[str]) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("The call was wrong."), 2, "upweight: The call was wrong.\n"),
        (UsageError("First.\nSecond."), 2, "upweight: First.\nupweight: Second.\n"),
        (KeyboardInterrupt(), 130, "upweight: stopped by SIGINT.\n"),
        (SystemExit(143), 143, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("said why"), 1, "upweight: said why\n"),
    ],
)
def test_the_exit_code_says_how_it_ended(
    error: BaseException, code: int, said: str, verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(raising(error))
    assert main(["try"]) == code
    assert capsys.readouterr().err == said


def test_a_failure_is_one_line_that_names_where_its_traceback_is(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("UPWEIGHT_DEBUG", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    verb(raising(RuntimeError("out of memory\nand more")))
    assert main(["try"]) == 1
    (file,) = tmp_path.iterdir()
    assert capsys.readouterr().err == f"upweight: RuntimeError: out of memory (traceback: {file})\n"
    assert "Traceback (most recent call last)" in file.read_text()
    assert "and more" in file.read_text()


def test_a_failure_shows_its_traceback_where_it_is_asked_for(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPWEIGHT_DEBUG", "1")
    verb(raising(RuntimeError("out of memory")))
    assert main(["try"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last)")
    assert said.endswith("upweight: RuntimeError: out of memory\n")


def test_a_failure_shows_its_traceback_where_it_cannot_be_kept(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("UPWEIGHT_DEBUG", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    verb(raising(RuntimeError("disk full")))
    assert main(["try"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_sigterm_unwinds_and_leaves_with_143(verb: Callable[..., None]) -> None:
    saved: list[str] = []

    def run(argv: Sequence[str]) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            saved.append("saved")
        return 0

    verb(run)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["try"]) == 143
    assert saved == ["saved"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_handler_that_is_there_already_is_left_alone(
    verb: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    def mine(signum: int, frame: types.FrameType | None) -> None:
        raise AssertionError("not called")

    before = signal.signal(signal.SIGTERM, mine)
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))
    seen: list[object] = []

    def run(argv: Sequence[str]) -> int:
        seen.append(signal.getsignal(signal.SIGTERM))
        return 0

    verb(run)
    assert main(["try"]) == 0
    assert seen == [mine]


def test_a_reader_that_stops_listening_causes_no_noise() -> None:
    package = Path(upweight.__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, "-m", "upweight.cli.main", "train", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(package)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1
