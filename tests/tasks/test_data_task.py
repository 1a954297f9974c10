"""Files and rows in memory: what is accepted, what is refused and how it is named, the order of rows."""

import json
from pathlib import Path

import pytest

from upweight.objective.errors import UsageError
from upweight.tasks.data import DataTask
from upweight.tasks.prompt import Draw
from upweight.tasks.rows import RowsTask
from upweight.tasks.task import Task

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def numbered(count: int) -> RowsTask:
    return RowsTask([{"prompt": f"{i}=", "answer": i} for i in range(count)])


def rows_of(draws: list[Draw]) -> list[int]:
    return [draw.prompt.row for draw in draws]


def test_it_is_a_task(tmp_path: Path) -> None:
    task: Task = DataTask(write(tmp_path, '{"prompt": "2+2=", "answer": 4}'))
    assert (task.name, task.reward, task.size, task.max_new_tokens) == ("data", "exact", 1, 256)
    assert list(task.held_out) == list(task.demonstrations(3, seed=0)) == []


def test_answers_become_strings_and_other_columns_are_kept(tmp_path: Path) -> None:
    lines = ['{"prompt": "a", "answer": 4, "level": [1, {"x": null}]}', '{"prompt": "b", "answer": 0.5, "id": "q"}']
    task = DataTask(write(tmp_path, "\n".join(lines)))
    assert [prompt.answer for prompt in task.prompts] == ["4", "0.5"]
    assert task.columns == ("answer", "level", "id")
    assert [dict(p.columns) for p in task.prompts] == [
        {"level": [1, {"x": None}], "id": None},
        {"level": None, "id": "q"},
    ]


