"""The maths verifier: the conformance set, and what holds for every answer."""

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from upweight.objective.errors import UsageError
from upweight.rewards import symbolic_pool as symbolic
from upweight.rewards.audit import Audit, audit, read_cases
from upweight.rewards.maths.answers import read_answer
from upweight.rewards.maths.compare import same_answer
from upweight.rewards.score import Score, Status
from upweight.rewards.verify import unreadable_golds, verify
from upweight.rewards.workers.tree import below


@pytest.fixture(scope="module")
def ours() -> Audit:
    return audit(read_cases())


def right(completion: str, gold: str, mode: str = "strict") -> bool:
    score = verify(completion, gold, mode=mode)  # type: ignore[arg-type]
    assert score.status is Status.SCORED, score
    return score.value == 1.0


def boxed(answer: str) -> str:
    return f"The result is \\boxed{{{answer}}}."


def test_every_case_of_the_conformance_set_is_judged_right(ours: Audit) -> None:
    wrong = (ours.false_positive, ours.false_negative, ours.errors, ours.not_to_be_judged)
    assert (ours.agree, wrong) == (ours.n, ((), (), (), ()))
    assert ours.n >= 400


def test_no_case_takes_a_second(ours: Audit) -> None:
    assert max(ours.case_seconds) < 1.0, ours.slowest


def test_the_policy_names_the_number_of_its_cases() -> None:
    policy = Path(__file__).resolve().parents[2] / "docs" / "verifier.md"
    count = len(read_cases())
    text = policy.read_text(encoding="utf-8")
    assert f"{count} of them" in text
    assert f"right, of {count} | {count} |" in text


def test_every_shipped_case_says_what_it_is_about_and_why() -> None:
    cases = read_cases()
    assert all(case.category and case.why for case in cases)
    assert len({(case.answer_text, case.gold, case.mode) for case in cases}) == len(cases)


@pytest.mark.parametrize(
    ("completion", "gold", "verdict"),
    [
        pytest.param(r"\boxed{615} and \boxed{615}", "615", True, id="B71 boxes glued together"),
        pytest.param(boxed("64"), r"27 \text{ and } 64", False, id="B72 one of two"),
        pytest.param(boxed(", ".join(map(str, range(100)))), "7", False, id="B72 everything"),
        pytest.param(boxed("1/300!"), "1/302!", False, id="B73 tiny numbers"),
        pytest.param(boxed("x-2y+7=0"), "x+5y+9=0", False, id="B74 equations are not 0 = 0"),
        pytest.param(boxed("4x+2y-6=0"), "y=3-2x", True, id="B74 the same line"),
        pytest.param(boxed(r"5\frac12"), "5/2", False, id="B75 mixed numbers are sums"),
        pytest.param(boxed("3.5"), r"35\%", False, id="B76 percent"),
        pytest.param(boxed(r"(2,\infty)"), "x>2", True, id="B77 inequality and interval"),
        pytest.param(boxed("x>2"), r"(2,\infty)", True, id="B77 the reverse"),
        pytest.param("#### 42" + " and on" * 100, "42", False, id="B80 words after the number on its line"),
        pytest.param("#### 42\n" + "and on " * 100, "42", True, id="B80 text on later lines"),
        pytest.param(boxed("1+" * 75 + "0"), "75", True, id="B80 a long box"),
        pytest.param(boxed("31."), "31", True, id="B81 trailing point"),
        pytest.param(boxed("-5"), "5", False, id="B83 sign"),
        pytest.param(boxed(r"\frac{2}{31}"), r"\frac{23}{1}", False, id="B84 braces"),
        pytest.param(r"\boxed{7} and \boxed{", "7", False, id="B85 a broken last box"),
        pytest.param("The prose has 7 in it.", "7", False, id="B86 no marker"),
        pytest.param(boxed("34_5"), "345", False, id="B89 a base is no digit"),
        pytest.param("The answer is **58**.", "58", True, id="B89 bold"),
    ],
)
def test_faults_that_verifiers_had_are_not_repeated(completion: str, gold: str, verdict: bool) -> None:
    assert right(completion, gold) is verdict


