"""reasoning-gym's tasks: seeded problems, held-out ones that no seed trains on, its own scorer, its parameters."""

import os
import pickle
import subprocess
import sys

import pytest
import reasoning_gym

from upweight.objective.errors import UsageError
from upweight.rewards.runner import make_runner
from upweight.tasks.gym import GymTask
from upweight.tasks.registry import make_task
from upweight.tasks.task import Task, reward_of

SMALL = "rg:chain_sum:max_terms=2,max_digits=1,size=400"


def questions(task: GymTask) -> set[str]:
    return {str(prompt.text) for prompt in task.prompts}


def test_it_is_a_task_with_the_scorer_as_its_reward() -> None:
    task: Task = make_task(SMALL, chat=False)
    assert (task.name, task.reward, task.columns) == ("chain_sum", "reasoning-gym", ("answer", "entry"))
    assert reward_of(task, None) is reward_of(task, "reasoning-gym") is task.scorer
    assert reward_of(task, "exact") == "exact"


def test_problems_are_those_of_reasoning_gym() -> None:
    theirs = reasoning_gym.create_dataset("gsm_symbolic", seed=3, size=60)
    task = GymTask("gsm_symbolic", {"seed": 3, "size": 60})
    assert all(prompt.text == theirs[prompt.row]["question"] for prompt in (*task.prompts, *task.held_out))
    assert all(prompt.answer == theirs[prompt.row]["answer"] for prompt in (*task.prompts, *task.held_out))
    assert len(task.prompts) + len(task.held_out) == 60