def test_a_byte_order_mark_crlf_and_blank_lines_are_fine(tmp_path: Path) -> None:
    task = DataTask(write(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n   \r\n{"prompt": "b"}\r\n'))
    assert [(p.row, p.text) for p in task.prompts] == [(0, "a"), (1, "b")]


def test_a_line_is_not_cut_at_a_line_separator_inside_a_string(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three"
    assert DataTask(write(tmp_path, json.dumps({"prompt": text}, ensure_ascii=False))).prompts[0].text == text


def test_a_line_of_five_megabytes_is_read(tmp_path: Path) -> None:
    task = DataTask(write(tmp_path, json.dumps({"prompt": "x", "note": "y" * 5_000_000})))
    assert len(str(task.prompts[0].columns["note"])) == 5_000_000


def test_rows_with_the_same_words_stay_two_rows(tmp_path: Path) -> None:
    task = DataTask(write(tmp_path, '{"prompt": "a", "answer": "1"}\n' * 2))
    assert sorted(rows_of(task.stream(seed=0).take(2))) == [0, 1]


def test_held_out_rows_come_from_a_file_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "a"}')
    other = tmp_path / "eval.jsonl"
    other.write_text('{"prompt": "b", "answer": "2"}')
    assert [prompt.text for prompt in DataTask(path, other).held_out] == ["b"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": "a"', "not valid JSON"),
        (b'["a"]', "an object with a 'prompt', not a list"),
        (b"null", "not null"),
        (b'{"prompt": "\xff"}', "invalid UTF-8 at byte 13"),
        (b'{"prompt": "a", "x": NaN}', "NaN is not valid JSON"),
        (b'{"prompt": "a", "x": -Infinity}', "-Infinity is not valid JSON"),
        (b'{"prompt": "a", "x": 1e999}', "out of range"),
        (b'{"prompt": "a", "x": ' + b"7" * 5000 + b"}", "not usable JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"question": "a", "answer": 1}', "no 'prompt'; the columns are: question, answer"),
        (b'{"prompt": null}', "a string or a list of messages, not null"),
        (b'{"prompt": 7}', "not a number"),
        (b'{"prompt": {"role": "user"}}', "not an object"),
        (b'{"prompt": " \\n"}', "the prompt is empty"),
        (b'{"prompt": "\\ud800"}', "half a surrogate pair"),
        (b'{"prompt": []}', "empty list of messages"),
        (b'{"prompt": ["a"]}', "message 0 of the prompt is a string"),
        (b'{"prompt": [{"role": "user"}]}', "message 0 of the prompt has no 'content'"),
        (b'{"prompt": [{"role": "user", "content": 3}]}', "'content' of message 0 of the prompt is a number"),
        (b'{"prompt": [{"role": "", "content": "a"}]}', "'role' of message 0"),
        (b'{"prompt": [{"role": "system", "content": "a"}]}', "no message but the system's"),
        (b'{"prompt": [{"role": "user", "content": " "}]}', "no message but the system's"),
        (b'{"prompt": "a", "answer": true}', "the answer is a string or a number, not true or false"),
        (b'{"prompt": "a", "answer": ["1"]}', "the answer is a string or a number, not a list"),
    ],
)
def test_an_unusable_line_is_named_with_its_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    path = write(tmp_path, b'{"prompt": "fine"}\n\n' + line + b"\n")
    with pytest.raises(UsageError) as caught:
        DataTask(path)
    assert f"{path}:3: " in str(caught.value)
    assert reason in str(caught.value)
    assert "1 unusable of 2 rows" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_the_cause_of_a_broken_line_is_chained(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        DataTask(write(tmp_path, "{"))
    assert caught.value.__cause__ is not None
    assert isinstance(caught.value.__cause__.__cause__, json.JSONDecodeError)


def test_the_first_five_offenders_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": ""}\n' * 8 + '{"prompt": "a"}\n')
    with pytest.raises(UsageError) as caught:
        DataTask(path)
    text = str(caught.value)
    assert "8 unusable of 9 rows" in text
    assert [f"{path}:{line}: " in text for line in range(1, 9)] == [True] * 5 + [False] * 3
    assert text.endswith("and 3 more")


@pytest.mark.parametrize("content", ["", "\n \r\n", "\ufeff"])
def test_a_file_without_rows_is_refused_in_one_sentence(tmp_path: Path, content: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(UsageError) as caught:
        DataTask(path)
    assert str(caught.value) == f"The data file {path} has no rows."


def test_a_missing_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        DataTask(tmp_path / "none.jsonl")
    assert str(caught.value) == f"The data file {tmp_path / 'none.jsonl'} cannot be read: No such file or directory."
    with pytest.raises(UsageError, match="cannot be read"):
        DataTask(tmp_path)


def test_skipped_rows_are_counted_and_keep_the_ids_of_the_others(tmp_path: Path) -> None:
    """A row's id is its place in the file, so that mending one line renames no other."""
    path = write(tmp_path, '{"prompt": "a"}\n{"prompt": ""}\n[]\n{"prompt": "b"}\n')
    task = DataTask(path, skip_bad_rows=True)
    assert [(prompt.row, prompt.text, prompt.place) for prompt in task.prompts] == [
        (0, "a", f"{path}:1"),
        (3, "b", f"{path}:4"),
    ]
    assert task.remarks == (
        f"left out 2 unusable of 4 rows:\n  {path}:2: the prompt is empty\n"
        f"  {path}:3: a row is an object with a 'prompt', not a list",
    )


def test_rows_are_not_skipped_until_none_is_left(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 2 unusable of 2 rows"):
        DataTask(write(tmp_path, "[]\n{}\n"), skip_bad_rows=True)


def test_repeated_prompts_and_those_that_are_trained_on_as_well_are_counted() -> None:
    rows = [{"prompt": text} for text in "aabac"]
    assert RowsTask(rows, [{"prompt": "c"}, {"prompt": "d"}]).remarks == (
        "2 of 5 rows repeat an earlier prompt; each makes groups of its own",
        "1 of 2 held-out prompts are among the training prompts as well",
    )
    assert RowsTask(rows[1:3], [{"prompt": "d"}]).remarks == ()
    assert RowsTask([{"prompt": CHAT}, {"prompt": CHAT[::-1]}]).remarks == ()


def test_rows_that_are_left_out_later_rename_no_other() -> None:
    task = RowsTask([{"prompt": text} for text in "abc"], [{"prompt": "d"}, {"prompt": "e"}])
    rest = task.without({1}, {0}, "too long")
    assert [(prompt.row, prompt.text) for prompt in rest.prompts] == [(0, "a"), (2, "c")]
    assert [prompt.text for prompt in rest.held_out] == ["e"]
    assert rest.remarks == ("too long",)
    assert sorted(rows_of(rest.stream(seed=0).take(3))) == [0, 2]
    assert (len(task.prompts), len(task.held_out), task.remarks) == (3, 2, ())


def test_strings_and_chats_are_not_mixed() -> None:
    with pytest.raises(UsageError, match="row 1: the prompt is messages where row 0 has a string"):
        RowsTask([{"prompt": "a"}, {"prompt": CHAT}])


def test_a_chat_keeps_its_messages_and_drops_empty_fields() -> None:
    task = RowsTask([{"prompt": [*CHAT, {"role": "user", "content": "And?", "tool_calls": None}]}])
    assert task.prompts[0].text == (*CHAT, {"role": "user", "content": "And?"})
    assert task.reward == "gsm8k"


def test_gold_solutions_with_a_marker_ask_for_the_gsm8k_reward() -> None:
    assert RowsTask([{"prompt": "a", "answer": "So 5.\n#### 5"}]).reward == "gsm8k"
    assert RowsTask([{"prompt": "a", "answer": "5"}]).reward == "exact"


def test_rows_in_memory_are_named_by_their_index() -> None:
    with pytest.raises(UsageError, match=r"The training data has 2 unusable of 4 rows:\n  row 1: .*\n  row 3: "):
        RowsTask(iter([{"prompt": "a"}, {"prompt": ""}, {"prompt": "b"}, 5]))
    with pytest.raises(UsageError, match=r"The held-out data has no rows\."):
        RowsTask([{"prompt": "a"}], [])
    with pytest.raises(UsageError, match="the answer is nan"):
        RowsTask([{"prompt": "a", "answer": float("nan")}])


def test_an_answer_column_that_no_row_fills_is_not_available() -> None:
    assert RowsTask([{"prompt": "a", "answer": None, "solution": "x"}]).columns == ("solution",)


def test_a_chunk_never_crosses_the_border_of_an_epoch() -> None:
    stream = numbered(7).stream(seed=0)
    chunks = [stream.take(3) for _ in range(6)]
    assert [len(chunk) for chunk in chunks] == [3, 3, 1, 3, 3, 1]
    assert [draw.number for chunk in chunks for draw in chunk] == list(range(14))
    first, second = (rows_of(chunks[i] + chunks[i + 1] + chunks[i + 2]) for i in (0, 3))
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second


def test_a_data_set_smaller_than_a_chunk_gives_all_of_it() -> None:
    stream = numbered(2).stream(seed=0)
    assert [sorted(rows_of(stream.take(64))) for _ in range(3)] == [[0, 1]] * 3


def test_the_order_depends_on_the_seed_alone() -> None:
    task = numbered(50)
    assert rows_of(task.stream(seed=1).take(50)) == rows_of(task.stream(seed=1).take(50))
    assert rows_of(task.stream(seed=1).take(50)) != rows_of(task.stream(seed=2).take(50))


@pytest.mark.parametrize("taken", range(1, 8))
def test_a_stream_resumes_exactly_across_the_border_of_an_epoch(taken: int) -> None:
    task = numbered(7)
    stream = task.stream(seed=4)
    for _ in range(taken):
        stream.take(3)
    state = json.loads(json.dumps(stream.state_dict()))
    resumed = task.stream(seed=4)
    resumed.load_state_dict(state)
    assert [resumed.take(3) for _ in range(5)] == [stream.take(3) for _ in range(5)]


def test_a_state_of_other_data_is_refused() -> None:
    with pytest.raises(UsageError, match="'rows'"):
        numbered(8).stream(seed=0).load_state_dict(numbered(7).stream(seed=0).state_dict())
    with pytest.raises(UsageError, match="'epoch'"):
        numbered(7).stream(seed=0).load_state_dict({"seed": 0, "rows": 7, "position": 0})


def test_the_first_orders_are_frozen() -> None:
    # Changing these numbers changes the data order of every run that is resumed with a newer version.
    assert rows_of(numbered(7).stream(seed=0).take(7)) == [4, 0, 2, 1, 6, 5, 3]
