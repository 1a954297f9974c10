"""The judge outlives what it judges, and says what went wrong in a person's terms."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from judging.case import Case, exercise_file, exercise_names
from judging.compare import fault
from judging.values import decode, encode, show

PRACTICE = Path(__file__).resolve().parents[2] / "practice"
RAMP = exercise_file("overlong_penalty", "solutions").read_text()


def function(body: str) -> str:
    """A solution of overlong_penalty whose body is the given one."""
    return f"def overlong_penalty(length, max_length, buffer):\n    {body}\n"


def run(*arguments: str, cwd: Path = PRACTICE.parent, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, str(PRACTICE / "judge.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        check=False,
    )


def test_an_endless_loop_ends_at_the_time_limit(judge_source) -> None:
    start = time.monotonic()
    verdict = judge_source("overlong_penalty", function("while True: pass"), "--seconds", "0.5")
    assert time.monotonic() - start < 30
    assert verdict["note"].startswith("not done after 0.5 s")
    assert [one["number"] for one in verdict["failures"]] == [1]


def test_a_loop_that_catches_everything_and_one_in_the_file_itself_end_too(judge_source) -> None:
    stubborn = "while True:\n        try:\n            while True: pass\n        except BaseException: pass"
    for source in (function(stubborn), "while True: pass\n"):
        assert "not done after" in judge_source("overlong_penalty", source, "--seconds", "0.5")["note"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import os; os._exit(0)", "ended its own process with exit code 0"),
        ("import os; os._exit(7)", "ended its own process with exit code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
        ("while True: print('x' * 1000)", "printed more than 1,000,000 characters"),
        ("import os\n    while True: os.write(1, b'y' * 1000)", "printed more than 1,000,000 characters"),
    ],
)
def test_a_process_that_ends_or_floods_is_reported(body: str, said: str, judge_source) -> None:
    verdict = judge_source("overlong_penalty", function(body))
    assert said in verdict["note"]
    assert len(verdict["failures"]) == 1
    assert len(verdict["printed"]) <= 2_000


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "return 1 / (length - length)",
            "ZeroDivisionError in line 2 of overlong_penalty.py: return 1 / (length - length)",
        ),
        ("return [][length]", "IndexError in line 2"),
        ("return {}[length]", "KeyError in line 2"),
        ("import sys; sys.exit(0)", "SystemExit in line 2"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt in line 2"),
        ("return overlong_penalty(length, max_length, buffer)", "RecursionError in line 2"),
        ("return input()", "EOFError in line 2"),
        ("return len(bytearray(3 * 2**30))", "MemoryError in line 2"),
        ("pass", "the value must be a number, and is None. Is a return missing?"),
        ("return '0'", "the value must be a number, and is of type str: '0'"),
        ("return True", "the value must be a number, and is of type bool: True"),
        ("return [0.0]", "the value must be a number, and is of type list: [0.0]"),
        ("return float('nan')", "the value is NaN, right is 0.0"),
        ("return float('inf')", "the value is inf, right is 0.0"),
        ("return 1e-9", "the value is 1e-09, right is 0.0"),
        ("return 10**5000", "the value must be a number, and is of type int: a whole number of 16610 bits"),
        ("return object()", "the value must be a number, and is of type object"),
        ("return lambda: 0", "of type function"),
        ("a = []; a.append(a); return a", "of type list"),
    ],
)
def test_what_came_out_is_explained_in_a_sentence(body: str, said: str, judge_source) -> None:
    failure = judge_source("overlong_penalty", function(body))["failures"][0]
    assert said in failure["message"]
    assert failure["input"] == "length=80, max_length=100, buffer=20"
    assert failure["right"].startswith("0.0   (to 1e-09 relative")


def test_an_object_that_cannot_show_itself_is_still_named(judge_source) -> None:
    source = "class Odd:\n    def __repr__(self): raise ValueError\n\n" + function("return Odd()")
    assert "is of type Odd: <Odd instance at" in judge_source("overlong_penalty", source)["failures"][0]["message"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def overlong_penalty(:\n", "could not be loaded in line 1 of overlong_penalty.py: def overlong_penalty(:"),
        ("x = 1 / 0\n", "could not be loaded in line 1 of overlong_penalty.py: x = 1 / 0"),
        ("import no_such_library\n", "No module named 'no_such_library'"),
        ("def overlong(length): pass\n", "defines no function named overlong_penalty"),
        ("overlong_penalty = 3\n", "defines no function named overlong_penalty"),
        ("raise SystemExit\n", "could not be loaded"),
    ],
)
def test_a_file_that_does_not_load_says_why(source: str, said: str, judge_source) -> None:
    assert said in judge_source("overlong_penalty", source)["note"]


def test_a_fork_in_the_persons_file_reports_nothing_twice(judge_source) -> None:
    verdict = judge_source("overlong_penalty", function("import os; os.fork(); return 7.0"))
    assert [one["number"] for one in verdict["failures"]] == list(range(1, verdict["cases"] + 1))


def test_a_thread_left_behind_does_not_keep_the_judge(judge, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n" + RAMP)
    start = time.monotonic()
    assert judge("overlong_penalty", "--file", str(file))[0] == 0
    assert time.monotonic() - start < 40


@pytest.mark.skipif(sys.platform == "win32", reason="process groups of POSIX systems")
def test_a_process_left_behind_is_ended_with_the_file_that_started_it(judge, tmp_path: Path) -> None:
    file, child, line = tmp_path / "mine.py", tmp_path / "child.py", tmp_path / "line"
    os.mkfifo(line)
    child.write_text(f"import time\nline = open({str(line)!r}, 'w')\nprint('open', flush=True)\ntime.sleep(60)\n")
    start = f"import subprocess, sys\nsubprocess.Popen([sys.executable, {str(child)!r}], stdout=-1).stdout.readline()\n"
    file.write_text(start + RAMP)
    reading = os.open(line, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert judge("overlong_penalty", "--file", str(file))[0] == 0
        # The end of the line once nobody writes to it; BlockingIOError while the child still holds it.
        deadline = time.monotonic() + 20
        while _is_held(reading) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _is_held(reading)
    finally:
        os.close(reading)


def _is_held(reading: int) -> bool:
    try:
        return os.read(reading, 1) != b""
    except BlockingIOError:
        return True


def test_a_changed_input_does_not_spoil_the_next_case(judge, tmp_path: Path) -> None:
    """The first three cases of weight_table share their lists."""
    file = tmp_path / "mine.py"
    good = exercise_file("weight_table", "solutions").read_text()
    file.write_text(
        good.replace("    answers =", "    lengths, given = list(lengths), lengths\n    given.clear()\n    answers =")
    )
    assert judge("weight_table", "--file", str(file))[0] == 0


def test_tuples_arrays_and_whole_numbers_are_taken_for_what_they_are() -> None:
    import numpy as np
    import torch

    case = Case(name="", inputs={}, right=[1.0, 2.0])
    for value in (
        (1.0, 2.0),
        [1, 2],
        np.array([1.0, 2.0]),
        torch.tensor([1.0, 2.0]),
        [np.float32(1), 2],
    ):
        assert fault(decode(encode(value)), case) is None
    assert "Turn it into one with .item()" in fault(decode(encode([1.0, torch.tensor(2.0)])), case)
    assert fault([1.0], case) == "the value has 1 items, and 2 are right"


def test_near_misses_are_shown_with_all_their_digits() -> None:
    case = Case(name="", inputs={}, right=0.1, rel=0, abs=0)
    assert fault(0.1 + 1e-15, case) == "the value is 0.100000000000001, right is 0.1"
    assert fault(0.1, case) is None
    assert fault(1, Case(name="", inputs={}, right=True)) == "the value is 1, and must be True or False: True is right"
    assert (
        fault(None, Case(name="", inputs={}, right="x")) == "the value is None where 'x' is right: is a return missing?"
    )
    assert show(float("nan")) == "nan"


def test_a_known_name_is_needed_and_the_nearest_is_named() -> None:
    done = run("group-advantage")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no exercise named 'group-advantage'. Did you mean group_advantages?" in done.stderr
    assert run("--hint", "zzzz").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("cispo", "--file", "no_such_file.py"),
        ("--file", "judge.py"),
        ("cispo", "gae", "--file", "judge.py"),
        ("cispo", "--file", "judge.py", "--solutions"),
        ("cispo", "--seconds", "0"),
        ("cispo", "--seconds", "soon"),
        ("cispo", "--seconds", "1e12"),
        ("--no-such-option",),
    ],
)
def test_a_wrong_call_is_refused_with_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments, cwd=PRACTICE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


def test_the_score_is_kept_and_grows_and_falls(tmp_path: Path) -> None:
    mine, score = tmp_path / "mine.py", tmp_path / "score.json"
    mine.write_text(RAMP)
    total = len(exercise_names())
    good = run("overlong_penalty", "--file", str(mine), "--score", str(score))
    assert good.returncode == 0
    assert f"score: 1 of {total}, kept in {score}" in good.stdout
    assert "passed  overlong_penalty" in run("--list", "--score", str(score)).stdout
    stub = run("gae", "--score", str(score))
    assert stub.returncode == 1
    assert f"score: 1 of {total}" in stub.stdout
    mine.write_text(function("return 0.5"))
    assert f"score: 0 of {total}" in run("overlong_penalty", "--file", str(mine), "--score", str(score)).stdout
    assert set(tmp_path.iterdir()) == {mine, score}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"passed": 3, "hints": {}}', '{"passed": {}, "hints": {"gae": "x"}}']
)
def test_a_broken_score_file_starts_anew(content: str, tmp_path: Path) -> None:
    score = tmp_path / "score.json"
    score.write_text(content)
    assert run("--hint", "gae", "--score", str(score)).stdout.startswith("gae, hint 1 of")
    assert json.loads(score.read_text()) == {"passed": {}, "hints": {"gae": 1}}


def test_a_score_that_cannot_be_kept_spoils_nothing(tmp_path: Path) -> None:
    done = run("overlong_penalty", "--solutions", "--score", str(tmp_path / "none" / "score.json"))
    assert (done.returncode, done.stderr) == (0, "")
    done = run("--hint", "gae", "--score", str(tmp_path / "none" / "score.json"))
    assert done.returncode == 0
    assert "could not be kept" in done.stderr


def test_hints_come_one_at_a_time_and_the_last_names_the_solution(tmp_path: Path) -> None:
    call = ("--hint", "pass_at_k", "--score", str(tmp_path / "score.json"))
    told = [run(*call).stdout for _ in range(4)]
    assert [text.split(":")[0] for text in told] == [f"pass_at_k, hint {i} of 3" for i in (1, 2, 3, 3)]
    assert [Path("solutions/pass_at_k.py").as_posix() in text for text in told] == [False, False, True, True]
    answer = json.loads(run("--hint", "gae", "--json", *call[2:]).stdout)
    assert (answer["number"], answer["left"]) == (1, 2)


def test_the_words_show_input_result_right_value_and_mistake(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("print('hello')\n" + RAMP.replace("-1.0 if excess >= buffer else ", ""))
    told = run("overlong_penalty", "--file", str(mine), "--no-score").stdout
    assert "overlong_penalty: 10 of 13 cases passed" in told
    assert "  case 6, above the limit\n    input  length=101, max_length=100, buffer=20\n    got    -1.05\n" in told
    assert "    the value is -1.05, right is -1.0; the ramp has no end\n    because never below -1\n" in told
    assert "  it printed:\n    hello" in told
    assert told.endswith("0 of 1 exercises passed\n")


def test_json_is_strict_whatever_came_out(judge_source) -> None:
    verdict = judge_source("overlong_penalty", function("return [float('nan'), float('inf'), '\\ud800', {1: None}]"))
    assert verdict["failures"][0]["got"].startswith("[nan, inf")


def test_without_pytorch_one_exercise_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, judge
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, answer = judge("masked_loss", "pass_at_k", "--solutions")
    torch, plain = answer["exercises"]
    assert (code, torch["status"], plain["status"]) == (1, "unjudged", "passed")
    assert "needs PyTorch" in torch["note"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX systems")
def test_an_interrupt_ends_the_judge_and_what_it_judges(tmp_path: Path) -> None:
    mine, marker = tmp_path / "mine.py", tmp_path / "pid"
    write = f"import os\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\nwhile True: pass\n"
    mine.write_text(write)
    arguments = [str(PRACTICE / "judge.py"), "cispo", "--file", str(mine), "--no-score", "--seconds", "100"]
    started = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (marker.exists() and marker.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert (started.returncode, said) == (130, "stopped\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_a_missing_exercise_file_is_said_and_the_others_are_judged(
    judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import judge as program

    monkeypatch.setattr(program, "exercise_file", lambda name, _: tmp_path / f"{name}.py")
    (tmp_path / "overlong_penalty.py").write_text(RAMP)
    code, answer = judge("gae", "overlong_penalty")
    assert (code, [one["status"] for one in answer["exercises"]]) == (1, ["failed", "passed"])
    assert "gae.py is missing" in answer["exercises"][0]["note"]


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX systems")
def test_a_reader_that_stops_reading_gets_no_traceback() -> None:
    started = subprocess.Popen(
        [sys.executable, str(PRACTICE / "judge.py"), "--list", "--no-score"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.stdout.close()
    assert started.stderr.read() == ""
    started.stderr.close()
    assert started.wait(timeout=60) == 141