def test_the_same_parameters_give_the_same_problems_in_another_process() -> None:
    code = (
        "from upweight.tasks.gym import GymTask; import hashlib\n"
        "task = GymTask('gsm_symbolic', {'size': 40})\n"
        "print(hashlib.sha256(repr([(p.row, p.text) for p in task.prompts]).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_what_is_held_out_under_one_seed_is_trained_on_under_none() -> None:
    """reasoning-gym makes problem i from seed + i, so that two seeds share nearly all problems."""
    one, other = (GymTask("chain_sum", {"seed": seed, "size": 300}) for seed in (0, 1))
    assert len(questions(one) & questions(other)) > 200
    for task in (one, other):
        for held_out in (one.held_out, other.held_out):
            assert questions(task).isdisjoint(str(prompt.text) for prompt in held_out)
    assert 300 // 16 < len(one.held_out) < 300 // 5


def test_a_small_space_of_problems_still_has_both_parts_and_counts_a_held_out_question_once() -> None:
    task = GymTask("chain_sum", {"max_terms": 2, "max_digits": 1, "size": 2000})
    asked = [prompt.text for prompt in task.held_out]
    assert 0 < len(asked) == len(set(asked)) < 60
    assert len(questions(task)) < 200


def test_a_model_without_a_template_answers_barely_and_another_in_tags() -> None:
    bare, chat = (make_task(SMALL, chat=chat) for chat in (False, True))
    assert isinstance(bare, GymTask)
    assert isinstance(chat, GymTask)
    assert (bare.max_new_tokens, chat.max_new_tokens) == (6, 256)
    text = bare.prompts[0].text
    (message,) = chat.prompts[0].text
    assert message["role"] == "user"
    assert message["content"].startswith(f"{text}\n")
    assert "<answer> and </answer>" in message["content"]
    answers = [f"<answer>{bare.prompts[0].answer}</answer>", str(bare.prompts[0].answer)]
    scores = {
        task: [s.value for s in make_runner(task.scorer).score([task.prompts[0]] * 2, answers)] for task in (bare, chat)
    }
    assert scores[bare][1] == scores[chat][0] == 1.0
    assert scores[chat][1] == 0.0
    assert scores[bare][0] < 0.5


def test_examples_stand_in_front_of_every_question_and_are_not_trained_on() -> None:
    plain, shown = (make_task(f"{SMALL}{more}", chat=True) for more in ("", ",examples=2"))
    assert isinstance(plain, GymTask)
    assert isinstance(shown, GymTask)
    assert [prompt.row for prompt in shown.prompts] == [prompt.row for prompt in plain.prompts[2:]]
    first, second = plain.prompts[:2]
    turns = (
        *first.text,
        {"role": "assistant", "content": f"<answer>{first.answer}</answer>"},
        *second.text,
        {"role": "assistant", "content": f"<answer>{second.answer}</answer>"},
    )
    assert shown.prompts[0].text == (*turns, *plain.prompts[2].text)
    assert shown.held_out[0].text == (*turns, *plain.held_out[0].text)
    assert isinstance(make_task(f"{SMALL},examples=2", chat=False).held_out[0].text, str)


def test_the_steps_of_a_worked_problem_are_shown_where_reasoning_gym_has_them() -> None:
    task = make_task("rg:gsm_symbolic:size=20,examples=1", chat=True)
    assert isinstance(task, GymTask)
    reply = task.prompts[0].text[1]["content"]
    assert len(reply.splitlines()) > 2
    assert "####" not in reply
    assert reply.splitlines()[-1].startswith("<answer>")


def test_the_last_pair_of_tags_decides() -> None:
    task = make_task(SMALL, chat=True)
    assert isinstance(task, GymTask)
    gold = task.prompts[0].answer
    texts = [f"<answer>999</answer> no: <answer> {gold} </answer>", f"<answer>{gold}</answer><answer>999</answer>"]
    assert [score.value for score in make_runner(task.scorer).score([task.prompts[0]] * 2, texts)] == [1.0, 0.0]


def test_partial_credit_is_reasoning_gyms_own() -> None:
    """gsm_symbolic gives a hundredth for any number."""
    task = make_task("rg:gsm_symbolic:size=20", chat=True)
    assert isinstance(task, GymTask)
    prompts = [task.prompts[0]] * 3
    texts = [f"<answer>{task.prompts[0].answer}</answer>", "<answer>-7</answer>", "no tags"]
    assert [score.value for score in make_runner(task.scorer).score(prompts, texts)] == [1.0, 0.01, 0.0]


def test_a_problem_without_a_gold_answer_is_scored_all_the_same() -> None:
    task = GymTask("propositional_logic", {"size": 20})
    assert task.prompts[0].answer is None
    example = task.prompts[0].columns["entry"]["metadata"]["example_answer"]
    assert [s.value for s in make_runner(task.scorer).score([task.prompts[0]], [example])] == [1.0]
    assert task.demonstrations(2, seed=0) == []


def test_demonstrations_are_training_problems_that_score_one() -> None:
    for chat in (False, True):
        task = make_task(SMALL, chat=chat)
        assert isinstance(task, GymTask)
        shown = task.demonstrations(20, seed=1)
        assert [s.value for s in make_runner(task.scorer).score(*zip(*shown, strict=True))] == [1.0] * 20
        assert {prompt.row for prompt, _ in shown} <= {prompt.row for prompt in task.prompts}
        assert shown == task.demonstrations(20, seed=1) != task.demonstrations(20, seed=2)


def test_the_scorer_travels_to_another_process() -> None:
    task = make_task(SMALL, chat=True)
    assert isinstance(task, GymTask)
    scorer = pickle.loads(pickle.dumps(task.scorer))
    assert scorer == task.scorer
    prompt = task.prompts[0]
    assert scorer([f"<answer>{prompt.answer}</answer>"], [prompt.columns["entry"]]) == [1.0]


def test_parameters_take_the_kind_that_the_task_gives_them() -> None:
    task = make_task("rg:basic_arithmetic:operators=+|-,allow_parentheses=false,size=30,min_digits=2", chat=False)
    assert isinstance(task, GymTask)
    for prompt in task.prompts:
        assert not set("*/()") & set(prompt.columns["entry"]["metadata"]["expression"])
    assert make_task("rg:gsm_symbolic:difficulty=1,size=9", chat=False).size in range(1, 10)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("rg", "is written rg:NAME, as in rg:chain_sum"),
        ("rg:chain_sums", "There is no task of reasoning-gym 'chain_sums'. Did you mean 'chain_sum'?"),
        ("rg:chain_sum:max_term=3", "Did you mean 'max_terms'?"),
        ("rg:chain_sum:max_terms", "Parameters of rg:chain_sum are written name=value. Got 'max_terms' instead."),
        ("rg:chain_sum:max_terms=two", "The 'max_terms' parameter of rg:chain_sum must be a whole number. Got 'two'"),
        ("rg:chain_sum:allow_negation=1", "must be true or false. Got '1'"),
        ("rg:chain_sum:min_terms=9", "reasoning-gym refuses min_terms=9, seed=0, size=2000 for 'chain_sum'"),
        ("rg:chain_sum:size=0", "size must be positive"),
        ("rg:chain_sum:unsafe_scorer=yes", "must be true or false. Got 'yes'"),
        ("rg:chain_sum:examples=one", "The 'examples' parameter of rg:chain_sum must be a whole number"),
        ("rg:chain_sum:size=9,examples=9", "training problems to take 9 examples from"),
        ("rg:propositional_logic:size=9,examples=1", "training problems to take 1 examples from"),
        ("rg:composite", "reasoning-gym refuses"),
        ("data", "data:path=train.jsonl"),
        ("data:file=x", "There is no parameter of the data task 'file'."),
        ("data:path=x,skip_bad_rows=1", "must be true or false. Got '1'"),
    ],
)
def test_a_wrong_spec_gets_a_sentence_with_the_way_out(spec: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_task(spec, chat=False)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "evaluator"), [("string_insertion", "eval"), ("n_queens", "eval"), ("countdown", "parse_expr")]
)
def test_a_scorer_that_runs_the_answer_as_code_is_refused_unless_it_is_accepted(name: str, evaluator: str) -> None:
    """Nothing in an answer is executed unless somebody said so."""
    with pytest.raises(UsageError, match=rf"hands the model's answer to {evaluator}\(\).*unsafe_scorer=true"):
        make_task(f"rg:{name}:size=3", chat=False)
    task = make_task(f"rg:{name}:size=30,unsafe_scorer=true", chat=False)
    assert task.size in range(1, 31)


def test_problems_that_differ_between_processes_are_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert "PYTHONHASHSEED=0" in GymTask("word_ladder", {"size": 3}).remarks[0]
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert GymTask("word_ladder", {"size": 3}).remarks == ()
    assert "whatever the seed" in GymTask("list_functions", {"size": 9}).remarks[0]
    assert GymTask("chain_sum", {"size": 9}).remarks == ()