def test_a_lone_comma_is_not_the_last_number() -> None:
    assert right("The total is 58, all told.", "58", mode="flexible")


def test_the_score_says_what_was_read_and_why() -> None:
    score = verify(r"So \boxed{\frac{2}{4}}", "0.5")
    expected = Score(value=1.0, why="in the last box: equal", extracted=r"\frac{2}{4}", gold_parsed="0.5")
    assert score == expected
    assert verify("Hm.", "5").why == "no marked answer"


@pytest.mark.parametrize("gold", ["", "  ", "nan", r"\frac{1}{0}", r"\frac{1}{", r"\boxed{}", None])
def test_a_gold_answer_without_a_value_gives_no_score_and_is_found_beforehand(gold: str | None) -> None:
    score = verify(boxed("5"), gold)
    assert (score.status, math.isnan(score.value)) == (Status.UNPARSABLE_GOLD, True)
    assert unreadable_golds(["5", gold, "Tuesday"]) == [1]


def test_gold_answers_may_be_numbers() -> None:
    assert verify(boxed("5"), 5).value == verify(boxed("0.5"), 0.5).value == 1.0


def test_swapped_answer_and_gold_have_the_same_verdict() -> None:
    for case in read_cases():
        a, b = read_answer(case.gold), read_answer(case.answer_text)
        assert same_answer(a, b) == same_answer(b, a), case.id


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="'strict' or 'flexible'"):
        verify("5", "5", mode="loose")  # type: ignore[arg-type]


PAIRS = [
    (boxed("5"), "5"),
    (boxed("6"), "5"),
    (boxed(r"\sin 30^\circ"), "0.5"),
    (boxed(r"\ln 9"), r"2\ln 3"),
    ("5", ""),
]


def verdicts() -> list[tuple[str, str]]:
    return [(str(score.value), score.status) for score in (verify(*pair) for pair in PAIRS)]


def test_threads_event_loops_and_spawned_processes_give_the_same_verdicts(tmp_path: Path) -> None:
    here = verdicts()
    assert [value for value, _ in here] == ["1.0", "0.0", "1.0", "1.0", "nan"]
    with ThreadPoolExecutor(4) as threads:
        assert [f.result() for f in [threads.submit(verdicts) for _ in range(4)]] == [here] * 4

    async def inside() -> list[tuple[str, str]]:
        return verdicts()

    assert asyncio.run(inside()) == here
    code = f"""
import json
from upweight.rewards.verify import verify
if __name__ == "__main__":
    print(json.dumps([[str(score.value), score.status] for score in (verify(*pair) for pair in {PAIRS!r})]))
"""
    script = tmp_path / "judge_here.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], capture_output=True, env=environment, timeout=120, check=True)
    assert [tuple(pair) for pair in json.loads(done.stdout)] == here


def test_plain_numbers_are_judged_without_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """bench/verifier.py says how many a second."""

    def no_worker() -> None:
        raise AssertionError("a worker was asked")

    monkeypatch.setattr(symbolic, "symbolic_pool", no_worker)
    for i in range(50):
        assert verify(f"<think>Let me see.</think> So it is \\boxed{{{i}}}.", str(i)).value == 1.0
        assert verify(f"#### {i}/7", f"{i + 1}/7").value == 0.0


def test_a_symbolic_comparison_that_hangs_costs_that_answer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeping_judge.py").write_text("import time\n\ndef make(_):\n    return lambda job: time.sleep(60)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with symbolic.Pool("sleeping_judge:make", {}, seconds=0.2) as pool:
        monkeypatch.setattr(symbolic, "_pool", pool)
        score = verify(boxed(r"\sin 50^\circ"), r"\cos 40^\circ")
        assert (score.status, math.isnan(score.value)) == (Status.TIMEOUT, True)
        assert right(boxed("5"), "5")


@pytest.mark.slow
def test_a_thousand_hostile_answers_leave_no_extra_process(tmp_path: Path) -> None:
    symbolic.symbolic_pool().start()
    before = below(os.getpid())
    marker = tmp_path / "marker"
    hostile = [
        r"9^{9^{9}}",
        r"(99999!)!",
        f"__import__('pathlib').Path({str(marker)!r}).touch()",
        "7" * 5_000,
        "(" * 300 + "5" + ")" * 300,
        r"\sum_{k=1}^{10^{12}} k",
        r"(1+x)^{60}(1+y)^{60}",
        r"\sin(\sin(\sin(\sin(x))))",
        r"\int_0^1 x^{x} dx",
        r"\boxed{" * 50,
    ]
    for number in range(1_000):
        verify(boxed(hostile[number % len(hostile)]), "5")
    assert not marker.exists()
    assert len(below(os.getpid())) == len(before)
    symbolic.symbolic_pool().close()
    assert len(below(os.getpid())) == len(before) - 2  # the warden and its worker


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 150_000,
        "<think>" * 150_000,
        "####" * 250_000,
        "the answer is " * 70_000,
        "answer" + " " * 1_000_000,
        boxed("9" * 1_000_000),
        boxed("{" * 500_000),
        "1," * 500_000,
    ],
    ids=["boxes", "tags", "markers", "phrases", "blanks", "digits", "braces", "list"],
)
@pytest.mark.parametrize("mode", ["strict", "flexible"])
def test_an_answer_of_a_million_characters_takes_no_time(text: str, mode: str) -> None:
    start = time.perf_counter()
    assert not right(text, "5", mode=mode)
    assert time.perf_counter() - start < 1.0


FRAGMENTS = (
    r"\frac \sqrt { } ( ) [ ] ^ _ 1 2 12 x y \pi e i + - * / , ; = < > \le \cup \infty \pm \text{ or and % \% $ \$ ! "
    r"| \sin \log ln sin \{ \} \boxed{ #### <think> </think> . ... \ldots \begin{pmatrix} \end{pmatrix} & \\ cm ^2 3/4 "
    r"0.5 : \binom \lfloor \rfloor ' nan million \left \right \in \mathbb{R} \emptyset ^\circ e9 1e5 ** 99999 !!"
)
TEXTS = st.lists(st.sampled_from([*FRAGMENTS.split(), " ", "\n", "The answer is "]) | st.characters(), max_size=14)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS.map("".join), TEXTS.map("".join))
def test_no_text_makes_it_raise_or_hang_and_comparison_is_symmetric(a: str, b: str) -> None:
    start = time.perf_counter()
    for mode in ("strict", "flexible"):
        score = verify(a, b, mode=mode)  # type: ignore[arg-type]
        assert score.status is not Status.ERROR, score
    left, right_ = read_answer(a), read_answer(b)
    assert same_answer(left, right_) == same_answer(right_, left)
    assert time.perf_counter() - start < 5.0  # two symbolic comparisons and the start of their worker


@settings(max_examples=300, deadline=None)
@given(TEXTS.map("".join))
def test_an_answer_equals_itself_where_it_can_be_read(text: str) -> None:
    reading = read_answer(text)
    if reading.answer is not None:
        assert same_answer(reading, reading) is True
        if "\\boxed" not in text and "####" not in text and _balanced(text):
            assert verify(f"\\boxed{{{text}}}", text).value == 1.0


def _balanced(text: str) -> bool:
    depth, escaped = 0, False
    for character in text:
        depth += 0 if escaped else {"{": 1, "}": -1}.get(character, 0)
        escaped = character == "\\" and not escaped
        if depth < 0:
            return False
    return depth == 0 and not escaped and "<" not in text
